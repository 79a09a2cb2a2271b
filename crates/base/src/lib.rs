//! Tools for every layer: tasks, drain, limits. They are independent of the domain and open no sockets of their own.

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)
)]

mod abort_signal;
mod account;
mod backoff;
mod clock;
mod coalescing_cache;
mod core_runtimes;
mod descriptors;
mod drain;
mod labels;
mod log_limit;
mod metrics;
mod page;
pub mod random;
mod readiness_tracker;
mod recording_waker;
mod semaphores;
mod tasks;
mod timer_queue;
mod watched_file;

pub use abort_signal::AbortSignal;
pub use account::{MemoryAccount, MemoryCharge};
pub use backoff::{Backoff, BackoffBounds};
pub use clock::{WallClock, now_ns, ns_at, sleep_until_opt};
pub use coalescing_cache::{CoalescingCache, YIELD_EVERY};
pub use core_runtimes::{CoreLoadGuard, CoreRuntimes, CoreWaker, PerCore, RuntimeHeartbeat, main_runtime};
pub use descriptors::{DESCRIPTOR_TRIES, descriptor_requested, is_out_of_descriptors, request_descriptor};
pub use drain::{DrainGuard, DrainTrigger, DrainWatch, InFlightGuard};
pub use log_limit::LogRateLimit;
pub use metrics::describe;
pub use page::AdminPageAddress;
pub use readiness_tracker::{ReadinessGuard, ReadinessTracker, UnreadyComponent};
pub use recording_waker::RecordingWaker;
pub use semaphores::{KeyedSemaphores, RoundRobinPermit, RoundRobinSemaphore, half_core_count};
pub use tasks::BackgroundTasks;
pub use timer_queue::{Timer, TimerQueue, TimerTarget};
pub use watched_file::{FILE_CHECK_INTERVAL, FileLoadError, Reloadable, WatchedFile};

//! Tools for every layer: tasks, drain, limits. They are independent of the domain and open no sockets of their own.

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)
)]

mod abort_signal;
mod account;
mod backoff;
mod clock;
mod cores;
mod descriptors;
mod drain;
mod keyed_semaphores;
mod log_limit;
mod metrics;
mod page;
pub mod random;
mod ready;
mod reloadable;
mod runtime_heartbeat;
mod tasks;
mod timers;
mod turn_queue;
mod wake_flag;
mod watched_file;

pub use abort_signal::AbortSignal;
pub use account::{Account, Charge};
pub use backoff::{Backoff, BackoffBounds};
pub use clock::{WallClock, now_ns, ns_at, until};
pub use cores::{CoreSlot, CoreWaker, Cores, PerCore, home_runtime};
pub use descriptors::{DESCRIPTOR_TRIES, descriptor_wanted, lacks_descriptor, want_descriptor};
pub use drain::{DrainGuard, DrainTrigger, DrainWatch, InFlightGuard};
pub use keyed_semaphores::KeyedSemaphores;
pub use log_limit::LogLimit;
pub use metrics::describe;
pub use page::PageAddress;
pub use ready::{PendingComponent, ReadinessGuard, Ready};
pub use reloadable::Reloadable;
pub use runtime_heartbeat::RuntimeHeartbeat;
pub use tasks::Tasks;
pub use timers::{Timed, Timer, Timers};
pub use turn_queue::{Turn, TurnQueue, TurnWait, half_of_the_cores};
pub use wake_flag::WakeFlag;
pub use watched_file::{LOOK_EVERY, LoadError, WatchedFile};

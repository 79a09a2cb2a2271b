//! Tools for every layer: tasks, drain, limits. They are independent of the domain and open no sockets of their own.

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)
)]

mod account;
mod backoff;
mod clock;
mod cores;
mod cut;
mod descriptors;
mod drain;
mod log_limit;
mod metrics;
mod page;
pub mod random;
mod ready;
mod reloadable;
mod runtime_heartbeat;
mod shares;
mod tasks;
mod timers;
mod turn_queue;
mod wake_flag;
mod watched_file;

pub use account::{Account, Charge};
pub use backoff::{Backoff, Waits};
pub use clock::{WallClock, now_ns, ns_at, until};
pub use cores::{CorePlace, CoreWaker, Cores, PerCore, home_runtime};
pub use cut::Cut;
pub use descriptors::{DESCRIPTOR_TRIES, descriptor_wanted, lacks_descriptor, want_descriptor};
pub use drain::{DrainTrigger, DrainWatch, Draining, UnderWay};
pub use log_limit::LogLimit;
pub use metrics::describe;
pub use page::PagePlace;
pub use ready::{NotReady, Pending, Ready};
pub use reloadable::Reloadable;
pub use runtime_heartbeat::RuntimeHeartbeat;
pub use shares::Shares;
pub use tasks::Tasks;
pub use timers::{Timed, Timer, Timers};
pub use turn_queue::{Turn, TurnQueue, TurnWait, half_of_the_cores};
pub use wake_flag::WakeFlag;
pub use watched_file::{LOOK_EVERY, LoadError, WatchedFile};

//! The tools that every layer may use: tasks, drain, limits. It has no domain words and no sockets.

mod account;
mod backoff;
mod clock;
mod cut;
mod drain;
mod metrics;
mod mutant;
mod ready;
mod reloaded;
mod shares;
mod tasks;
mod turn_queue;
mod wake_flag;

pub use account::{Account, Charge};
pub use backoff::{Backoff, Waits};
pub use clock::{WallClock, now_ns, until};
pub use cut::Cut;
pub use drain::{DrainTrigger, DrainWatch, Draining, UnderWay};
pub use metrics::describe;
pub use mutant::mutant;
pub use ready::{NotReady, Ready};
pub use reloaded::{LOOK_EVERY, LoadError, Reloaded};
pub use shares::Shares;
pub use tasks::Tasks;
pub use turn_queue::{Turn, TurnQueue, TurnWait, half_of_the_cores};
pub use wake_flag::WakeFlag;

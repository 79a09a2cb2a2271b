//! What the proxy is doing: metrics of serving, and the open watches and recent events of the debug pages.

mod active_watches;
pub(crate) mod metrics;
mod watch_end;
mod watch_transport;

pub use active_watches::ActiveWatches;

pub(crate) use active_watches::{RequestSource, WatchDescription};
pub(crate) use watch_end::WatchEnd;
pub(crate) use watch_transport::WatchTransport;

//! Forwards requests that the cache does not answer to upstream, with limits on how many and for how long.

mod coalesce;
mod forwarding;

pub(crate) use forwarding::{Forwarding, unreachable};

//! The demo: an embedded upstream, and a live view of what becomes of its events.
//!
//! Two parts that know nothing of each other. [`upstream()`] starts a small apiserver-alike over an in-memory store;
//! tests use it too, for it can be told to misbehave. [`LiveView`] shows numbers that it is given. Who watches, and
//! through what, is the caller's affair.
//!
//! Invariant: nothing here imports the cache, the serving side or the reflector. Its store, watches, faults and
//! selectors share no logic with what is judged by them. What else a request says is read by `kube`, of which the real
//! control plane is the judge (`tests/conformance`).

mod churn;
mod clock;
mod counts;
mod discovery;
mod faults;
mod form;
mod freeze;
mod http;
mod json;
mod kinds;
mod list;
mod listener;
mod object;
mod objects;
mod options;
mod pods;
mod protobuf;
mod respond;
mod reviews;
mod route;
mod seed;
mod selector;
mod shared;
mod status;
mod store;
mod switches;
mod table;
mod upstream;
mod view;
mod watch;
mod write;

#[cfg(test)]
mod tests;

pub use churn::Churning;
pub use counts::{CountPerResource, RequestCounts};
pub use faults::{Backup, Faults};
pub use options::Options;
pub use pods::Pod;
pub use reviews::{ReviewAnswers, ReviewCounts};
pub use shared::ReceivedRequest;
pub use switches::RequestKind;
pub use upstream::{RunningUpstream, Upstream, upstream};
pub use view::{LiveFigures, LiveView, Summary};

/// A random identifier in the form of a version 4 UUID.
fn uid() -> String {
    let (high, low) = (fastrand::u64(..), fastrand::u64(..));
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        0x8000 | low >> 48 & 0x3fff,
        low & 0xffff_ffff_ffff
    )
}

/// The five characters that a generated name ends in.
fn suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    (0..5).map(|_| char::from(LETTERS[fastrand::usize(..LETTERS.len())])).collect()
}

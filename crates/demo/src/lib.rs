//! The demo: an embedded upstream, and a live view of how its events are delivered.
//!
//! It has two independent parts. [`upstream()`] starts a small apiserver-alike over an in-memory store. Tests use it
//! too, because it can inject faults. [`DemoView`] displays the numbers that it is given. The caller decides which
//! watches to open, and through which server.
//!
//! Invariant: nothing here imports the daemon. The store, watches, faults and selectors share no logic with the code
//! that tests judge by them. The rest of a request is read by `kubeapi`, which is compared with the real control plane
//! (`tests/conformance`).

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)
)]

mod changes;
mod churn;
mod clock;
mod counts;
mod discovery;
mod fault_injector;
mod fault_switches;
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
mod response_form;
mod reviews;
mod route;
mod seed;
mod selector;
mod shared;
mod status;
mod store;
mod table;
mod upstream;
mod view;
mod watch;
mod write;

#[cfg(test)]
mod tests;

pub use changes::{StoreSubscription, StoredChange};
pub use churn::RunningChurn;
pub use counts::{CountPerResource, RequestCounts};
pub use fault_injector::{FaultInjector, StoreBackup};
pub use fault_switches::RequestKind;
pub use options::DemoOptions;
pub use pods::Pod;
pub use reviews::{ReviewCounts, ReviewResponses};
pub use shared::ReceivedRequest;
pub use upstream::{DemoApiserver, RunningDemoApiserver, upstream};
pub use view::{DemoFigures, DemoSummary, DemoView};

/// Returns a random UUID, version 4.
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

/// Returns five random characters: the suffix of a generated name.
fn suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    (0..5).map(|_| char::from(LETTERS[fastrand::usize(..LETTERS.len())])).collect()
}

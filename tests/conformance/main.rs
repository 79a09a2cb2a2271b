//! What clients see through the proxy, compared with a real kube-apiserver and etcd.
//!
//! Every test runs the shipped binary as a process of its own in front of `kube-testbed` (tests/kube/README.md), and
//! compares with the same thing done without the proxy. Figures go to stderr, also for tests that pass. Without a test
//! bed every test says so and passes; with CI=true it fails.

#[allow(dead_code, unused_imports, reason = "the tests of nightly.rs use the rest of it")]
mod bed;
#[allow(dead_code, unused_imports, reason = "the tests of nightly.rs use the rest of it")]
#[path = "../direct/direct/blocks.rs"]
mod blocks;

mod audit;
mod authorization;
mod clients;
mod compression;
mod corpus;
mod custom;
mod custom_life;
mod deploy;
mod differential;
mod estimate;
mod event_scenes;
mod events;
mod expired;
mod fanout;
mod gaps;
mod goaways;
mod guides;
mod hostile;
mod impersonation;
mod informers;
mod install;
mod kubectl;
mod kubelet;
mod lists;
mod neighbouring_names;
mod node_scope;
mod own_rights;
mod pods;
mod readable;
mod representations;
mod representations_hard;
mod restarts;
mod revocation;
mod rewind;
mod rows;
mod scrapes;
mod self_checks;
mod tables;
mod transactions;
mod watches;
mod websocket;

/// How much later than promised something may be. It ends a hang and decides nothing else: the processors of a test
/// machine do other things as well. The nightly tier allows less.
pub const ALLOWANCE: std::time::Duration = std::time::Duration::from_secs(60);

/// `feeds.syncWait` of a proxy whose test does not set it. A busy machine may need longer than the default to fill a
/// feed, and the proxy would pass the request through. The default itself is tested on paused time (tests/direct).
pub const SYNC_WAIT: &str = "60s";

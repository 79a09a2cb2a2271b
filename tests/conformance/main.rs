//! What clients see through the proxy, compared with a real kube-apiserver and etcd.
//!
//! Every test runs the shipped binary in its own process in front of `kube-testbed` (tests/kube/README.md), and
//! compares the result with the same requests sent directly. Figures go to stderr, also for tests that pass. Without a
//! test bed every test reports that and passes; with CI=true it fails.

#[allow(dead_code, unused_imports, reason = "the tests of nightly.rs use the rest of it")]
mod bed;
#[allow(dead_code, unused_imports, reason = "the tests of nightly.rs use the rest of it")]
#[path = "../direct/direct/blocks.rs"]
mod blocks;

mod audit;
mod authorization;
mod clients;
mod compressed_clients;
mod compression;
mod corpus;
mod custom;
mod custom_life;
mod deploy;
mod differential;
mod discovery;
mod discovery_costs;
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
mod in_cluster;
mod informers;
mod install;
mod kubectl;
mod kubelet;
mod lists;
mod local_decisions;
mod named_objects;
mod neighbouring_names;
mod node_scope;
mod own_rights;
mod pods;
mod printed;
mod readable;
mod reduced;
mod reduced_costs;
#[allow(dead_code, reason = "the tests of nightly.rs use the rest of it")]
mod refused_json;
mod representations;
mod representations_hard;
mod restarts;
mod revocation;
mod rewind;
mod rows;
mod scrapes;
mod self_checks;
mod tables;
mod tenants;
mod transactions;
mod verified_tokens;
mod watches;
mod websocket;

/// The tolerance for promised times. It only ends hangs; no test result depends on its length, because a test machine's
/// CPUs are shared. The nightly tier has a lower one.
pub const ALLOWANCE: std::time::Duration = std::time::Duration::from_secs(60);

/// The default `feeds.syncWait` of proxies in these tests. On a busy machine a feed may sync more slowly than the
/// product's default, after which the proxy forwards the request. Tests with paused time (tests/direct) cover that
/// default.
pub const SYNC_WAIT: &str = "60s";

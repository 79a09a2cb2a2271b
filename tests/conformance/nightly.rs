//! The nightly tier of the conformance tests: measurements, storms, long sequences of kills, and searches. `make
//! measured` runs all of it in its short form; `make siege`, `make faults` and others run one module in its long form.
//!
//! These tests may depend on timing. Those of `main.rs` may not.

#[allow(dead_code, unused_imports, reason = "the tests of main.rs use the rest of it")]
mod bed;
#[allow(dead_code, unused_imports, reason = "the tests of main.rs use the rest of it")]
#[path = "../direct/direct/blocks.rs"]
mod blocks;
mod ledger;
#[path = "../direct/direct/records.rs"]
mod records;

mod absent;
mod agents;
mod agents_at_rest;
mod auth_costs;
mod cluster;
mod elections;
mod event_scenes;
mod failover;
mod faults;
mod floods;
mod follower;
mod freshness;
mod hostile;
mod imperfect;
mod informers_of_events;
mod informers_of_secrets;
mod long_outage;
mod neighbours;
mod outages;
mod proxy_restart;
#[allow(dead_code, reason = "the tests of main.rs use the rest of it")]
mod refused_json;
mod representations;
mod rest;
mod restarts;
mod shards;
mod siege;
mod strict_reads;
mod tree;
mod trial;
mod upgrade;
mod verify;

/// The tolerance for promised times, because a test machine's CPUs are shared.
pub const ALLOWANCE: std::time::Duration = std::time::Duration::from_secs(5);

/// The `feeds.syncWait` of proxies whose test does not set it: the product's default.
pub const SYNC_WAIT: &str = "10s";

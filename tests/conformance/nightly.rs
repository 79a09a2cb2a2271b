//! The nightly tier of the conformance tests: what measures, storms, kills for long or searches. `make measured` runs
//! all of it in its short form; `make siege`, `make faults` and others run one module in its long form.
//!
//! These tests may decide by time. `main.rs` is the root of the others, which may not.

#[allow(dead_code, unused_imports, reason = "the tests of main.rs use the rest of it")]
mod bed;
#[allow(dead_code, unused_imports, reason = "the tests of main.rs use the rest of it")]
#[path = "../direct/direct/blocks.rs"]
mod blocks;
mod ledger;
#[path = "../direct/direct/records.rs"]
mod records;

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
mod neighbours;
mod outages;
mod proxy_restart;
mod representations;
mod rest;
mod restarts;
mod siege;
mod tree;
mod trial;
mod upgrade;
mod verify;

/// How much later than promised something may be, because the processors of a test machine do other things as well.
pub const ALLOWANCE: std::time::Duration = std::time::Duration::from_secs(5);

/// `feeds.syncWait` of a proxy whose test does not set it: the default.
pub const SYNC_WAIT: &str = "10s";

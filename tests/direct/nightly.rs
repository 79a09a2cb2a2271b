//! The nightly tier of the direct tests: what measures, floods or searches (`make measured`).
//!
//! These tests may decide by time. `main.rs` is the root of the others, which may not.

#[allow(dead_code, unused_imports, reason = "the tests of main.rs use the rest of it")]
mod direct;
#[allow(dead_code, reason = "the tests of main.rs use the rest of it")]
mod process;

mod bench;
mod chaos;
mod deadlines;
#[allow(dead_code, reason = "the tests of main.rs use the rest of it")]
mod drain;
mod drain_storms;
mod gets;
mod handshakes;
mod memory;
mod quiet;
mod rebalance;
mod rolling;
#[allow(dead_code, reason = "the tests of main.rs use the rest of it")]
mod stuck;
mod stuck_times;
mod trial_kills;
mod unread_tunnels;
mod verify;

/// How much later than promised something may be, because the processors of a test machine do other things as well.
pub const ALLOWANCE: std::time::Duration = std::time::Duration::from_secs(5);

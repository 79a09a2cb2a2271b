//! The nightly tier of the direct tests: measurements, floods and searches (`make measured`).
//!
//! These tests may depend on time. `main.rs` is the root of the others, which may not.

#[allow(dead_code, unused_imports, reason = "the tests of main.rs use the rest of it")]
mod direct;
#[allow(dead_code, reason = "the tests of main.rs use the rest of it")]
mod process;
#[allow(dead_code, reason = "the tests of main.rs use the rest of it")]
mod shut;

/// Floods of frames that an upstream sends, and their helpers.
mod foul_frames {
    mod floods;
    #[allow(dead_code, reason = "the tests of main.rs use the rest of it")]
    mod relay;
}
/// Floods of frames that a client sends, and their helpers.
#[allow(dead_code, reason = "the tests of main.rs use the rest of it")]
mod http2 {
    mod floods;
    pub mod frames;
    pub mod hpack;
    pub mod rows;
    mod wire;
}

mod bench;
mod chaos;
mod deadlines;
#[allow(dead_code, reason = "the tests of main.rs use the rest of it")]
mod drain;
mod drain_storms;
mod handshakes;
mod memory;
mod quiet;
mod rebalance;
mod rolling;
#[allow(dead_code, reason = "the tests of main.rs use the rest of it")]
mod stuck;
mod stuck_times;
#[allow(dead_code, reason = "the tests of main.rs use the rest of it")]
mod tree;
mod tree_costs;
mod trial_kills;
mod unread_memory;
mod unread_tunnels;
mod verify;

/// How much later than promised something may happen, because the processors of a test machine do other work as well.
pub const ALLOWANCE: std::time::Duration = std::time::Duration::from_secs(5);

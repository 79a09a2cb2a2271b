//! Simulation: the whole application and the demo upstream in one runtime on virtual time, with every connection in
//! memory, so that all that happens follows from a seed.
//!
//! ```text
//! a seed ─► Plan (who reads and writes, what breaks and when), Delays (how long tasks linger at failpoints)
//!             └─► Simulation: Clientele ─► Network ─► application ─► Network ─► demo upstream ─► truth
//!                               └──────────────► records ─► the judges of verify ◄───────────┘
//! many seeds ─► Tally: how much was judged, what was broken how often, which failpoints were passed
//! ```

// Without failpoints, as in a release, what happens does not follow from a seed.
#![cfg(debug_assertions)]

mod chosen;
mod excuses;
mod failpoints;
mod faults;
mod network;
mod panics;
mod plan;
mod run;
mod seeds;
mod tally;
mod trace;

//! Simulation: the whole application and the demo upstream in one runtime on virtual time, with all connections in
//! memory, so that everything follows from a seed.
//!
//! ```text
//! a seed ─► Plan (clients, writers, faults and their times), tokio's choices among branches and tasks
//!             └─► Simulation: Clientele ─► Network ─► application ─► Network ─► demo upstream ─► truth
//!                               └──────────────► records ─► the checkers of verify ◄─────────┘
//! many seeds ─► Tally: how much was judged, what was broken how often
//! ```

mod chosen;
mod excuses;
mod faults;
mod network;
mod panics;
mod plan;
mod run;
mod seeds;
mod tally;
mod trace;

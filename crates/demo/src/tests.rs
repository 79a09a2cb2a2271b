//! Tests the upstream request by request, over real sockets; in memory where the clock is paused.

mod client;
mod faults;
mod reads;
mod watches;
mod writes;

use client::{Client, Lines};

//! Tests the upstream over real sockets, request by request.

mod client;
mod faults;
mod reads;
mod watches;
mod writes;

use client::{Client, Lines};

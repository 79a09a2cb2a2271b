//! Tests of LIST responses: pages, encodings, compression and their limits.

mod lists;
mod waiting;

//! The cache compared with a simple model, and tests of its single guarantees.
//!
//! `model` states in a few lines the guarantees of docs/DIFFERENCES.md; `world` runs the real cache beside it and
//! compares after every step. `random` and `exhaustive` choose the steps; the other files are tables of single
//! guarantees.

mod backfill;
mod boundary;
mod chunks;
mod confirmed;
mod event_content;
mod eviction;
mod exhaustive;
pub(crate) mod fixture;
mod lanes;
mod model;
mod paging;
mod pinned;
mod random;
mod renewals;
mod siblings;
mod single_flight;
mod sizes;
mod staging;
mod threads;
mod wakeups;
mod want;
mod world;

//! The cache held against a model that is obviously right, and its promises one by one.
//!
//! `model` says in a few lines what docs/DIFFERENCES.md promises; `world` runs the real cache beside it and compares
//! after every step. `random` and `exhaustive` choose the steps; the other files are tables of single promises.

mod boundary;
mod chunks;
mod confirmed;
mod eviction;
mod exhaustive;
pub(crate) mod fixture;
mod lanes;
mod model;
mod paging;
mod pinned;
mod prehistory;
mod random;
mod renewals;
mod siblings;
mod single_flight;
mod sizes;
mod staging;
mod threads;
mod truth;
mod wakeups;
mod want;
mod world;

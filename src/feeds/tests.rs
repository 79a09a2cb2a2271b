//! The registry, what it remembers of feeds that are over, and the memory that all of them share.

mod budget;
mod feed_key;
mod freshness;
mod registry;
mod releases;

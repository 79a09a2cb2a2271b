//! The registry, its records of ended feeds, and the memory that all feeds share.

mod budget;
mod feed_key;
mod freshness;
mod registry;
mod releases;

//! kube-fanout: one upstream Kubernetes watch, thousands of unmodified clients.
//!
//! ```text
//! net ─► upstream::UpstreamClient ─► wire (frames, objects) ─► reflect::Reflector ─► cache::CacheWriter
//!                                                                                    store + ring + lanes
//!        net ◄─ serve::{WatchBody, ListBody, websocket} ◄─ cache::{FeedCursor, FeedSnapshot} ◄┘
//! ```
//!
//! The modules are listed in reading order, which is also the order of the layers. A module may use only modules of
//! lower layers (checked by `tests/tidy.rs`; see ARCHITECTURE.md).

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)
)]

// Layer 0: the crates `base` and `kubeapi`
// Layer 1
pub mod net;
pub mod wire;
// Layer 2
pub mod cache;
pub mod upstream;
// Layer 3
pub mod feeds;
pub mod preflight;
// Layer 4
pub mod auth;
pub mod reflect;
// Layer 5
pub mod listing;
// Layer 6
pub mod admin;
pub mod serve;
// Layer 7
pub mod config;
// Layer 8
pub mod app;
// Layer 9
pub mod cli;

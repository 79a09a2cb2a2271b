//! kube-fanout: one upstream Kubernetes watch, thousands of unmodified clients.
//!
//! ```text
//! net ─► upstream::Client ─► wire (frames, objects) ─► reflect::Reflector ─► cache::CacheWriter
//!                                                                             store + ring + lanes
//!        net ◄─ serve::{WatchBody, ListBody, websocket} ◄─ cache::{Cursor, Snapshot} ◄──┘
//! ```
//!
//! Modules in reading order, which is the order of the layers: each may use those above it in this list that are of a
//! lower layer, and nothing else (`tests/tidy.rs`; ARCHITECTURE.md).

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)
)]

// Layer 0
pub mod base;
pub mod kube;
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
// Beside the layers: the demo upstream shares no logic with what it is served through.
#[cfg(feature = "demo")]
pub mod demo;
// What stands outside of the proxy as well, and talks to it: as the bench, which shares no logic with what it measures.
#[cfg(feature = "bench")]
pub mod bench;
#[cfg(feature = "probe")]
#[cfg_attr(
    not(all(feature = "bench", feature = "verify", feature = "inspect", feature = "trial")),
    allow(dead_code, unused_imports, reason = "each of them uses a part of it")
)]
pub mod probe;
// A control plane, a proxy and informers on one machine, which may be killed.
#[cfg(feature = "trial")]
pub mod trial;
// What operators ask running proxies with.
#[cfg(feature = "inspect")]
pub mod inspect;
// As what verifies shares none with what it judges.
#[cfg(feature = "verify")]
pub mod verify;

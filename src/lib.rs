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

// L0
pub mod base;
pub mod kube;
// L1
pub mod net;
pub mod wire;
// L2
pub mod cache;
pub mod upstream;
// L3
pub mod auth;
pub mod reflect;
// L4
pub mod admin;
pub mod serve;
// L5
pub mod config;
// L6
pub mod app;
// Beside the layers: the demo upstream shares no logic with what it is served through.
pub mod demo;
// As the bench shares none with what it measures.
pub mod bench;

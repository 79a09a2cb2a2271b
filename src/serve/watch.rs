//! Watches: opens them at the right position of a feed, and streams their events over HTTP or WebSocket.
//!
//! ```text
//! WatchOpener: permit ─► first row ─► feed ─► wait_ready ─► history ─► namespaces
//!              └► WatchSession ─► WatchBody | websocket::run
//! ```

mod body;
mod initial_rows;
mod opener;
mod session;
pub mod websocket;

pub(crate) use opener::WatchOpener;

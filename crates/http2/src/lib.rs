//! The server's end of HTTP/2 (RFC 9113), designed for connections that mostly carry watches. An idle connection keeps
//! no buffer, and an event is copied at most once between the cache and a TLS record.
//!
//! ```text
//! bytes ─► input ─► receive ─► streams ─► send ─► output ─► bytes
//!          frames   requests   answers    frames  one write a turn
//! ```
//!
//! [`Http2Connection`] runs a connection and all its streams as one task, and passes its requests to an
//! [`HttpService`]. It opens no sockets, spawns no tasks and knows no callers: the service reports whether the caller
//! is known. The task that calls [`Http2Connection::poll`] may limit each poll to a slice of time
//! ([`WakeSet::limit_turn`]).
//!
//! # Threat model
//!
//! The client is not trusted, and may never be authenticated. Pure functions parse its bytes (`frame`, `hpack`,
//! `request_head`): no input panics, and no allocation follows a length that a client claims. A protocol error ends its
//! stream or the connection, with the error code that the RFC names. Everything that a client can make the server keep
//! or do has a limit (RFC 9113 §10.5):
//!
//! | Attack | Limit | If exceeded |
//! |---|---|---|
//! | Streams that are opened and reset at once, or that the server must reset ("rapid reset") | `ClientAbuseBudget`: each costs one frame without use | The connection ends |
//! | PING, SETTINGS, PRIORITY and empty DATA frames, and `WINDOW_UPDATE` frames that no data accounts for | `ClientAbuseBudget`: 1,000 at once, 200 per second | The connection ends |
//! | Concurrent streams | [`Http2Limits::streams_max`] | The stream is refused |
//! | Header blocks without end (CONTINUATION) | Twice [`Http2Limits::header_bytes_max`]; [`Http2Limits::header_max`] of time | The connection ends |
//! | Small header blocks that expand (HPACK) | [`Http2Limits::header_bytes_max`], which counts decoded fields and 32 bytes for each | Status 431 |
//! | Unfinished header blocks on many connections | [`RequestHeadBudget`]: 16 KiB per connection, then 16 MiB per listener | The connection ends |
//! | Large request heads that wait for a response | [`RequestHeadBudget`]: 512 KiB per connection, 32 MiB per listener | The stream is refused |
//! | Responses that the client does not read | 128 KiB of output per connection, and no body is polled without room; [`RequestHeadBudget`] for heads | Bodies wait, reading pauses, streams with large heads are reset |
//! | Uploads that are not read | Flow-control windows: 256 KiB per stream, 1 MiB per connection | A flow-control error |
//! | Many requests before authentication | One at a time ([`HttpService::is_caller_unknown`]) | The next request waits |
//! | A connection that occupies a thread | Bytes, reads and turns per poll; [`WakeSet::limit_turn`] | The rest waits for the next poll |
//! | A client that is gone | A PING after [`Http2Limits::ping_after`], and the same time for its reply | The connection ends |
//!
//! Limits on the number of connections, TLS, idle connections and fairness between callers are the user's part.

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)
)]

mod abuse_budget;
mod connection;
mod error;
mod exchange;
mod frame;
mod head_budget;
mod hpack;
mod huffman;
mod input;
mod output;
mod receive;
mod received_body;
mod request_head;
mod response_head;
mod send;
mod service;
mod static_table;
#[cfg(test)]
mod tests;
mod wake_set;
mod windows;

pub use connection::{Http2Connection, Http2Limits};
pub use error::Http2ConnectionError;
pub use head_budget::{ConnectionHeadBudget, RequestHeadBudget};
pub use received_body::{IncompleteBodyError, ReceivedBody};
pub use service::{HttpService, IdleAwareBody};
pub use wake_set::{ConnectionWakeTarget, WakeSet};

/// The client connection preface (RFC 9113 §3.4). It must be read before a [`Http2Connection`] is created.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

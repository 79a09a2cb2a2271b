//! The server's end of HTTP/2 (RFC 9113), written for connections that are mostly watches: one that is idle keeps no
//! buffer, and an event goes from where it is kept into a TLS record by one copy at most.
//!
//! ```text
//! bytes ─► input ─► receive ─► streams ─► send ─► output ─► bytes
//!          frames   requests   answers    frames  one write a turn
//! ```
//!
//! What a client sends is read by pure functions ([`frame`], [`hpack`], [`request_head`]), and whatever breaks a rule
//! ends its stream or the connection, with the reason that the rule names. What it may make us keep has a limit: bytes
//! of a header block, streams, windows of what it uploads, what waits for it to read, and what brings nothing
//! ([`patience`]).

mod abuse_budget;
mod answer;
mod connection;
mod exchange;
mod fault;
mod frame;
mod hpack;
mod huffman;
mod input;
mod output;
mod receive;
mod request_head;
mod send;
mod static_table;
#[cfg(test)]
mod tests;
mod windows;

pub(super) use connection::Http2;
#[cfg(test)]
pub(super) use connection::Http2Limits;

/// What a client begins with (RFC 9113 §3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

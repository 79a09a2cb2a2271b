//! The server's end of HTTP/2 (RFC 9113), designed for connections that mostly carry watches. An idle connection keeps
//! no buffer, and an event is copied at most once between the cache and a TLS record.
//!
//! ```text
//! bytes ─► input ─► receive ─► streams ─► send ─► output ─► bytes
//!          frames   requests   answers    frames  one write a turn
//! ```
//!
//! Pure functions parse the client's bytes ([`frame`], [`hpack`], [`request_head`]). A protocol error ends its stream
//! or the connection, with the error code that the RFC names. Everything that a client can make the server keep has a
//! limit: header blocks, streams, upload windows, responses that wait for it to read, and useless frames
//! ([`abuse_budget`]).

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

/// The client connection preface (RFC 9113 §3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

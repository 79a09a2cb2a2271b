//! The HTTP/2 server as its peers see it: raw frames, judged by RFC 9113 and RFC 7541 alone. Nothing here knows how the
//! server is written.

mod compression;
pub mod frames;
mod framing;
mod h2spec;
pub mod hpack;
mod preface;
mod requests;
mod rows;
mod strangers;
mod streams;
mod windows;
mod wire;

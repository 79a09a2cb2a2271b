//! The HTTP/2 server as its peers see it: raw frames, judged by RFC 9113 and RFC 7541 alone. These tests do not depend
//! on the server's implementation.

mod compression;
pub mod frames;
mod framing;
mod h2spec;
pub mod hpack;
mod hyper;
mod preface;
mod requests;
mod rows;
mod strangers;
mod streams;
mod windows;
mod wire;

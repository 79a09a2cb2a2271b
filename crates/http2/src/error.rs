use std::io;

/// An error code of HTTP/2 (RFC 9113 §7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Http2ErrorCode {
    No = 0x0,
    Protocol = 0x1,
    Internal = 0x2,
    FlowControl = 0x3,
    StreamClosed = 0x5,
    FrameSize = 0x6,
    Refused = 0x7,
    Cancel = 0x8,
    Compression = 0x9,
    EnhanceYourCalm = 0xb,
}

/// An error that the client has caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Http2Error {
    /// The error ends the connection. The text gives the cause in the log.
    Connection(Http2ErrorCode, &'static str),
    /// The error resets one stream, with this error code.
    Stream(u32, Http2ErrorCode),
}

/// The reason that a connection has ended early.
#[derive(Debug, thiserror::Error)]
pub enum Http2ConnectionError {
    #[error("HTTP/2 protocol error: {0}")]
    Rule(&'static str),
    #[error("the client did not acknowledge a PING in time")]
    PingTimeout,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Http2Error {
    pub(super) const fn protocol(what: &'static str) -> Self {
        Self::Connection(Http2ErrorCode::Protocol, what)
    }
}

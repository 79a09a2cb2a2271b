use std::io;

/// Why a stream or a connection ends, as HTTP/2 numbers it (RFC 9113 §7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Reason {
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

/// What a client has broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection ends. The text says what for, to whoever reads our log.
    Connection(Reason, &'static str),
    /// That stream is reset.
    Stream(u32, Reason),
}

/// Why a connection has ended before its time.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the client broke a rule of HTTP/2: {0}")]
    Rule(&'static str),
    #[error("the client did not answer a ping")]
    Dead,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Fault {
    pub(super) const fn protocol(what: &'static str) -> Self {
        Self::Connection(Reason::Protocol, what)
    }
}

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The limits of one connection (I2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionLimits {
    pub connections_max: usize,
    pub handshake_max: Duration,
    /// The time until the first request has arrived. Apiservers close idle connections after the same time.
    pub first_request_max: Duration,
    /// The time from a response to the next request if no other is running, as in apiservers.
    pub idle_max: Duration,
    /// The time from the first bytes of a request head until it is complete.
    pub header_max: Duration,
    /// The maximum size of a request head in bytes; a larger one gets 431. In HTTP/2 each field counts 32 more
    /// (RFC 9113 §6.5.2).
    pub header_bytes_max: u32,
    /// The maximum number of concurrent streams of one HTTP/2 connection.
    pub streams_max: u32,
    /// The age at which a connection is closed gracefully, with a jitter of 10%. Zero means never.
    ///
    /// The client then reconnects with current certificates, and perhaps to another replica. Running requests are not
    /// aborted.
    pub connection_age_max: Duration,
    /// How long an HTTP/2 client may send nothing before the proxy pings it. The connection ends if no reply arrives
    /// within the same time.
    pub ping_after: Duration,
    pub http2_codec: Http2Codec,
}

/// The implementation that serves HTTP/2 connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Http2Codec {
    /// The workspace's own crate `http2`.
    #[default]
    Own,
    Hyper,
}

/// The default maximum size of a request head in bytes (docs/DIFFERENCES.md, "Connections"): room for a token and a
/// selector of 16 KiB each. The apiserver accepts 1 MiB; here all unfinished heads of a listener share 16 MiB.
const HEADER_BYTES_MAX: u32 = 64 << 10;

impl From<&ConnectionLimits> for http2::Http2Limits {
    fn from(limits: &ConnectionLimits) -> Self {
        Self {
            streams_max: limits.streams_max as usize,
            header_bytes_max: limits.header_bytes_max as usize,
            header_max: limits.header_max,
            ping_after: limits.ping_after,
        }
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections_max: 20_000,
            handshake_max: Duration::from_secs(10),
            first_request_max: Duration::from_secs(90),
            idle_max: Duration::from_secs(90),
            header_max: Duration::from_secs(10),
            header_bytes_max: HEADER_BYTES_MAX,
            streams_max: 250,
            connection_age_max: Duration::from_secs(3600),
            ping_after: Duration::from_secs(30),
            http2_codec: Http2Codec::default(),
        }
    }
}

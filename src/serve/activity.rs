//! What the proxy is doing: metrics of serving, and the open watches and recent events of the debug pages.

mod active_watches;
pub(crate) mod metrics;

pub use active_watches::ActiveWatches;

pub(crate) use active_watches::UserAndAgent;

base::labelled_enum! {
    /// The protocol that frames the events of a watch.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub(crate) enum WatchTransport {
        Http1 = "h1",
        Http2 = "h2",
        WebSocket = "websocket",
    }
}

/// The reason that a watch has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchEndReason {
    /// Its timeout expired.
    Timeout,
    /// The watch's position left the history, or its feed started a new history: 410.
    Expired,
    /// The state that the watch requested did not become available in time: 504.
    TooLarge,
    /// Its feed has ended.
    FeedEnded,
    /// The feed can no longer be converted to the watch's representation: the client resumes from another feed.
    NotDerivable,
    /// The client may not read any more: 403 or 401.
    Revoked,
    /// Another build of the apiserver encodes later events, and a downstream proxy must know the build.
    UpstreamUpgraded,
    /// The feed ended because the proxy is shutting down.
    Drained,
    /// The client closed the watch.
    ClientClosed,
    /// The watch was aborted by another part of the proxy, for the given reason.
    Aborted(&'static str),
}

impl WatchEndReason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Expired => "expired",
            Self::TooLarge => "too_large",
            Self::FeedEnded => "feed_ended",
            Self::NotDerivable => "not_derivable",
            Self::Revoked => "revoked",
            Self::UpstreamUpgraded => "upstream_upgraded",
            Self::Drained => "drained",
            Self::ClientClosed => "client_closed",
            Self::Aborted(reason) => reason,
        }
    }
}

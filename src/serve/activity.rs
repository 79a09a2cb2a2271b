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

base::labelled_enum! {
    /// The reason that a watch has ended. Another part of the proxy may also abort it, for a reason of its own.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum WatchEndReason {
        /// Its timeout expired.
        Timeout = "timeout",
        /// The watch's position left the history, or its feed started a new history: 410.
        Expired = "expired",
        /// The state that the watch requested did not become available in time: 504.
        TooLarge = "too_large",
        /// Its feed has ended.
        FeedEnded = "feed_ended",
        /// The feed can no longer be converted to the watch's representation: the client resumes from another feed.
        NotDerivable = "not_derivable",
        /// The client may not read any more: 403 or 401.
        Revoked = "revoked",
        /// Another build of the apiserver encodes later events, and a downstream proxy must know the build.
        UpstreamUpgraded = "upstream_upgraded",
        /// The feed ended because the proxy is shutting down.
        Drained = "drained",
        /// The client closed the watch.
        ClientClosed = "client_closed",
    }
}

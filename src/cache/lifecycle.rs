use tokio::time::Instant;

/// The state of a feed: whether requests can be served from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedState {
    /// The first list is not complete.
    Syncing,
    /// Upstream's watch is open, so the cache follows changes.
    Live,
    /// The watch was open until `since`; the cache may lag behind upstream from then on.
    Stale { since: Instant },
    /// The feed has ended; readers use another feed, or their requests are forwarded to upstream.
    Ended(FeedEndReason),
}

base::labelled_enum! {
    /// The reason that a feed has ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum FeedEndReason {
        /// Upstream denies the proxy's identity access to the resource.
        Forbidden = "forbidden",
        /// Upstream does not serve the resource, or no longer does.
        Gone = "gone",
        /// Upstream does not offer the resource in the feed's encoding.
        NotOffered = "not_offered",
        /// The resourceVersions are not numbers, or the objects do not decode.
        Unreadable = "unreadable",
        /// The feed does not fit into the memory budget for feeds.
        OverBudget = "over_budget",
        /// The resource's definition has changed, and another feed replaces this one.
        Outdated = "outdated",
        /// The feed had no readers for longer than the idle timeout.
        Idle = "idle",
        /// The feed ended because the proxy is shutting down.
        Shutdown = "shutdown",
    }
}

impl FeedEndReason {
    /// Returns whether an immediate retry would end the same way.
    pub fn is_refusal(self) -> bool {
        matches!(self, Self::Forbidden | Self::Gone | Self::NotOffered | Self::Unreadable | Self::OverBudget)
    }
}

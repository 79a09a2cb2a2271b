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

/// The reason that a feed has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedEndReason {
    /// Upstream denies the proxy's identity access to the resource.
    Forbidden,
    /// Upstream does not serve the resource, or no longer does.
    Gone,
    /// Upstream does not offer the resource in the feed's encoding.
    NotOffered,
    /// The resourceVersions are not numbers, or the objects do not decode.
    Unreadable,
    /// The feed does not fit into the memory budget for feeds.
    OverBudget,
    /// The resource's definition has changed, and another feed replaces this one.
    Outdated,
    /// The feed had no readers for longer than the idle timeout.
    Idle,
    /// The feed ended because the proxy is shutting down.
    Shutdown,
}

impl FeedEndReason {
    /// Returns whether an immediate retry would end the same way.
    pub fn is_refusal(self) -> bool {
        matches!(self, Self::Forbidden | Self::Gone | Self::NotOffered | Self::Unreadable | Self::OverBudget)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forbidden => "forbidden",
            Self::Gone => "gone",
            Self::NotOffered => "not_offered",
            Self::Unreadable => "unreadable",
            Self::OverBudget => "over_budget",
            Self::Outdated => "outdated",
            Self::Idle => "idle",
            Self::Shutdown => "shutdown",
        }
    }
}

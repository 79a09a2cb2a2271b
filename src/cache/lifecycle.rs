use tokio::time::Instant;

/// Whether a feed can be served from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedState {
    /// There is no complete state yet.
    Syncing,
    /// Upstream's stream is open.
    Live,
    /// The stream was open until `since`; from then on the cache may lag behind.
    Stale { since: Instant },
    /// The feed is over; readers look for another one or pass through.
    Ended(FeedEnd),
}

/// Why a feed is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedEnd {
    /// Upstream does not let our identity read it.
    Forbidden,
    /// Upstream does not know the resource, or not any more.
    Gone,
    /// Upstream does not offer the resource in this encoding.
    NotOffered,
    /// Its resourceVersions are not numbers, or its objects do not decode.
    Unreadable,
    /// It does not fit into the memory that feeds may take.
    OverBudget,
    /// The resource's definition has changed, and another feed takes this one's place.
    Outdated,
    /// Nobody has read it for a while.
    Idle,
    /// The proxy stops.
    Shutdown,
}

impl FeedEnd {
    /// Whether trying again at once would end the same way.
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

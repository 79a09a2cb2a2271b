use tokio::time::Instant;

/// Whether a feed can be served from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedState {
    /// No complete state yet.
    Syncing,
    /// Upstream's stream is open.
    Live,
    /// It was open; since then the cache may lag behind.
    Stale { since: Instant },
    /// The feed is over; readers look for another one or pass through.
    Ended(FeedEnd),
}

/// Why a feed is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedEnd {
    /// Upstream does not let our identity read it.
    Forbidden,
    /// Upstream does not know the resource (any more).
    Gone,
    /// Upstream does not offer this form of it.
    NotOffered,
    /// Its resourceVersions are not numbers, or its objects do not decode.
    Unreadable,
    /// It does not fit into the memory that feeds may take.
    OverBudget,
    /// What it reads no longer fits the resource: another one takes its place.
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

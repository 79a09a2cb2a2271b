/// Why a watch has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchEnd {
    /// Its time was up.
    Timeout,
    /// Its position left the ring, or its feed started a new history: 410.
    Expired,
    /// The state that it asked for did not come: 504.
    TooLarge,
    /// Its feed has ended.
    FeedEnded,
    /// Its representation can no longer be derived: the client goes on from another feed.
    Underivable,
    /// Its client may not read any more: 403 or 401.
    Revoked,
    /// A proxy has to be told that another build of the apiserver writes what it is told from now on.
    Upgraded,
    /// The proxy is going away.
    Drained,
    /// The client went away.
    Closed,
    /// It was cut from outside, for this reason.
    Cut(&'static str),
}

impl WatchEnd {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Expired => "expired",
            Self::TooLarge => "too_large",
            Self::FeedEnded => "feed_ended",
            Self::Underivable => "underivable",
            Self::Revoked => "revoked",
            Self::Upgraded => "upgraded",
            Self::Drained => "drained",
            Self::Closed => "closed",
            Self::Cut(why) => why,
        }
    }
}

/// Why a watch has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchEnd {
    /// Its timeout expired.
    Timeout,
    /// Its position left the history, or its feed started a new history: 410.
    Expired,
    /// The requested state did not arrive in time: 504.
    TooLarge,
    /// Its feed has ended.
    FeedEnded,
    /// Its representation can no longer be derived; the client resumes from another feed.
    Underivable,
    /// Its client's permission was revoked: 403 or 401.
    Revoked,
    /// Another build of the apiserver now writes the objects, and the downstream proxy must learn about it.
    Upgraded,
    /// The proxy is draining.
    Drained,
    /// The client disconnected.
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

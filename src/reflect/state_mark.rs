use std::sync::atomic::Ordering;

use crate::feeds::Feed;

/// What has come to a feed so far: between two equal marks its objects have not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct StateMark {
    pub(super) history: u64,
    events: u64,
}

impl StateMark {
    pub(super) fn of(feed: &Feed) -> Self {
        Self { history: feed.reader.history(), events: feed.counts.events.load(Ordering::Relaxed) }
    }
}

//! One request with its results.

use super::digest::ContentDigest;
use super::interner::ObjectKeyId;
use super::parsed_request::{ExpectedReadVersion, ParsedRequest};
use super::record::{
    OperationId, ReadVerb, RecordedEncoding, RecordedEventType, RecordedStatus, RequestServerRole, WatchEnding,
};
use super::view::{ObjectStateFingerprint, SelectionView};

/// An object of an event or an item, a bookmark, or an error.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedItem {
    pub(super) at_ns: u64,
    pub(super) version: u64,
    pub(super) digest: Option<ContentDigest>,
    pub(super) bytes: Option<ContentDigest>,
    pub(super) key: ObjectKeyId,
    /// The index of the change in the true history; [`u32::MAX`] if there is none with that key and version.
    change: u32,
    pub(super) line: u32,
    pub(super) kind: RecordedEventType,
    /// Whether the event is the bookmark that ends the initial events.
    pub(super) initial_end: bool,
}

impl ReceivedItem {
    pub(super) fn new(at_ns: u64, line: u32, kind: RecordedEventType, key: ObjectKeyId, version: u64) -> Self {
        let (digest, bytes, change, initial_end) = (None, None, u32::MAX, false);
        Self { at_ns, version, digest, bytes, key, change, line, kind, initial_end }
    }

    pub(super) fn change(&self) -> Option<u32> {
        (self.change != u32::MAX).then_some(self.change)
    }

    pub(super) fn set_change(&mut self, change: Option<u32>) {
        self.change = change.unwrap_or(u32::MAX);
    }

    /// Whether the event concerns an object; bookmarks and errors do not.
    pub(super) fn is_object(&self) -> bool {
        !matches!(self.kind, RecordedEventType::Bookmark | RecordedEventType::Error)
    }

    pub(super) fn is_bookmark(&self) -> bool {
        self.kind == RecordedEventType::Bookmark
    }
}

/// The head of a response and, unless it is a watch, its content.
#[derive(Clone, Debug)]
pub(super) struct ReceivedResponse {
    pub(super) at_ns: u64,
    pub(super) line: u32,
    pub(super) code: u16,
    pub(super) version: Option<u64>,
    pub(super) encoding: Option<RecordedEncoding>,
    /// Whether the server marked the response as one from its cache.
    pub(super) from_memory: bool,
    pub(super) items: Vec<ReceivedItem>,
    pub(super) more: bool,
    pub(super) remaining: Option<u64>,
    pub(super) status: RecordedStatus,
}

/// How and when a watch ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedWatchEnd {
    pub(super) at_ns: u64,
    pub(super) how: WatchEnding,
    pub(super) line: u32,
}

/// One request of a client with its results.
#[derive(Clone, Debug)]
pub(super) struct RecordedOperation {
    pub(super) op: OperationId,
    pub(super) client: u32,
    pub(super) at_ns: u64,
    pub(super) line: u32,
    pub(super) verb: ReadVerb,
    pub(super) server: RequestServerRole,
    pub(super) encoding: RecordedEncoding,
    pub(super) resumes: Option<OperationId>,
    /// The parsed request; `None` if it is not understood, and so not judged.
    pub(super) request: Option<ParsedRequest>,
    pub(super) answer: Option<ReceivedResponse>,
    pub(super) events: Vec<ReceivedItem>,
    /// The Statuses of the error events, in order.
    pub(super) errors: Vec<RecordedStatus>,
    pub(super) over: Option<RecordedWatchEnd>,
    /// The index of the resource's true history, if there is one.
    pub(super) truth: Option<usize>,
    /// The index of the view of the selection, for a list or a watch.
    pub(super) view: Option<usize>,
    /// The index of the first event after the initial ones and their bookmark.
    pub(super) live_from: usize,
    /// The version of the state in the initial events. `None` if there are none, or if it cannot be determined.
    pub(super) state: Option<u64>,
    /// Whether the initial events are complete but are not the state at any version.
    pub(super) is_no_state: bool,
}

impl RecordedOperation {
    /// Returns the version after which the watch's live events begin; `None` if it is unknown.
    pub(super) fn start(&self) -> Option<u64> {
        match self.request.as_ref()?.plan {
            ExpectedReadVersion::Behind(version) => Some(version),
            ExpectedReadVersion::State(_) => self.state,
            _ => None,
        }
    }

    /// Returns the events after the initial ones and their bookmark.
    pub(super) fn live(&self) -> &[ReceivedItem] {
        &self.events[self.live_from..]
    }

    /// Returns the initial events, without the bookmark that ends them.
    pub(super) fn initial(&self) -> &[ReceivedItem] {
        match self.events[..self.live_from].split_last() {
            Some((end, initial)) if end.initial_end => initial,
            _ => &self.events[..self.live_from],
        }
    }

    pub(super) fn answered(&self, code: u16) -> Option<&ReceivedResponse> {
        self.answer.as_ref().filter(|answer| answer.code == code)
    }

    /// Returns the time of the operation's last result.
    pub(super) fn last_ns(&self) -> Option<u64> {
        let over = self.over.map(|over| over.at_ns);
        let answer = self.answer.as_ref().filter(|_| self.verb != ReadVerb::Watch).map(|answer| answer.at_ns);
        over.or(answer)
    }

    /// Finds the end of the initial events, which is the bookmark that marks it. If none was requested, it is before
    /// the first event that cannot be initial. The end is chosen such that the initial events are the state at some
    /// version.
    pub(super) fn find_state(&mut self, view: Option<&SelectionView>, known: impl Fn(u64) -> bool) {
        let Some(request) = &self.request else { return };
        if !matches!(request.plan, ExpectedReadVersion::State(_)) {
            return;
        }
        if let Some(end) = self.events.iter().position(|event| event.initial_end) {
            self.live_from = end + 1;
            self.state = Some(self.events[end].version);
            return;
        }
        // Initial events are in the order of keys, and are ADDED.
        let ordered = |pair: &[ReceivedItem]| pair[1].kind == RecordedEventType::Added && pair[0].key < pair[1].key;
        let first = self.events.first().is_some_and(|event| event.kind == RecordedEventType::Added);
        let longest = if first { 1 + self.events.windows(2).take_while(|pair| ordered(pair)).count() } else { 0 };
        self.live_from = longest;
        if self.events.get(longest).is_none_or(|event| event.kind == RecordedEventType::Error) {
            return;
        }
        let (Some(view), false) = (view, request.bookmarks && request.explicit) else { return };
        let mut sums = vec![ObjectStateFingerprint::default()];
        for event in &self.events[..longest] {
            let mut sum = sums[sums.len() - 1];
            sum.add(event.key, event.version);
            sums.push(sum);
        }
        let before = |at: usize| {
            let event = &self.events[at];
            if event.is_bookmark() { event.version } else { event.version.saturating_sub(1) }
        };
        // The last of them may be live events that happen to continue the order of keys. Versions of live events do not
        // decrease.
        let mut least = u64::MAX;
        for at in (0..=longest).rev() {
            if self.events[at].version > least {
                break;
            }
            least = self.events[at].version;
            if known(before(at)) && view.sum_at(before(at)) == sums[at] {
                self.live_from = at;
                self.state = Some(before(at));
                return;
            }
        }
        self.is_no_state = known(before(longest));
    }
}

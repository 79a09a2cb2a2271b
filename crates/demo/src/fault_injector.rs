//! Faults that a test can inject. A test can await the point at which each takes effect, so that none needs a sleep.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::HeaderMap;

use super::fault_switches::{FaultAction, FaultCommand, RequestKind, ScriptedResponse, WatchStall};
use super::kinds::{KINDS, known};
use super::shared::DemoState;
pub use super::store::StoreBackup;

/// The faults of a running upstream. They concern all resources, unless [`FaultInjector::only`] names one.
#[derive(Clone)]
pub struct FaultInjector {
    shared: Arc<DemoState>,
    kind: Option<usize>,
}

impl FaultInjector {
    pub(crate) fn new(shared: Arc<DemoState>) -> Self {
        Self { shared, kind: None }
    }

    /// Returns the same faults for one resource only. This limits orders to open watches, ordered responses, and held watches.
    ///
    /// # Panics
    /// If the upstream has no such resource: a mistake in the test.
    #[must_use]
    pub fn only(&self, plural: &str) -> Self {
        Self { shared: self.shared.clone(), kind: Some(known(plural)) }
    }

    /// Closes the listening socket and every connection; refuses new ones. No other process can take the port.
    pub async fn down(&self) {
        self.shared.listening.send_replace(false);
        self.until_bound(false).await;
        self.drop_connections();
    }

    /// Listens on the same port again. Returns when connections are accepted.
    pub async fn up(&self) {
        self.shared.listening.send_replace(true);
        self.until_bound(true).await;
    }

    /// Waits until the accept loop has carried out the order to listen or not. After `stop` there is no such loop, and
    /// this returns at once.
    async fn until_bound(&self, open: bool) {
        let mut bound = self.shared.bound.subscribe();
        tokio::select! {
            biased;
            _ = bound.wait_for(|bound| *bound == open) => {}
            () = self.shared.stopping.cancelled() => {}
        }
    }

    /// Resets every TCP connection without ending its streams first.
    pub fn drop_connections(&self) {
        self.shared.connections.send_modify(|generation| *generation += 1);
    }

    /// Ends every open watch of the upstream cleanly.
    pub fn end_watches(&self) {
        self.order(FaultAction::End);
    }

    /// Breaks every open watch: a stream reset on HTTP/2, a missing last chunk on HTTP/1.1.
    pub fn reset_watches(&self) {
        self.order(FaultAction::Reset);
    }

    /// Sends the first `after_bytes` bytes of one more frame on every open watch, then breaks it.
    pub fn break_frame(&self, after_bytes: usize) {
        self.order(FaultAction::BreakFrame { after_bytes });
    }

    /// Sends the first `after_bytes` bytes of one more frame on every open watch, then ends the watch cleanly.
    pub fn tear_frame(&self, after_bytes: usize) {
        self.order(FaultAction::TearFrame { after_bytes });
    }

    /// Sends a line that is not JSON on every open watch.
    pub fn send_malformed(&self) {
        self.order(FaultAction::Malformed);
    }

    /// Sends the last event of every open watch once more.
    pub fn duplicate_event(&self) {
        self.order(FaultAction::Duplicate);
    }

    /// Sends a MODIFIED event at revision 1 on every open watch.
    pub fn regress_revision(&self) {
        self.order(FaultAction::Regress);
    }

    /// Sends a bookmark on every open watch that takes bookmarks and has not sent the current revision yet.
    pub fn bookmark(&self) {
        self.order(FaultAction::Bookmark);
    }

    /// Sends a bookmark at the revision of the last event, on every open watch that has sent any. This may be in the
    /// middle of a transaction, as with the apiserver.
    pub fn bookmark_at_last_event(&self) {
        self.order(FaultAction::BookmarkAtLast);
    }

    fn order(&self, act: FaultAction) {
        // Sending fails only if no watch is open, which is not an error.
        let _ = self.shared.faults.orders.send(FaultCommand { kind: self.kind, act });
    }

    /// Stops reading and writing on all sockets. Connections are still accepted, but nothing happens on them.
    pub fn freeze(&self) {
        self.shared.faults.freeze.set(true);
    }

    pub fn thaw(&self) {
        self.shared.faults.freeze.set(false);
    }

    /// Stops all output of watches, including bookmarks and ends. Everything else continues, including HTTP/2 pings.
    pub fn hush_watches(&self) {
        self.shared.faults.hushed.send_replace(true);
    }

    pub fn unhush_watches(&self) {
        self.shared.faults.hushed.send_replace(false);
    }

    /// Lets every open watch send `after_events` more events, and then nothing until [`FaultInjector::resume_watches`].
    pub fn stall_watches(&self, after_events: usize) {
        self.shared.faults.stall.send_modify(|stall| {
            *stall = WatchStall { ordered: stall.ordered + 1, after_events: Some(after_events) };
        });
    }

    pub fn resume_watches(&self) {
        self.shared.faults.stall.send_modify(|stall| stall.after_events = None);
    }

    /// Cancels the responses ordered with [`FaultInjector::answer`] that were not sent yet.
    pub fn answer_as_usual(&self) {
        self.shared.faults.answers.lock().clear();
    }

    /// Answers the next `times` requests of a kind with a status instead of a result.
    pub fn answer(&self, on: RequestKind, times: usize, code: u16, retry_after: Option<u32>) {
        if times > 0 {
            self.shared.faults.answers.lock().push_back(ScriptedResponse {
                on,
                kind: self.kind,
                left: times,
                code,
                retry_after,
            });
        }
    }

    /// Sends these headers with every later successful response, as a proxy does.
    pub fn send_headers(&self, headers: HeaderMap) {
        *self.shared.faults.headers.lock() = headers;
    }

    /// Ends the next `times` streamed lists of a selection at `revision`, an old one, as a server that lags does.
    pub fn lag(&self, times: usize, revision: u64) {
        *self.shared.faults.behind.lock() = (times, revision);
    }

    /// Begins watches of any version with the state of `revision`, as a server with a stale watch cache does. They do
    /// not receive later changes. Consistent reads are not affected.
    pub fn cache_lags(&self, revision: u64) {
        *self.shared.faults.cached_at.lock() = Some(revision);
    }

    /// Sends the next `times` deletions without their objects, each on one watch.
    pub fn hollow_deletions(&self, times: u64) {
        self.shared.faults.hollow_deletions.store(times, Ordering::Relaxed);
    }

    /// Returns a copy of the storage, to be restored later.
    pub fn backup(&self) -> StoreBackup {
        self.shared.store.backup()
    }

    /// Restores the storage from a backup: objects, history and the current revision. Open watches get no event. An
    /// operator stops the apiserver before a restore, and so should a test.
    pub fn restore(&self, backup: &StoreBackup) {
        self.shared.store.restore(backup);
    }

    /// Forgets the history up to a revision. Older watches and exact lists get 410.
    pub fn compact(&self, revision: u64) {
        self.shared.store.compact(revision);
    }

    /// Forgets all history, as a compacted storage does. Open watches are not affected.
    pub fn forget_history(&self) {
        self.shared.store.forget();
    }

    /// Forgets the history that watches start from, as an apiserver does when it restarts. Exact lists still read the
    /// past from storage. Open watches are not affected.
    pub fn forget_window(&self) {
        self.shared.store.forget_window();
    }

    /// Simulates an upgrade to release `1.minor`, which writes the same objects differently: with an annotation
    /// `release`. Their resourceVersions stay the same, and watches get no event.
    pub fn upgrade(&self, minor: u32) {
        let all = |_, _: &str| true;
        self.shared.store.rewrite(all, |meta| {
            meta.annotations.insert("release".into(), format!("1.{minor}"));
        });
        self.say_releases(&[minor]);
    }

    /// Drops the events of the next write: no watch ever sends them. Everything else continues.
    pub fn lose_next_event(&self) {
        self.shared.faults.lost.lock().insert(self.shared.store.revision() + 1);
    }

    /// Adds an annotation `altered` to an object without changing its resourceVersion and without an event.
    ///
    /// # Panics
    /// The upstream has no such resource: a mistake in the test.
    pub fn alter(&self, plural: &str, key: &str) {
        let (kind, is) = (known(plural), key);
        self.shared.store.rewrite(
            |number, key| number == kind && key == is,
            |meta| drop(meta.annotations.insert("altered".into(), "true".into())),
        );
    }

    /// Answers requests for the version with these releases in turn, as several servers at one address do during an
    /// upgrade.
    pub fn say_releases(&self, minors: &[u32]) {
        *self.shared.faults.releases.lock() = minors.iter().copied().collect();
    }

    /// Holds LISTs at a gate until [`FaultInjector::release_lists`].
    pub fn hold_lists(&self) {
        self.shared.faults.lists_held.send_replace(true);
    }

    /// Holds the responses to new watches until [`FaultInjector::release_watches`].
    pub fn hold_watches(&self) {
        let held = self.kind.map_or_else(|| (0..KINDS.len()).collect(), |kind| vec![kind]);
        self.shared.faults.watches_held.send_replace(held);
    }

    pub fn release_watches(&self) {
        self.shared.faults.watches_held.send_replace(Vec::new());
    }

    /// Delays the response to each LIST until `writes` writes have happened since its state was taken. A LIST with a
    /// limit of 1 is not delayed.
    pub fn lists_outlast(&self, writes: u64) {
        self.shared.faults.lists_outlast.store(writes, Ordering::Relaxed);
    }

    /// Answers each page of a LIST after the first with an empty page and a new continue token.
    pub fn pages_never_end(&self) {
        self.shared.faults.pages_never_end.store(true, Ordering::Relaxed);
    }

    pub fn release_lists(&self) {
        self.shared.faults.lists_held.send_replace(false);
    }

    /// Returns when at least `n` LISTs wait at the gate.
    pub async fn lists_waiting(&self, n: usize) {
        let mut waiting = self.shared.faults.lists_waiting.subscribe();
        let _ = waiting.wait_for(|waiting| *waiting >= n).await;
    }
}

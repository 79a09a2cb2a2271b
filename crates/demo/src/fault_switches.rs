//! The faults that a test has ordered and the upstream has not carried out yet.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::HeaderMap;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::freeze::SocketFreezeSwitch;
use tokio::sync::watch;

/// The number of ordered faults that an open watch may lag before it misses one.
const ORDERS_MAX: usize = 64;

/// The kinds of requests for which a test can order a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Any,
    Get,
    List,
    /// A LIST with a field selector. A response ordered for `List` also applies to such a request.
    Selection,
    /// A page of a LIST after its first one. A response ordered for `List` also applies to such a request.
    Page,
    Watch,
    Write,
}

/// A fault that a test orders for open watches. A watch carries it out after it has sent all events that preceded the
/// order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultCommand {
    /// The resource whose watches carry out the order; `None` for all.
    pub(crate) kind: Option<usize>,
    pub(crate) act: FaultAction,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum FaultAction {
    Bookmark,
    BookmarkAtLast,
    BreakFrame { after_bytes: usize },
    TearFrame { after_bytes: usize },
    Duplicate,
    End,
    Malformed,
    Regress,
    Reset,
}

/// An order to send nothing, for the watches that are open when it is given.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WatchStall {
    /// The number of orders to stall so far. A watch carries out those given after it was opened.
    pub(crate) ordered: u64,
    /// The number of events that each watch may still send; `None` if the stall is over.
    pub(crate) after_events: Option<usize>,
}

/// The response status for the next `left` requests of a kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScriptedResponse {
    pub(super) on: RequestKind,
    pub(super) kind: Option<usize>,
    pub(super) left: usize,
    pub(super) code: u16,
    pub(super) retry_after: Option<u32>,
}

/// The switches that [`FaultInjector`](super::FaultInjector) sets and the parts of the upstream obey.
#[derive(Debug)]
pub(crate) struct FaultSwitches {
    pub(super) orders: broadcast::Sender<FaultCommand>,
    pub(super) hushed: watch::Sender<bool>,
    pub(super) stall: watch::Sender<WatchStall>,
    pub(super) answers: Mutex<VecDeque<ScriptedResponse>>,
    /// The headers that successful responses have besides their own.
    pub(super) headers: Mutex<HeaderMap>,
    /// The resources whose watches are held.
    pub(super) watches_held: watch::Sender<Vec<usize>>,
    pub(super) lists_held: watch::Sender<bool>,
    pub(super) lists_waiting: watch::Sender<usize>,
    pub(super) lists_outlast: AtomicU64,
    /// Whether each page after the first one is empty and has another continue token, so that a list never ends.
    pub(super) pages_never_end: AtomicBool,
    /// The number of further streamed lists of a selection that end with an old version, and that version.
    pub(super) behind: Mutex<(usize, u64)>,
    /// The version of the state that reads of any version return, if it is not the current one.
    pub(super) cached_at: Mutex<Option<u64>>,
    /// The number of further deletions that are sent without their objects.
    pub(super) hollow_deletions: AtomicU64,
    /// The minor versions to return for the next requests for `/version`, in turn; empty for the demo's own.
    pub(super) releases: Mutex<VecDeque<u32>>,
    /// The revisions whose events are never sent.
    pub(super) lost: Mutex<BTreeSet<u64>>,
    pub(crate) freeze: SocketFreezeSwitch,
}

impl FaultSwitches {
    pub(crate) fn new() -> Self {
        Self {
            orders: broadcast::Sender::new(ORDERS_MAX),
            hushed: watch::Sender::new(false),
            stall: watch::Sender::default(),
            answers: Mutex::default(),
            headers: Mutex::default(),
            watches_held: watch::Sender::default(),
            lists_held: watch::Sender::new(false),
            lists_waiting: watch::Sender::new(0),
            lists_outlast: AtomicU64::new(0),
            pages_never_end: AtomicBool::new(false),
            behind: Mutex::default(),
            cached_at: Mutex::default(),
            hollow_deletions: AtomicU64::new(0),
            releases: Mutex::default(),
            lost: Mutex::default(),
            freeze: SocketFreezeSwitch::default(),
        }
    }

    pub(crate) fn orders(&self) -> broadcast::Receiver<FaultCommand> {
        self.orders.subscribe()
    }

    pub(crate) fn stall(&self) -> watch::Receiver<WatchStall> {
        self.stall.subscribe()
    }

    pub(crate) fn hushed(&self) -> watch::Receiver<bool> {
        self.hushed.subscribe()
    }

    /// Returns the status that a test ordered for a kind of request, if any, and decrements its count.
    pub(crate) fn answer(&self, on: RequestKind, kind: Option<usize>) -> Option<(u16, Option<u32>)> {
        let mut answers = self.answers.lock();
        let fits = |answer: &ScriptedResponse| {
            let is_list = answer.on == RequestKind::List && matches!(on, RequestKind::Selection | RequestKind::Page);
            let is_such = is_list || answer.on == RequestKind::Any || answer.on == on;
            is_such && (answer.kind.is_none() || answer.kind == kind)
        };
        let at = answers.iter().position(fits)?;
        let answer = &mut answers[at];
        answer.left -= 1;
        let found = (answer.code, answer.retry_after);
        if answer.left == 0 {
            answers.remove(at);
        }
        Some(found)
    }

    /// Returns the version at which a streamed list of a selection ends, if it was taken at `revision`.
    pub(crate) fn reported_of(&self, revision: u64) -> u64 {
        let (left, old) = &mut *self.behind.lock();
        if *left == 0 {
            return revision;
        }
        *left -= 1;
        *old
    }

    /// Returns the version of the state that reads of any version get, if it is not the current one.
    pub(crate) fn cached_at(&self) -> Option<u64> {
        *self.cached_at.lock()
    }

    /// Whether the next deletion is sent without its object. Decrements the count.
    pub(crate) fn is_next_deletion_hollow(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        self.hollow_deletions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Returns the minor version for the next request for the version, if it is not the demo's own.
    pub(crate) fn next_release(&self) -> Option<u32> {
        let mut releases = self.releases.lock();
        let next = releases.pop_front()?;
        releases.push_back(next);
        Some(next)
    }

    /// Whether watches omit the events of a revision.
    pub(crate) fn is_lost(&self, revision: u64) -> bool {
        self.lost.lock().contains(&revision)
    }

    /// Returns how many writes a LIST must wait for.
    pub(crate) fn writes_outlasted(&self) -> u64 {
        self.lists_outlast.load(Ordering::Relaxed)
    }

    /// Waits while watches of a resource are held.
    pub(crate) async fn pass_watch_gate(&self, kind: usize) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.watches_held.subscribe().wait_for(|held| !held.contains(&kind)).await;
    }

    /// Waits while LISTs are held. A LIST counts as waiting until it continues or its client disconnects.
    pub(crate) async fn pass_gate(&self) {
        struct HeldListWaiterGuard<'a>(&'a watch::Sender<usize>);
        impl Drop for HeldListWaiterGuard<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|waiting| *waiting -= 1);
            }
        }
        let mut are_held = self.lists_held.subscribe();
        if *are_held.borrow_and_update() {
            self.lists_waiting.send_modify(|waiting| *waiting += 1);
            let _waiting = HeldListWaiterGuard(&self.lists_waiting);
            // The sender lives as long as `self`, so waiting cannot fail.
            let _ = are_held.wait_for(|are_held| !*are_held).await;
        }
    }
}

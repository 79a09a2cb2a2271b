use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::{ArcWake, AtomicWaker};
use parking_lot::Mutex;
use tokio::time::Instant;

use base::{now_ns, ns_at};

/// The woken parts of a connection, which all run in one task.
///
/// Only woken parts are polled, not every part whenever the task runs. A connection with a watch writes far more than
/// it reads, and parts that were not woken do not slow the others down.
#[derive(Debug, Default)]
pub struct WakeSet {
    task: AtomicWaker,
    /// Whether the task is polling its parts, so that a wake-up need not wake it. Codec and streams wake each other
    /// constantly.
    is_polling: AtomicBool,
    /// Whether each part was woken.
    parts: [AtomicBool; 4],
    streams: Mutex<Vec<usize>>,
    /// Whether `streams` is not empty, readable without the lock. It is only changed under the lock.
    has_streams: AtomicBool,
    /// The time at which the slice of the running poll ends, or [`NEVER`].
    slice_ends_ns: AtomicU64,
    /// Whether the running poll has checked for the end of its slice.
    was_checked: AtomicBool,
}

/// The end of the slice for a poll without a time limit.
const NEVER: u64 = u64::MAX;

/// A part of a connection that can be woken, besides its streams.
#[derive(Debug, Clone, Copy)]
pub enum ConnectionWakeTarget {
    /// The codec: hyper's, or in HTTP/2 all work besides the streams.
    Codec,
    /// The codec, because data can be read from the socket.
    Reader,
    /// The timer of the connection.
    Clock,
    /// The future that runs beside the connection's own work.
    BackgroundFuture,
}

/// A waker for one part of the connection.
struct ConnectionPartWaker {
    wake_set: Arc<WakeSet>,
    part: ConnectionWakeTarget,
}

/// A waker for one stream of the connection.
#[derive(Debug)]
pub(super) struct StreamWaker {
    wake_set: Arc<WakeSet>,
    stream: usize,
    /// Whether the stream is in the set.
    is_marked: AtomicBool,
}

impl WakeSet {
    /// Creates a set with all parts, because none has been polled yet.
    pub fn shared() -> Arc<Self> {
        let wake_set = Arc::new(Self { slice_ends_ns: AtomicU64::new(NEVER), ..Self::default() });
        [ConnectionWakeTarget::Codec, ConnectionWakeTarget::Reader, ConnectionWakeTarget::BackgroundFuture]
            .into_iter()
            .for_each(|part| wake_set.mark_woken(part));
        wake_set
    }

    pub fn waker(self: &Arc<Self>, part: ConnectionWakeTarget) -> Waker {
        Arc::new(ConnectionPartWaker { wake_set: self.clone(), part }).into()
    }

    /// Adds a part to be polled, without waking the task.
    pub fn mark_woken(&self, part: ConnectionWakeTarget) {
        // A swap, not a store: the task that takes the part then sees the writes of all tasks that added it.
        self.parts[part as usize].swap(true, Ordering::SeqCst);
        if matches!(part, ConnectionWakeTarget::Reader | ConnectionWakeTarget::Clock) {
            self.parts[ConnectionWakeTarget::Codec as usize].swap(true, Ordering::SeqCst);
        }
    }

    /// Removes a part. Returns whether it was in the set.
    pub fn take_woken(&self, part: ConnectionWakeTarget) -> bool {
        let flag = &self.parts[part as usize];
        flag.load(Ordering::SeqCst) && flag.swap(false, Ordering::SeqCst)
    }

    /// Moves the woken streams to the end of a list.
    pub(super) fn take_streams(&self, to: &mut Vec<usize>) {
        if self.has_streams.load(Ordering::SeqCst) {
            let mut streams = self.streams.lock();
            self.has_streams.store(false, Ordering::SeqCst);
            to.append(&mut streams);
        }
    }

    /// Puts back streams that were taken and not polled, before those that were woken since.
    pub(super) fn put_back(&self, streams: impl Iterator<Item = usize>) {
        let mut all: Vec<_> = streams.collect();
        let mut woken = self.streams.lock();
        all.append(&mut woken);
        self.has_streams.store(!all.is_empty(), Ordering::SeqCst);
        *woken = all;
    }

    /// Registers the task to be woken by parts that are added from now on, while the parts wait to be polled.
    pub fn wait(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
    }

    /// Polls the only part of a connection if it was woken, with its own waker.
    pub fn poll_codec<T>(
        &self,
        cx: &Context<'_>,
        waker: &Waker,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.begin_polling(cx);
        let is_woken = self.take_woken(ConnectionWakeTarget::Codec);
        let polled = if is_woken { poll(&mut Context::from_waker(waker)) } else { Poll::Pending };
        self.end_polling(cx);
        polled
    }

    /// Begins a round of polls. After this, a wakeup only adds to the set.
    pub(super) fn begin_polling(&self, cx: &Context<'_>) {
        self.wait(cx);
        self.is_polling.store(true, Ordering::SeqCst);
    }

    /// Ends a round of polls. If a part was woken in it and not polled, the task is woken.
    pub(super) fn end_polling(&self, cx: &Context<'_>) {
        self.is_polling.store(false, Ordering::SeqCst);
        self.slice_ends_ns.store(NEVER, Ordering::Relaxed);
        if !self.is_empty() {
            cx.waker().wake_by_ref();
        }
    }

    /// Sets the time at which the slice of the next poll ends.
    pub fn limit_turn(&self, ends: Option<Instant>) {
        if let Some(ends) = ends {
            self.slice_ends_ns.store(ns_at(ends), Ordering::Relaxed);
            self.was_checked.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the running poll has a time limit, because other connections may wait for the core.
    pub(super) fn is_turn_limited(&self) -> bool {
        self.slice_ends_ns.load(Ordering::Relaxed) != NEVER
    }

    /// Whether the slice of the running poll has ended, so that the rest must wait for the next poll. The first call in
    /// a poll returns false, so that each poll makes progress.
    pub fn is_slice_over(&self) -> bool {
        let ends = self.slice_ends_ns.load(Ordering::Relaxed);
        if ends == NEVER {
            return false;
        }
        if !self.was_checked.load(Ordering::Relaxed) {
            self.was_checked.store(true, Ordering::Relaxed);
            return false;
        }
        now_ns() >= ends
    }

    /// Whether neither the codec nor a stream has been woken.
    pub fn is_empty(&self) -> bool {
        !self.parts[ConnectionWakeTarget::Codec as usize].load(Ordering::SeqCst)
            && !self.has_streams.load(Ordering::SeqCst)
    }

    fn wake_task(&self) {
        if !self.is_polling.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

impl StreamWaker {
    pub(super) fn new(wake_set: Arc<WakeSet>, stream: usize) -> Self {
        Self { wake_set, stream, is_marked: AtomicBool::new(false) }
    }

    /// Removes the stream from the set before it is polled. Wake-ups from here on add it again.
    pub(super) fn clear_woken(&self) {
        // A swap, not a store: the poll then sees the writes of all tasks that found the stream in the set.
        self.is_marked.swap(false, Ordering::SeqCst);
    }
}

impl Wake for ConnectionPartWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_set.mark_woken(self.part);
        self.wake_set.wake_task();
    }
}

/// Not `std`'s trait: with this one, the connection can create a borrowed waker and needs no second reference.
impl ArcWake for StreamWaker {
    fn wake_by_ref(this: &Arc<Self>) {
        if !this.is_marked.swap(true, Ordering::SeqCst) {
            let mut streams = this.wake_set.streams.lock();
            streams.push(this.stream);
            this.wake_set.has_streams.store(true, Ordering::SeqCst);
            drop(streams);
            this.wake_set.wake_task();
        }
    }
}

#[cfg(test)]
mod tests;

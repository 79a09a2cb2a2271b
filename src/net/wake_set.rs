use std::mem::swap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

/// The parts of a connection that have been woken; all of them are one task. Each is polled when it was, and not
/// whenever the task is: a connection with a watch has far more to say than to read, and what nobody looks at stays out
/// of the way of other connections.
#[derive(Debug, Default)]
pub(super) struct WakeSet {
    task: AtomicWaker,
    /// While the task looks at the board it need not be woken: codec and streams wake each other all the time.
    is_looked_at: AtomicBool,
    codec: AtomicBool,
    reader: AtomicBool,
    aside: AtomicBool,
    streams: Mutex<Vec<usize>>,
}

/// Who is on the board besides the streams.
#[derive(Debug, Clone, Copy)]
pub(super) enum WakePart {
    Codec,
    /// The codec again, but there is something to read.
    Reader,
    /// What the connection waits for besides its work.
    Aside,
}

/// Wakes a part.
struct Caller {
    board: Arc<WakeSet>,
    part: WakePart,
}

/// Wakes one stream.
#[derive(Debug)]
pub(super) struct StreamWaker {
    board: Arc<WakeSet>,
    stream: usize,
    /// It is on the board.
    rung: AtomicBool,
}

impl WakeSet {
    /// Nobody has been polled yet, so all have been woken.
    pub(super) fn shared() -> Arc<Self> {
        let board = Arc::new(Self::default());
        [WakePart::Codec, WakePart::Reader, WakePart::Aside].into_iter().for_each(|part| board.put(part));
        board
    }

    pub(super) fn waker(self: &Arc<Self>, part: WakePart) -> Waker {
        Arc::new(Caller { board: self.clone(), part }).into()
    }

    /// To be polled without having been woken.
    pub(super) fn put(&self, part: WakePart) {
        // Not a store: who takes it sees what all have done who put it here.
        self.flag(part).swap(true, Ordering::SeqCst);
    }

    /// Whether the part has been woken since this was last asked.
    pub(super) fn take(&self, part: WakePart) -> bool {
        let flag = self.flag(part);
        flag.load(Ordering::SeqCst) && flag.swap(false, Ordering::SeqCst)
    }

    /// Exchanges the streams that have been woken for an empty list.
    pub(super) fn take_streams(&self, empty: &mut Vec<usize>) {
        swap(empty, &mut *self.streams.lock());
    }

    /// From now on who is woken only comes on the board; `cx` is woken once the look is over.
    pub(super) fn begin_look(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
        self.is_looked_at.store(true, Ordering::SeqCst);
    }

    pub(super) fn end_look(&self) {
        self.is_looked_at.store(false, Ordering::SeqCst);
    }

    /// Whether neither the codec nor a stream has been woken.
    pub(super) fn is_quiet(&self) -> bool {
        !self.codec.load(Ordering::SeqCst) && self.streams.lock().is_empty()
    }

    fn wake_task(&self) {
        if !self.is_looked_at.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }

    fn flag(&self, part: WakePart) -> &AtomicBool {
        match part {
            WakePart::Codec => &self.codec,
            WakePart::Reader => &self.reader,
            WakePart::Aside => &self.aside,
        }
    }
}

impl StreamWaker {
    pub(super) fn new(board: Arc<WakeSet>, stream: usize) -> Self {
        Self { board, stream, rung: AtomicBool::new(false) }
    }

    /// The stream is polled now; it comes on the board again when it is woken from here on.
    pub(super) fn answer(&self) {
        // Not a store: the poll sees what those have done who found it rung.
        self.rung.swap(false, Ordering::SeqCst);
    }
}

impl Wake for Caller {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.board.put(self.part);
        if matches!(self.part, WakePart::Reader) {
            self.board.put(WakePart::Codec);
        }
        self.board.wake_task();
    }
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            self.board.streams.lock().push(self.stream);
            self.board.wake_task();
        }
    }
}

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem::take;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

use super::abuse_budget::{ClientAbuseBudget, ConnectionKeepAlive, KeepAliveAction, RecentStreamResets};
use super::error::{Http2ConnectionError, Http2Error, Http2ErrorCode};
use super::exchange::{ExchangePhase, Http2Exchange, StreamTable};
use super::frame::{HIGHEST, Http2FrameHeader, Http2FrameType};
use super::head_budget::ConnectionHeadBudget;
use super::hpack::HpackDecoder;
use super::input::FrameInputBuffer;
use super::output::FrameOutputBuffer;
use super::service::HttpService;
use super::wake_set::{ConnectionWakeTarget, WakeSet};
use super::windows::{Http2SendLimits, ReceiveWindow};

/// The server's end of an HTTP/2 connection and all its streams, as one task. So an event for a hundred streams wakes
/// one task, and their frames go out in a few large writes.
///
/// `I` is the byte stream, and `S` answers the requests. Poll it with [`poll`](Self::poll) until it is ready.
///
/// The fields that an event needs come first and stay together. With a thousand connections, each one's memory is cold
/// when its turn comes, and every cache line costs a wait. This order also drops the streams before the socket.
#[repr(C)]
pub struct Http2Connection<I, S: HttpService> {
    pub(super) wake_set: Arc<WakeSet>,
    pub(super) streams: StreamTable<S::Answer, S::Body>,
    pub(super) output: FrameOutputBuffer,
    pub(super) writer: Waker,
    pub(super) send: Http2SendLimits,
    /// The number of bytes of responses that may still be sent before other tasks run.
    pub(super) allowance: usize,
    /// The streams that wait for room in the output or for the connection's window, in order of arrival.
    pub(super) waiting: VecDeque<usize>,
    /// The streams that wait again after they have sent something in this turn. They queue after the others.
    pub(super) waiting_again: Vec<usize>,
    /// The reason that the connection ended; set once nothing more is read and no stream is left.
    ended: Option<Http2ConnectionOutcome>,
    pub(super) goaway: GoAwayState,
    /// Whether the client has sent GOAWAY.
    pub(super) is_client_leaving: bool,
    /// Whether reading is paused until the client reads.
    reads_paused: bool,
    pub(super) io: I,
    pub(super) service: S,
    pub(super) limits: Http2Limits,
    pub(super) input: FrameInputBuffer,
    pub(super) decoder: HpackDecoder,
    pub(super) receive: ReceiveWindow,
    /// Whether the client has sent its SETTINGS, which must come first.
    pub(super) has_settings: bool,
    /// The highest stream identifier that the client has used.
    pub(super) highest_stream: u32,
    /// The highest identifier of a processed stream, for GOAWAY.
    pub(super) last_stream: u32,
    pub(super) recent_resets: RecentStreamResets,
    pub(super) abuse_budget: ClientAbuseBudget,
    /// The charges for the heads of requests, and for those of responses that wait.
    pub(super) heads: Arc<ConnectionHeadBudget>,
    /// The number of response heads that wait for room in the output.
    pub(super) waiting_heads: usize,
    /// The number of requests that have begun and may not have been polled yet.
    pub(super) started: usize,
    heartbeat: ConnectionKeepAlive,
    /// The timer for the heartbeat, for streams with limited time and for unfinished header blocks.
    timer: Pin<Box<Sleep>>,
    reader: Waker,
    timer_waker: Waker,
}

/// The result of an HTTP/2 connection.
type Http2ConnectionResult = Result<(), Http2ConnectionError>;

#[derive(Debug)]
struct Http2ConnectionOutcome {
    result: Http2ConnectionResult,
    /// Whether everything is sent, and the connection only waits for the client to close.
    is_lingering: bool,
}

/// The limits of one HTTP/2 connection.
#[derive(Debug, Clone, Copy)]
pub struct Http2Limits {
    pub streams_max: usize,
    pub header_bytes_max: usize,
    /// The maximum time that a header block may be unfinished.
    pub header_max: Duration,
    /// The time without received data after which a client is pinged. The connection ends if no reply arrives within
    /// the same time.
    pub ping_after: Duration,
}

/// The stages of a graceful shutdown (RFC 9113 §6.8).
///
/// A first GOAWAY asks the client to send no more requests. Once the client must have received it, a second one names
/// the last stream that was processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoAwayState {
    NotSent,
    Announced,
    Sent,
}

/// The payload of the ping after the first GOAWAY.
pub(super) const GOAWAY_PING: [u8; 8] = *b"farewell";

/// The multiple of the limit on fields up to which header blocks are read, so that a larger request is refused with a
/// response. The decoder must read a block to understand the next one.
pub(super) const HEADER_BLOCKS: usize = 2;

/// The error of a connection whose unfinished header block has no room beside those of others.
const UNFINISHED: Http2Error =
    Http2Error::Connection(Http2ErrorCode::EnhanceYourCalm, "too many incomplete header blocks");

/// The maximum number of turns of streams and connection before other tasks run.
const ROUNDS_PER_POLL_MAX: usize = 16;
/// The maximum number of bytes of responses sent before other tasks run, give or take one write. Without this limit, a
/// client that reads fast would occupy the thread for as long as its windows last.
pub(super) const SENT_BYTES_MAX: usize = 1 << 20;
/// The maximum number of reads in a turn.
const READS_MAX: usize = 4;
const READ_BYTES: usize = 32 << 10;
/// The size of a read while other connections wait for the core, because the received frames may have to wait for the
/// next slice.
const LIMITED_READ_BYTES: usize = 4 << 10;
/// The number of requests that begin before these are polled. A request that has begun takes about 3 KB, and most are
/// answered when they are first polled.
pub(super) const STARTED_MAX: usize = 2;
/// The number of lasting streams polled between two checks of the slice. Other streams take longer, so the slice is
/// checked after each of them.
const STREAMS_PER_SLICE_CHECK: usize = 8;
/// How long a closed connection waits for its client to close.
///
/// Until then, the server reads and discards what the client sends. A socket closed with unread data is reset, and the
/// client may lose the last data sent to it (RFC 9112 §9.6).
const LINGER: Duration = Duration::from_secs(1);
const DISCARD_BYTES: usize = 4 << 10;

thread_local! {
    /// The read buffer, shared by all connections of a thread.
    static READ: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// The list of woken streams, shared by all connections of a thread.
    static WOKEN: Cell<Vec<usize>> = const { Cell::new(Vec::new()) };
}

impl<I: AsyncRead + AsyncWrite + Unpin, S: HttpService> Http2Connection<I, S> {
    /// Creates a connection after the preface has been read.
    pub fn new(io: I, limits: Http2Limits, heads: Arc<ConnectionHeadBudget>, service: S) -> Self {
        let wake_set = WakeSet::shared();
        wake_set.mark_woken(ConnectionWakeTarget::Clock);
        let (writer, reader) =
            (wake_set.waker(ConnectionWakeTarget::Codec), wake_set.waker(ConnectionWakeTarget::Reader));
        let heartbeat = ConnectionKeepAlive::new(limits.ping_after);
        let mut output = FrameOutputBuffer::default();
        let receive = ReceiveWindow::announced(&mut output, limits.streams_max, limits.header_bytes_max);
        // It may wait for its first turn, beside thousands of others.
        output.return_spare();
        Self {
            io,
            service,
            input: FrameInputBuffer::new(HEADER_BLOCKS * limits.header_bytes_max),
            limits,
            output,
            decoder: HpackDecoder::new(),
            streams: StreamTable::new(),
            send: Http2SendLimits::new(),
            receive,
            has_settings: false,
            highest_stream: 0,
            last_stream: 0,
            recent_resets: RecentStreamResets::default(),
            abuse_budget: ClientAbuseBudget::new(),
            heads,
            waiting_heads: 0,
            started: 0,
            goaway: GoAwayState::NotSent,
            is_client_leaving: false,
            reads_paused: false,
            timer: Box::pin(sleep_until(heartbeat.next())),
            heartbeat,
            waiting: VecDeque::new(),
            waiting_again: Vec::new(),
            allowance: 0,
            ended: None,
            timer_waker: wake_set.waker(ConnectionWakeTarget::Clock),
            wake_set,
            writer,
            reader,
        }
    }

    /// Polls the parts that were woken, without losing a wake-up, although the parts may wake each other meanwhile.
    ///
    /// Ready when the connection is over. An error of the client is answered with GOAWAY before.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Http2ConnectionError>> {
        self.wake_set.begin_polling(cx);
        // Tokio's budget is per task, and the last of this task's many streams would get nothing of it. Turns are
        // counted instead.
        let turns = poll_fn(|_| {
            self.allowance = SENT_BYTES_MAX;
            for _ in 0..ROUNDS_PER_POLL_MAX {
                self.run_turn();
                if self.wake_set.is_empty() || self.wake_set.is_slice_over() {
                    break;
                }
            }
            self.poll_out()
        });
        let ended = pin!(unconstrained(turns)).poll(cx);
        self.wake_set.end_polling(cx);
        ended
    }

    /// Asks the client to send no more requests. Running requests continue, and so do those that the client sent before
    /// it received this.
    pub fn begin_goaway(&mut self) {
        if self.goaway == GoAwayState::NotSent {
            self.goaway = GoAwayState::Announced;
            self.output.put_goaway(HIGHEST, Http2ErrorCode::No);
            self.output.put_ping(GOAWAY_PING);
            // It may wait for its turn.
            self.output.return_spare();
            self.wake_set.mark_woken(ConnectionWakeTarget::Codec);
        }
    }

    /// Returns the set of parts that have been woken.
    pub fn wake_set(&self) -> &Arc<WakeSet> {
        &self.wake_set
    }

    fn run_turn(&mut self) {
        // Cleared first, because work added from here on sets it again.
        self.wake_set.take_woken(ConnectionWakeTarget::Codec);
        if self.wake_set.take_woken(ConnectionWakeTarget::Clock)
            && !self.ended.as_ref().is_some_and(|end| end.is_lingering)
        {
            self.check_timer();
        }
        if self.wake_set.take_woken(ConnectionWakeTarget::Reader) && self.ended.is_none() {
            self.read();
        }
        let mut woken = WOKEN.take();
        self.wake_set.take_streams(&mut woken);
        // The event of a single lasting stream is written directly.
        let is_alone = woken.len() == 1 && self.streams.get(woken[0]).is_some_and(Http2Exchange::is_long_lived);
        let mut polled = 0;
        while let Some(key) = woken.get(polled) {
            let (key, lasts) = (*key, self.streams.get(*key).is_some_and(Http2Exchange::is_long_lived));
            self.poll_stream(key, is_alone);
            polled += 1;
            if (!lasts || polled.is_multiple_of(STREAMS_PER_SLICE_CHECK)) && self.wake_set.is_slice_over() {
                break;
            }
        }
        if polled < woken.len() {
            self.wake_set.put_back(woken.drain(polled..));
        } else {
            self.started = 0;
        }
        woken.clear();
        WOKEN.set(woken);
        self.waiting.extend(self.waiting_again.drain(..));
        if self.ended.is_none() && self.input.is_paused && self.accepts_request() {
            self.wake_set.mark_woken(ConnectionWakeTarget::Reader);
        }
    }

    /// Writes the output. If the client does not read, the rest is written when it does.
    fn poll_out(&mut self) -> Poll<Http2ConnectionResult> {
        let flushed = self.output.poll_flush(&mut self.io, &mut Context::from_waker(&self.writer))?;
        if !self.output.is_full() {
            self.wake_waiting();
        }
        if self.reads_paused && !self.output.is_over_limit() {
            self.reads_paused = false;
            self.wake_set.mark_woken(ConnectionWakeTarget::Reader);
        }
        let has_left = self.goaway == GoAwayState::Sent || self.is_client_leaving;
        if self.ended.is_none() && has_left && self.streams.is_empty() {
            self.end(Ok(()));
        }
        let Some(end) = &self.ended else { return Poll::Pending };
        if !matches!(end.result, Err(Http2ConnectionError::PingTimeout | Http2ConnectionError::Io(_))) {
            ready!(flushed);
            ready!(self.poll_close());
        }
        Poll::Ready(self.ended.take().map_or(Ok(()), |end| end.result))
    }

    /// Closes the sending side, and waits until the client closes its own. What the client sends is discarded.
    fn poll_close(&mut self) -> Poll<()> {
        if let Some(end) = &mut self.ended
            && !end.is_lingering
        {
            // An error here makes no difference, because nothing more is sent.
            let _ = ready!(Pin::new(&mut self.io).poll_shutdown(&mut Context::from_waker(&self.writer)));
            end.is_lingering = true;
            self.timer.as_mut().reset(Instant::now() + LINGER);
        }
        if self.timer.as_mut().poll(&mut Context::from_waker(&self.timer_waker)).is_ready() {
            return Poll::Ready(());
        }
        let mut discarded = [0; DISCARD_BYTES];
        for _ in 0..READS_MAX {
            let mut read = ReadBuf::new(&mut discarded);
            match ready!(Pin::new(&mut self.io).poll_read(&mut Context::from_waker(&self.reader), &mut read)) {
                Ok(()) if !read.filled().is_empty() => {}
                Ok(()) | Err(_) => return Poll::Ready(()),
            }
        }
        // Other tasks run before the next reads.
        self.wake_set.mark_woken(ConnectionWakeTarget::Codec);
        Poll::Pending
    }

    /// Wakes the waiting streams. While the connection's window is closed, wakes only those that wait to send a head.
    pub(super) fn wake_waiting(&mut self) {
        let is_open = self.send.window > 0;
        if self.waiting.is_empty() || !(is_open || self.waiting_heads > 0) {
            return;
        }
        for key in take(&mut self.waiting) {
            match self.streams.get_mut(key) {
                // A head needs no window.
                Some(stream) if is_open || matches!(stream.phase, ExchangePhase::HeadReady { .. }) => {
                    stream.is_waiting = false;
                    stream.wake();
                }
                Some(_) => self.waiting.push_back(key),
                None => {}
            }
        }
    }

    /// Whether another request may begin. While the caller is unknown, requests begin one at a time.
    fn accepts_request(&self) -> bool {
        self.streams.is_empty() || !self.service.is_caller_unknown()
    }

    fn read(&mut self) {
        if self.input.is_paused {
            if !self.accepts_request() {
                return;
            }
            self.receive_bytes(&[]);
        }
        let mut buffer = READ.take();
        buffer.resize(READ_BYTES, 0);
        let at_most = if self.wake_set.is_turn_limited() { LIMITED_READ_BYTES } else { READ_BYTES };
        let mut left = READS_MAX;
        while self.ended.is_none() && !self.input.is_paused {
            if self.output.is_over_limit() {
                self.reads_paused = true;
                break;
            }
            if left == 0 || (left < READS_MAX && self.wake_set.is_slice_over()) {
                // Other tasks run before the next reads.
                self.wake_set.mark_woken(ConnectionWakeTarget::Reader);
                break;
            }
            left -= 1;
            let mut read = ReadBuf::new(&mut buffer[..at_most]);
            let polled = Pin::new(&mut self.io).poll_read(&mut Context::from_waker(&self.reader), &mut read);
            match polled {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => self.end(Err(error.into())),
                // A client that closes its sending side is treated as gone, as in Go's server (R-DOWNSTREAM-9).
                Poll::Ready(Ok(())) if read.filled().is_empty() => self.end(Ok(())),
                Poll::Ready(Ok(())) => {
                    self.heartbeat.note_received();
                    self.receive_bytes(read.filled());
                }
            }
        }
        READ.set(buffer);
    }

    /// Handles the frames and header blocks that these bytes complete. A stream error ends only its stream.
    fn receive_bytes(&mut self, bytes: &[u8]) {
        let mut input = take(&mut self.input);
        let bytes = input.join(bytes);
        let (mut rest, mut result) = (&*bytes, Ok(()));
        while result.is_ok()
            && let Some(frame) = input.next(&mut rest, |head| self.accepts(head))
        {
            result = match frame.and_then(|frame| self.receive_frame(frame)) {
                Err(Http2Error::Stream(stream, reason)) => self.reset_for(stream, reason),
                received => received,
            };
        }
        let left = rest.len();
        input.keep(bytes, left);
        self.input = input;
        if result.is_ok() && !self.heads.hold_unfinished(self.input.unfinished_bytes()) {
            result = Err(UNFINISHED);
        }
        if let Err(Http2Error::Connection(reason, what)) = result {
            self.output.put_goaway(self.last_stream, reason);
            self.end(Err(Http2ConnectionError::Rule(what)));
        } else if let Some(since) = self.input.unfinished_since {
            self.check_timer_by(since + self.limits.header_max);
        }
    }

    /// Whether the frame may be processed now. The body of a request waits until the caller is known, because nothing
    /// reads it before.
    fn accepts(&self, head: &Http2FrameHeader) -> bool {
        if head.kind == Http2FrameType::Data {
            return self.accepts_request();
        }
        (head.stream <= self.highest_stream || self.accepts_request())
            && self.started < STARTED_MAX
            && !self.wake_set.is_slice_over()
    }

    /// Ends the connection once its output is written.
    fn end(&mut self, result: Http2ConnectionResult) {
        self.ended = Some(Http2ConnectionOutcome { result, is_lingering: false });
        self.input = FrameInputBuffer::default();
        self.streams.keys().into_iter().for_each(|key| self.remove(key));
    }

    /// Pings a silent client, and ends streams and header blocks that exceed their time. One timer serves all.
    pub(super) fn check_timer(&mut self) {
        while self.timer.as_mut().poll(&mut Context::from_waker(&self.timer_waker)).is_ready() {
            let now = Instant::now();
            match self.heartbeat.check(now) {
                KeepAliveAction::Nothing => {}
                KeepAliveAction::Ping => self.output.put_ping([0; 8]),
                KeepAliveAction::Dead => return self.end(Err(Http2ConnectionError::PingTimeout)),
            }
            let mut next = self.heartbeat.next();
            if let Some(since) = self.input.unfinished_since {
                let until = since + self.limits.header_max;
                if until <= now {
                    self.output.put_goaway(self.last_stream, Http2ErrorCode::EnhanceYourCalm);
                    return self.end(Err(Http2ConnectionError::Rule("header block not completed in time")));
                }
                next = next.min(until);
            }
            for stream in self.streams.all() {
                match stream.deadline {
                    Some(at) if at <= now => stream.abort.timeout().iter().for_each(|(_, why)| stream.abort.abort(why)),
                    Some(at) => next = next.min(at),
                    None => {}
                }
            }
            self.timer.as_mut().reset(next);
        }
    }

    /// Schedules the next check of the timer for `at` at the latest.
    pub(super) fn check_timer_by(&mut self, at: Instant) {
        if at < self.timer.deadline() {
            self.timer.as_mut().reset(at);
            self.check_timer();
        }
    }
}

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::metrics::ConnectionFailure;
use base::AbortSignal;

/// The other end of a connection, as far as the connection identifies it.
#[derive(Debug, Clone)]
pub struct ConnectionPeer {
    pub address: PeerAddress,
    /// The certificate chain that a TLS client has sent, its own certificate first.
    ///
    /// The client has proven that it has the key. The issuer, the validity and the usage are not verified.
    pub certificates: Option<Arc<[CertificateDer<'static>]>>,
    pub connection: DownstreamConnection,
    /// Ends a request and its response at once: an HTTP/2 stream is reset, an HTTP/1.1 connection closed.
    pub abort: AbortSignal,
}

/// The address of a connected client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAddress {
    Tcp(SocketAddr),
    /// A process on this machine, with its user as the kernel reports it.
    Unix {
        uid: Option<u32>,
    },
}

/// The connection on which a request was received. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct DownstreamConnection(Arc<DownstreamConnectionInner>);

#[derive(Default)]
struct DownstreamConnectionInner {
    state: AtomicU8,
    /// Notifies the connection's own task, which is the only waiter.
    changed: Notify,
    accepted_at: AcceptTime,
    /// The number of requests whose response the codec has not received completely.
    running: AtomicU32,
    /// The number of running responses that wait until the client reads more.
    stalled: AtomicU32,
    /// The time at which the client last read part of such a response, in milliseconds after `accepted_at`.
    last_read_at: AtomicU64,
    /// The time at which the last request or step of the TLS handshake ended, in milliseconds after `accepted_at`.
    idle_since: AtomicU64,
    has_received_request: AtomicBool,
    /// Whether an HTTP/2 request has arrived on the connection.
    is_multiplexed: AtomicBool,
    /// Whether a caller has been authenticated on the connection.
    is_authenticated: AtomicBool,
    caller: AtomicU64,
    /// Charges the connection to its caller in the listener's limit.
    assign: OnceLock<Box<AssignToCaller>>,
    /// Whether the listener is full and the caller's share of connections is used up.
    is_refused: AtomicBool,
    /// The number of requests that were received after the connection stopped taking requests.
    late: AtomicU32,
    extension: OnceLock<Arc<dyn Any + Send + Sync>>,
    upgraded: Mutex<Option<UpgradedFuture>>,
}

/// What runs on a connection after it has switched to another protocol.
pub(super) type UpgradedFuture = BoxFuture<'static, ()>;

/// Charges a connection's slot in a listener's limit to this caller; `None` if all callers count as one. Returns
/// whether the connection may stay.
type AssignToCaller = dyn Fn(Option<u64>) -> bool + Send + Sync;

/// When a connection was accepted.
struct AcceptTime(Instant);

/// The time without reading a response after which a client's connection counts as idle.
pub(super) const STALLED_AFTER: Duration = Duration::from_secs(5);

/// The number used while the caller is unknown.
const UNKNOWN_CALLER: u64 = 0;
/// The caller number that is used if all callers count as one.
pub(super) const SHARED_CALLER: u64 = u64::MAX;

/// The stages of closing a connection. The state only advances. An open connection has state 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConnectionState {
    /// The connection ends after its running requests, because of its age, idleness or a drain. Requests that the
    /// client sent before it received this are served.
    Draining = 1,
    /// The connection ends after its running requests and accepts no further ones.
    Closing,
    /// The connection must be closed now.
    Aborted,
}

/// Counts a running request until this guard is dropped.
#[derive(Debug)]
pub(super) struct RunningRequestGuard {
    connection: DownstreamConnection,
    /// Whether the response waits until the client reads more.
    is_stalled: bool,
}

impl DownstreamConnection {
    /// Closes the connection after its running requests, with GOAWAY or with `Connection: close` on the pending
    /// response.
    ///
    /// Other requests on it are refused as not processed, so that the client may send them again on another connection.
    pub fn close(&self) {
        self.advance(ConnectionState::Closing);
    }

    /// Closes the connection because a caller is not authenticated.
    ///
    /// An HTTP/2 connection on which a caller has been authenticated stays open, because other callers may share it.
    pub fn authentication_failed(&self) {
        if !(self.is_multiplexed() && self.0.is_authenticated.load(Ordering::Relaxed)) {
            self.close();
        }
    }

    /// Records that a caller was authenticated on the connection.
    ///
    /// `caller` is a number, almost certainly unique to the caller; `None` if all callers count as one. From now on,
    /// the connection's CPU time is scheduled fairly with that of other callers.
    ///
    /// Returns whether to serve the request. If not, the listener is full, no caller has more connections than this
    /// one, and the connection closes after the refusal.
    pub fn authenticated(&self, caller: Option<u64>) -> bool {
        let number = caller.unwrap_or(SHARED_CALLER);
        if self.caller() != Some(number) {
            self.0.caller.store(number, Ordering::Relaxed);
        }
        // The first authenticated caller owns the slot.
        if !self.0.is_authenticated.load(Ordering::Relaxed) {
            self.0.is_authenticated.store(true, Ordering::Relaxed);
            if self.0.assign.get().is_some_and(|assign| !assign(caller)) {
                self.0.is_refused.store(true, Ordering::Relaxed);
                self.close();
            }
        }
        !self.0.is_refused.load(Ordering::Relaxed)
    }

    /// Sets how the connection is charged to its caller. Later calls have no effect.
    pub(super) fn on_authenticated(&self, assign: impl Fn(Option<u64>) -> bool + Send + Sync + 'static) {
        let _ = self.0.assign.set(Box::new(assign));
    }

    /// Whether requests are processed one at a time: no caller has been authenticated yet, and the connection is not
    /// closing. A closing connection refuses requests, which costs nothing.
    pub(super) fn is_unauthenticated(&self) -> bool {
        !self.0.is_authenticated.load(Ordering::Relaxed) && !self.is(ConnectionState::Closing)
    }

    /// Returns the caller that was authenticated last; `None` if there was none yet.
    pub(super) fn caller(&self) -> Option<u64> {
        Some(self.0.caller.load(Ordering::Relaxed)).filter(|caller| *caller != UNKNOWN_CALLER)
    }

    /// Returns a value stored with the connection for the layers above.
    ///
    /// The first call creates it. Only one type can be stored; a value of a second type is created on each call.
    pub fn extension<T: Any + Send + Sync>(&self, make: impl Fn() -> T) -> Arc<T> {
        let extension = self.0.extension.get_or_init(|| Arc::new(make())).clone();
        extension.downcast().unwrap_or_else(|_| Arc::new(make()))
    }

    /// Runs a future on the connection's own task after the switch to another protocol. So it stays on its core, within
    /// the listener's limit and the caller's share of CPU time. If the connection must close, the future is dropped.
    ///
    /// Call it before the 101 is returned. With any other response the future is dropped, as on multiplexed connections,
    /// which do not switch.
    pub fn run_upgraded(&self, upgraded: impl Future<Output = ()> + Send + 'static) {
        if !self.is_multiplexed() {
            *self.0.upgraded.lock() = Some(Box::pin(upgraded));
        }
    }

    pub(super) fn take_upgraded(&self) -> Option<UpgradedFuture> {
        self.0.upgraded.lock().take()
    }

    pub(super) fn advance(&self, state: ConnectionState) {
        self.0.state.fetch_max(state as u8, Ordering::SeqCst);
        self.0.changed.notify_one();
    }

    pub(super) fn is(&self, state: ConnectionState) -> bool {
        self.0.state.load(Ordering::SeqCst) >= state as u8
    }

    /// Completes when the connection has reached a state of closing. Only one task may wait at a time.
    pub(super) async fn reached(&self, state: ConnectionState) {
        while !self.is(state) {
            self.0.changed.notified().await;
        }
    }

    /// Counts a new request; `None` if the connection takes no more. If more than `late_max` such requests are
    /// received, the connection is aborted.
    pub(super) fn request(&self, late_max: u32) -> Option<RunningRequestGuard> {
        if self.is(ConnectionState::Closing) {
            if self.0.late.fetch_add(1, Ordering::Relaxed) == late_max {
                ConnectionFailure::Unauthenticated.count();
                self.advance(ConnectionState::Aborted);
            }
            return None;
        }
        self.0.has_received_request.store(true, Ordering::Relaxed);
        Some(self.running())
    }

    /// Counts the connection as busy until the guard is dropped.
    pub(super) fn running(&self) -> RunningRequestGuard {
        self.0.running.fetch_add(1, Ordering::SeqCst);
        RunningRequestGuard { connection: self.clone(), is_stalled: false }
    }

    pub(super) fn has_received_request(&self) -> bool {
        self.0.has_received_request.load(Ordering::Relaxed)
    }

    pub(super) fn accepted_at(&self) -> Instant {
        self.0.accepted_at.0
    }

    /// Records that an HTTP/2 request was received.
    pub(super) fn mark_multiplexed(&self) {
        self.0.is_multiplexed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_multiplexed(&self) -> bool {
        self.0.is_multiplexed.load(Ordering::Relaxed)
    }

    /// Records a step of the TLS handshake. The connection counts as idle only from its last step.
    pub(super) fn handshake_advanced(&self) {
        self.0.idle_since.fetch_max(self.millis(), Ordering::SeqCst);
    }

    /// Returns the time since which no request has been running; `None` if one is.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        if self.0.running.load(Ordering::SeqCst) > 0 {
            return None;
        }
        Some(self.at(&self.0.idle_since))
    }

    /// The time since which the connection has made no progress: no request is running, or the client has read nothing
    /// of any response for [`STALLED_AFTER`].
    pub(super) fn inactive_since(&self) -> Option<Instant> {
        let stalled = || {
            let is_stalled = self.0.stalled.load(Ordering::SeqCst) >= self.0.running.load(Ordering::SeqCst);
            Some(self.at(&self.0.last_read_at)).filter(|since| is_stalled && since.elapsed() >= STALLED_AFTER)
        };
        self.idle_since().or_else(stalled)
    }

    fn at(&self, millis: &AtomicU64) -> Instant {
        self.0.accepted_at.0 + Duration::from_millis(millis.load(Ordering::SeqCst))
    }

    /// Returns the current time in milliseconds after `accepted_at`.
    fn millis(&self) -> u64 {
        u64::try_from(self.0.accepted_at.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Completes when no first request was received within `first`, or no request has been running for `next`.
    pub(super) async fn idle_for(&self, first: Duration, next: Duration) {
        loop {
            let max = if self.has_received_request() { next } else { first };
            let now = Instant::now();
            let due = self.idle_since().map_or(now + max, |since| since + max);
            if due <= now {
                return;
            }
            // Requests send no notification when they start or end, so this polls.
            sleep_until(due.min(now + first.min(next))).await;
        }
    }
}

impl Default for AcceptTime {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl fmt::Debug for DownstreamConnectionInner {
    /// Formats the connection without the stored value, which may contain credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DownstreamConnection").field("state", &self.state).finish_non_exhaustive()
    }
}

impl RunningRequestGuard {
    /// Records that the response waits for the client, which has just read all data that was sent.
    pub(super) fn mark_stalled(&mut self) {
        let DownstreamConnection(shared) = &self.connection;
        // The time is set first, because readers of the count read it next.
        shared.last_read_at.fetch_max(self.connection.millis(), Ordering::SeqCst);
        if !std::mem::replace(&mut self.is_stalled, true) {
            shared.stalled.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Records that the client waits for the response.
    pub(super) fn mark_resumed(&mut self) {
        if std::mem::take(&mut self.is_stalled) {
            self.connection.0.stalled.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for RunningRequestGuard {
    fn drop(&mut self) {
        self.mark_resumed();
        let DownstreamConnection(shared) = &self.connection;
        // The time is set first, because a reader that finds nothing running reads it.
        shared.idle_since.fetch_max(self.connection.millis(), Ordering::SeqCst);
        shared.running.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE_MAX: u32 = 2;

    #[tokio::test(start_paused = true)]
    async fn connection_is_idle_after_its_last_response() {
        let connection = DownstreamConnection::default();
        let accepted_at = Instant::now();
        assert_eq!((connection.idle_since(), connection.has_received_request()), (Some(accepted_at), false));
        let first = connection.request(LATE_MAX).expect("it is open");
        let second = connection.request(LATE_MAX).expect("it is open");
        tokio::time::advance(Duration::from_secs(7)).await;
        drop(first);
        assert_eq!((connection.idle_since(), connection.has_received_request()), (None, true));
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(second);
        assert_eq!(connection.idle_since(), Some(accepted_at + Duration::from_secs(8)));
        connection.idle_for(Duration::from_secs(10), Duration::from_secs(90)).await;
        assert_eq!(accepted_at.elapsed().as_secs(), 98);
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_unread_responses_is_stalled_not_idle() {
        let (connection, accepted_at) = (DownstreamConnection::default(), Instant::now());
        let second = Duration::from_secs(1);
        let [mut list, mut watch] = [(); 2].map(|()| connection.request(LATE_MAX).expect("it is open"));
        list.mark_stalled();
        tokio::time::advance(STALLED_AFTER).await;
        assert_eq!(connection.inactive_since(), None, "the watch waits for events");
        watch.mark_stalled();
        tokio::time::advance(STALLED_AFTER.saturating_sub(second)).await;
        assert_eq!(connection.inactive_since(), None, "part of the watch was read");
        list.mark_stalled();
        tokio::time::advance(STALLED_AFTER).await;
        assert_eq!(connection.inactive_since(), Some(accepted_at + (2 * STALLED_AFTER).saturating_sub(second)));
        assert_eq!(connection.idle_since(), None);
        watch.mark_resumed();
        assert_eq!(connection.inactive_since(), None);
        drop(watch);
        assert_eq!(connection.inactive_since(), Some(accepted_at + (2 * STALLED_AFTER).saturating_sub(second)));
        drop(list);
        assert_eq!(connection.inactive_since(), Some(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn idle_timeout_counts_from_last_response_and_not_while_running() {
        let seconds = Duration::from_secs;
        for (first, next, request, over) in
            [(90, 60, None, 90), (90, 60, Some((80, 1000)), 1060), (10, 60, Some((5, 6)), 66), (90, 5, Some((1, 2)), 7)]
        {
            let (connection, began) = (DownstreamConnection::default(), Instant::now());
            let requesting = async {
                let Some((at, until)) = request else { return };
                sleep_until(began + seconds(at)).await;
                let running = connection.request(LATE_MAX);
                sleep_until(began + seconds(until)).await;
                drop(running);
            };
            let idle = async {
                connection.idle_for(seconds(first), seconds(next)).await;
                began.elapsed()
            };
            let (idle, ()) = tokio::join!(idle, requesting);
            // The end of the silence is polled, so it is noticed late.
            let late = idle.checked_sub(seconds(over)).expect("not before");
            assert!(late <= seconds(first.min(next)), "{first} {next} {request:?}: {idle:?}");
        }
    }

    #[tokio::test]
    async fn closing_connection_refuses_requests_and_leaving_one_accepts() {
        let connection = DownstreamConnection::default();
        connection.advance(ConnectionState::Draining);
        assert!(connection.request(LATE_MAX).is_some());
        connection.close();
        connection.reached(ConnectionState::Closing).await;
        connection.advance(ConnectionState::Draining);
        for _ in 0..LATE_MAX {
            assert!(connection.request(LATE_MAX).is_none() && !connection.is(ConnectionState::Aborted));
        }
        assert!(connection.request(LATE_MAX).is_none());
        connection.reached(ConnectionState::Aborted).await;
    }

    #[test]
    fn multiplexed_known_connection_survives_one_rejected_request() {
        for (is_multiplexed, is_authenticated, closes) in
            [(false, false, true), (false, true, true), (true, false, true), (true, true, false)]
        {
            let connection = DownstreamConnection::default();
            if is_multiplexed {
                connection.mark_multiplexed();
            }
            if is_authenticated {
                connection.authenticated(None);
            }
            connection.authentication_failed();
            assert_eq!(connection.is(ConnectionState::Closing), closes, "{is_multiplexed} {is_authenticated}");
        }
    }

    #[test]
    fn connection_is_unauthenticated_until_caller_is_known_or_closing() {
        let (known, closing) = (DownstreamConnection::default(), DownstreamConnection::default());
        assert!(known.is_unauthenticated() && closing.is_unauthenticated());
        known.authenticated(None);
        closing.authentication_failed();
        assert!(!known.is_unauthenticated() && !closing.is_unauthenticated());
    }

    #[test]
    fn connection_stores_one_value_per_type() {
        let connection = DownstreamConnection::default();
        assert_eq!(*connection.extension(|| 1_u8), 1);
        assert_eq!(*connection.extension(|| 2_u8), 1, "it is stored");
        assert_eq!(*connection.extension(|| "another"), "another");
    }
}

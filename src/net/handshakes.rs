use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use super::connection_driver::BoxError;
use super::connections_by_owner::ConnectionSource;
use super::metrics::ConnectionFailure;
use base::{PerCore, RoundRobinSemaphore};

/// The queue of TLS handshakes of a listener.
///
/// One poll of a handshake, mostly a signature, takes a core for up to a millisecond, and any client can cause them
/// without limit. So handshakes run in turns: sources alternate, however many connections each has opened, and half of
/// each core is left to everything else.
///
/// A handshake that waits for its client holds no turn, and none is refused. A fleet behind one address is accepted as
/// fast as the cores allow.
#[derive(Debug)]
pub(super) struct TlsHandshakeQueue {
    /// The turns of handshakes on each core. A busy core does not delay the others.
    turns: PerCore<PerCoreHandshakes>,
    failures: HandshakeFailures,
    /// The maximum time of a handshake, including the wait for its turns. A client that has waited longer has given up,
    /// so no more work is done for it.
    time_max: Duration,
}

/// The handshakes of one core's connections.
#[derive(Debug)]
struct PerCoreHandshakes {
    steps: RoundRobinSemaphore<ConnectionSource>,
    /// The time at which everything else runs again.
    until: Mutex<Instant>,
}

/// The recent failed handshakes, by source.
///
/// Each failure costs a signature, and a client can cause the next one at once. So a source with many failures waits a
/// moment before its next handshake.
#[derive(Debug, Default)]
pub(super) struct HandshakeFailures {
    /// The time at which all failures of a source are forgotten: each adds [`FORGOTTEN_AFTER`]. One lock suffices: a
    /// look-up takes 0.1 µs and a handshake 1,000 µs. It also bounds the number of sources.
    of: Mutex<HashMap<ConnectionSource, Instant>>,
}

/// The minimum time that handshakes run before other tasks do. It is longer if other tasks took longer before.
const RUN_FOR: Duration = Duration::from_millis(1);
/// The shortest round of the runtime in which another task was ready.
const IDLE_ROUND: Duration = Duration::from_micros(10);
/// The number of recent failures that have no effect. A fleet whose certificates have all expired at once is not an
/// attack.
const FREE_FAILURES: u32 = 50;
/// The time after which a failed handshake is forgotten, one after the other.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(100);
/// How long a source with too many failed handshakes waits.
const PAUSE: Duration = Duration::from_millis(200);
/// The maximum number of sources remembered. Beyond that, all are forgotten, which does not help an attacker with one
/// address.
const SOURCES_MAX: usize = 4_096;

impl TlsHandshakeQueue {
    pub(super) fn new(time_max: Duration) -> Self {
        let turns =
            || PerCoreHandshakes { steps: RoundRobinSemaphore::new(1, |_| false), until: Mutex::new(Instant::now()) };
        Self { turns: PerCore::new(turns), failures: HandshakeFailures::default(), time_max }
    }

    /// Runs a handshake with a client of a source.
    ///
    /// # Errors
    /// The handshake failed, or took longer than the limit.
    pub(super) async fn run<T>(
        &self,
        source: ConnectionSource,
        handshake: impl Future<Output = io::Result<T>> + Unpin,
    ) -> Result<T, BoxError> {
        self.failures.wait(source).await;
        let failed = |failure: ConnectionFailure| {
            failure.count();
            self.failures.record(source);
        };
        let result = timeout(self.time_max, self.turns.here().run(source, handshake)).await;
        let result = result.inspect_err(|_| failed(ConnectionFailure::HandshakeTimeout))?;
        Ok(result.inspect_err(|_| failed(ConnectionFailure::Handshake))?)
    }
}

impl PerCoreHandshakes {
    /// Polls a handshake only in its source's turn.
    async fn run<F: Future + Unpin>(&self, source: ConnectionSource, mut handshake: F) -> F::Output {
        loop {
            let turn = self.steps.wait(source).await;
            self.yield_to_others().await;
            let step = poll_fn(|cx| Poll::Ready(handshake.poll_unpin(cx))).await;
            drop(turn);
            match step {
                Poll::Ready(output) => return output,
                Poll::Pending => woken().await,
            }
        }
    }

    /// Lets all other tasks that can run do so, unless they just did. The other ready handshakes then join the queue,
    /// so that turns follow the queue and not the order in which the runtime wakes tasks.
    async fn yield_to_others(&self) {
        let began = Instant::now();
        if began < *self.until.lock() {
            return;
        }
        let mut now = began;
        loop {
            let last = now;
            yield_now().await;
            now = Instant::now();
            // Callers that keep a core busy get one slice each time, not all that they ask for.
            if now - began >= RUN_FOR || now - last < IDLE_ROUND {
                break;
            }
        }
        *self.until.lock() = now + RUN_FOR.max(now - began);
    }
}

/// Completes when the current task is woken by the future that it has just polled.
async fn woken() {
    let mut is_woken = false;
    poll_fn(|_| if std::mem::replace(&mut is_woken, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

impl HandshakeFailures {
    /// Records a failed handshake of a source.
    pub(super) fn record(&self, source: ConnectionSource) {
        let now = Instant::now();
        let mut of = self.of.lock();
        if of.len() >= SOURCES_MAX && !of.contains_key(&source) {
            of.clear();
        }
        let forgotten = of.entry(source).or_insert(now);
        *forgotten = (*forgotten).max(now) + FORGOTTEN_AFTER;
    }

    /// Completes when a handshake of the source may begin: at once, unless many have failed.
    pub(super) async fn wait(&self, source: ConnectionSource) {
        let latest = Instant::now() + FREE_FAILURES * FORGOTTEN_AFTER;
        let pauses = self.of.lock().get(&source).is_some_and(|forgotten| *forgotten > latest);
        if pauses {
            sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use tokio::task::JoinSet;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(10);
    const STEPS: usize = 3;

    fn source(last: u8) -> ConnectionSource {
        ConnectionSource::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    /// A handshake that notes each of its steps.
    async fn run(handshakes: Arc<TlsHandshakeQueue>, last: u8, notes: Arc<Mutex<Vec<u8>>>) -> bool {
        let mut steps = 0;
        let step = poll_fn(move |cx| {
            notes.lock().push(last);
            steps += 1;
            if steps == STEPS {
                return Poll::Ready(Ok(()));
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        handshakes.run(source(last), step).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn handshake_steps_alternate_between_flood_and_other_sources() {
        const FLOOD: usize = 200;
        let (handshakes, notes) = (Arc::new(TlsHandshakeQueue::new(LONGEST)), Arc::<Mutex<Vec<u8>>>::default());
        let mut all = JoinSet::new();
        for _ in 0..FLOOD {
            all.spawn(run(handshakes.clone(), 2, notes.clone()));
        }
        all.spawn(run(handshakes.clone(), 3, notes.clone()));
        assert!(all.join_all().await.into_iter().all(|result| result));
        let notes = notes.lock();
        let steps: Vec<_> = (0..notes.len()).filter(|at| notes[*at] == 3).collect();
        assert_eq!((notes.len(), steps.len()), ((FLOOD + 1) * STEPS, STEPS));
        assert!(steps[STEPS - 1] <= 3 * STEPS, "at {steps:?}");
        assert!(handshakes.turns.here().steps.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn silent_handshakes_do_not_block_others() {
        let handshakes = Arc::new(TlsHandshakeQueue::new(LONGEST));
        let mut silent = JoinSet::new();
        for _ in 0..100 {
            let handshakes = handshakes.clone();
            silent.spawn(async move { handshakes.run::<()>(source(2), std::future::pending()).await.is_ok() });
        }
        sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        assert!(run(handshakes.clone(), 2, Arc::default()).await && run(handshakes.clone(), 3, Arc::default()).await);
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(silent.join_all().await.into_iter().all(|result| !result), "each has its time");
        assert!(handshakes.turns.here().steps.is_empty());
    }

    /// The limit includes the time of waiting, so that no work is done for clients that have gone.
    #[tokio::test(start_paused = true)]
    async fn queued_handshake_expires_without_doing_work() {
        let (handshakes, notes) = (Arc::new(TlsHandshakeQueue::new(LONGEST)), Arc::<Mutex<Vec<u8>>>::default());
        let others = handshakes.turns.here().steps.wait(source(1)).await;
        assert!(!run(handshakes.clone(), 2, notes.clone()).await);
        assert!(notes.lock().is_empty());
        drop(others);
        assert!(run(handshakes.clone(), 2, notes).await);
    }

    #[tokio::test(start_paused = true)]
    async fn source_with_repeated_failures_is_delayed_and_others_are_not() {
        let failures = HandshakeFailures::default();
        let waits = |of| failures.wait(of).now_or_never().is_none();
        (0..50).for_each(|_| failures.record(source(1)));
        assert!(!waits(source(1)), "it may happen");
        failures.record(source(1));
        assert!(waits(source(1)) && !waits(source(2)));
        let began = Instant::now();
        failures.wait(source(1)).await;
        assert_eq!(began.elapsed(), PAUSE);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!waits(source(1)), "it is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn failure_table_bounds_number_of_sources() {
        let failures = HandshakeFailures::default();
        for at in 0..=u32::try_from(SOURCES_MAX).expect("few") {
            failures.record(ConnectionSource::V4(Ipv4Addr::from_bits(at)));
        }
        assert!(failures.of.lock().len() <= SOURCES_MAX);
    }
}

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use super::failures::Failures;
use super::idle_connections::ConnectionSource;
use super::metrics::ConnectionFailure;
use base::{PerCore, TurnQueue};

/// The TLS handshakes of a listener. What is done of one in a poll, mostly a signature, takes a processor for up to a
/// millisecond, and anybody may have it done without end. So it is done in turns: sources have them one after the
/// other, however many connections one of them has opened, and half of each core is left to everything else. Nothing
/// is held while a client is waited for, and nobody is refused: a fleet behind one address is let in as fast as that
/// goes.
#[derive(Debug)]
pub(super) struct Handshakes {
    /// A core that is busy holds up no other.
    turns: PerCore<HandshakeTurns>,
    failures: Failures,
    /// With the time that one waits for its turns. Who has waited for so long has given up, and costs nothing more.
    longest: Duration,
}

/// The handshakes of one core's connections.
#[derive(Debug)]
struct HandshakeTurns {
    steps: TurnQueue<ConnectionSource>,
    /// When everything else is let in again.
    rests: Mutex<Instant>,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Steps are done for so long, or for as long as everything else has taken before, until that is let in again.
const STEPS_FOR: Duration = Duration::from_millis(1);
/// A round in which something was ready hardly takes less.
const NOBODY_IN: Duration = Duration::from_micros(10);

impl Handshakes {
    pub(super) fn new(longest: Duration) -> Self {
        let turns = || HandshakeTurns { steps: TurnQueue::new(1, |_| false), rests: Mutex::new(Instant::now()) };
        Self { turns: PerCore::new(turns), failures: Failures::default(), longest }
    }

    /// What a handshake with somebody there comes to.
    pub(super) async fn shake<T>(
        &self,
        source: ConnectionSource,
        handshake: impl Future<Output = io::Result<T>> + Unpin,
    ) -> Result<T, Failure> {
        self.failures.wait(source).await;
        let failed = |failure: ConnectionFailure| {
            failure.count();
            self.failures.note(source);
        };
        let shaken = timeout(self.longest, self.turns.here().shake(source, handshake)).await;
        let shaken = shaken.inspect_err(|_| failed(ConnectionFailure::HandshakeTimeout))?;
        Ok(shaken.inspect_err(|_| failed(ConnectionFailure::Handshake))?)
    }
}

impl HandshakeTurns {
    /// Polls a handshake when it is its source's turn, and not whenever it could go on.
    async fn shake<F: Future + Unpin>(&self, source: ConnectionSource, mut handshake: F) -> F::Output {
        loop {
            let turn = self.steps.wait(source).await;
            self.let_others_in().await;
            let step = poll_fn(|cx| Poll::Ready(handshake.poll_unpin(cx))).await;
            drop(turn);
            match step {
                Poll::Ready(output) => return output,
                Poll::Pending => woken().await,
            }
        }
    }

    /// Lets everything else that is ready go on, if that was not done just now. So those who can go on with a handshake
    /// come to wait for their turns, and do not just have one after the other as a runtime wakes them.
    async fn let_others_in(&self) {
        let began = Instant::now();
        if began < *self.rests.lock() {
            return;
        }
        let mut now = began;
        loop {
            let last = now;
            yield_now().await;
            now = Instant::now();
            // Callers who keep a core busy have a slice of it each time, and not all that they want.
            if now - began >= STEPS_FOR || now - last < NOBODY_IN {
                break;
            }
        }
        *self.rests.lock() = now + STEPS_FOR.max(now - began);
    }
}

/// Completes when the task is woken that has just polled something.
async fn woken() {
    let mut is_woken = false;
    poll_fn(|_| if std::mem::replace(&mut is_woken, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use tokio::task::JoinSet;
    use tokio::time::sleep;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(10);
    const STEPS: usize = 3;

    fn source(last: u8) -> ConnectionSource {
        ConnectionSource::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    /// Somebody's handshake, which notes each of its steps.
    async fn shake(handshakes: Arc<Handshakes>, last: u8, notes: Arc<Mutex<Vec<u8>>>) -> bool {
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
        handshakes.shake(source(last), step).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_from_elsewhere_waits_for_a_step_of_a_flood_at_a_time_and_the_flood_is_let_in() {
        const FLOOD: usize = 200;
        let (handshakes, notes) = (Arc::new(Handshakes::new(LONGEST)), Arc::<Mutex<Vec<u8>>>::default());
        let mut all = JoinSet::new();
        for _ in 0..FLOOD {
            all.spawn(shake(handshakes.clone(), 2, notes.clone()));
        }
        all.spawn(shake(handshakes.clone(), 3, notes.clone()));
        assert!(all.join_all().await.into_iter().all(|shaken| shaken));
        let notes = notes.lock();
        let steps: Vec<_> = (0..notes.len()).filter(|at| notes[*at] == 3).collect();
        assert_eq!((notes.len(), steps.len()), ((FLOOD + 1) * STEPS, STEPS));
        assert!(steps[STEPS - 1] <= 3 * STEPS, "at {steps:?}");
        assert!(handshakes.turns.here().steps.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_waited_for_holds_up_nobody() {
        let handshakes = Arc::new(Handshakes::new(LONGEST));
        let mut silent = JoinSet::new();
        for _ in 0..100 {
            let handshakes = handshakes.clone();
            silent.spawn(async move { handshakes.shake::<()>(source(2), std::future::pending()).await.is_ok() });
        }
        sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        assert!(
            shake(handshakes.clone(), 2, Arc::default()).await && shake(handshakes.clone(), 3, Arc::default()).await
        );
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(silent.join_all().await.into_iter().all(|shaken| !shaken), "each has its time");
        assert!(handshakes.turns.here().steps.is_empty());
    }

    /// It is counted with the time that is waited, so that nothing is done for those who have gone.
    #[tokio::test(start_paused = true)]
    async fn who_has_waited_for_too_long_costs_nothing_more() {
        let (handshakes, notes) = (Arc::new(Handshakes::new(LONGEST)), Arc::<Mutex<Vec<u8>>>::default());
        let others = handshakes.turns.here().steps.wait(source(1)).await;
        assert!(!shake(handshakes.clone(), 2, notes.clone()).await);
        assert!(notes.lock().is_empty());
        drop(others);
        assert!(shake(handshakes.clone(), 2, notes).await);
    }
}

use std::future::poll_fn;
use std::net::Ipv4Addr;
use std::task::ready;
use std::time::Duration;

use futures_util::FutureExt;
use http2::WakeSet;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{advance, sleep, sleep_until, timeout};

use super::*;

/// The duration of most polls.
const POLL: Duration = Duration::from_micros(20);
const STORM: u64 = 1;
const LONG: Duration = Duration::from_secs(3_600);
/// The most delay of a timer.
const TIMER: Duration = Duration::from_millis(1);

/// The most delay until a light owner's connection is polled: a slice of the heavy owners, their last poll, and one
/// poll of its own.
const LATE_MAX: Duration = SLICE.saturating_add(POLL.saturating_mul(2)).saturating_add(TIMER);

fn source(last: u8) -> ConnectionSource {
    ConnectionSource::V4(Ipv4Addr::new(10, 0, 0, last))
}

/// The turns of a connection whose caller is unknown, from an address of its own.
fn other(turns: &ConnectionScheduler) -> ScheduledConnection {
    turns.schedule(&DownstreamConnection::default(), source(250))
}

/// A simulated core. It notes which connection was polled, and when.
struct Scene {
    /// The duration of a poll.
    poll: Duration,
    turns: Arc<ConnectionScheduler>,
    began: Instant,
    notes: Arc<Mutex<Vec<(u64, Duration)>>>,
    all: JoinSet<()>,
}

impl Scene {
    fn new() -> Self {
        let (turns, began) = (ConnectionScheduler::shared(), Instant::now());
        Self { poll: POLL, turns, began, notes: Arc::default(), all: JoinSet::new() }
    }

    /// A caller's connection polled `polls` times in a row.
    fn connection(&self, caller: u64, polls: usize) -> impl Future<Output = ()> + Send + use<> {
        let connection = DownstreamConnection::default();
        connection.authenticated(Some(caller));
        self.begin((connection, source(0)), caller, polls, Some(caller))
    }

    /// A connection whose caller is `found` at its first poll, if at all. `name` is its name in the notes.
    fn begin(
        &self,
        (connection, source): (DownstreamConnection, ConnectionSource),
        name: u64,
        polls: usize,
        found: Option<u64>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (mut turns, notes, began) = (self.turns.schedule(&connection, source), self.notes.clone(), self.began);
        let (mut left, poll) = (polls, self.poll);
        poll_fn(move |cx| {
            let turn = ready!(turns.poll_turn(cx));
            notes.lock().push((name, began.elapsed()));
            assert!(advance(poll).now_or_never().is_none(), "time has passed, and then it lets others in");
            if found.is_some() {
                connection.authenticated(found);
            }
            drop(turn);
            left -= 1;
            if left == 0 {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    fn spawn(&mut self, caller: u64, connections: usize, polls: usize) {
        (0..connections).for_each(|_| drop(self.all.spawn(self.connection(caller, polls))));
    }

    /// A connection that needs one poll, at a given time.
    fn spawn_at(&mut self, due: Duration, caller: u64) {
        let (connection, due) = (self.connection(caller, 1), self.began + due);
        self.all.spawn(async move {
            sleep_until(due).await;
            connection.await;
        });
    }

    /// Returns the number of connections that completed without a panic.
    async fn end(&mut self) -> usize {
        let mut ended = 0;
        while let Some(joined) = timeout(LONG, self.all.join_next()).await.expect("no connection waits forever") {
            ended += usize::from(joined.is_ok());
        }
        let queues = self.turns.0.here().queues.lock();
        assert_eq!((queues.open.len(), queues.waiting), (0, 0), "no state is kept for dropped connections");
        ended
    }

    fn polls_of(&self, caller: u64) -> Vec<Duration> {
        self.notes.lock().iter().filter(|(who, _)| *who == caller).map(|(_, at)| *at).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn light_callers_wait_one_slice_during_storm() {
    let mut scene = Scene::new();
    scene.spawn(STORM, 400, 20);
    let due: Vec<_> = (1..40).map(|at| 3 * TIMER * at).collect();
    (2..).zip(&due).for_each(|(caller, due)| scene.spawn_at(*due, caller));
    assert_eq!(scene.end().await, 400 + due.len());
    for (caller, due) in (2..).zip(due) {
        let late = scene.polls_of(caller)[0].checked_sub(due).expect("not before");
        assert!(late <= LATE_MAX, "{caller}: {late:?} of {:?}", 400 * POLL);
    }
}

#[tokio::test(start_paused = true)]
async fn unauthenticated_connection_waits_at_most_one_slice() {
    let mut scene = Scene::new();
    scene.spawn(STORM, 400, 20);
    let (stranger, due) =
        (scene.begin((DownstreamConnection::default(), source(2)), 2, 1, None), scene.began + 3 * TIMER);
    scene.all.spawn(async move {
        sleep_until(due).await;
        stranger.await;
    });
    scene.end().await;
    let late = scene.polls_of(2)[0].checked_sub(3 * TIMER).expect("not before");
    assert!(late <= LATE_MAX, "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn unauthenticated_connections_of_one_address_share_turns() {
    let mut scene = Scene::new();
    for _ in 0..400 {
        drop(scene.all.spawn(scene.begin((DownstreamConnection::default(), source(1)), STORM, 20, None)));
    }
    // One more connection without a known caller, from another address, and one with a known caller.
    let (stranger, due) =
        (scene.begin((DownstreamConnection::default(), source(2)), 2, 1, None), scene.began + 3 * TIMER);
    scene.all.spawn(async move {
        sleep_until(due).await;
        stranger.await;
    });
    scene.spawn_at(30 * TIMER, 3);
    assert_eq!(scene.end().await, 402);
    for (caller, due) in [(2, 3 * TIMER), (3, 30 * TIMER)] {
        let late = scene.polls_of(caller)[0].checked_sub(due).expect("not before");
        assert!(late <= LATE_MAX, "{caller}: {late:?} of {:?}", 400 * POLL);
    }
}

#[tokio::test(start_paused = true)]
async fn lone_caller_never_waits_while_cpu_is_idle() {
    for others in [0, 1] {
        let mut scene = Scene::new();
        // The paused clock of an idle runtime advances to its next timer.
        let timer = tokio::spawn(sleep(LONG));
        // An idle connection of another caller makes the turns count.
        let _others: Vec<_> = (0..others).map(|_| other(&scene.turns)).collect();
        scene.spawn(STORM, 50, 40);
        while scene.all.join_next().await.is_some() {}
        assert_eq!(scene.polls_of(STORM).len(), 2_000);
        assert_eq!(scene.began.elapsed(), 2_000 * POLL, "{others}");
        timer.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn caller_with_many_connections_gets_no_more_cpu_time() {
    let mut scene = Scene::new();
    scene.spawn(STORM, 80, 20);
    scene.spawn(2, 4, 400);
    scene.end().await;
    // When one owner has used half of its demand, so has the other, within a few slices.
    let half = |caller| scene.polls_of(caller)[800];
    assert!(half(STORM).abs_diff(half(2)) <= 4 * SLICE, "{:?} {:?}", half(STORM), half(2));
}

#[tokio::test(start_paused = true)]
async fn light_caller_waits_one_slice_despite_many_heavy_callers() {
    const NAMES: u32 = 40;
    let mut scene = Scene::new();
    (0..NAMES).for_each(|name| scene.spawn(100 + u64::from(name), 30, 20));
    scene.spawn_at(10 * TIMER, 2);
    scene.end().await;
    let late = scene.polls_of(2)[0].checked_sub(10 * TIMER).expect("not before");
    assert!(late <= LATE_MAX, "{late:?}, and all of them take {:?}", 30 * NAMES * POLL);
}

#[tokio::test(start_paused = true)]
async fn light_caller_waits_for_one_poll_if_polls_exceed_a_slice() {
    let mut scene = Scene { poll: Duration::from_millis(1), ..Scene::new() };
    (0..6).for_each(|name| scene.spawn(100 + name, 30, 5));
    scene.spawn_at(70 * TIMER, 2);
    scene.end().await;
    let late = scene.polls_of(2)[0].checked_sub(70 * TIMER).expect("not before");
    assert!(late <= scene.poll + TIMER, "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn heavy_callers_get_equal_time_regardless_of_poll_length() {
    let scene = Scene::new();
    let long = Scene {
        poll: Duration::from_millis(1),
        notes: scene.notes.clone(),
        turns: scene.turns.clone(),
        ..Scene::new()
    };
    let mut all = JoinSet::new();
    (0..30).for_each(|_| drop(all.spawn(long.connection(2, 5))));
    (0..30).for_each(|_| drop(all.spawn(scene.connection(STORM, 250))));
    while all.join_next().await.is_some() {}
    // When one has used half of its 150 ms, so has the other, within a few of the long polls.
    let [long, short] = [scene.polls_of(2)[75], scene.polls_of(STORM)[3_750]];
    assert!(long.abs_diff(short) <= Duration::from_millis(10), "{long:?} {short:?}");
}

#[tokio::test(start_paused = true)]
async fn light_caller_on_new_connections_never_waits() {
    let scene = Scene::new();
    let _other = other(&scene.turns);
    for _ in 0..20 {
        let connection = (DownstreamConnection::default(), source(1));
        assert_eq!(scene.begin(connection, STORM, 1, Some(STORM)).now_or_never(), Some(()));
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!(scene.connection(STORM, 1).now_or_never(), Some(()));
}

#[tokio::test(start_paused = true)]
async fn cpu_charge_follows_caller_across_new_connections() {
    let scene = Scene::new();
    // The connection of another owner makes the turns count.
    let _other = other(&scene.turns);
    for last in 0..6 {
        let connection = (DownstreamConnection::default(), source(last));
        assert_eq!(scene.begin(connection, STORM, 1, Some(STORM)).now_or_never(), Some(()));
    }
    let mut next = Box::pin(scene.connection(STORM, 1));
    assert!(next.as_mut().now_or_never().is_none(), "it lets others in");
    yield_now().await;
    assert_eq!(next.now_or_never(), Some(()), "they are in");
}

#[tokio::test(start_paused = true)]
async fn dropped_or_panicked_connection_does_not_block_others() {
    let mut scene = Scene::new();
    let other = other(&scene.turns);
    let some: Vec<_> = (0..30).map(|_| scene.all.spawn(scene.connection(STORM, 40))).collect();
    let connection = DownstreamConnection::default();
    connection.authenticated(Some(STORM));
    let mut turns = scene.turns.schedule(&connection, source(0));
    scene.all.spawn(poll_fn(move |cx| {
        let _turn = ready!(turns.poll_turn(cx));
        panic!("a fault of ours");
    }));
    for gone in &some[..15] {
        for _ in 0..100 {
            if scene.turns.0.here().queues.lock().waiting > 0 {
                break;
            }
            yield_now().await;
        }
        // One after the other while some wait, among them the first in the queue.
        gone.abort();
        yield_now().await;
    }
    drop(other);
    assert_eq!(scene.end().await, 15);
}

#[tokio::test(start_paused = true)]
async fn spurious_wake_does_not_bypass_yield_to_others() {
    let scene = Scene::new();
    let _other = other(&scene.turns);
    let mut connection = Box::pin(scene.connection(STORM, 100));
    let polls = |scene: &Scene| scene.polls_of(STORM).len();
    (0..5).for_each(|_| assert!(connection.as_mut().now_or_never().is_none()));
    for _ in 0..10 {
        assert!(connection.as_mut().now_or_never().is_none());
        assert_eq!(polls(&scene), 5, "{SLICE:?} are over");
    }
    yield_now().await;
    assert!(connection.as_mut().now_or_never().is_none());
    assert_eq!(polls(&scene), 6);
}

#[test]
fn caller_table_keeps_only_recent_and_waiting_callers() {
    let (mut queues, now) = (ConnectionOwnerQueues::default(), Instant::now());
    let waker = Waker::noop();
    queues.end(ConnectionOwner::Caller(STORM), now, now + SLICE);
    queues.end(ConnectionOwner::Caller(2), now, now + SLICE);
    let mut ticket = None;
    assert!(matches!(
        queues.enter(ConnectionOwner::Caller(STORM), now + SLICE, &mut ticket, waker),
        PollDecision::YieldToOthers(_)
    ));
    let late = now + Duration::from_secs(1);
    for caller in 10..10_000 {
        assert!(matches!(queues.enter(ConnectionOwner::Caller(caller), late, &mut None, waker), PollDecision::Run));
    }
    assert!(queues.len() < 200, "{}", queues.len());
    let entered = queues.enter(ConnectionOwner::Caller(STORM), late, &mut ticket, waker);
    assert!(matches!(entered, PollDecision::Wait), "others are not in yet");
    assert!(queues.leave(&ticket.expect("it waits")).is_none());
}

/// The CPU use of an owner over a second, as the poll time and the pause between polls, and whether the owner then
/// waits.
#[test]
fn owner_is_heavy_above_a_fifth_of_a_core() {
    for (poll, pause, waits) in [
        (Duration::from_micros(20), Duration::from_micros(200), false),
        (Duration::from_micros(20), Duration::from_micros(40), true),
        (Duration::from_micros(90), Duration::from_micros(400), false),
        (Duration::from_micros(90), Duration::from_micros(200), true),
        // A burst gets its slice at once, and its charge is forgotten within 4 ms.
        (Duration::from_millis(1), Duration::from_millis(4), false),
        (Duration::from_secs(1), Duration::from_millis(4), false),
        (Duration::from_millis(1), Duration::from_millis(3), true),
    ] {
        let (mut queues, mut now) = (ConnectionOwnerQueues::default(), Instant::now());
        let has_waited = (0..1_000).any(|_| {
            let entered = queues.enter(ConnectionOwner::Caller(1), now, &mut None, Waker::noop());
            queues.end(ConnectionOwner::Caller(1), now, now + poll);
            now += poll + pause;
            !matches!(entered, PollDecision::Run)
        });
        assert_eq!(has_waited, waits, "{poll:?} every {:?}", poll + pause);
    }
}

/// A connection on which no data arrives.
struct Silence(Arc<WakeSet>);

impl ConnectionDriver for Silence {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_codec(cx, Waker::noop(), |_| Poll::Pending)
    }

    fn begin_goaway(&mut self) {}

    fn wake_set(&self) -> &Arc<WakeSet> {
        &self.0
    }
}

#[tokio::test(start_paused = true)]
async fn side_future_completes_while_connection_waits_for_turn() {
    let (all, connection) = (ConnectionScheduler::shared(), DownstreamConnection::default());
    connection.authenticated(Some(1));
    let of = |connection: &DownstreamConnection| all.schedule(connection, ConnectionSource::Unix);
    let _other = of(&DownstreamConnection::default());
    let (mut first, mut turns) = (of(&connection), of(&connection));
    let cx = Context::from_waker(Waker::noop());
    let turn = first.poll_turn(&cx);
    assert!(turn.is_ready() && advance(Duration::from_secs(1)).now_or_never().is_none());
    drop(turn);
    assert!(first.poll_turn(&cx).is_pending(), "its turn never comes, and that of the other neither");
    let mut silence = Silence(WakeSet::shared());
    let (wake_set, (leave, left)) = (silence.0.clone(), oneshot::channel::<()>());
    let talking = tokio::spawn(async move {
        matches!(turns.run_until(&mut silence, Box::pin(left).as_mut()).await, ControlFlow::Continue(Ok(())))
    });
    for _ in 0..3 {
        yield_now().await;
        wake_set.waker(ConnectionWakeTarget::Codec).wake();
    }
    yield_now().await;
    leave.send(()).expect("it is listened to");
    assert!(talking.await.expect("no panic"));
}

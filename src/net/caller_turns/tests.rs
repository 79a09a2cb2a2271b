use std::future::poll_fn;
use std::task::ready;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinSet;
use tokio::time::{advance, sleep, sleep_until, timeout};

use super::line::SLICE;
use super::*;

/// What most polls take.
const POLL: Duration = Duration::from_micros(20);
const STORM: u64 = 1;
const LONG: Duration = Duration::from_secs(3_600);
/// How late a timer may be.
const TIMER: Duration = Duration::from_millis(1);

/// A scene on a core: who was polled, and at what time from the beginning on.
struct Scene {
    /// What a poll takes.
    poll: Duration,
    turns: Arc<CallerTurns>,
    began: Instant,
    notes: Arc<Mutex<Vec<(u64, Duration)>>>,
    all: JoinSet<()>,
}

impl Scene {
    fn new() -> Self {
        let (turns, began) = (CallerTurns::shared(), Instant::now());
        Self { poll: POLL, turns, began, notes: Arc::default(), all: JoinSet::new() }
    }

    /// A caller's connection, which has something to do for so many polls, one after the other.
    fn connection(&self, caller: u64, polls: usize) -> impl Future<Output = ()> + Send + use<> {
        let connection = Connection::default();
        connection.found_known(Some(caller));
        self.begin(connection, caller, polls)
    }

    fn begin(&self, connection: Connection, caller: u64, polls: usize) -> impl Future<Output = ()> + Send + use<> {
        let (mut turns, notes, began) = (self.turns.of(&connection), self.notes.clone(), self.began);
        let (mut left, poll) = (polls, self.poll);
        poll_fn(move |cx| {
            let turn = ready!(turns.poll_turn(cx));
            notes.lock().push((caller, began.elapsed()));
            assert!(advance(poll).now_or_never().is_none(), "time has passed, and then it lets others in");
            connection.found_known(Some(caller));
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

    /// A connection that has something to do for a moment, and not before.
    fn spawn_at(&mut self, due: Duration, caller: u64) {
        let (connection, due) = (self.connection(caller, 1), self.began + due);
        self.all.spawn(async move {
            sleep_until(due).await;
            connection.await;
        });
    }

    /// Returns how many connections came to their end, and did not panic.
    async fn end(&mut self) -> usize {
        let mut ended = 0;
        while let Some(joined) = timeout(LONG, self.all.join_next()).await.expect("nobody waits for ever") {
            ended += usize::from(joined.is_ok());
        }
        let state = self.turns.0.here().state.lock();
        assert_eq!((state.open.len(), state.lines.waiting()), (0, 0), "nothing is kept of those who are gone");
        ended
    }

    fn polls_of(&self, caller: u64) -> Vec<Duration> {
        self.notes.lock().iter().filter(|(who, _)| *who == caller).map(|(_, at)| *at).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn who_asks_rarely_waits_for_a_slice_of_a_storm_and_not_for_all_of_it() {
    let mut scene = Scene::new();
    scene.spawn(STORM, 400, 20);
    let due: Vec<_> = (1..40).map(|at| 3 * TIMER * at).collect();
    (2..).zip(&due).for_each(|(caller, due)| scene.spawn_at(*due, caller));
    assert_eq!(scene.end().await, 400 + due.len());
    for (caller, due) in (2..).zip(due) {
        let late = scene.polls_of(caller)[0].checked_sub(due).expect("not before");
        assert!(late <= SLICE + 2 * POLL + TIMER, "{caller}: {late:?} of {:?}", 400 * POLL);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stranger_waits_no_longer() {
    let mut scene = Scene::new();
    scene.spawn(STORM, 400, 20);
    let (stranger, due) = (scene.begin(Connection::default(), 2, 1), scene.began + 3 * TIMER);
    scene.all.spawn(async move {
        sleep_until(due).await;
        stranger.await;
    });
    scene.end().await;
    let late = scene.polls_of(2)[0].checked_sub(3 * TIMER).expect("not before");
    assert!(late <= SLICE + 2 * POLL + TIMER, "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn who_are_alone_wait_for_nothing_and_no_core_is_idle() {
    for others in [0, 1] {
        let mut scene = Scene::new();
        // The clock of a runtime that is idle goes to its next timer.
        let timer = tokio::spawn(sleep(LONG));
        // Another caller's connection, with nothing to do, has their turns counted.
        let _others: Vec<_> = (0..others).map(|_| scene.turns.of(&Connection::default())).collect();
        scene.spawn(STORM, 50, 40);
        while scene.all.join_next().await.is_some() {}
        assert_eq!(scene.polls_of(STORM).len(), 2_000);
        assert_eq!(scene.began.elapsed(), 2_000 * POLL, "{others}");
        timer.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_many_connections_has_no_more_than_one_of_few() {
    let mut scene = Scene::new();
    scene.spawn(STORM, 80, 20);
    scene.spawn(2, 4, 400);
    scene.end().await;
    // When one has had half of what it wants, so has the other, to a few slices.
    let half = |caller| scene.polls_of(caller)[800];
    assert!(half(STORM).abs_diff(half(2)) <= 4 * SLICE, "{:?} {:?}", half(STORM), half(2));
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_many_names_has_a_slice_for_each() {
    const NAMES: u32 = 40;
    let mut scene = Scene::new();
    (0..NAMES).for_each(|name| scene.spawn(100 + u64::from(name), 30, 20));
    scene.spawn_at(10 * TIMER, 2);
    scene.end().await;
    let late = scene.polls_of(2)[0].checked_sub(10 * TIMER).expect("not before");
    assert!(late <= NAMES * (SLICE + POLL) + TIMER, "{late:?}, and all of them take {:?}", 30 * NAMES * POLL);
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_few_names_and_long_polls_lets_others_in_behind_each() {
    let mut scene = Scene { poll: Duration::from_millis(1), ..Scene::new() };
    (0..6).for_each(|name| scene.spawn(100 + name, 30, 5));
    scene.spawn_at(70 * TIMER, 2);
    scene.end().await;
    let late = scene.polls_of(2)[0].checked_sub(70 * TIMER).expect("not before");
    assert!(late <= 6 * scene.poll + 2 * TIMER, "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn who_asks_rarely_on_new_connections_waits_for_nobody() {
    let scene = Scene::new();
    let _other = scene.turns.of(&Connection::default());
    for _ in 0..20 {
        assert_eq!(scene.begin(Connection::default(), STORM, 1).now_or_never(), Some(()));
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!(scene.connection(STORM, 1).now_or_never(), Some(()));
}

#[tokio::test(start_paused = true)]
async fn who_asks_on_ever_new_connections_is_known_by_what_they_have_had() {
    let scene = Scene::new();
    // Somebody else is there.
    let _other = scene.turns.of(&Connection::default());
    for _ in 0..6 {
        assert_eq!(scene.begin(Connection::default(), STORM, 1).now_or_never(), Some(()));
    }
    let mut next = Box::pin(scene.connection(STORM, 1));
    assert!(next.as_mut().now_or_never().is_none(), "it lets others in");
    yield_now().await;
    assert_eq!(next.now_or_never(), Some(()), "they are in");
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_or_panics_holds_nobody_up() {
    let mut scene = Scene::new();
    let other = scene.turns.of(&Connection::default());
    let some: Vec<_> = (0..30).map(|_| scene.all.spawn(scene.connection(STORM, 40))).collect();
    let connection = Connection::default();
    connection.found_known(Some(STORM));
    let mut turns = scene.turns.of(&connection);
    scene.all.spawn(poll_fn(move |cx| {
        let _turn = ready!(turns.poll_turn(cx));
        panic!("a fault of ours");
    }));
    for gone in &some[..15] {
        for _ in 0..100 {
            if scene.turns.0.here().state.lock().lines.waiting() > 0 {
                break;
            }
            yield_now().await;
        }
        // One after the other, each when some wait: among them is the first in line.
        gone.abort();
        yield_now().await;
    }
    drop(other);
    assert_eq!(scene.end().await, 15);
}

#[tokio::test(start_paused = true)]
async fn who_is_woken_by_something_else_does_not_go_before_others_were_let_in() {
    let scene = Scene::new();
    let _other = scene.turns.of(&Connection::default());
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
fn of_many_callers_those_are_kept_who_have_had_something_or_wait() {
    let (mut lines, now) = (Lines::default(), Instant::now());
    let waker = Waker::noop();
    lines.end(STORM, now, now + SLICE);
    lines.end(2, now, now + SLICE);
    let mut place = None;
    assert!(matches!(lines.enter(STORM, now + SLICE, &mut place, waker), Entered::LetsOthersIn(_)));
    let late = now + Duration::from_secs(1);
    for caller in 10..10_000 {
        assert!(matches!(lines.enter(caller, late, &mut None, waker), Entered::Goes));
    }
    assert!(lines.len() < 200, "{}", lines.len());
    assert!(matches!(lines.enter(STORM, late, &mut place, waker), Entered::Waits), "others are not in yet");
    assert!(lines.leave(&place.expect("it waits")).is_none());
}

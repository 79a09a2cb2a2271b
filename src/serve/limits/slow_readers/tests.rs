use futures_util::FutureExt;

use super::*;
use crate::auth::{Authorizer, Caller};
use base::DrainTrigger;
use kubeapi::{RequestInfo, UrlQuery};

fn grant() -> GrantStatus {
    let request = RequestInfo::parse("GET", "/api/v1/pods", &UrlQuery::parse("")).expect("a plain path");
    let grant =
        Authorizer::open().grant(&Caller::ProxyItself, &request).now_or_never().expect("decided without a review");
    grant.expect("the caller is the proxy").grant_status()
}

const BODY_MAX: Duration = Duration::from_secs(60);

fn slow_readers(unread: SlowReaderLimits) -> SlowReaderReaper {
    SlowReaderReaper::new(unread, BODY_MAX)
}

/// Each open watch has one watchdog.
#[test]
fn watchdog_size_is_bounded() {
    assert!(size_of::<WatchDeadlineTimer>() <= 104, "{} bytes", size_of::<WatchDeadlineTimer>());
}

/// Each watch is woken when a drain starts, and again at its own time. The check scheduled by the first wake-up may
/// happen right after the second one.
#[tokio::test(start_paused = true)]
async fn watch_gets_full_grace_after_each_wake() {
    let grace = Duration::from_secs(5);
    let slow_readers = slow_readers(SlowReaderLimits { grace, ..SlowReaderLimits::default() });
    *slow_readers.0.drain_progress.lock() = DrainProgress::Spread(3_600_000_000, 3_600_000_000);
    let abort = AbortSignal::default();
    let deadline = Instant::now() + Duration::from_secs(600);
    let watchdog = WatchDeadlineTimer::new(slow_readers.clone(), abort.clone(), deadline, grant(), false);
    tokio::spawn(slow_readers.timers().clone().run());
    let has_fired = |watchdog: &WatchDeadlineTimer| {
        watchdog.has_fired(&mut Waker::noop().clone(), &Context::from_waker(Waker::noop()))
    };
    let nearly = Duration::from_millis(4_999);

    watchdog.wake_by_ref();
    assert!(has_fired(&watchdog) && !has_fired(&watchdog));
    tokio::time::sleep(nearly).await;
    watchdog.wake_by_ref();
    tokio::time::sleep(nearly).await;
    assert_eq!(abort.reason(), None);
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(abort.reason(), Some("drained"));
}

fn long_watch(slow_readers: &SlowReaderReaper, opened_in_drain: bool) -> Arc<WatchDeadlineTimer> {
    let far = Instant::now() + Duration::from_secs(600);
    let watchdog = WatchDeadlineTimer::new(slow_readers.clone(), AbortSignal::default(), far, grant(), opened_in_drain);
    watchdog.set_timer(far);
    watchdog
}

/// Nothing runs the timers here, so the check after the first wake-up is overdue when the drain closes.
#[tokio::test(start_paused = true)]
async fn last_wake_of_a_drain_reaches_a_watch_whose_timer_is_due() {
    let limits = SlowReaderLimits::default();
    let slow_readers = slow_readers(limits);
    let watchdog = long_watch(&slow_readers, true);
    let has_fired = || watchdog.has_fired(&mut Waker::noop().clone(), &Context::from_waker(Waker::noop()));
    watchdog.wake_by_ref();
    assert!(has_fired() && !has_fired());
    tokio::time::advance(limits.grace * 2).await;
    slow_readers.set_drain(DrainProgress::All);
    assert!(has_fired());
}

/// Each watch from before the drain leaves at its own time, before the listener closes. A later watch has found no
/// other server, and stays until then.
#[tokio::test(start_paused = true)]
async fn drain_spreads_early_watches_and_ends_late_ones_last() {
    let grace = Duration::from_secs(20);
    let (trigger, drain) = DrainTrigger::new();
    let slow_readers = slow_readers(SlowReaderLimits::default());
    tokio::spawn(slow_readers.clone().run(drain.clone()));
    let watch = |opened_in_drain| long_watch(&slow_readers, opened_in_drain);
    let early: Vec<_> = (0..50).map(|_| watch(false)).collect();
    let (under_way, began) = (drain.in_flight(), Instant::now());
    let draining = tokio::spawn(trigger.drain(grace));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let late = [watch(true), watch(true)];
    // Its request arrived before the drain started.
    let between = watch(false);
    let leaving = |watches: &[Arc<WatchDeadlineTimer>]| {
        watches.iter().filter(|watchdog| watchdog.due() == Some(FiredWatchTimer::Drained)).count()
    };
    tokio::time::sleep(grace.mul_f64(0.45)).await;
    assert!((10..40).contains(&leaving(&early)), "{}", leaving(&early));
    early.iter().for_each(|watchdog| watchdog.set_timer(Instant::now() + grace));
    tokio::time::sleep(grace.mul_f64(0.35)).await;
    assert_eq!((leaving(&early), leaving(&[between]), leaving(&late)), (50, 1, 0), "{:?}", began.elapsed());
    drop(under_way);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(leaving(&late), 2);
    assert_eq!(leaving(&[watch(true)]), 1, "who comes now goes at once");
    drop(drain);
    assert!(draining.await.expect("no panic"));
}

/// A watch that was created as the drain started does not delay its end.
#[tokio::test(start_paused = true)]
async fn watches_end_immediately_once_listener_closes() {
    let (trigger, drain) = DrainTrigger::new();
    let slow_readers = slow_readers(SlowReaderLimits::default());
    tokio::spawn(slow_readers.clone().run(drain.clone()));
    let watches: Vec<_> = (0..20).map(|_| long_watch(&slow_readers, false)).collect();
    let under_way = drain.in_flight();
    tokio::spawn(trigger.drain(Duration::from_secs(20)));
    tokio::time::sleep(Duration::from_millis(1)).await;
    drop(under_way);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(watches.iter().all(|watchdog| watchdog.due() == Some(FiredWatchTimer::Drained)));
}

#[tokio::test(start_paused = true)]
async fn watch_is_woken_once_at_the_last_time_that_was_set() {
    let (_trigger, drain) = DrainTrigger::new();
    let slow_readers = slow_readers(SlowReaderLimits::default());
    tokio::spawn(slow_readers.clone().run(drain));
    let (began, second) = (Instant::now(), Duration::from_secs(1));
    let watches: Vec<_> = (0..2)
        .map(|_| {
            WatchDeadlineTimer::new(slow_readers.clone(), AbortSignal::default(), began + 600 * second, grant(), false)
        })
        .collect();
    watches.iter().for_each(|watchdog| watchdog.set_timer(began + second));
    watches[1].set_timer(began + 2 * second);
    let rung = || {
        let cx = &Context::from_waker(Waker::noop());
        let rung = |watchdog: &Arc<WatchDeadlineTimer>| watchdog.has_fired(&mut Waker::noop().clone(), cx);
        watches.iter().map(rung).collect::<Vec<_>>()
    };
    tokio::time::sleep(second + second / 100).await;
    assert_eq!(rung(), [true, false]);
    tokio::time::sleep(second).await;
    assert_eq!(rung(), [false, true]);
    tokio::time::sleep(500 * second).await;
    assert_eq!(rung(), [false, false]);
}

/// The check after the grace period is part of the watch's only entry.
#[tokio::test(start_paused = true)]
async fn watch_has_one_timer_which_goes_with_it() {
    let slow_readers = slow_readers(SlowReaderLimits::default());
    let watchdog = long_watch(&slow_readers, false);
    watchdog.wake_by_ref();
    watchdog.end();
    let entries = || format!("{:?}", slow_readers.timers());
    assert_eq!(entries(), "TimerQueue { len: 1, .. }");
    drop(watchdog);
    assert_eq!(entries(), "TimerQueue { len: 0, .. }");
}

/// It may wait for the rest of a version, and then its client stops reading.
#[tokio::test(start_paused = true)]
async fn watch_that_reacted_to_its_deadline_and_did_not_end_is_cut() {
    let slow_readers = slow_readers(SlowReaderLimits::default());
    tokio::spawn(slow_readers.timers().clone().run());
    let (abort, deadline) = (AbortSignal::default(), Instant::now() + Duration::from_secs(60));
    let watchdog = WatchDeadlineTimer::new(slow_readers, abort.clone(), deadline, grant(), false);
    watchdog.set_timer(deadline);
    let reacts = || watchdog.has_fired(&mut Waker::noop().clone(), &Context::from_waker(Waker::noop()));
    tokio::time::sleep(Duration::from_millis(60_002)).await;
    assert!(reacts());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(reacts(), "it is woken again");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(reacts(), "and again");
    assert_eq!(abort.reason(), None);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(abort.reason(), Some("timeout"));
}

#[test]
fn unresponsive_watch_is_cut_with_reason() {
    for (is_past_deadline, state, expected) in [
        (false, [false, false, false], None),
        (true, [false, false, false], Some("timeout")),
        (false, [false, true, false], Some("revoked")),
        (true, [false, true, true], Some("revoked")),
        (false, [false, false, true], Some("drained")),
        (true, [false, false, true], Some("timeout")),
        (true, [true, true, true], Some("client_closed")),
    ] {
        assert_eq!(abort_reason(is_past_deadline, state), expected, "{is_past_deadline} {state:?}");
    }
}

mod state_pins {
    use tokio::time::advance;

    use super::super::*;
    use crate::cache::{CacheConfig, CacheWriter, SnapshotPins};
    use crate::wire::{FeedEncoding, FrameEnvelope, JsonLayout};
    use kubeapi::Gvr;

    const MAX: Duration = Duration::from_secs(60);

    fn pin(timers: &TimerQueue) -> (AbortSignal, TimedSnapshotPin) {
        let envelope = FrameEnvelope::new(FeedEncoding::Json, "v1", "Pod", JsonLayout::BuiltIn);
        let (_writer, reader) = CacheWriter::new(CacheConfig::default(), Gvr::new("", "v1", "pods"), envelope, true);
        let abort = AbortSignal::default();
        let pin = reader.pin(&SnapshotPins::default(), &reader.snapshot(), abort.clone());
        (abort.clone(), TimedSnapshotPin::new(pin, timers, (MAX, "stalled"), &abort))
    }

    fn timers() -> TimerQueue {
        let timers = TimerQueue::default();
        tokio::spawn(timers.clone().run());
        timers
    }

    async fn pass(seconds: u64) {
        for _ in 0..seconds {
            advance(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_progress_moves_the_deadline() {
        let timers = timers();
        let ((stuck, _stuck_pin), (slow, slow_pin)) = (pin(&timers), pin(&timers));
        pass(32).await;
        slow_pin.extend();
        pass(27).await;
        assert_eq!(stuck.reason(), None);
        pass(3).await;
        assert_eq!((stuck.reason(), slow.reason()), (Some("stalled"), None));
        pass(29).await;
        assert_eq!(slow.reason(), None);
        pass(3).await;
        assert_eq!(slow.reason(), Some("stalled"));
        // The same again after all deadlines have passed.
        pass(100).await;
        let (late, _pin) = pin(&timers);
        pass(62).await;
        assert_eq!(late.reason(), Some("stalled"));
    }

    #[tokio::test(start_paused = true)]
    async fn client_is_not_blamed_while_the_response_waits_for_something_else() {
        let timers = timers();
        let (abort, pin) = pin(&timers);
        pin.pause();
        pass(1_000).await;
        assert_eq!(abort.reason(), None);
        pin.extend();
        pass(58).await;
        assert_eq!(abort.reason(), None);
        pass(4).await;
        assert_eq!(abort.reason(), Some("stalled"));
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_pin_cuts_nothing() {
        let timers = timers();
        let (abort, pin) = pin(&timers);
        drop(pin);
        pass(100).await;
        assert_eq!(abort.reason(), None);
    }
}

//! Tests how a reflector reacts to single stream items and to failures.

use bytes::Bytes;

use super::*;
use crate::cache::CacheConfig;
use crate::feeds::{Feed, FeedHandle, FeedRegistry, FeedStartRequest};
use crate::reflect::body_encoder_tracker::BodyEncoderTracker;
use crate::reflect::delta_bases::DeltaBases;
use crate::reflect::reflector_findings::ObjectDivergence;
use crate::reflect::stream::{StreamItem, decoded};
use crate::reflect::tests::{seconds, spec};
use crate::upstream::{UpstreamClient, UpstreamError};
use crate::wire::{DeltaError, ObjectReader, delta};
use kubeapi::{EventType, ObjectKey, Status};

/// A reflector without a stream: the test passes the items in directly. Upstream is unreachable.
struct Hands {
    reflector: Reflector,
    feed: Arc<Feed>,
    reader: Arc<ObjectReader>,
    _held: (FeedRegistry, FeedHandle),
}

/// The version at which its history begins.
const BASE: ResourceVersion = ResourceVersion(10);

fn hands() -> Hands {
    let (feeds, mut demands) = FeedRegistry::new(CacheConfig::default());
    let handle = feeds.handle(&spec(), None).expect("there is room");
    let FeedStartRequest { feed, writer } = demands.try_recv().expect("it is demanded");
    let reader = Arc::new(ObjectReader::new(spec().key.encoding, spec().shape, spec().fields));
    let (findings, found) = mpsc::channel(1);
    let upstream = FeedTaskContext {
        client: UpstreamClient::in_memory(|| None),
        feed: feed.clone(),
        reader: reader.clone(),
        lists_only: Arc::default(),
        wants_plain: Arc::default(),
        behind_a_proxy: Arc::default(),
        body_encoders: Arc::new(BodyEncoderTracker::new(feed.clone())),
        refresh_lock: Arc::default(),
        findings,
    };
    let mut reflector = Reflector::new(upstream, writer, found, Arc::default(), BackoffBounds::default());
    let begun = reflector.begin(HistoryStart::Current, listed(&feed));
    assert!(matches!(begun, ReflectorState::Listed { at: BASE }));
    Hands { reflector, feed, reader, _held: (feeds, handle) }
}

/// An empty list at [`BASE`].
fn listed(feed: &Feed) -> FeedInitialState {
    let snapshot = feed.reader.stage().finish(BASE);
    FeedInitialState {
        snapshot,
        requested_at: Instant::now(),
        stream: None,
        servers: Vec::new(),
        is_from_memory: false,
    }
}

impl Hands {
    fn item(&self, event: &str, object: &str) -> Result<StreamItem, WatchStreamEnd> {
        let frame = format!("{{\"type\":\"{event}\",\"object\":{object}}}\n");
        decoded(&self.reader, Bytes::from(frame)).map_err(WatchStreamEnd::Failed)
    }

    fn pod(&self, event: &str, name: &str, rv: u64) -> Result<StreamItem, WatchStreamEnd> {
        let metadata = format!(r#"{{"name":"{name}","namespace":"t1","uid":"u","resourceVersion":"{rv}"}}"#);
        let object = format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata},"spec":{{}},"status":{{}}}}"#);
        self.item(event, &object)
    }

    fn error(&self, code: u16, message: &str) -> Result<StreamItem, WatchStreamEnd> {
        let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure""#;
        self.item("ERROR", &format!(r#"{status},"message":"{message}","code":{code}}}"#))
    }

    /// The result of an item that comes when the feed is at `at`.
    fn take(
        &mut self,
        item: Result<StreamItem, WatchStreamEnd>,
        at: u64,
    ) -> Result<u64, (ReflectorState, Option<ReflectorStepError>)> {
        let opened = Instant::now();
        self.reflector.process_item(item, ResourceVersion(at), opened).map(|reached| reached.0)
    }

    /// Makes upstream unreachable. Returns the wait.
    fn fail(&mut self) -> Duration {
        let broken = ReflectorStepError::from(UpstreamError::Timeout(Duration::from_secs(1)));
        self.reflector.pause_after(&broken, &mut ReflectorState::Listed { at: BASE })
    }

    fn reported(&mut self, name: &str, rv: u64, at: u64) {
        let pod = self.pod("ADDED", name, rv);
        assert!(matches!(self.take(pod, at), Ok(reached) if reached == rv), "{name} {rv}");
    }
}

#[tokio::test(start_paused = true)]
async fn ordered_events_advance_progress_and_duplicates_do_not() {
    let mut hands = hands();
    hands.reported("a", 11, 10);
    hands.reported("b", 13, 11);
    let known = hands.pod("ADDED", "a", 11);
    assert!(matches!(hands.take(known, 13), Ok(13)));
    let bookmark = hands.item(
        "BOOKMARK",
        concat!(
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"20"},"#,
            r#""spec":{"containers":null},"status":{}}"#,
        ),
    );
    assert!(matches!(hands.take(bookmark, 13), Ok(20)));
    assert_eq!(hands.feed.reader.progress().rv, ResourceVersion(20));
    assert_eq!((hands.feed.reader.snapshot().len(), hands.feed.reader.state()), (2, FeedState::Live));
}

/// The cached objects may be wrong, so none are served until the state has been listed.
#[tokio::test(start_paused = true)]
async fn out_of_order_event_restarts_the_feed() {
    let mut hands = hands();
    hands.reported("a", 11, 10);
    hands.reported("b", 13, 11);
    let between = hands.pod("MODIFIED", "b", 12);
    let Err((ReflectorState::Empty, Some(failure))) = hands.take(between, 13) else { panic!("it goes on") };
    assert_eq!(failure.as_str(), "out_of_order");
    assert_eq!(hands.feed.reader.state(), FeedState::Syncing);
}

#[tokio::test(start_paused = true)]
async fn watch_410_relists_at_the_upstream_window_start_if_later() {
    for (message, window) in [
        ("too old resource version: 11 (15)", Some(ResourceVersion(15))),
        // The message claims a window that includes the refused version.
        ("too old resource version: 11 (5)", None),
        ("The resourceVersion for the provided watch is too old.", None),
    ] {
        let mut hands = hands();
        hands.reported("a", 11, 10);
        let refused = hands.error(410, message);
        let Err((ReflectorState::Expired { at, window: found }, None)) = hands.take(refused, 11) else {
            panic!("{message}")
        };
        assert_eq!((at, found), (ResourceVersion(11), window), "{message}");
    }
}

/// If the age of a gap is unknown, an older state would not help to mend it.
#[tokio::test(start_paused = true)]
async fn watch_410_after_long_silence_relists_the_current_state() {
    let mut hands = hands();
    hands.reported("a", 11, 10);
    sleep(seconds(6 * 60)).await;
    let refused = hands.error(410, "too old resource version: 11 (15)");
    let Err((ReflectorState::Expired { window: None, .. }, None)) = hands.take(refused, 11) else { panic!("a window") };
}

/// Upstream no longer has the change that a reopened stream should repeat, but perhaps those after it. Another error
/// says nothing about the history.
#[tokio::test(start_paused = true)]
async fn error_in_place_of_the_repeated_event_gives_up_the_marker_only_if_it_is_410() {
    let mut hands = hands();
    hands.reported("a", 11, 10);
    hands.fail();
    let marker = hands.feed.reader.resume_marker().expect("there is an event");
    let failed = hands.error(500, "etcdserver: leader changed");
    assert!(hands.reflector.examine(&marker, &failed, ResourceVersion(11)).is_none());
    assert_eq!(hands.reflector.continuity, HistoryContinuity::Doubtful);
    let gone = hands.error(410, "too old resource version: 10 (15)");
    let next = hands.reflector.examine(&marker, &gone, ResourceVersion(11));
    assert!(matches!(next, Some(ReflectorState::Listed { at: ResourceVersion(11) })));
    assert_eq!(hands.reflector.continuity, HistoryContinuity::Unknown);
}

/// Events between a list and the next 410.
type Follows = fn(&mut Hands);

/// The listed state has left upstream's window before its stream began, so the same list would fail again.
#[tokio::test(start_paused = true)]
async fn second_410_in_a_row_relists_the_current_state() {
    let window = Some(ResourceVersion(15));
    // Description, events after the list, how long the stream then stays open in seconds, and whether the 410 is in a
    // row.
    let cases: [(&str, Follows, u64, bool); 5] = [
        ("nothing", |_| {}, 0, true),
        ("an item", |hands| hands.reported("b", 12, 11), 0, false),
        ("a quiet stream", |_| {}, 6, false),
        (
            "a clean end",
            |hands| drop(hands.reflector.process_item(Err(WatchStreamEnd::Closed), BASE, Instant::now())),
            0,
            false,
        ),
        ("an outage", |hands| _ = hands.fail(), 0, false),
    ];
    for (what, then, quiet, is_in_a_row) in cases {
        let mut hands = hands();
        hands.reported("a", 11, 10);
        let _ = hands.reflector.relists.next(window, Instant::now());
        hands.reflector.relists.listed(Instant::now());
        then(&mut hands);
        let opened = Instant::now();
        sleep(seconds(quiet)).await;
        let refused = hands.error(410, "too old resource version: 11 (15)");
        let next = hands.reflector.process_item(refused, ResourceVersion(11), opened).map(|reached| reached.0);
        match next {
            Err((ReflectorState::Expired { window: None, .. }, Some(_))) => assert!(is_in_a_row, "{what}"),
            // The last list is too recent. The stream is opened again after a wait, and its 410 then names the window.
            Err((ReflectorState::Listed { .. }, None)) => {
                assert!(!is_in_a_row && hands.reflector.rests_until > Some(Instant::now()), "{what}");
                sleep(seconds(10)).await;
                let refused = hands.error(410, "too old resource version: 11 (15)");
                let Err((ReflectorState::Expired { window: found, .. }, None)) = hands.take(refused, 11) else {
                    panic!("{what}: it is listed")
                };
                assert_eq!(found, window, "{what}");
            }
            _ => panic!("{what}"),
        }
    }
}

/// The end of an interruption is logged only if its beginning was logged and its end was not.
#[tokio::test(start_paused = true)]
async fn first_state_after_a_failed_list_ends_the_interruption() {
    let mut hands = hands();
    let broken = ReflectorStepError::from(UpstreamError::Timeout(Duration::from_secs(1)));
    hands.reflector.log_interruption(&broken, "initial", Duration::ZERO);
    assert!(hands.reflector.is_interrupted);
    let initial = listed(&hands.feed);
    let _ = hands.reflector.begin(HistoryStart::Current, initial);
    assert!(!hands.reflector.is_interrupted, "the next clean reconnect would be logged as its end");
}

#[tokio::test(start_paused = true)]
async fn watch_error_other_than_410_resumes_from_the_same_version() {
    let mut hands = hands();
    hands.reported("a", 11, 10);
    let refused = hands.error(500, "etcdserver: leader changed");
    let Err((ReflectorState::Listed { at }, Some(failure))) = hands.take(refused, 11) else { panic!("it goes on") };
    assert_eq!((at, failure.as_str()), (ResourceVersion(11), "refused"));
}

#[tokio::test(start_paused = true)]
async fn clean_end_fails_only_an_immediately_closed_empty_stream() {
    for (lived, reported, fails) in [(0, false, true), (0, true, false), (2, false, false)] {
        let mut hands = hands();
        sleep(seconds(1)).await;
        let opened = Instant::now();
        sleep(seconds(lived)).await;
        if reported {
            hands.reported("a", 11, 10);
        }
        let ended = hands.reflector.process_item(Err(WatchStreamEnd::Closed), BASE, opened);
        let Err((ReflectorState::Listed { at: BASE }, failure)) = ended else { panic!("it goes on") };
        assert_eq!(failure.is_some(), fails, "{lived} s, {reported}");
    }
}

#[tokio::test(start_paused = true)]
async fn backoff_grows_and_resets_after_a_live_stream() {
    let mut hands = hands();
    let broken = || ReflectorStepError::from(UpstreamError::Timeout(Duration::from_secs(1)));
    let mut state = ReflectorState::Listed { at: BASE };
    let mut waits = (0..8).map(|_| hands.reflector.pause_after(&broken(), &mut state)).collect::<Vec<_>>();
    assert!(waits[0] >= Duration::from_millis(800) && waits[0] < Duration::from_millis(1_600), "{waits:?}");
    let longest = seconds(24)..=seconds(30);
    assert!(waits.pop().is_some_and(|last| longest.contains(&last)), "{waits:?}");
    assert!(matches!(hands.feed.reader.state(), FeedState::Stale { .. }));
    hands.reflector.was_accepted = true;
    assert!(hands.reflector.pause_after(&broken(), &mut state) < Duration::from_millis(300), "only once");
    assert!(longest.contains(&hands.reflector.pause_after(&broken(), &mut state)));
}

/// Thousands of proxies that lost their streams together receive the same `Retry-After`.
#[tokio::test(start_paused = true)]
async fn retry_after_is_the_least_delay_and_has_jitter() {
    let refused = |requested| {
        let status = Status::too_many_requests("later", requested);
        ReflectorStepError::from(UpstreamError::Refused(Box::new(status)))
    };
    let mut state = ReflectorState::Listed { at: BASE };
    for (requested, least, longest) in [(0, 0, 2), (1, 1, 2), (7, 7, 11), (3_600, 30, 45)] {
        let mut waits: Vec<_> =
            (0..20).map(|_| hands().reflector.pause_after(&refused(requested), &mut state)).collect();
        assert!(waits.iter().all(|wait| (seconds(least)..=seconds(longest)).contains(wait)), "{requested}: {waits:?}");
        waits.sort();
        waits.dedup();
        assert!(waits.len() > 10, "{requested}: {waits:?}");
    }
    let mut hands = hands();
    let waits: Vec<_> = (0..10).map(|_| hands.reflector.pause_after(&refused(1), &mut state)).collect();
    assert!(waits[2] >= seconds(3) && waits[9] >= seconds(24), "it grows: {waits:?}");
}

/// An apiserver that has just started denies requests until its caches are filled. That costs seconds, however long the
/// outage was, and each outage has a separate allowance.
#[tokio::test(start_paused = true)]
async fn refusal_after_an_outage_is_retried_soon() {
    let mut hands = hands();
    let refused = ReflectorStepError::FeedTerminated(FeedEndReason::Forbidden);
    let mut state = ReflectorState::Listed { at: BASE };
    for _ in 0..3 {
        (0..8).for_each(|_| _ = hands.fail());
        let mut elapsed = Duration::ZERO;
        while hands.reflector.tolerates(FeedEndReason::Forbidden, &state) {
            let wait = hands.reflector.pause_after(&refused, &mut state);
            let longest = if elapsed.is_zero() { Duration::from_millis(500) } else { seconds(4) };
            assert!(wait <= longest, "{wait:?} after {elapsed:?}");
            sleep(wait).await;
            elapsed += wait;
        }
        assert!((seconds(20)..=seconds(24)).contains(&elapsed), "{elapsed:?}");
    }
    assert!(
        !hands.reflector.tolerates(FeedEndReason::Forbidden, &ReflectorState::Empty),
        "a first list is refused for good"
    );
}

#[tokio::test(start_paused = true)]
async fn catch_up_proof_applies_only_to_its_own_history() {
    let mut hands = hands();
    hands.reported("a", 11, 10);
    let history = hands.feed.reader.history();
    let change = |hands: &Hands, rv| match hands.pod("ADDED", "b", rv) {
        Ok(StreamItem::Change { change, .. }) => change,
        other => panic!("{other:?}"),
    };
    let until = ResourceVersion(15);
    for (of, reached) in [(history + 1, 10), (history, 15)] {
        let changes = vec![change(&hands, 12)];
        let proof = ReflectorFinding::Proof { history: of, changes, until, announced: false };
        assert_eq!(hands.reflector.process_finding(proof, BASE).await.ok(), Some(ResourceVersion(reached)), "{of}");
    }
    assert_eq!((hands.feed.reader.progress().rv, hands.feed.reader.snapshot().len()), (until, 2));
    let between = vec![change(&hands, 13)];
    let proof = ReflectorFinding::Proof { history, changes: between, until, announced: false };
    let broken = hands.reflector.process_finding(proof, until).await;
    assert!(broken.is_err(), "its own stream is at 15");
}

/// The object that differed may have changed since, or the finding may belong to another history.
#[tokio::test(start_paused = true)]
async fn divergence_discards_the_state_only_if_still_cached() {
    let mut hands = hands();
    hands.reported("a", 11, 10);
    let (history, at) = (hands.feed.reader.history(), ResourceVersion(11));
    for (of, name, cached, is_given_up) in [
        (history + 1, "a", Some(11), false),
        (history, "a", Some(9), false),
        (history, "a", None, false),
        (history, "b", Some(7), false),
        (history, "b", None, true),
        (history, "a", Some(11), true),
    ] {
        hands.reflector.writer.set_state(FeedState::Live);
        let key = ObjectKey::new("t1", name);
        let cached = cached.map(ResourceVersion);
        let found = ObjectDivergence { history: of, key, at, cached, upstream: Some(at), difference: "differs" };
        let next = hands.reflector.process_finding(ReflectorFinding::Divergence(found), at).await;
        assert_eq!(matches!(next, Err((ReflectorState::Empty, None))), is_given_up, "{name} {cached:?}");
        let state = if is_given_up { FeedState::Syncing } else { FeedState::Live };
        assert_eq!(hands.feed.reader.state(), state, "{name} {cached:?}");
    }
}

#[test]
fn early_wakeups_in_a_row_shorten_backoff_less_each_time() {
    assert_eq!(least_pause(0), Duration::ZERO);
    for (early_wakeups, longest) in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 16.0), (6, 30.0), (u32::MAX, 30.0)] {
        let least = least_pause(early_wakeups).as_secs_f64();
        assert!((longest * 0.8..=longest).contains(&least), "{early_wakeups}: {least}");
    }
}

/// A proof may bring changes before the stream does. The stream's differences refer to the versions in between.
#[tokio::test(start_paused = true)]
async fn difference_finds_its_base_in_a_feed_that_is_ahead() {
    let mut hands = hands();
    hands.reported("a", 11, 10);
    let mut bases = DeltaBases::new(&hands.reflector.upstream);
    bases.index().await;
    let change = |hands: &Hands, rv| match hands.pod("MODIFIED", "a", rv) {
        Ok(StreamItem::Change { change, .. }) => change,
        other => panic!("{other:?}"),
    };
    let frame = |hands: &Hands, rv| change(hands, rv).frame.expect("it was read from one");
    for rv in [12, 13] {
        let ahead = hands.pod("MODIFIED", "a", rv);
        assert!(matches!(hands.take(ahead, rv - 1), Ok(reached) if reached == rv));
    }
    let difference = |hands: &Hands, from, to| {
        delta(EventType::Modified, Some((ResourceVersion(from), &frame(hands, from))), &frame(hands, to))
    };
    for (from, to) in [(11, 12), (12, 13), (13, 14)] {
        assert_eq!(bases.frame(&difference(&hands, from, to)), Ok(frame(&hands, to)));
        bases.record(&change(&hands, to));
        // The base is no longer the stream's version of the object.
        assert_eq!(bases.frame(&difference(&hands, from, to)), Err(DeltaError::UnknownBase));
    }
}

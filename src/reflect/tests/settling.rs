//! Tests when the version of an event counts as complete: soon if a reader waits for that, otherwise when convenient
//! (W17).

use super::*;
use demo::RequestKind;

const MS: Duration = Duration::from_millis(1);
/// A tokio timer fires up to this much later than requested.
const LATER: Duration = Duration::from_millis(1);

impl Scene {
    /// Writes a pod, and waits until the feed has received it. No reader waits for its version.
    async fn told_of_a_pod(&self, name: &str) -> u64 {
        let before = self.feed.reader.stats().objects;
        let at = self.up.create_pod("t1", name);
        let told = async {
            while self.feed.reader.stats().objects == before {
                sleep(MS).await;
            }
        };
        timeout(NEVER, told).await.expect("it is told");
        at
    }

    fn reached(&self) -> u64 {
        self.feed.reader.progress().rv.0
    }
}

#[tokio::test(start_paused = true)]
async fn version_completes_after_one_second_or_at_the_next_event() {
    let scene = Scene::of(upstream().pods(3)).await;
    let at = scene.told_of_a_pod("alone").await;
    sleep(990 * MS).await;
    assert_eq!(scene.reached(), at - 1);
    sleep(20 * MS).await;
    assert_eq!(scene.reached(), at);
    // The events come one after the other and no timer fires between them: each completes the version before it.
    for n in 0..50 {
        let at = scene.told_of_a_pod(&format!("p{n}")).await;
        sleep(50 * MS).await;
        assert_eq!(scene.reached(), at - 1, "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn reader_waits_at_most_ten_milliseconds_for_a_version() {
    for (comes_after, waits) in [(0, 8..=11), (5, 5..=6), (9, 5..=6), (500, 5..=6), (900, 5..=6)] {
        let scene = Scene::of(upstream().pods(3)).await;
        let at = scene.told_of_a_pod("one").await;
        sleep(comes_after * MS).await;
        let waited = scene.until(at).await;
        let waits = *waits.start() * MS..=*waits.end() * MS + LATER;
        assert!(waits.contains(&waited), "{waited:?} of one who comes {comes_after} ms later");
        assert_eq!(scene.reached(), at);
    }
}

/// A reader that waits for a future version is already there when the event comes.
#[tokio::test(start_paused = true)]
async fn reader_waiting_before_an_event_is_served_promptly() {
    let scene = Scene::of(upstream().pods(3)).await;
    let next = ResourceVersion(scene.up.revision() + 1);
    let reader = scene.feed.reader.clone();
    let waiting = tokio::spawn(async move { reader.reached(next).await });
    sleep(seconds(5)).await;
    assert!(!waiting.is_finished());
    let written = Instant::now();
    assert_eq!(scene.up.create_pod("t1", "next"), next.0);
    timeout(NEVER, waiting).await.expect("it comes").expect("no panic");
    assert!(written.elapsed() <= 20 * MS, "{:?}", written.elapsed());
    // The reader has gone, and the next version has none.
    let at = scene.told_of_a_pod("then").await;
    sleep(500 * MS).await;
    assert_eq!(scene.reached(), at - 1);
}

/// A list of the current state includes recent events (`CacheReader::settled`).
#[tokio::test(start_paused = true)]
async fn current_read_includes_earlier_events() {
    for comes_after in [0, 5, 15, 300] {
        let scene = Scene::of(upstream().pods(3)).await;
        let at = scene.told_of_a_pod("one").await;
        sleep(comes_after * MS).await;
        let asked = Instant::now();
        scene.feed.reader.settled().await;
        assert!(asked.elapsed() <= 12 * MS, "{:?}", asked.elapsed());
        let state = scene.feed.reader.snapshot();
        assert_eq!((state.rv.0, state.len()), (at, 4), "{comes_after} ms later");
    }
}

/// A read during an upstream outage returns everything that watches were sent, even if no reader had waited for it
/// (L6).
#[tokio::test(start_paused = true)]
async fn lost_stream_publishes_its_last_version_after_a_silence() {
    let scene = Scene::of(upstream().pods(3)).await;
    let at = scene.told_of_a_pod("one").await;
    sleep(500 * MS).await;
    assert_eq!(scene.reached(), at - 1);
    scene.up.faults().answer(RequestKind::Watch, usize::MAX, 503, None);
    scene.up.faults().reset_watches();
    scene.until_state("lost", |state| state != FeedState::Live).await;
    assert_eq!((scene.reached(), scene.feed.reader.snapshot().rv.0), (at, at));
}

/// Where a stream resumes: after the event if the stream ended cleanly, because then no more events of that version
/// were sent. Before the event if the connection broke.
#[tokio::test(start_paused = true)]
async fn stream_resumes_after_last_event_on_clean_end_else_before() {
    type Ends = fn(&RunningUpstream);
    let ends: [(u32, Ends, u64); 3] = [
        (500, |up| up.faults().end_watches(), 0),
        (2, |up| up.faults().end_watches(), 1),
        (500, |up| up.faults().drop_connections(), 1),
    ];
    for (comes_after, end, before) in ends {
        let scene = Scene::of(upstream().pods(3)).await;
        let (at, opened) = (scene.told_of_a_pod("one").await, scene.up.counts().watches_opened.total());
        sleep(comes_after * MS).await;
        end(&scene.up);
        scene.up.until(|counts| counts.watches_opened.total() > opened).await;
        assert_eq!(scene.last_start(), Some(at - before), "{comes_after} ms behind the event");
        scene.until(scene.up.create_pod("t1", "next")).await;
        assert!(scene.is_true());
    }
}

/// Events have no bookmarks: only silence shows that a deletion was the last change of its version.
#[tokio::test(start_paused = true)]
async fn deletion_of_an_event_object_settles_without_a_later_event() {
    for count in [1, 3, 600] {
        let scene = Scene::of_events(upstream().in_memory(), 600).await;
        let names: Vec<_> = scene.up.keys("events").into_iter().take(count).map(|(key, _)| key).collect();
        let at = scene.up.delete_at_once("events", names.iter().map(String::as_str));
        let waited = scene.until(at).await;
        assert!((200 * MS..220 * MS).contains(&waited), "{count}: {waited:?}");
        for n in 0..5 {
            // Writes to other resources bring no bookmark either.
            scene.elsewhere(n);
            let waited = scene.proof().await;
            assert!(waited < 100 * MS, "{count}: {waited:?}");
        }
        assert_eq!(scene.feed.reader.snapshot().len(), 600 - count);
        assert_eq!((scene.said("catch_up"), scene.said("equality")), (0, 5), "{count}");
    }
}

/// The stream breaks between two deletions of one version: it resumes before them, and none is missing.
#[tokio::test(start_paused = true)]
async fn stream_broken_amid_one_version_misses_no_deletion() {
    let scene = Scene::of_events(upstream().in_memory(), 10).await;
    let names: Vec<_> = scene.up.keys("events").into_iter().take(4).map(|(key, _)| key).collect();
    scene.up.faults().stall_watches(2);
    let at = scene.up.delete_at_once("events", names.iter().map(String::as_str));
    while scene.feed.reader.stats().objects > 8 {
        sleep(MS).await;
    }
    scene.up.faults().drop_connections();
    scene.until(at).await;
    sleep(seconds(1)).await;
    let held = scene.feed.reader.snapshot();
    assert_eq!((held.rv.0, held.len()), (at, 6));
}

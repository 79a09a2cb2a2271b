//! Tests when the version of an event is announced (W17).

use super::*;

const MS: Duration = Duration::from_millis(1);
/// A tokio timer fires up to this much later than requested.
const LATER: Duration = Duration::from_millis(1);
/// The wait for the rest of a transaction.
const REST: Duration = Duration::from_millis(200);

impl Scene {
    fn reached(&self) -> u64 {
        self.feed.reader.progress().rv.0
    }

    /// Deletes that many Events at one version. Returns the version.
    fn expire(&self, count: usize) -> u64 {
        let names: Vec<_> = self.up.keys("events").into_iter().take(count).map(|(key, _)| key).collect();
        self.up.delete_at_once("events", names.iter().map(String::as_str))
    }

    fn add_event(&self, name: &str) -> u64 {
        self.up.put("events", serde_json::json!({"metadata": {"name": name, "namespace": "t1"}}))
    }
}

#[tokio::test(start_paused = true)]
async fn version_is_announced_as_soon_as_its_event_arrives() {
    let pods = Scene::of(upstream().pods(3)).await;
    let events = Scene::of_events(upstream().in_memory(), 3).await;
    for n in 0..5 {
        let waited = pods.until(pods.up.create_pod("t1", &format!("p{n}"))).await;
        assert!(waited <= LATER, "a pod: {waited:?}");
        let waited = events.until(events.add_event(&format!("new-{n}"))).await;
        assert!(waited <= LATER, "an Event: {waited:?}");
    }
    let waited = pods.until(pods.up.delete_pod("t1", "p0")).await;
    assert!(waited <= LATER, "the deletion of a pod: {waited:?}");
}

/// Where a stream resumes: after the newest event if it ended cleanly, and directly before it if the connection broke.
#[tokio::test(start_paused = true)]
async fn stream_resumes_after_a_clean_end_and_before_the_newest_event_if_the_connection_broke() {
    type Ends = fn(&RunningDemoApiserver);
    let ends: [(Ends, u64); 2] = [(|up| up.faults().end_watches(), 0), (|up| up.faults().drop_connections(), 1)];
    for (end, before) in ends {
        let scene = Scene::of(upstream().pods(3)).await;
        let (at, opened) = (scene.up.create_pod("t1", "one"), scene.up.counts().watches_opened.total());
        scene.until(at).await;
        end(&scene.up);
        scene.up.until(|counts| counts.watches_opened.total() > opened).await;
        assert_eq!(scene.last_start(), Some(at - before));
        scene.until(scene.up.create_pod("t1", "next")).await;
        assert!(scene.is_true());
    }
}

/// Events have no bookmarks: only silence shows that a deletion was the last change of its version.
#[tokio::test(start_paused = true)]
async fn deleted_events_are_announced_together_without_a_later_event() {
    for count in [1, 3, 600] {
        let scene = Scene::of_events(upstream().in_memory(), 600).await;
        let at = scene.expire(count);
        sleep(195 * MS).await;
        assert_eq!((scene.reached() < at, scene.feed.reader.snapshot().len()), (true, 600), "{count}");
        let waited = scene.until(at).await;
        assert!(waited <= 20 * MS, "{count}: {waited:?}");
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

/// A reader that arrives while deletions are buffered gets a state with all of them.
#[tokio::test(start_paused = true)]
async fn proof_waits_for_held_deletions() {
    let scene = Scene::of_events(upstream().in_memory(), 10).await;
    scene.expire(4);
    sleep(10 * MS).await;
    let waited = scene.proof().await;
    assert!(waited <= REST + 20 * MS, "{waited:?}");
    assert_eq!(scene.feed.reader.snapshot().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn later_event_completes_a_transaction_at_once() {
    let scene = Scene::of_events(upstream().in_memory(), 10).await;
    let at = scene.expire(4);
    sleep(10 * MS).await;
    assert!(scene.reached() < at);
    let waited = scene.until(scene.add_event("later")).await;
    assert!(waited <= LATER, "{waited:?}");
    assert_eq!(scene.feed.reader.snapshot().len(), 7);
    let changes: Vec<_> = scene.feed.reader.events().iter().map(|event| event.rv.0).collect();
    assert_eq!(changes[changes.len() - 5..], [at, at, at, at, at + 1]);
}

/// The stream pauses between the deletions for less than the wait.
#[tokio::test(start_paused = true)]
async fn deletions_that_arrive_with_pauses_are_announced_together() {
    let scene = Scene::of_events(upstream().in_memory(), 10).await;
    let before = scene.reached();
    scene.up.faults().stall_watches(2);
    let at = scene.expire(4);
    sleep(190 * MS).await;
    scene.up.faults().resume_watches();
    sleep(190 * MS).await;
    assert_eq!((scene.reached(), scene.feed.reader.snapshot().len()), (before, 10));
    let waited = scene.until(at).await;
    assert!(waited <= 20 * MS, "{waited:?}");
    assert_eq!(scene.feed.reader.snapshot().len(), 6);
}

/// The wait was too short. The rest is applied and delivered at the version that was announced.
#[tokio::test(start_paused = true)]
async fn deletions_that_arrive_after_the_wait_are_not_lost() {
    let scene = Scene::of_events(upstream().in_memory(), 10).await;
    scene.up.faults().stall_watches(2);
    let at = scene.expire(4);
    scene.until(at).await;
    assert_eq!(scene.feed.reader.snapshot().len(), 8);
    scene.up.faults().resume_watches();
    sleep(seconds(1)).await;
    let state = scene.feed.reader.snapshot();
    assert_eq!((state.rv.0, state.len()), (at, 6));
}

/// The stream breaks between two deletions of one version: it resumes before them, and none is missing.
#[tokio::test(start_paused = true)]
async fn stream_that_breaks_within_a_transaction_misses_no_deletion() {
    let scene = Scene::of_events(upstream().in_memory(), 10).await;
    let before = scene.reached();
    scene.up.faults().stall_watches(2);
    let at = scene.expire(4);
    sleep(REST / 2).await;
    scene.up.faults().drop_connections();
    assert_eq!((scene.reached(), scene.feed.reader.snapshot().len()), (before, 10), "no reader has a part of them");
    scene.until(at).await;
    let state = scene.feed.reader.snapshot();
    assert_eq!((state.rv.0, state.len()), (at, 6));
}

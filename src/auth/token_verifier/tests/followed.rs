//! Objects that are followed from an upstream in memory.

use demo::{DemoApiserver, RequestKind, RunningDemoApiserver, upstream};
use tokio::time::sleep;

use super::*;

/// A follower of pods.
struct Followed {
    up: RunningDemoApiserver,
    objects: Arc<BoundObjects>,
    /// The UID of the pod.
    uid: String,
    _tasks: BackgroundTasks,
}

impl Followed {
    /// A follower of pods that has one pod and has been used.
    async fn of(up: DemoApiserver, node: Option<&str>) -> Self {
        // Seeds the random duration of the upstream's watches, half an hour to an hour.
        fastrand::seed(1);
        let (up, tasks, objects) = (up.in_memory(), BackgroundTasks::new(), Arc::<BoundObjects>::default());
        let client = UpstreamClient::in_memory(up.connector());
        let (kind, keys, node) = (BoundKind::Pod, Arc::new(TokenKeys::new()), node.map(Into::into));
        let idle_max = idle_max(&AuthConfig::default());
        let follower = BoundObjectFollower { client, objects: objects.clone(), keys, kind, node, idle_max };
        tasks.spawn("bound objects", follower.run());
        let uid = put(&up);
        let followed = Self { up, objects, uid, _tasks: tasks };
        sleep(seconds(3600)).await;
        assert_eq!(followed.up.counts().requests, 0, "nothing is sent before the first use");
        assert_eq!(followed.stale_for(&followed.uid), None);
        sleep(seconds(1)).await;
        followed
    }

    fn delete(&self) {
        self.up.delete("pods", "t1", "web-0");
    }

    fn stale_for(&self, uid: &str) -> Option<Duration> {
        self.objects.stale_for(&BoundObject::new(BoundKind::Pod, "t1", "web-0", uid).expect("a pod"))
    }

    /// Uses the objects for `count` seconds, while other objects change, so that upstream sends bookmarks.
    async fn used_for(&self, count: u64) {
        for _ in 0..count.div_ceil(60) {
            self.up.put("configmaps", json!({"metadata": {"name": "other", "namespace": "t1"}}));
            sleep(seconds(60)).await;
            let _ = self.stale_for(&self.uid);
        }
    }

    /// The numbers of lists, of watches opened, and of watches open.
    fn counts(&self) -> (u64, u64, u64) {
        let counts = self.up.counts();
        (counts.lists.total(), counts.watches_opened.total(), counts.watches_open.total())
    }

    fn lost(&self) -> Arc<CancellationToken> {
        let lost = Arc::default();
        self.objects.signal_loss(&[BoundObject::new(BoundKind::Pod, "t1", "web-0", &self.uid).expect("a pod")], &lost);
        lost
    }
}

/// Creates or changes the pod. Returns its UID.
fn put(up: &RunningDemoApiserver) -> String {
    up.put("pods", json!({"metadata": {"name": "web-0", "namespace": "t1"}}));
    let pod: Value = serde_json::from_slice(&up.object("pods", "t1", "web-0").expect("a pod")).expect("JSON");
    pod["metadata"]["uid"].as_str().expect("a UID").to_owned()
}

const LIVE: Option<Duration> = Some(Duration::ZERO);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[tokio::test(start_paused = true)]
async fn objects_are_followed_by_one_list_and_one_watch() {
    let followed = Followed::of(upstream().pods(2_500), None).await;
    assert_eq!((followed.stale_for(&followed.uid), followed.stale_for(NODE_UID)), (LIVE, None));
    assert_eq!(followed.counts(), (3, 1, 1), "three pages");
    let lost = followed.lost();
    followed.delete();
    sleep(Duration::from_millis(10)).await;
    assert_eq!((followed.stale_for(&followed.uid), lost.is_cancelled()), (None, true));
    let uid = put(&followed.up);
    sleep(Duration::from_millis(10)).await;
    assert_eq!((followed.stale_for(&followed.uid), followed.stale_for(&uid)), (None, LIVE));
    followed.used_for(3 * 3600).await;
    let (lists, watches, open) = followed.counts();
    assert_eq!((lists, open), (3, 1), "ended watches resume");
    assert!((2..=8).contains(&watches), "{watches}");
    assert_eq!(followed.stale_for(&uid), LIVE);
}

#[tokio::test(start_paused = true)]
async fn deletion_during_an_outage_is_found_by_a_list() {
    let followed = Followed::of(upstream().pods(3), None).await;
    let (lost, before) = (followed.lost(), followed.counts());
    followed.up.faults().down().await;
    sleep(seconds(60)).await;
    followed.delete();
    let stale = followed.stale_for(&followed.uid).expect("it is not known to be deleted");
    assert!((seconds(59)..=seconds(61)).contains(&stale), "{stale:?}");
    followed.up.faults().up().await;
    sleep(seconds(61)).await;
    assert_eq!((followed.stale_for(&followed.uid), lost.is_cancelled()), (None, true));
    assert_eq!(followed.counts().0, before.0 + 1);
}

#[tokio::test(start_paused = true)]
async fn version_that_goes_back_or_unreadable_event_is_followed_by_a_list() {
    for fault in ["malformed", "regress"] {
        let followed = Followed::of(upstream().pods(3), None).await;
        let before = followed.counts();
        let faults = followed.up.faults();
        match fault {
            "malformed" => faults.send_malformed(),
            _ => {
                put(&followed.up);
                faults.regress_revision();
            }
        }
        sleep(seconds(61)).await;
        assert_eq!(followed.counts().0, before.0 + 1, "{fault}");
        assert_eq!(followed.stale_for(&followed.uid), LIVE, "{fault}");
    }
}

#[tokio::test(start_paused = true)]
async fn list_follows_a_silent_watch() {
    let followed = Followed::of(upstream().pods(3), None).await;
    let (lists, watches, _) = followed.counts();
    sleep(seconds(88)).await;
    assert_eq!(followed.counts().1, watches);
    sleep(seconds(63)).await;
    assert_eq!((followed.stale_for(&followed.uid), followed.counts()), (LIVE, (lists + 1, watches + 1, 1)));
}

#[tokio::test(start_paused = true)]
async fn silent_watch_is_stale_since_its_last_event() {
    let followed = Followed::of(upstream().pods(3), None).await;
    followed.up.faults().answer(RequestKind::Any, usize::MAX, 503, None);
    sleep(seconds(92)).await;
    let stale = followed.stale_for(&followed.uid).expect("it is known");
    assert!(stale >= seconds(90), "{stale:?}");
}

/// The version has expired, or upstream refuses watches.
#[tokio::test(start_paused = true)]
async fn watches_that_end_immediately_are_reopened_with_backoff() {
    let followed = Followed::of(upstream().pods(3), None).await;
    let opened = followed.counts().1;
    for _ in 0..6_000 {
        followed.up.faults().end_watches();
        sleep(Duration::from_millis(10)).await;
    }
    let opened = followed.counts().1 - opened;
    assert!((2..=12).contains(&opened), "{opened} watches in a minute");
}

/// Outages with a long time between them do not add up to longer delays.
#[tokio::test(start_paused = true)]
async fn short_outage_after_a_long_time_without_one_is_recovered_from_quickly() {
    let followed = Followed::of(upstream().pods(3), None).await;
    for outage in 0..7 {
        followed.used_for(600).await;
        assert_eq!(followed.stale_for(&followed.uid), LIVE);
        followed.up.faults().down().await;
        sleep(Duration::from_millis(10)).await;
        followed.up.faults().up().await;
        sleep(seconds(2)).await;
        assert_eq!(followed.stale_for(&followed.uid), LIVE, "outage {outage}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_kind_is_asked_for_rarely() {
    let followed = Followed::of(upstream().pods(3), None).await;
    for code in [401, 403, 404] {
        followed.up.faults().answer(RequestKind::Any, usize::MAX, code, None);
        followed.up.faults().end_watches();
        let before = followed.up.counts().requests;
        followed.used_for(3600).await;
        let sent = followed.up.counts().requests - before;
        assert!((5..=12).contains(&sent), "{code}: {sent}, after a time without refusals");
        assert!(followed.stale_for(&followed.uid).is_some_and(|stale| stale >= seconds(3500)), "{code}");
        followed.up.faults().answer_as_usual();
        followed.used_for(2 * 3600).await;
        assert_eq!(followed.stale_for(&followed.uid), LIVE, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_pods_of_the_own_node_are_followed() {
    let followed = Followed::of(upstream().pods(3).remember_requests(true), Some("n1")).await;
    followed.used_for(60).await;
    let requests = followed.up.requests();
    let selects = |query: &str| query.contains("fieldSelector=spec.nodeName%3Dn1");
    assert!(requests.len() >= 2 && requests.iter().all(|request| request.uri.query().is_some_and(selects)));
}

/// A deletion between two reviews of the token of an open watch is seen.
#[test]
fn objects_are_followed_for_longer_than_tokens_are_not_reviewed() {
    for (recheck_tokens, expected) in [(0, 600), (300, 600), (3_600, 7_200)] {
        let config = AuthConfig { recheck_tokens: seconds(recheck_tokens), ..AuthConfig::default() };
        assert_eq!(idle_max(&config), seconds(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn unused_objects_are_not_followed() {
    let followed = Followed::of(upstream().pods(3), None).await;
    followed.used_for(1800).await;
    assert_eq!(followed.counts().2, 1);
    sleep(seconds(601)).await;
    assert_eq!(followed.counts().2, 0);
    let sent = followed.up.counts().requests;
    sleep(seconds(3600)).await;
    assert_eq!((followed.up.counts().requests, followed.stale_for(&followed.uid)), (sent, None));
    sleep(seconds(1)).await;
    assert_eq!(followed.stale_for(&followed.uid), LIVE);
}

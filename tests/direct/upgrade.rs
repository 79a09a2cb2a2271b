//! Upstream comes back as another release, which writes the same objects with other bytes. The current state is served
//! as the new release writes it, past events stay as they were sent, and no watch ends (F10).

use std::io::Read;
use std::time::Duration;

use demo::{self, RunningDemoApiserver};
use futures_util::future::join_all;
use http::Method;

use crate::direct::{self, Answer, App, History, PODS, Protocol, Watch, assert_alike, assert_same, upstream_client};

const CACHED: &str = "/api/v1/pods?resourceVersion=0";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const NEW: u32 = 37;
/// Annotation that the new release writes.
const MARK: &str = r#""release":"1.37""#;

async fn watches(app: &App, from: u64) -> Vec<Watch> {
    join_all(Protocol::ALL.map(|protocol| app.watch(PODS).from(from).over(protocol).into_future())).await
}

/// List encodings that are not cached bodies: derived, compressed, or both.
const MADE: [(&str, &str); 4] =
    [(METADATA, "gzip"), (METADATA, "identity"), ("application/json", "gzip"), ("application/json", "identity")];

fn plain(answer: &Answer) -> String {
    if answer.header("content-encoding") != Some("gzip") {
        return answer.text();
    }
    let mut text = String::new();
    flate2::read::GzDecoder::new(&answer.body[..]).read_to_string(&mut text).expect("gzip");
    text
}

/// Number of marks in a response.
fn marks(text: &str) -> usize {
    text.matches(MARK).count()
}

/// Stops the server, and restarts it as the new release.
async fn upgrade(up: &RunningDemoApiserver, app: &App, while_down: impl FnOnce()) {
    up.faults().down().await;
    app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    up.faults().upgrade(NEW);
    while_down();
    up.faults().up().await;
    app.until_feed("pods", "live", |feed| feed["state"] == "live").await;
}

/// Asserts the new bytes for every kind of read from the cache.
async fn assert_all_are_new(up: &RunningDemoApiserver, app: &App, pods: usize) {
    let (pod, _) = up.keys("pods").remove(0);
    let (namespace, name) = pod.split_once('/').expect("a namespace");
    let one = format!("/api/v1/namespaces/{namespace}/pods/{name}?resourceVersion=0");
    let few = format!("/api/v1/namespaces/{namespace}/pods?resourceVersion=0&labelSelector=app");
    for path in [CACHED, PODS, &one, &few, "/api/v1/pods?limit=7"] {
        let (ours, theirs) = (app.get(path).await, upstream_client(up).get(path).await);
        assert_alike(path, &ours, &theirs);
        assert!(ours.is_cached(), "{path}");
        assert!(marks(&ours.text()) > 0, "{path}");
    }
    for (accept, encoding) in MADE {
        let call = |client: &direct::Client| {
            client.request(Method::GET, CACHED).header("accept", accept).header("accept-encoding", encoding).send()
        };
        let (ours, theirs) = (call(app).await, call(&upstream_client(up)).await);
        assert!(ours.is_cached(), "{accept} {encoding}");
        let (ours, theirs) = (plain(&ours), plain(&theirs));
        assert_eq!(marks(&ours), pods, "{accept} {encoding}");
        assert!(ours == theirs, "{accept} {encoding}");
    }
    let (ours, theirs) = (app.watch(PODS).initial_events().from(0), upstream_client(up).watch(PODS).initial_events());
    let (ours, theirs) = (ours.await, theirs.await);
    ours.listed().await;
    theirs.listed().await;
    assert_same("the state that a watch begins with", &ours.changes(), &theirs.changes());
    let each: Vec<_> = ours.changes().iter().map(|event| marks(&String::from_utf8_lossy(&event.body))).collect();
    assert_eq!(each, vec![1; pods]);
}

/// Number of lists that refreshed pods after an upgrade, which are all but those of API definitions. The feeds of these
/// refresh their objects at a time of their own.
async fn refreshes_of_pods(app: &App) -> u64 {
    let metrics = app.admin("/metrics").await.text();
    let is_of_definitions = |line: &str| line.contains("customresourcedefinitions") || line.contains("apiservices");
    let lines = metrics.lines().filter(|line| line.contains("release_change") && !is_of_definitions(line));
    lines.fold(0, |count, line| {
        assert!(line.contains("pods"), "{line}");
        count + line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok()).expect("a number")
    })
}

#[tokio::test]
async fn upgrade_refreshes_cached_objects_without_watch_events() {
    let up = demo::upstream().pods(120).seed(61).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let open = watches(&app, history.from).await;
    let last = up.churn(5).await;
    join_all(open.iter().map(|watch| watch.reached(last))).await;
    // Fills every derived form from the old bodies.
    for (accept, encoding) in MADE {
        let call = app.request(Method::GET, CACHED).header("accept", accept).header("accept-encoding", encoding);
        assert_eq!(marks(&plain(&call.send().await)), 0);
    }
    let (objects, before) = (up.keys("pods").len(), direct::whole_lists(&up, PODS));
    upgrade(&up, &app, || {}).await;
    assert_all_are_new(&up, &app, objects).await;
    assert_eq!(refreshes_of_pods(&app).await, 1);
    assert!(direct::whole_lists(&up, PODS) > before);
    let last = up.churn(5).await;
    history.read_to(last).await;
    for watch in &open {
        watch.reached(last).await;
        assert_same("through the upgrade", &watch.events(), &history.all());
        assert!(watch.is_open());
    }
}

/// The list that mends a gap also refreshes the bytes.
#[tokio::test]
async fn backfilled_gap_after_upgrade_refreshes_objects_with_one_list() {
    let up = demo::upstream().pods(40).seed(62).run().await;
    let history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let open = watches(&app, history.from).await;
    assert_eq!(marks(&app.get(CACHED).await.text()), 0);
    let (objects, before) = (up.keys("pods").len(), direct::whole_lists(&up, PODS));
    let while_down = || {
        up.put("nodes", serde_json::json!({"metadata": {"name": "new"}}));
        up.faults().forget_window();
    };
    upgrade(&up, &app, while_down).await;
    app.until_pods_are_listed_again().await;
    let first = app.get(CACHED).await;
    assert_eq!((first.is_cached(), marks(&first.text())), (true, objects));
    assert_eq!(direct::whole_lists(&up, PODS) - before, 1, "the list that the gap was mended with");
    assert_all_are_new(&up, &app, objects).await;
    assert_eq!(refreshes_of_pods(&app).await, 0);
    for watch in &open {
        assert!(watch.is_open() && watch.events().is_empty());
    }
}

#[tokio::test]
async fn paginated_list_begun_before_upgrade_is_forwarded() {
    let up = demo::upstream().pods(40).seed(63).run().await;
    let app = direct::app(&up).run().await;
    assert_eq!(marks(&app.get(CACHED).await.text()), 0);
    let first = app.get("/api/v1/pods?limit=7").await;
    assert!(first.is_cached());
    let next = format!("/api/v1/pods?limit=7&continue={}", first.continue_token().expect("there is more"));
    upgrade(&up, &app, || {}).await;
    assert_eq!(marks(&app.get(CACHED).await.text()), 40);
    let page = app.get(&next).await;
    assert_alike("the second page", &page, &upstream_client(&up).get(&next).await);
    assert_eq!((page.status, marks(&page.text())), (200, 7));
}

/// A restart of the same build is not an upgrade.
#[tokio::test]
async fn upstream_restart_of_same_build_causes_no_list() {
    let up = demo::upstream().pods(40).seed(64).run().await;
    let app = direct::app(&up).run().await;
    let open = watches(&app, up.revision()).await;
    let before = direct::whole_lists(&up, PODS);
    for _ in 0..3 {
        up.faults().down().await;
        app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
        up.faults().up().await;
        app.until_feed("pods", "live", |feed| feed["state"] == "live").await;
        assert!(app.get(CACHED).await.is_cached());
    }
    direct::assert_not_listed_again(&up, &app, "pods", before).await;
    assert!(open.iter().all(Watch::is_open));
}

/// Old and new servers alternate at one address: each new stream may reach the other one.
#[tokio::test]
async fn alternating_releases_cause_bounded_refresh_lists() {
    let up = demo::upstream().pods(20).seed(65).run().await;
    let app = direct::app(&up).sync_wait(Duration::from_millis(500)).run().await;
    direct::eventually("it is cached", || async { app.get(CACHED).await.is_cached() }).await;
    let open = watches(&app, up.revision()).await;
    up.faults().say_releases(&[36, NEW]);
    let began = std::time::Instant::now();
    for _ in 0..12 {
        let opened = up.counts().watches_opened.of("pods");
        up.faults().drop_connections();
        direct::within("a new stream", up.until(|counts| counts.watches_opened.of("pods") > opened)).await;
        // From the cache or from upstream.
        assert_eq!(app.get(CACHED).await.items().len(), 20);
    }
    let renewals = refreshes_of_pods(&app).await;
    // Intervals grow, but a machine that stalls leaves time for more.
    let renewals_max = 4 + began.elapsed().as_secs() / 5;
    assert!((1..=renewals_max).contains(&renewals), "{renewals} lists because of 12 streams, {renewals_max} at most");
    let last = up.churn(3).await;
    for watch in &open {
        watch.reached(last).await;
        assert!(watch.is_open());
    }
}

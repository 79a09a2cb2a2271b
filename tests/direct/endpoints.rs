//! Upstream has several servers on one storage, of which the proxy uses one at a time (F11).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::BackoffBounds;
use demo::{self, RunningDemoApiserver};
use futures_util::future::join_all;
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kube_fanout::net::{ClientCertificates, ConnectionLimits, Listener, ListenerTls};
use kube_fanout::upstream::{EndpointTimings, STALE};
use tokio::time::{Instant, timeout};

use crate::direct::{self, App, History, Listening, PATIENCE, PODS, Plan, Protocol, Watch, eventually, within};

/// A path that only these tests request.
const PASSED_THROUGH: &str = "/livez";

/// Timings of a proxy, shortened where a test waits for them. The others are long, so that a stalled machine does not
/// look like a failed server.
fn times() -> EndpointTimings {
    let waits =
        |first, longest| BackoffBounds { first: Duration::from_millis(first), longest: Duration::from_millis(longest) };
    EndpointTimings {
        slow: PATIENCE,
        check_timeout: PATIENCE,
        false_alarms: waits(20, 200),
        rounds: waits(20, 100),
        stay: waits(50, 400),
        failbacks: waits(200, 2_000),
        ready_for: Duration::from_millis(200),
        reset_after: PATIENCE,
    }
}

/// Timings for a silent server, which must be detected before a read is forwarded.
fn impatient() -> EndpointTimings {
    EndpointTimings { slow: Duration::from_secs(2), check_timeout: Duration::from_secs(2), ..times() }
}

pub fn in_front_of(servers: &[String]) -> Plan {
    let plan = direct::in_front_of(&servers[0]);
    plan.with(|config| {
        config.endpoints.servers = servers.iter().map(|url| url.parse().expect("a URL")).collect();
        config.endpoints.times = times();
    })
}

/// Two servers on one storage, a third that only tests use, and a proxy that prefers the first.
struct Zone {
    first: RunningDemoApiserver,
    second: RunningDemoApiserver,
    witness: RunningDemoApiserver,
    app: App,
}

async fn zone(pods: usize, seed: u64) -> Zone {
    zone_with(|plan| plan, pods, seed).await
}

async fn zone_with(change: impl FnOnce(Plan) -> Plan, pods: usize, seed: u64) -> Zone {
    let first = demo::upstream().pods(pods).seed(seed).run().await;
    let (second, witness) = (first.beside(), first.beside());
    let app = change(in_front_of(&[first.url(), second.url()])).run().await;
    app.discovered().await;
    Zone { first, second, witness, app }
}

async fn watches(app: &App, from: u64) -> Vec<Watch> {
    join_all((0..9).map(|n| app.watch(PODS).from(from).over(Protocol::ALL[n % 3]).into_future())).await
}

/// Returns when forwarded requests go to this server.
async fn is_used(app: &App, server: &RunningDemoApiserver) {
    let arrived = || direct::proxy_queries(server, PASSED_THROUGH).len();
    let arrives = || async {
        let before = arrived();
        app.get(PASSED_THROUGH).await.status == 200 && arrived() > before
    };
    eventually("the server is used", arrives).await;
}

fn asked_whether_ready(server: &RunningDemoApiserver) -> usize {
    direct::proxy_queries(server, "/readyz").len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_resumes_watches_without_relist() {
    let Zone { first, second, witness, app } = zone(40, 401).await;
    let mut history = History::begin(&witness, PODS).await;
    let watches = watches(&app, history.from).await;
    let last = first.churn(20).await;
    join_all(watches.iter().map(|watch| watch.reached(last))).await;
    assert_eq!(
        (second.counts().connections, asked_whether_ready(&first)),
        (0, 0),
        "the server in use is healthy, so none is probed"
    );
    first.faults().down().await;
    is_used(&app, &second).await;
    let last = second.churn(30).await;
    history.assert_delivered(&watches, last).await;
    // Forwarded reads succeed as well, and writes arrive.
    let created = app.request(Method::POST, "/api/v1/namespaces/default/configmaps");
    let created = created.body(r#"{"metadata": {"name": "written", "namespace": "default"}}"#);
    let created = created.header("content-type", "application/json").send().await;
    assert_eq!(created.status, 201, "{}", created.text());
    assert_eq!(second.counts().writes.of("configmaps"), 1);
    let current = app.get(PODS).await;
    assert!(current.is_cached() && current.rv() >= last, "proven by the second");
    assert_eq!(direct::whole_lists(&second, PODS), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovered_server_is_preferred_without_cutting_streams() {
    let Zone { first, second, witness, app } = zone(20, 402).await;
    let mut history = History::begin(&witness, PODS).await;
    let watches = watches(&app, history.from).await;
    direct::followed(&first, "pods").await;
    first.faults().down().await;
    direct::followed(&second, "pods").await;
    is_used(&app, &second).await;
    // The second may first refuse a version that is older than its history. A stream that delivers is the one to keep.
    let seen = second.churn(5).await;
    join_all(watches.iter().map(|watch| watch.reached(seen))).await;
    let before = [&first, &second].map(|server| direct::resumed(server, PODS));
    first.faults().up().await;
    is_used(&app, &first).await;
    let last = first.churn(20).await;
    history.assert_delivered(&watches, last).await;
    assert_eq!([&first, &second].map(|server| direct::resumed(server, PODS)), before, "open streams continue");
    // All servers are healthy, and probes stop once the last one is answered.
    eventually("no server is probed", || async {
        let (requests, began) = ([&first, &second].map(asked_whether_ready), Instant::now());
        // A machine that stalls shows nothing, so the proxy has to answer requests in this time.
        let mut answered = 0;
        while answered < 50 || began.elapsed() < times().failbacks.first + times().ready_for {
            assert_eq!(app.get(PASSED_THROUGH).await.status, 200);
            answered += 1;
        }
        [&first, &second].map(asked_whether_ready) == requests
    })
    .await;
    // The stream stays there until it ends, and then moves to the preferred server.
    second.faults().end_watches();
    direct::followed(&first, "pods").await;
    let last = first.churn(10).await;
    history.assert_delivered(&watches, last).await;
}

/// The server is a proxy that has no stream. It answers, but another server may follow upstream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_with_stale_responses_is_probed() {
    let Zone { first, app, .. } = zone(5, 408).await;
    first.faults().send_headers(HeaderMap::from_iter([(STALE, 40.into())]));
    app.get(PODS).await;
    eventually("the server is probed", || async { asked_whether_ready(&first) > 0 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_to_lagging_server_serves_no_older_version() {
    let Zone { first, second, witness, app } = zone(20, 403).await;
    let mut history = History::begin(&witness, PODS).await;
    let watches = watches(&app, history.from).await;
    let behind = first.revision();
    let seen = first.churn(20).await;
    join_all(watches.iter().map(|watch| watch.reached(seen))).await;
    let cached = format!("{PODS}?resourceVersion=0");
    // Its watches and its reported position are stale.
    second.faults().hush_watches();
    second.faults().lag(usize::MAX, behind);
    first.faults().down().await;
    is_used(&app, &second).await;
    let last = second.churn(10).await;
    for _ in 0..20 {
        let any = app.get(&cached).await;
        assert!(any.is_cached() && any.rv() >= seen, "{} after {seen}", any.rv());
        let at_least = app.get(&format!("{PODS}?resourceVersion={seen}")).await;
        assert!(at_least.rv() >= seen, "{} after {seen}", at_least.rv());
    }
    assert!(watches.iter().all(Watch::is_open));
    second.faults().lag(0, 0);
    second.faults().unhush_watches();
    history.assert_delivered(&watches, last).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_server_fails_over_after_timeout() {
    // If the machine stalls for as long as the proxy's timeouts, the proxy may have left the first server before it
    // froze. That shows nothing, so the test retries.
    for seed in 404..409 {
        // What the first server cannot prove is forwarded as early as by the product, and requested again.
        let impatiently = |plan: Plan| plan.fresh_wait_of_product().with(|config| config.endpoints.times = impatient());
        let Zone { first, second, app, .. } = zone_with(impatiently, 20, seed).await;
        app.get(PODS).await;
        is_used(&app, &first).await;
        first.faults().freeze();
        let (started, was_left_before) = (Instant::now(), second.counts().requests > 0);
        let last = second.churn(5).await;
        // A read that needs a proof: the request goes to the first server, is slow, and is abandoned when that server
        // is not ready. A client whose request was forwarded to the first server before that times out and retries.
        let proven = async || {
            let answer = timeout(2 * impatient().slow, app.get(PODS)).await;
            answer.is_ok_and(|answer| answer.status == 200 && answer.rv() >= last)
        };
        within("the second is used", Box::pin(async { while !proven().await {} })).await;
        let took = started.elapsed();
        first.faults().thaw();
        if was_left_before {
            continue;
        }
        assert!(took >= impatient().slow, "the first was given its time: {took:?}");
        assert!(second.counts().requests > 0);
        return;
    }
    panic!("the first was always left before it froze: nothing was tried");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_servers_are_skipped_at_start() {
    let up = demo::upstream().pods(5).run().await;
    let tls =
        ListenerTls::self_signed(vec!["127.0.0.1".to_owned()], ClientCertificates::Ignored).expect("a certificate");
    let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let untrusted = format!("https://{}", listener.local_address().expect("it is bound"));
    let upstream = Listening::start(listener, Some(tls), ConnectionLimits::default());
    // The first has an untrusted certificate, the next does not use TLS, one is down, and one is not ready.
    let plain = up.url().replace("http:", "https:");
    let unready = direct::stub(|_| async { Ok(direct::Stub::reply(500, "[-]etcd failed")) }).await;
    let servers = [untrusted, plain, "https://127.0.0.1:1".to_owned(), unready.url(), up.url()];
    let app = in_front_of(&servers).run().await;
    let answers = || async { app.get(PODS).await.status == 200 };
    eventually("the last of them is used", answers).await;
    assert!(upstream.requests() == 0 && !unready.seen("/readyz").is_empty());
    assert!(unready.seen(PODS).is_empty(), "it only received readiness probes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cache_serves_stale_until_any_server_recovers() {
    let Zone { first, second, witness, app } = zone(20, 405).await;
    let mut history = History::begin(&witness, PODS).await;
    let watches = watches(&app, history.from).await;
    // The release that wrote the cached objects is known (F10), and nothing is ever read from the second server.
    let cached = format!("{PODS}?resourceVersion=0");
    eventually("its state is served", || async { app.get(&cached).await.is_cached() }).await;
    second.faults().down().await;
    first.faults().down().await;
    app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    let any = app.get(&cached).await;
    assert!(any.is_cached() && any.header("kube-fanout-stale-seconds").is_some(), "{}: {}", any.status, any.text());
    assert_eq!(app.get(PASSED_THROUGH).await.status, 503);
    let last = first.churn(10).await;
    second.faults().up().await;
    all_have_from(&watches, last).await;
    is_used(&app, &second).await;
    second.faults().down().await;
    first.faults().up().await;
    is_used(&app, &first).await;
    let last = first.churn(10).await;
    history.assert_delivered(&watches, last).await;
}

async fn all_have_from(watches: &[Watch], last: u64) {
    join_all(watches.iter().map(|watch| watch.reached(last))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flapping_servers_cause_bounded_readiness_probes() {
    let Zone { first, second, witness, app } = zone(10, 406).await;
    let mut history = History::begin(&witness, PODS).await;
    let watches = watches(&app, history.from).await;
    let began = Instant::now();
    for round in 0..20 {
        let (goes, stays) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
        goes.faults().down().await;
        stays.faults().up().await;
        app.get(PASSED_THROUGH).await;
        first.churn(2).await;
    }
    for server in [&first, &second] {
        server.faults().up().await;
    }
    let last = first.churn(10).await;
    history.assert_delivered(&watches, last).await;
    // One probe of both in each of the shortest pauses, if every probe came as early as possible.
    let looks = began.elapsed().as_millis() / times().rounds.first.as_millis() + 4;
    let requests = [&first, &second].map(asked_whether_ready).iter().sum::<usize>();
    assert!(requests as u128 <= 2 * looks, "{requests} questions in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_write_is_not_retried_on_next_server() {
    let up = demo::upstream().pods(5).run().await;
    let broken = Arc::new(AtomicUsize::new(0));
    let counted = broken.clone();
    let first = direct::stub(move |request: Request<Incoming>| {
        let counted = counted.clone();
        async move {
            let is_write = request.method() == Method::POST;
            let _ = request.into_body().collect().await;
            counted.fetch_add(usize::from(is_write), Ordering::SeqCst);
            // The server reports ready, so that it stays selected.
            if is_write { Err("gone without an answer".into()) } else { Ok(direct::Stub::reply(200, "ok")) }
        }
    })
    .await;
    let app = in_front_of(&[first.url(), up.url()]).run().await;
    let written = app.request(Method::POST, "/elsewhere").body("x").send().await;
    assert_eq!((written.status, written.header("retry-after")), (502, None), "{}", written.text());
    assert_eq!(broken.load(Ordering::SeqCst), 1);
    let posts = up.requests().iter().filter(|seen| seen.method == Method::POST).count();
    assert_eq!(posts, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_server_gets_no_readiness_probes() {
    let up = demo::upstream().pods(5).run().await;
    for app in [direct::app(&up).run().await, in_front_of(&[up.url()]).run().await] {
        app.discovered().await;
        app.get(PODS).await;
        up.faults().down().await;
        app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
        up.faults().up().await;
        app.until_feed("pods", "live", |feed| feed["state"] == "live").await;
    }
    assert_eq!(asked_whether_ready(&up), 0);
}

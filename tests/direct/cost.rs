//! The upstream cost that the proxy reports equals what upstream received, to the byte (docs/METRICS.md).

use std::collections::BTreeMap;
use std::sync::Arc;

use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kube_fanout::auth::AuthMode;
use parking_lot::Mutex;
use serde_json::Value;

use crate::direct::{self, App, Behind, PODS, Stub, stub};

/// Number of requests, and bytes of response bodies.
type Seen = BTreeMap<&'static str, (u64, u64)>;

/// A relay between the proxy and upstream that counts requests and bytes.
struct Relay {
    stub: Stub,
    seen: Arc<Mutex<Seen>>,
}

async fn relay(url: &str) -> Relay {
    let (behind, seen) = (Behind::at(url), Arc::<Mutex<Seen>>::default());
    let counts = seen.clone();
    let answer = move |request: Request<Incoming>| {
        let (behind, counts) = (behind.clone(), counts.clone());
        async move {
            let (head, body) = request.into_parts();
            let cause = cause_of(&head);
            counts.lock().entry(cause).or_default().0 += 1;
            let (head, body) = behind.answer(Request::from_parts(head, body)).await?.into_parts();
            let counted = body.map_frame(move |frame| {
                counts.lock().entry(cause).or_default().1 += frame.data_ref().map_or(0, |data| data.len() as u64);
                frame
            });
            Ok(http::Response::from_parts(head, counted.boxed_unsync()))
        }
    };
    Relay { stub: stub(answer).await, seen }
}

/// The cause of a request, derived from its public properties. A streamed list and the watch after it are one request.
fn cause_of(head: &http::request::Parts) -> &'static str {
    let is_ours = head.headers.get("user-agent").is_some_and(|agent| agent.as_bytes().starts_with(b"kube-fanout/"));
    let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
    let accept = head.headers.get("accept").and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let is_about = |part: &str| path.contains(part);
    match () {
        () if !is_ours => "forwarded",
        () if is_about("subjectaccessreviews") => "access_review",
        () if is_about("tokenreviews") => "token_review",
        () if is_about("rbac.authorization.k8s.io/v1/") => "rbac",
        () if is_about("customresourcedefinitions") || is_about("apiservices") => "definitions",
        // A list of versions, a position request, and the catch-up watch if its event is late.
        () if accept.contains("ObjectMetadata") => "proof",
        () if query.contains("timeoutSeconds=5") || query.contains("timeoutSeconds=3") => "proof",
        () if query.is_empty() => "discovery",
        () => "list and watch",
    }
}

/// The same numbers from the admin page.
async fn admin_costs(app: &App) -> Seen {
    let page = app.admin("/debug/cost").await.json();
    let mut costs = Seen::new();
    for cost in page.as_array().expect("a list") {
        let number = |name: &str| cost[name].as_u64().expect("a number");
        let word = match cost["cause"].as_str().expect("a word") {
            "list" | "watch" => "list and watch",
            "proof" => "proof",
            "discovery" => "discovery",
            "definitions" => "definitions",
            "rbac" => "rbac",
            "access_review" | "lease_review" | "self_review" => "access_review",
            "token_review" => "token_review",
            "forwarded" => "forwarded",
            _ if number("requests") == 0 => continue,
            other => panic!("nothing asks upstream for {other} here"),
        };
        let of = costs.entry(word).or_default();
        *of = (of.0 + number("requests"), of.1 + number("bodyBytes"));
    }
    costs
}

async fn cost(app: &App, cause: &str, name: &str) -> Option<u64> {
    let page = app.admin("/debug/cost").await.json();
    let of = |cost: &&Value| cost["cause"] == cause;
    page.as_array().expect("a list").iter().find(of).and_then(|cost| cost[name].as_u64())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cost_page_matches_upstream_traffic_exactly() {
    let up = demo::upstream().pods(40).run().await;
    up.reviews().give("a", "ada");
    up.reviews().allow("ada", "*");
    let relay = relay(&up.url()).await;
    let delegated = direct::in_front_of(&relay.stub.url()).with(|config| config.auth = AuthMode::Delegated);
    let app = delegated.run().await;
    let ada = app.bearing("a");
    let watch = ada.watch(PODS).initial_events().await;
    watch.listed().await;
    assert!(ada.get(PODS).await.is_cached(), "after a proof");
    let healthy = ada.get("/healthz").await;
    watch.reached(up.churn(25).await).await;
    app.discovered().await;
    let agree = || async { admin_costs(&app).await == *relay.seen.lock() };
    direct::eventually("page and relay agree", agree).await;
    let seen = relay.seen.lock().clone();
    for cause in ["list and watch", "proof", "discovery", "definitions", "rbac", "access_review", "token_review"] {
        let (requests, bytes) = seen.get(cause).copied().unwrap_or_default();
        assert!(requests > 0 && bytes > 0, "{cause}: {seen:?}");
    }
    assert_eq!(seen["forwarded"], (1, healthy.text().len() as u64));
    // One watch for the pods, and it was the list as well.
    assert_eq!((cost(&app, "list", "requests").await, cost(&app, "watch", "requests").await), (Some(1), Some(0)));
    assert_eq!(
        (cost(&app, "watch", "streamsOpened").await, cost(&app, "watch", "streamsOpen").await),
        (Some(1), Some(1))
    );
    let before = cost(&app, "watch", "bodyBytes").await;
    watch.reached(up.churn(25).await).await;
    assert!(cost(&app, "watch", "bodyBytes").await > before, "events are not the list's");
}

#[tokio::test]
async fn open_stream_count_decreases_when_stream_ends() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).idle(std::time::Duration::from_millis(40)).run().await;
    let watch = app.watch(PODS).initial_events().await;
    watch.listed().await;
    assert_eq!(cost(&app, "watch", "streamsOpen").await, Some(1));
    drop(watch);
    let is_closed = || async { cost(&app, "watch", "streamsOpen").await == Some(0) };
    direct::eventually("no stream is open", is_closed).await;
    assert_eq!(cost(&app, "watch", "streamsOpened").await, Some(1));
    let metrics = app.admin("/metrics").await;
    assert!(metrics.text().contains("kube_fanout_upstream_streams_opened_total{cause=\"watch\"} 1\n"));
}

//! A part of discovery is missing, because an aggregated API does not respond or a server has just started
//! (R-UPSTREAM-11). It hides no other part, and ends no watch.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use demo::{self, RunningDemoApiserver};
use futures_util::future::join_all;
use http::Request;
use http::header::IF_NONE_MATCH;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::direct::{self, App, Behind, Failure, PODS, Reply, Stub, WIDGETS, Watch, eventually};

const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";
/// A resource of an aggregated API.
const THINGS: &str = "/apis/elsewhere.example/v1/things";

/// How much of the aggregated API discovery returns.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Discovered {
    All,
    /// The version without resources, as an apiserver reports an API that does not respond.
    Stale,
    /// Nothing, as for APIs that the server has not registered yet.
    Nothing,
}

/// An upstream whose discovery may lack a part.
struct Parts {
    state: AtomicUsize,
    requests: AtomicUsize,
}

impl Parts {
    fn state(&self) -> Discovered {
        [Discovered::All, Discovered::Stale, Discovered::Nothing][self.state.load(Ordering::SeqCst)]
    }

    /// The document for `/apis`, with an aggregated API added.
    fn groups(&self, mut whole: Value) -> Value {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let state = self.state();
        let resource = json!({"resource": "things", "responseKind": {"kind": "Thing"}, "scope": "Namespaced",
            "verbs": ["get", "list", "watch"]});
        let (resources, freshness) =
            if state == Discovered::All { (vec![resource], "Current") } else { (vec![], "Stale") };
        let groups = whole["items"].as_array_mut().expect("groups");
        if state == Discovered::Nothing {
            groups.retain(|group| group["metadata"]["name"] != "apps");
        } else {
            groups.push(json!({"metadata": {"name": "elsewhere.example"},
                "versions": [{"version": "v1", "resources": resources, "freshness": freshness}]}));
        }
        whole
    }

    /// The upstream's response, with or without the part.
    async fn answer(&self, behind: &Behind, mut request: Request<Incoming>) -> Result<Reply, Failure> {
        let path = request.uri().path().to_owned();
        if path == THINGS {
            let things = json!({"kind": "ThingList", "metadata": {"resourceVersion": "7"}, "items": []});
            return Ok(match self.state() {
                Discovered::All => Stub::reply(200, things.to_string()),
                _ => Stub::reply(503, "service unavailable"),
            });
        }
        if ["/api", "/apis"].contains(&path.as_str()) {
            request.headers_mut().remove(IF_NONE_MATCH);
        }
        let answer = behind.answer(request).await?;
        if path != "/apis" {
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        let whole = serde_json::from_slice(&body.collect().await?.to_bytes())?;
        let mut reply = Stub::reply(head.status.as_u16(), self.groups(whole).to_string());
        let content_type = head.headers.get("content-type").cloned();
        content_type.into_iter().for_each(|kind| drop(reply.headers_mut().insert("content-type", kind)));
        Ok(reply)
    }
}

async fn upstream(up: &RunningDemoApiserver, state: Discovered) -> (Stub, Arc<Parts>) {
    let state = AtomicUsize::new(state as usize);
    let (behind, parts) = (Behind::at(&up.url()), Arc::new(Parts { state, requests: AtomicUsize::new(0) }));
    let known = parts.clone();
    let stub = direct::stub(move |request| {
        let (behind, known) = (behind.clone(), known.clone());
        async move { known.answer(&behind, request).await }
    });
    (stub.await, parts)
}

/// Makes the proxy read discovery again.
async fn read_again(app: &App, parts: &Parts, state: Discovered) {
    let before = parts.requests.load(Ordering::SeqCst);
    parts.state.store(state as usize, Ordering::SeqCst);
    // A request for an unknown resource triggers discovery.
    eventually("discovery is read again", || async {
        app.get("/apis/unknown.example/v1/things").await;
        parts.requests.load(Ordering::SeqCst) > before + 1
    })
    .await;
}

/// Asserts that the aggregated resource is always forwarded.
async fn things_pass_through(app: &App, state: Discovered) {
    let things = app.get(THINGS).await;
    assert!(!things.is_cached(), "{state:?}");
    assert_eq!(things.status, if state == Discovered::All { 200 } else { 503 }, "{state:?}: {}", things.text());
}

const PARTS: [Discovered; 2] = [Discovered::Stale, Discovered::Nothing];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_group_missing_at_start_hides_no_other_group() {
    join_all(PARTS.map(async |state| {
        let up = demo::upstream().pods(5).run().await;
        let (stub, parts) = upstream(&up, state).await;
        let app = direct::in_front_of(&stub.url()).run().await;
        for path in [PODS, WIDGETS] {
            eventually(path, || async { app.get(path).await.is_cached() }).await;
        }
        assert_eq!(app.get(DEPLOYMENTS).await.status, 200, "{state:?}");
        things_pass_through(&app, state).await;
        read_again(&app, &parts, Discovered::All).await;
        eventually("all of it", || async { app.get(DEPLOYMENTS).await.is_cached() }).await;
        things_pass_through(&app, Discovered::All).await;
        app.stop().await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_group_missing_temporarily_ends_no_watch() {
    join_all(PARTS.map(async |state| {
        let up = demo::upstream().pods(5).run().await;
        let (stub, parts) = upstream(&up, Discovered::All).await;
        let app = direct::in_front_of(&stub.url()).run().await;
        app.discovered().await;
        let (pods, widgets, deployments) =
            (app.watch(PODS).await, app.watch(WIDGETS).await, app.watch(DEPLOYMENTS).await);
        read_again(&app, &parts, state).await;
        things_pass_through(&app, state).await;
        let changes = |name: &str| {
            let meta = json!({"name": name, "namespace": "default"});
            let deployment = up.put("deployments", json!({"metadata": meta, "spec": {"replicas": 1}}));
            let widget = up.put("widgets", json!({"metadata": meta, "spec": {"color": "red"}}));
            [(&pods, up.create_pod("default", name)), (&widgets, widget), (&deployments, deployment)]
        };
        for (watch, version) in changes("while") {
            watch.reached(version).await;
        }
        read_again(&app, &parts, Discovered::All).await;
        for (watch, version) in changes("after") {
            watch.reached(version).await;
        }
        assert!([&pods, &widgets, &deployments].into_iter().all(Watch::is_open), "{state:?}");
        let deployments_are_cached =
            || async { app.get(&format!("{DEPLOYMENTS}?resourceVersion=0")).await.is_cached() };
        eventually("deployments are cached", deployments_are_cached).await;
        app.stop().await;
    }))
    .await;
}

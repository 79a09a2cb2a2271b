//! Client activity pages for permitted readers (docs/SECURITY.md, "Client activity pages").

use std::time::Duration;

use http::Method;
use kube_fanout::auth::AuthMode;
use parking_lot::Mutex;
use serde_json::Value;

use crate::direct::{self, Ended, PODS, eventually};

const PAGES: [&str; 2] = ["/debug/watches", "/debug/recent"];

#[tokio::test]
async fn activity_pages_return_403_on_tcp_without_auth() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    let watch = app.watch(PODS).initial_events().await;
    watch.listed().await;
    for path in PAGES {
        let refused = app.admin_client().request(Method::GET, path).header("authorization", "Bearer x").send().await;
        assert_eq!(refused.status, 403, "{path}");
        assert!(refused.text().contains("unix:PATH") && !refused.text().contains("pods"), "{}", refused.text());
    }
}

#[tokio::test]
async fn activity_pages_require_token_with_permission() {
    let up = demo::upstream().pods(3).run().await;
    for (token, user) in [("sesame", "zebediah"), ("poppy", "operator"), ("cumin", "nosy")] {
        up.reviews().give(token, user);
    }
    up.reviews().allow("zebediah", "default");
    PAGES.iter().for_each(|path| up.reviews().allow("operator", path));
    let app = direct::app(&up).with(|config| config.auth = AuthMode::Delegated).run().await;
    let pods = "/api/v1/namespaces/default/pods";
    let watch = app.bearing("sesame").watch(pods).labels("animal!=gnu").initial_events().await;
    watch.listed().await;
    assert_eq!(app.bearing("sesame").get("/api/v1/namespaces/hidden/pods").await.status, 403);
    let fetch = async |path: &str, token: &str| app.admin_client().bearing(token).get(path).await;
    for path in PAGES {
        assert_eq!(app.admin(path).await.status, 401, "{path}");
        for (token, status) in [("stolen", 401), ("cumin", 403), ("sesame", 403), ("poppy", 200)] {
            let answer = fetch(path, token).await;
            assert_eq!(answer.status, status, "{path} {token}: {}", answer.text());
            // A refusal names its own sender only.
            let names_other = token != "sesame" && answer.text().contains("zebediah");
            assert!(status == 200 || !names_other, "{}", answer.text());
        }
        let posted = app.admin_client().bearing("poppy").request(Method::POST, path).send().await;
        assert_eq!(posted.status, 405, "{path}");
        let foreign = app.admin_client().bearing("poppy").request(Method::GET, path).host("evil.example").send().await;
        assert_eq!(foreign.status, 403, "{path}");
    }
    let watches = fetch(PAGES[0], "poppy").await;
    assert!(!watches.text().contains("gnu"), "kinds of selectors, and not what they say: {}", watches.text());
    let row = watches.json()["watches"][0].clone();
    let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
    assert_eq!((text("user"), text("resource"), text("namespace")), parts(["zebediah", "pods.v1", "default"]));
    assert_eq!((text("selectors"), text("state"), text("protocol")), parts(["labels", "idle", "h1"]));
    let refused = fetch("/debug/recent?user=zebediah", "poppy").await.json()["refused"][0].clone();
    assert_eq!((&refused["method"], &refused["request"]), (&"GET".into(), &"/api/v1/namespaces/hidden/pods".into()));
    assert!(refused["reason"].as_str().is_some_and(|reason| reason.starts_with("403 ")), "{refused}");
    // Without upstream no caller can be authenticated.
    up.reviews().refuse(Some(503));
    assert_eq!(fetch(PAGES[0], "tarragon").await.status, 503);
}

fn parts(of: [&str; 3]) -> (String, String, String) {
    let [a, b, c] = of.map(str::to_owned);
    (a, b, c)
}

#[tokio::test]
async fn activity_pages_on_unix_socket_show_slow_and_ended_watches() {
    let up = demo::upstream().pods(20).run().await;
    let app = direct::app(&up).window_events(400).admin_on_socket();
    // Only the read that is refused waits so long.
    let app = app.with(|config| config.serve.fresh_wait_max = Duration::from_millis(10)).run().await;
    let ok = app.watch(PODS).from(up.revision()).await;
    let slow = app.watch(PODS).fields("spec.nodeName!=x").from(up.revision()).stall_after(1).await;
    let last = up.churn(390).await;
    ok.reached(last).await;
    let page = async |query: &str| app.admin(&format!("/debug/watches{query}")).await.json();
    let behind = |page: &Value| page["watches"][0]["eventsBehind"].as_u64().unwrap_or_default();
    eventually("the slow watch is behind", || async { behind(&page("").await) > 0 }).await;
    let seen = Mutex::new(Value::Null);
    let is_idle = || async {
        let all = page("").await;
        let is_idle = all["watches"][1]["state"] == "idle";
        *seen.lock() = all;
        is_idle
    };
    eventually("the other one is idle", is_idle).await;
    let all = seen.into_inner();
    let [first, second] = [0, 1].map(|n| all["watches"][n].clone());
    assert_eq!((&first["selectors"], &second["selectors"]), (&"fields".into(), &"none".into()), "{all}");
    assert_ne!(first["state"], "idle");
    assert_eq!((&second["state"], &second["eventsBehind"]), (&"idle".into(), &0.into()));
    assert_eq!(second["resourceVersion"], last.to_string());
    // A feed reports a version only once it is complete.
    let version = last.to_string();
    let reached = || async { page("").await["watches"][1]["feedResourceVersion"] == version };
    eventually("the feed has reached it", reached).await;
    assert!(second["bytesSent"].as_u64() > Some(390 * 1000), "{second}");
    assert_eq!((&all["total"], &all["omitted"]), (&2.into(), &0.into()));
    let one = page("?limit=1").await;
    assert_eq!(
        (&one["total"], &one["omitted"], one["watches"].as_array().map(Vec::len)),
        (&2.into(), &1.into(), Some(1))
    );
    for (query, total) in [("?resource=nodes", 0), ("?text=PODS.v1", 2), ("?text=nobody", 0), ("?text=", 2)] {
        assert_eq!(page(query).await["total"], total, "{query}");
    }

    // Ended watches and forwarded requests. A client that reads never falls behind the window.
    for _ in 0..10 {
        ok.reached(up.churn(200).await).await;
    }
    slow.resume();
    assert_eq!(slow.ended().await, Ended::Expired);
    app.get("/healthz").await;
    app.get("/healthz").await;
    assert_eq!(app.get(&format!("{PODS}?resourceVersion=99999999")).await.status, 504);
    let recent = app.admin("/debug/recent").await.json();
    let first = |kind: &str| recent[kind][0].clone();
    assert_eq!(
        (&first("ended")["reason"], &first("ended")["request"]),
        (&"expired".into(), &"pods.v1".into()),
        "{recent}"
    );
    let passed = first("forwarded");
    assert_eq!(
        (&passed["request"], &passed["reason"], &passed["count"]),
        (&"/healthz".into(), &"non_resource".into(), &2.into())
    );
    assert!(first("refused")["reason"].as_str().is_some_and(|reason| reason.starts_with("504 ")), "{recent}");
    drop(ok);
    eventually("it is gone", || async { page("").await["total"] == 0 }).await;
}

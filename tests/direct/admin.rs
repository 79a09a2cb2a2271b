//! Admin pages, which show an operator the state of the proxy (O3).

use std::time::Duration;

use http::Method;
use kube_fanout::auth::AuthMode;

use crate::direct::{self, PODS};

#[tokio::test]
async fn readyz_lists_each_feed_and_livez_returns_ok() {
    let up = demo::upstream().pods(7).run().await;
    let app = direct::app(&up).run().await;
    let watch = app.watch(PODS).initial_events().from(0).await;
    watch.listed().await;
    for path in ["/livez", "/healthz"] {
        let answer = app.admin(path).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    }
    app.discovered().await;
    // The feeds that discover served resources may appear a moment later.
    let is_whole = || async { app.admin("/readyz").await.text().lines().count() == 4 };
    direct::eventually("a line for each feed", is_whole).await;
    let ready = || async { app.admin("/readyz").await.status == 200 };
    direct::eventually("all of them are live", ready).await;
    let ready = app.admin("/readyz").await;
    let line = format!("[+]feed pods.v1 (json) live, 7 objects at {}\n", up.revision());
    assert!(ready.text().starts_with(&line) && ready.text().ends_with("readyz check passed\n"), "{}", ready.text());
    assert_eq!((ready.status, ready.text().lines().count()), (200, 4), "and the two pages about served requests");
    assert_eq!(app.admin("/nothing").await.status, 404);
    assert_eq!(app.admin("/debug/nothing").await.status, 404);
}

#[tokio::test]
async fn admin_pages_accept_only_get_and_head() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    for path in ["/metrics", "/livez", "/readyz", "/debug/feeds", "/debug/cost", "/debug/config", "/debug/nothing"] {
        let refused = app.admin_client().request(Method::POST, path).send().await;
        assert_eq!((refused.status, refused.header("allow")), (405, Some("GET,HEAD")), "{path}");
    }
    assert_eq!(app.admin_client().request(Method::POST, "/nothing").send().await.status, 404);
    let head = app.admin_client().request(Method::HEAD, "/livez").send().await;
    assert_eq!((head.status, head.header("content-length"), head.text().as_str()), (200, Some("2"), ""));
    assert_eq!(app.admin("/debug/feeds").await.header("content-type"), Some("application/json"));
    assert_eq!(app.admin("/metrics").await.header("content-type"), Some("text/plain; version=0.0.4"));
    assert_eq!(app.admin("/readyz").await.header("content-type"), Some("text/plain; charset=utf-8"));
}

/// The pages show resources and namespaces but no object names, because they do not authenticate readers.
#[tokio::test]
async fn admin_pages_omit_object_user_token_and_selector_names() {
    let up = demo::upstream().pods(3).run().await;
    for name in ["walrus", "narwhal"] {
        up.create_pod("default", name);
    }
    up.reviews().give("sesame", "zebediah");
    up.reviews().allow("zebediah", "default");
    let app = direct::app(&up).with(|config| config.auth = AuthMode::Delegated).run().await;
    let caller = app.bearing("sesame");
    let pods = "/api/v1/namespaces/default/pods";
    let watch = caller.watch(pods).labels("animal!=gnu").initial_events().await;
    watch.listed().await;
    watch.reached(up.delete_pod("default", "narwhal")).await;
    assert!(caller.get(&format!("{pods}/walrus?resourceVersion=0")).await.is_cached());
    assert_eq!(caller.get("/api/v1/namespaces/hidden/pods").await.status, 403);
    for path in ["/metrics", "/livez", "/readyz", "/debug/feeds", "/debug/cost", "/debug/config"] {
        let page = app.admin(path).await;
        assert_eq!(page.status, 200, "{path}");
        for name in ["walrus", "narwhal", "zebediah", "sesame", "gnu", "hidden"] {
            assert!(!page.text().contains(name), "{path} names {name}: {}", page.text());
        }
    }
    // The pages are not served to clients, who may be restricted to a namespace. On the serving address these paths are
    // forwarded.
    for path in ["/debug/feeds", "/debug/cost", "/debug/config", "/metrics"] {
        let (ours, theirs) = (caller.get(path).await, direct::upstream_client(&up).get(path).await);
        assert!(!ours.is_cached() && ours.status == theirs.status, "{path}: {} {}", ours.status, theirs.status);
        assert!(!ours.text().contains("kube_fanout") && !ours.text().contains("pods.v1"), "{path}");
    }
}

#[tokio::test]
async fn debug_feeds_reports_actual_feed_state() {
    let up = demo::upstream().pods(7).run().await;
    let app = direct::app(&up).run().await;
    let from = up.revision();
    let watches = [
        app.watch(PODS).from(from).await,
        app.watch(PODS).fields("spec.nodeName=node-1").from(from).await,
        app.watch("/api/v1/namespaces/default/pods").from(from).await,
    ];
    let last = up.churn(3).await;
    watches[0].reached(last).await;
    // A watch receives an event before its version is known to be complete.
    app.reached("pods", last).await;
    let feed = app.feed("pods").await.expect("a feed");
    let field = |name: &str| feed[name].clone();
    assert_eq!(field("state"), "live");
    assert_eq!(field("resourceVersion"), last.to_string());
    assert_eq!(field("oldestResourceVersion"), from.to_string());
    assert_eq!(field("objects"), up.keys("pods").len());
    assert_eq!((field("windowEvents"), field("readers"), field("lanes")), (3.into(), 3.into(), 2.into()));
    assert!(field("objectBytes").as_u64() > Some(7 * 1000));
}

/// Clients choose the namespaces, and a metrics registry never forgets a label value.
#[tokio::test]
async fn namespace_metric_series_expire_after_feed_stops() {
    let up = demo::upstream().pods(3).run().await;
    up.faults().only("pods").answer(demo::RequestKind::Watch, 1, 403, None);
    let soon = Duration::from_millis(40);
    let app = direct::app(&up).idle(soon).with(|config| config.cache.counts_age_max = soon).run().await;
    let series = || async { app.admin("/metrics").await.text().matches("namespace=\"asked-").count() };
    for n in 0..200 {
        let list = app.get(&format!("/api/v1/namespaces/asked-{n}/pods?resourceVersion=0")).await;
        assert!(list.is_cached(), "{}", list.text());
        if n == 0 {
            let watch = app.watch("/api/v1/namespaces/asked-0/pods").initial_events().await;
            watch.listed().await;
            assert!(series().await > 15);
        }
    }
    direct::eventually("none is left", || async { series().await == 0 }).await;
}

#[tokio::test]
async fn proxy_serves_requests_with_admin_disabled() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).with(|config| config.admin = None).run().await;
    assert_eq!(app.get("/version").await.status, 200);
}

//! LIST and GET: the state that they return, and pagination (L1, L3, L4, L6; R-LIST-1).

use std::time::Duration;

use base::now_ns;
use demo::{self, RunningDemoApiserver};
use futures_util::future::join_all;
use tokio::time::Instant;
use verify::ApiserverGuarantee;

use crate::direct::{
    self, ALLOWANCE, Answer, App, CONFIGMAPS, Ended, History, PATIENCE, PODS, WIDGETS, assert_alike, configmap,
    upstream_client,
};

const DEFAULT_PODS: &str = "/api/v1/namespaces/default/pods";

/// Waits until the feed of pods has synced.
async fn warm(app: &App) {
    assert!(app.get("/api/v1/pods?resourceVersion=0").await.is_cached());
}

/// Asserts that the cache returns the same response as upstream.
async fn assert_served(app: &App, up: &RunningDemoApiserver, path: &str) {
    let (ours, theirs) = (app.get(path).await, upstream_client(up).get(path).await);
    assert_alike(path, &ours, &theirs);
    assert_eq!(ours.header("content-type"), theirs.header("content-type"), "{path}");
    assert_eq!(ours.header("cache-control"), theirs.header("cache-control"), "{path}");
    assert!(ours.is_cached(), "{path}");
}

#[tokio::test]
async fn cached_lists_are_byte_identical_to_upstream() {
    let up = demo::upstream().pods(40).run().await;
    up.put("configmaps", configmap("default-a", "sorts-before", "a<b>&"));
    let app = direct::app(&up).run().await;
    let rv = up.revision();
    for path in [PODS, DEFAULT_PODS, "/api/v1/namespaces/nowhere/pods", "/api/v1/nodes", "/api/v1/namespaces"] {
        for query in ["", "?resourceVersion=0", "?resourceVersion=0&limit=3", "?limit=3", "?limit=500"] {
            assert_served(&app, &up, &format!("{path}{query}")).await;
        }
    }
    for path in [CONFIGMAPS, "/api/v1/namespaces/default-a/configmaps", WIDGETS, "/apis/apps/v1/deployments"] {
        for query in ["", "?resourceVersion=0", "?limit=1"] {
            assert_served(&app, &up, &format!("{path}{query}")).await;
        }
    }
    for query in [
        "labelSelector=app%3Dapi",
        "labelSelector=app%20in%20(api%2Cfront)%2Cpod-template-hash&limit=2",
        "labelSelector=nobody%3Dhas",
        "fieldSelector=spec.nodeName%3Dnode-1",
        // Without a limit, because the continue tokens differ (R-CONTINUE-2).
        "fieldSelector=metadata.namespace%3Dshop",
        "fieldSelector=spec.restartPolicy%3DAlways&limit=2",
        "fieldSelector=metadata.name%3Dnobody",
        "fieldSelector=status.phase!%3DRunning",
        "timeoutSeconds=1&watch=false&labelselector=x&foo=bar",
        "limit=2&limit=30",
        "limit=-1",
    ] {
        assert_served(&app, &up, &format!("{PODS}?{query}")).await;
        assert_served(&app, &up, &format!("{DEFAULT_PODS}?{query}&resourceVersion=0")).await;
        assert_served(&app, &up, &format!("{PODS}?{query}&resourceVersion={rv}&resourceVersionMatch=NotOlderThan"))
            .await;
    }
}

#[tokio::test]
async fn pages_belong_to_one_snapshot_during_churn() {
    let up = demo::upstream().pods(64).seed(71).run().await;
    let app = direct::app(&up).run().await;
    warm(&app).await;
    for path in [PODS, DEFAULT_PODS, "/api/v1/pods?labelSelector=app%3Dapi"] {
        let joint = if path.contains('?') { '&' } else { '?' };
        let whole = upstream_client(&up).get(path).await;
        let mut page = app.get(&format!("{path}{joint}limit=3")).await;
        let (rv, mut items) = (page.rv(), page.items());
        while let Some(token) = page.continue_token() {
            up.churn(7).await;
            app.reached("pods", up.revision()).await;
            let next = format!("{path}{joint}limit=3&continue={token}");
            page = app.get(&next).await;
            assert!(page.is_cached());
            assert_eq!(page.rv(), rv);
            assert_alike("as upstream pages it", &page, &upstream_client(&up).get(&next).await);
            items.extend(page.items());
        }
        assert_eq!(items, whole.items(), "{path}");
    }
}

#[tokio::test]
async fn foreign_or_evicted_continue_token_is_forwarded() {
    let up = demo::upstream().pods(30).seed(72).run().await;
    let app = direct::app(&up).with(|config| config.cache.held_snapshots_max = 1).run().await;
    warm(&app).await;
    let theirs = upstream_client(&up).get("/api/v1/pods?limit=4").await.continue_token().expect("more");
    let forgotten = app.get("/api/v1/pods?limit=4").await.continue_token().expect("more");
    up.churn(9).await;
    app.reached("pods", up.revision()).await;
    let current = app.get("/api/v1/pods?limit=5").await.continue_token().expect("more");
    up.churn(9).await;
    app.reached("pods", up.revision()).await;
    for (token, ours) in [(&theirs, false), (&forgotten, false), (&current, true)] {
        let path = format!("{PODS}?limit=4&continue={token}");
        let page = app.get(&path).await;
        assert_eq!(page.is_cached(), ours);
        assert_alike(&path, &page, &upstream_client(&up).get(&path).await);
    }
    up.faults().forget_history();
    let expired = app.get(&format!("{PODS}?limit=4&continue={theirs}")).await;
    assert_eq!(expired.refusal(), (410, "Expired".to_owned()));
    let restarted = expired.continue_token().expect("a token that continues in the newest state");
    let page = app.get(&format!("{PODS}?limit=4&continue={restarted}")).await;
    assert_eq!((page.status, page.rv()), (200, up.revision()));
}

/// Kubernetes' conformance tests use a continue token until it expires, while nothing changes.
#[tokio::test]
async fn expired_continue_token_is_forwarded_without_changes() {
    let up = demo::upstream().pods(30).seed(74).run().await;
    let app = direct::app(&up).with(|config| config.cache.held_snapshot_age_max = Duration::ZERO).run().await;
    warm(&app).await;
    let token = app.get("/api/v1/pods?limit=4").await.continue_token().expect("more");
    let path = format!("{PODS}?limit=4&continue={token}");
    let page = app.get(&path).await;
    assert!(!page.is_cached());
    assert_alike(&path, &page, &upstream_client(&up).get(&path).await);
    up.churn(9).await;
    up.faults().forget_history();
    assert_eq!(app.get(&path).await.refusal(), (410, "Expired".to_owned()));
}

#[tokio::test]
async fn exact_version_list_is_cached_or_forwarded() {
    let up = demo::upstream().pods(20).seed(73).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).fresh_wait_of_product().run().await;
    warm(&app).await;
    let old = up.revision();
    let now = up.churn(10).await;
    app.reached("pods", now).await;
    let exact = |rv: u64| format!("{PODS}?resourceVersion={rv}&resourceVersionMatch=Exact");
    let legacy = |rv: u64| format!("{PODS}?resourceVersion={rv}&limit=3");
    for (path, cached) in [(exact(now), true), (legacy(now), true), (exact(old), false), (legacy(old), false)] {
        // The newest version is proven first.
        let ours = if cached { direct::proven(&app, || path.clone()).await } else { app.get(&path).await };
        assert_alike(&path, &ours, &upstream_client(&up).get(&path).await);
        assert_eq!((ours.status, ours.is_cached()), (200, cached), "{path}");
    }
    // A version between two changes of pods has the same state as the earlier one.
    let (mut other, mut was_there) = (0, 0);
    let mut write = || {
        other = up.put("configmaps", configmap("default", "other", "x"));
        was_there = now_ns();
        format!("{PODS}?resourceVersion={other}&resourceVersionMatch=NotOlderThan")
    };
    let (before, began) = (app.proofs().await, Instant::now());
    let mut at_least = direct::proven(&app, &mut write).await;
    // If a bookmark arrives first, no proof is needed.
    while app.proofs().await == before {
        assert!(began.elapsed() < PATIENCE, "the proxy asks how far upstream is, and does not wait for bookmarks");
        at_least = direct::proven(&app, &mut write).await;
    }
    let mut evidence = history.read_to(now).await.evidence();
    evidence.reached(other, was_there).answer(&at_least);
    evidence.shows(&[ApiserverGuarantee::NotOlderThan, ApiserverGuarantee::ListSnapshot]);
    assert_eq!((at_least.status, at_least.is_cached()), (200, true), "a quiet resource catches up");
    up.faults().compact(now);
    for (path, code) in [(exact(old), 410), (legacy(old), 410), (exact(other + 100), 504)] {
        let upstream = upstream_client(&up);
        let (ours, theirs) = tokio::join!(app.get(&path), upstream.get(&path));
        assert_alike(&path, &ours, &theirs);
        assert_eq!(ours.status, code, "{path}");
    }
}

#[tokio::test]
async fn read_of_future_version_times_out_with_504_after_3s() {
    let up = demo::upstream().pods(5).run().await;
    let app = direct::app(&up).fresh_wait_of_product().run().await;
    warm(&app).await;
    let future = up.revision() + 1000;
    let one = up.keys("pods")[0].0.replace('/', "/pods/");
    let paths = [
        format!("{PODS}?resourceVersion={future}"),
        format!("{PODS}?resourceVersion={future}&resourceVersionMatch=NotOlderThan"),
        format!("/api/v1/namespaces/{one}?resourceVersion={future}"),
    ];
    let refused = async |path: &str| {
        let ours = async {
            let began = Instant::now();
            (app.get(path).await, began.elapsed())
        };
        let upstream = upstream_client(&up);
        let ((ours, took), theirs) = tokio::join!(ours, upstream.get(path));
        assert!(took > Duration::from_millis(2900) && took < Duration::from_secs(3) + ALLOWANCE, "{took:?}");
        assert_alike(path, &ours, &theirs);
        assert_eq!((ours.status, ours.header("retry-after")), (504, Some("1")));
    };
    let in_stream = async {
        let theirs = upstream_client(&up).watch(PODS).initial_events().from(future).await;
        let watch = app.watch(PODS).initial_events().from(future).await;
        assert_eq!(watch.ended().await, Ended::Refused(504));
        assert_eq!(theirs.ended().await, Ended::Refused(504));
        assert_eq!(watch.events(), theirs.events());
    };
    tokio::join!(refused(&paths[0]), refused(&paths[1]), refused(&paths[2]), in_stream);
}

#[tokio::test]
async fn read_of_future_version_returns_when_version_arrives() {
    let up = demo::upstream().pods(5).run().await;
    // The read's own timeout is longer than the client's, so a read that the version does not wake has no response.
    let app = direct::app(&up).with(|config| config.serve.fresh_wait_max = 2 * PATIENCE).run().await;
    warm(&app).await;
    for n in 0..10 {
        let next = up.revision() + 1;
        let path = format!("{PODS}?resourceVersion={next}");
        let waits = app.get(&path);
        let watch = app.watch(PODS).initial_events().from(next).into_future();
        let write = async {
            app.until_feed("pods", "a reader", |feed| feed["readers"].as_u64() > Some(0)).await;
            up.update_pod("default", &format!("p{n}"))
        };
        let (list, watch, rv) = tokio::join!(waits, watch, write);
        assert_eq!((list.status, list.rv(), rv), (200, next, next));
        watch.listed().await;
        assert_eq!(watch.bookmarks()[0].rv, next);
    }
}

#[tokio::test]
async fn get_of_any_version_is_served_from_running_feed() {
    let up = demo::upstream().pods(5).run().await;
    let app = direct::app(&up).run().await;
    let (key, rv) = up.keys("pods")[2].clone();
    let (namespace, name) = key.split_once('/').expect("a pod has a namespace");
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let cold = app.get(&format!("{path}?resourceVersion=0")).await;
    assert_eq!((cold.status, cold.is_cached()), (200, false), "not worth a feed");
    warm(&app).await;
    for query in ["resourceVersion=0", &format!("resourceVersion={rv}"), "resourceVersion=0&resourceVersionMatch=Bad"] {
        assert_served(&app, &up, &format!("{path}?{query}")).await;
    }
    assert_served(&app, &up, &format!("/api/v1/namespaces/{namespace}/pods/nobody?resourceVersion=0")).await;
    let newest = app.get(&path).await;
    assert_eq!((newest.status, newest.is_cached()), (200, false), "the most recent one is upstream's to give");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resource_versions_of_reads_never_decrease() {
    let up = demo::upstream().pods(50).seed(74).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    warm(&app).await;
    let reader = |query: &'static str| {
        let client = (*app).clone();
        async move {
            let mut read = Vec::new();
            for _ in 0..60 {
                read.push(client.get(&format!("{DEFAULT_PODS}{query}")).await);
            }
            read
        }
    };
    let readers = ["?resourceVersion=0", "", "?resourceVersion=0", "?limit=2"].map(reader);
    let read = direct::during_churn(&up, join_all(readers)).await;
    for read in &read {
        assert!(read.is_sorted_by_key(Answer::rv), "each client's reads, cached or not");
    }
    let mut evidence = history.read_to(up.revision()).await.evidence();
    evidence.answers(read.iter().flatten());
    evidence.shows(&[ApiserverGuarantee::Monotone, ApiserverGuarantee::Consistent, ApiserverGuarantee::ListSnapshot]);
}

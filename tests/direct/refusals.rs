//! Upstream answers invalid requests, which are forwarded (R-QUERY-2, R-OPTIONS-1, R-STATUS-1; R-DOWNSTREAM-8).

use futures_util::future::join_all;

use crate::direct::{self, Answer, App, Client, PODS, assert_alike, upstream_client};

/// Asserts that upstream refuses the request, and that the caller receives its response.
async fn assert_refused(app: &App, theirs: &Client, code: u16, query: &str) {
    let path = format!("{PODS}?{query}");
    let (ours, theirs) = (app.get(&path).await, theirs.get(&path).await);
    assert_alike(&path, &ours, &theirs);
    assert_eq!((ours.status, ours.header("kube-fanout-reason")), (code, Some("invalid")), "{path}");
    for name in ["content-type", "retry-after", "cache-control"] {
        assert_eq!(ours.header(name), theirs.header(name), "{path}: {name}");
    }
    assert!(ours.header("audit-id").is_some());
}

async fn assert_all_refused(code: u16, queries: &[&str]) {
    let up = demo::upstream().pods(2).run().await;
    let app = direct::app(&up).run().await;
    assert!(app.get(&format!("{PODS}?resourceVersion=0")).await.is_cached());
    let (ours, theirs) = (&app, upstream_client(&up));
    join_all(queries.iter().map(|query| assert_refused(ours, &theirs, code, query))).await;
}

#[tokio::test]
async fn conflicting_list_options_return_422() {
    assert_all_refused(
        422,
        &[
            "resourceVersionMatch=Exact",
            "resourceVersionMatch=NotOlderThan",
            "resourceVersionMatch=Foo",
            "resourceVersionMatch=Foo&resourceVersion=1",
            "resourceVersionMatch=Exact&resourceVersion=0",
            "resourceVersionMatch=NotOlderThan&resourceVersion=1&continue=x",
            "sendInitialEvents=true",
            "sendInitialEvents=false&resourceVersion=1",
            "watch=1&sendInitialEvents=true",
            "watch=1&sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=1",
            "watch=1&sendInitialEvents=false&resourceVersion=1",
            "watch=1&resourceVersionMatch=NotOlderThan&resourceVersion=1",
            "watch=1&resourceVersion=0&continue=x",
            "watch=1&resourceVersionMatch=Exact&resourceVersion=1",
            "watch=1&sendInitialEvents=true&resourceVersionMatch=Foo&continue=x",
        ],
    )
    .await;
}

#[tokio::test]
async fn invalid_selectors_return_400() {
    let escaped = |name: &str, value: &str| {
        let value: Vec<_> = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
        format!("{name}={}", value.concat())
    };
    let labels = ["a in", "a=b c", "a===b", "a in (b", "-a", "a=-x", "!", "a b", "a in ()x", "a in (", "a,,b", "=x"];
    let fields = ["foo", "metadata.name=a=b", "metadata.name=a\\q", "spec.nodeName"];
    let all = labels.iter().map(|text| escaped("labelSelector", text));
    let all: Vec<_> = all.chain(fields.iter().map(|text| escaped("fieldSelector", text))).collect();
    let watches: Vec<_> = all.iter().map(|query| format!("watch=1&{query}")).collect();
    let queries: Vec<_> = all.iter().chain(&watches).map(String::as_str).collect();
    assert_all_refused(400, &queries).await;
}

/// Upstream may be of a release that has the field.
#[tokio::test]
async fn selector_on_unknown_field_is_forwarded() {
    let up = demo::upstream().pods(2).run().await;
    let app = direct::app(&up).run().await;
    assert!(app.get(&format!("{PODS}?resourceVersion=0")).await.is_cached());
    for query in ["", "resourceVersion=0&", "watch=1&"] {
        for key in ["foo", "status.foo", "spec.pool.name"] {
            let path = format!("{PODS}?{query}fieldSelector={key}%3Dx");
            let (ours, theirs) = (app.get(&path).await, upstream_client(&up).get(&path).await);
            assert_alike(&path, &ours, &theirs);
            assert_eq!(
                (ours.status, ours.header("kube-fanout-reason")),
                (400, Some("unsupported_parameter")),
                "{path}"
            );
        }
    }
}

#[tokio::test]
async fn invalid_numbers_return_400_and_500_for_watch_versions() {
    assert_all_refused(
        400,
        &[
            "limit=abc",
            "limit=1.5",
            "timeoutSeconds=abc",
            "watch=1&timeoutSeconds=1s",
            "resourceVersion=abc",
            "resourceVersion=-1",
            "resourceVersion=0x1",
            "resourceVersion=abc&resourceVersionMatch=Exact",
            "limit=99999999999999999999",
            "watch=1&limit=1x",
            "resourceVersion=18446744073709551616",
            "continue=%7B%7D",
            "continue=abc",
            "continue=x&resourceVersion=5",
            "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJ4In0&resourceVersion=1",
        ],
    )
    .await;
    assert_all_refused(500, &["watch=1&resourceVersion=abc", "watch=1&resourceVersion=-1"]).await;
}

#[tokio::test]
async fn name_and_selector_conflict_is_refused_like_upstream() {
    let up = demo::upstream().pods(2).run().await;
    let app = direct::app(&up).run().await;
    for path in [
        "/api/v1/watch/namespaces/default/pods/one?fieldSelector=metadata.name%3Dtwo",
        "/api/v1/watch/namespaces/default/pods/one?fieldSelector=spec.nodeName%3Dn",
        "/api/v1/watch/namespaces/default/pods?sendInitialEvents=true",
        "/api/v1/namespaces/default/pods/one?resourceVersion=abc",
        "/api/v1/namespaces/default/pods/one?export=true",
    ] {
        let (ours, theirs): (Answer, Answer) = (app.get(path).await, upstream_client(&up).get(path).await);
        assert_alike(path, &ours, &theirs);
        assert!(ours.status >= 400 && ours.header("kube-fanout-reason") == Some("invalid"), "{path}");
    }
}

#[tokio::test]
async fn watch_flag_is_parsed_like_upstream() {
    let up = demo::upstream().pods(2).run().await;
    let app = direct::app(&up).run().await;
    // The feed is synced first, so that this takes no time from the watches.
    assert!(app.get(&format!("{PODS}?resourceVersion=0")).await.is_cached());
    let from = up.revision();
    let assert_is_watch = async |query: &str| {
        let began = tokio::time::Instant::now();
        let ours = app.get(&format!("{PODS}?{query}&resourceVersion={from}")).await;
        assert_eq!((ours.status, ours.text().as_str()), (200, ""), "{query} is a watch");
        assert!(began.elapsed().as_millis() > 800);
    };
    let queries = ["watch=&timeoutSeconds=1", "watch=no&timeoutSeconds=1", "watch=1&watch=0&timeoutSeconds=1"];
    join_all(queries.map(assert_is_watch)).await;
    for query in ["watch=False", "watch=0", "watch=0&watch=1", "Watch=1"] {
        assert_eq!(app.get(&format!("{PODS}?{query}")).await.items().len(), 2, "{query} is a list");
    }
}

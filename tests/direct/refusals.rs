//! Invalid requests are refused with upstream's messages (R-QUERY-2, R-OPTIONS-1, R-STATUS-1; R-DOWNSTREAM-8).

use futures_util::future::join_all;

use crate::direct::{self, Answer, App, Client, PODS, assert_alike, upstream_client};

/// Asserts that the proxy itself refuses the request, with upstream's message.
async fn assert_refused(app: &App, theirs: &Client, code: u16, query: &str) {
    let path = format!("{PODS}?{query}");
    let (ours, theirs) = (app.get(&path).await, theirs.get(&path).await);
    assert_alike(&path, &ours, &theirs);
    assert_eq!(ours.status, code, "{path}");
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
    assert_eq!(direct::proxy_queries(&up, PODS).len(), 1, "the feed; no refusal cost upstream a question");
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
    let labels = ["a in", "a=b c", "a===b", "a in (b", "-a", "a=-x", "!", "a b", "a in ()x"];
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
            "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJ4In0&resourceVersion=1",
        ],
    )
    .await;
    assert_all_refused(500, &["watch=1&resourceVersion=abc", "watch=1&resourceVersion=-1"]).await;
}

/// Messages that the demo upstream simplifies: code, query and the apiserver's message.
const WORDS: [(u16, &str, &str); 6] = [
    (400, "labelSelector=a%20in%20(", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
    (400, "labelSelector=a,,b", "found ',', expected: identifier after ','"),
    (400, "labelSelector=%3Dx", "found '=', expected: !, identifier, or 'end of string'"),
    (400, "limit=99999999999999999999", r#"strconv.ParseInt: parsing "99999999999999999999": value out of range"#),
    (400, "watch=1&limit=1x", r#"strconv.ParseInt: parsing "1x": invalid syntax"#),
    (
        400,
        "resourceVersion=18446744073709551616",
        "invalid resource version: resourceVersion: Invalid value: \"18446744073709551616\": \
         strconv.ParseUint: parsing \"18446744073709551616\": value out of range",
    ),
];

const MATCH: &str = "resourceVersionMatch";
/// Several problems at once, which the demo upstream does not report: query, and the causes in order.
const PROBLEMS: [(&str, &[&str]); 2] = [
    (
        "watch=1&resourceVersionMatch=Exact&resourceVersion=1",
        &[
            "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            r#"Unsupported value: "Exact": supported values: "NotOlderThan""#,
        ],
    ),
    (
        "watch=1&sendInitialEvents=true&resourceVersionMatch=Foo&continue=x",
        &[
            "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            r#"Unsupported value: "Foo": supported values: "NotOlderThan""#,
            "Forbidden: resourceVersionMatch is forbidden when continue is provided",
        ],
    ),
];

#[tokio::test]
async fn refusal_messages_match_apiserver() {
    let up = demo::upstream().pods(2).run().await;
    let app = direct::app(&up).run().await;
    for (code, query, message) in WORDS {
        let refused = app.get(&format!("{PODS}?{query}")).await;
        let got = refused.json()["message"].clone();
        assert_eq!((refused.status, got.as_str()), (code, Some(message)), "{query}");
    }
    for (query, problems) in PROBLEMS {
        let refused = app.get(&format!("{PODS}?{query}")).await;
        let fields: Vec<_> = problems.iter().map(|problem| format!("{MATCH}: {problem}")).collect();
        let whole = format!("ListOptions.meta.k8s.io \"\" is invalid: [{}]", fields.join(", "));
        let status = refused.json();
        assert_eq!((refused.status, status["message"].as_str()), (422, Some(whole.as_str())), "{query}");
        let causes = status["details"]["causes"].as_array().expect("causes").iter();
        let causes: Vec<_> = causes.map(|cause| (cause["field"].as_str(), cause["message"].as_str())).collect();
        assert_eq!(causes, problems.iter().map(|problem| (Some(MATCH), Some(*problem))).collect::<Vec<_>>());
    }
    let export = app.get("/api/v1/namespaces/default/pods/one?export=true").await;
    assert_eq!(export.refusal(), (400, "BadRequest".to_owned()));
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
    ] {
        let (ours, theirs): (Answer, Answer) = (app.get(path).await, upstream_client(&up).get(path).await);
        assert_alike(path, &ours, &theirs);
        assert!(ours.status >= 400);
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

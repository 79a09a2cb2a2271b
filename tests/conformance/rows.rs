//! Observable behaviour of headers, methods and representations, each compared between the apiserver and the proxy.

use futures_util::future::join_all;
use http::Method;
use http::header::USER_AGENT;

use crate::bed::{Pair, RequestSpec, log_line};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

#[tokio::test]
async fn unacceptable_media_types_return_the_apiservers_406() {
    let Some(pair) = Pair::new().await else { return };
    pair.maps().await;
    let forms = [
        ("application/*", 406),
        ("text/html", 406),
        ("*/*", 200),
        ("", 200),
        ("application/json;q=0.5,application/vnd.kubernetes.protobuf", 200),
        ("application/vnd.kubernetes.protobuf,application/json", 200),
        ("application/yaml", 200),
        ("application/json;stream=watch", 200),
        ("application/json;as=Nonsense;v=v1;g=meta.k8s.io,application/json", 200),
    ];
    for (accept, code) in forms {
        for path in ["?resourceVersion=0", "/cm-a?resourceVersion=0", "/missing?resourceVersion=0"] {
            let answer = pair.same(RequestSpec::get(&pair.path(path)).accept(accept)).await;
            let expected = if path.starts_with("/missing") && code == 200 { 404 } else { code };
            assert_eq!(answer.status.as_u16(), expected, "{accept:?} {path}");
        }
    }
    for accept in ["application/*", "text/html", "application/yaml"] {
        let answer = pair.same(RequestSpec::get(&pair.path("?watch=1&timeoutSeconds=1")).accept(accept)).await;
        assert_eq!(answer.status, 406, "{accept}");
    }
}

#[tokio::test]
async fn pretty_printing_of_errors_and_objects_matches_the_apiserver() {
    let Some(pair) = Pair::new().await else { return };
    pair.maps().await;
    let table = pair.same(RequestSpec::get(&pair.path("/missing?resourceVersion=0")).accept(TABLE)).await;
    assert!(table.text().starts_with("{\n  ") && !table.text().ends_with('\n'), "{}", table.text());
    let agents = ["curl/8.5", "Wget/1.2", "Mozilla/5.0 (X11)", "curly/1"];
    for agent in agents {
        for query in ["resourceVersion=0", "resourceVersion=0&pretty=false", "resourceVersion=0&pretty=true"] {
            for path in [format!("?{query}"), format!("/cm-a?{query}"), format!("/missing?{query}")] {
                pair.same(RequestSpec::get(&pair.path(&path)).header(USER_AGENT, agent)).await;
            }
        }
    }
    let watch = RequestSpec::get(&pair.path("?watch=1&timeoutSeconds=3"));
    let watches = agents.map(|agent| pair.same_watch_of(watch.clone().header(USER_AGENT, agent), 2));
    for (answer, _) in join_all(watches).await {
        assert_eq!(answer.text().lines().count(), 2, "watches are never indented");
    }
    let indented =
        pair.same(RequestSpec::get(&pair.path("/cm-a?resourceVersion=0")).header(USER_AGENT, "curl/8")).await;
    assert!(indented.text().starts_with("{\n  ") && !indented.text().ends_with('\n'));
}

#[tokio::test]
async fn content_types_and_watch_framing_match_the_apiserver() {
    let Some(pair) = Pair::new().await else { return };
    pair.maps().await;
    let list = pair.same(RequestSpec::get(&pair.path("?resourceVersion=0")).accept(PROTOBUF)).await;
    assert_eq!((list.content_type(), list.is_cached()), (PROTOBUF, true));
    assert!(list.body.starts_with(b"k8s\0") && list.body.ends_with(b"\x1a\0\x22\0"));
    let watches = [
        (PROTOBUF, "application/vnd.kubernetes.protobuf;stream=watch"),
        ("application/vnd.kubernetes.protobuf;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"),
        ("application/json;stream=watch", "application/json"),
        ("application/vnd.kubernetes.protobuf,application/json", "application/vnd.kubernetes.protobuf;stream=watch"),
    ];
    let watches = watches.map(async |(accept, content_type)| {
        let watch = RequestSpec::get(&pair.path("?watch=1&timeoutSeconds=3&allowWatchBookmarks=1")).accept(accept);
        let (answer, _) = pair.same_watch(watch).await;
        assert_eq!(answer.content_type(), content_type, "{accept}");
        assert!(answer.is_cached(), "{accept}");
    });
    join_all(watches).await;
}

#[tokio::test]
async fn head_and_options_return_the_apiservers_405() {
    let Some(pair) = Pair::new().await else { return };
    pair.maps().await;
    for method in [Method::HEAD, Method::OPTIONS] {
        for path in ["", "/cm-a", "?watch=1"] {
            let answer = pair.same(RequestSpec::get(&pair.path(path)).method(method.clone())).await;
            assert_eq!(answer.status, 405, "{method} {path}");
        }
    }
}

/// The apiserver prints Tables, also those of a watch that begins with the state. The proxy derives metadata.
#[tokio::test]
async fn tables_and_partial_metadata_match_the_apiserver() {
    let Some(pair) = Pair::new().await else { return };
    pair.maps().await;
    let without_age = |text: &str| {
        let mut table: serde_json::Value = serde_json::from_str(text).expect("a table");
        for row in table["rows"].as_array_mut().into_iter().flatten() {
            row["cells"].as_array_mut().expect("cells").pop();
        }
        table["metadata"] = serde_json::Value::Null;
        table
    };
    for path in ["?resourceVersion=0", "/cm-a"] {
        let request = RequestSpec::get(&pair.path(path)).accept(TABLE);
        let (direct, through) = (pair.direct.fetch(request.clone()).await, pair.through.fetch(request).await);
        assert_eq!(without_age(&through.text()), without_age(&direct.text()), "{path}");
    }
    let watch = RequestSpec::get(&pair.path("?watch=1&timeoutSeconds=3")).accept(PARTIAL);
    let (answer, _) = pair.same_watch_of(watch, 2).await;
    assert!(answer.text().lines().count() > 1);
    assert!(answer.text().lines().all(|line| line.contains("PartialObjectMetadata")));
    let mut watched = pair.through.watch(RequestSpec::get(&pair.path("?watch=1")).accept(TABLE)).await;
    watched.event().await.expect("two events");
    let second = watched.event().await.expect("two events").line;
    assert!(second.contains("\"columnDefinitions\":null"), "{second}");
    log_line(&format!("forwarded: {:?}", pair.proxy.forwarded().await));
}

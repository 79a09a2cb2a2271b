//! Tests of GET, LIST, discovery and negotiation.

use std::time::Duration;

use http::Method;
use serde_json::json;

use super::super::{Pod, upstream};
use super::Client;

fn config_map(namespace: &str, name: &str) -> serde_json::Value {
    json!({"metadata": {"name": name, "namespace": namespace, "labels": {"app": "x"}}, "data": {"a": "<b>&"}})
}

#[tokio::test]
async fn list_layout_matches_the_apiserver() {
    let up = upstream().run().await;
    let revision = up.put("configmaps", config_map("t1", "cm-a"));
    let client = Client::of(&up);
    let list = client.get("/api/v1/namespaces/t1/configmaps").await;
    let metadata = format!(r#""metadata":{{"resourceVersion":"{revision}"}}"#);
    let item = r#"{"metadata":{"name":"cm-a","namespace":"t1","uid":"#;
    let head = format!(r#"{{"kind":"ConfigMapList","apiVersion":"v1",{metadata},"items":[{item}"#);
    assert!(list.text().starts_with(&head), "{}", list.text());
    assert!(list.text().ends_with("\"data\":{\"a\":\"\\u003cb\\u003e\\u0026\"}}]}\n"), "{}", list.text());
    assert_eq!(list.headers["content-type"], "application/json");
    assert_eq!(list.headers["cache-control"], "no-cache, private");

    let widgets = client.get("/apis/demo.kube-fanout.io/v1/widgets").await;
    assert!(widgets.text().starts_with(r#"{"apiVersion":"demo.kube-fanout.io/v1","items":[{"apiVersion":"demo"#));
    let tail =
        format!("],\"kind\":\"WidgetList\",\"metadata\":{{\"continue\":\"\",\"resourceVersion\":\"{revision}\"}}}}\n");
    assert!(widgets.text().ends_with(&tail), "{}", widgets.text());

    let empty = client.get("/api/v1/namespaces/nope/pods").await;
    assert_eq!(empty.json()["items"], json!([]));
    up.stop().await;
}

#[tokio::test]
async fn list_is_ordered_by_the_joined_namespace_and_name() {
    let up = upstream().run().await;
    for (namespace, name) in [("t1", "cm-b"), ("t1", "cm-a"), ("t1-a", "cm-a")] {
        up.put("configmaps", config_map(namespace, name));
    }
    let list = Client::of(&up).get("/api/v1/configmaps?labelSelector=app%3Dx").await.json();
    let keys: Vec<_> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| format!("{}/{}", item["metadata"]["namespace"], item["metadata"]["name"]).replace('"', ""))
        .collect();
    assert_eq!(keys, ["t1-a/cm-a", "t1/cm-a", "t1/cm-b"]);
}

#[tokio::test]
async fn pages_use_the_version_of_the_first_until_compaction() {
    let up = upstream().run().await;
    for name in ["a", "b", "c"] {
        up.create_pod("t1", name);
    }
    let (client, path) = (Client::of(&up), "/api/v1/namespaces/t1/pods");
    let first = client.get(&format!("{path}?limit=1")).await;
    let metadata = &first.json()["metadata"];
    assert_eq!((first.names(), &metadata["remainingItemCount"]), (vec!["a".to_owned()], &json!(2)));
    let (revision, token) = (up.revision(), metadata["continue"].as_str().unwrap().to_owned());

    up.create_pod("t1", "aa");
    up.delete_pod("t1", "c");
    let second = client.get(&format!("{path}?limit=5&continue={token}")).await;
    assert_eq!(second.names(), ["b", "c"]);
    assert_eq!(second.json()["metadata"]["resourceVersion"], revision.to_string());
    assert_eq!(client.get(&format!("{path}?limit=1&resourceVersion=0")).await.names(), ["a", "aa", "b"]);

    let exact = format!("{path}?resourceVersion={revision}");
    assert_eq!(client.get(&format!("{exact}&resourceVersionMatch=Exact")).await.names(), ["a", "b", "c"]);
    assert_eq!(client.get(&format!("{exact}&limit=2")).await.names(), ["a", "b"]);
    assert_eq!(client.get(&exact).await.names(), ["a", "aa", "b"]);

    up.faults().compact(up.revision());
    let expired = client.get(&format!("{path}?limit=5&continue={token}")).await;
    assert_eq!(expired.status, 410);
    let token = expired.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    assert_eq!(client.get(&format!("{path}?continue={token}")).await.names(), ["aa", "b"]);
    let gone = client.get(&format!("{exact}&resourceVersionMatch=Exact")).await;
    assert_eq!((gone.status.as_u16(), gone.json()["reason"].as_str()), (410, Some("Expired")));
}

#[tokio::test]
async fn selectors_filter_lists_by_label_and_field() {
    let up = upstream().run().await;
    up.put_pod(&Pod::new("t1", "a").label("app", "x").node("n1"));
    up.put_pod(&Pod::new("t1", "b").label("app", "y").node("n2").phase("Pending"));
    up.put_pod(&Pod::new("t2", "c").label("app", "x").node(""));
    let client = Client::of(&up);
    for (query, names) in [
        ("labelSelector=app%3Dx", vec!["a", "c"]),
        ("labelSelector=app%20notin%20(x)", vec!["b"]),
        ("fieldSelector=spec.nodeName%3Dn1", vec!["a"]),
        ("fieldSelector=spec.host%3Dn2", vec!["b"]),
        ("fieldSelector=spec.nodeName%3D", vec!["c"]),
        ("fieldSelector=status.phase!%3DPending,metadata.namespace%3Dt1", vec!["a"]),
        ("fieldSelector=metadata.name%3Dc", vec!["c"]),
    ] {
        assert_eq!(client.get(&format!("/api/v1/pods?{query}")).await.names(), names, "{query}");
    }
    let refused = client.get("/api/v1/pods?fieldSelector=status.foo%3D1").await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["message"], "field label not supported: status.foo");
    let refused = client.get("/api/v1/configmaps?fieldSelector=foo%3D1").await;
    assert!(refused.text().contains(r#"only \"metadata.name\", \"metadata.namespace\""#), "{}", refused.text());
}

#[tokio::test]
async fn invalid_version_is_rejected_and_future_version_times_out() {
    let up = upstream().future_wait(Duration::from_millis(20)).run().await;
    let (client, future) = (Client::of(&up), up.revision() + 1000);
    let list = client.get(&format!("/api/v1/pods?resourceVersion={future}")).await;
    assert_eq!((list.status.as_u16(), list.headers["retry-after"].to_str().unwrap()), (504, "1"));
    let message = format!("Timeout: Too large resource version: {future}, current: {}", up.revision());
    assert_eq!(list.json()["message"], message);
    assert_eq!(client.get("/api/v1/pods?resourceVersion=abc").await.status, 400);
    assert_eq!(client.get("/api/v1/nodes/node-0?resourceVersion=abc").await.status, 500);
    assert_eq!(client.get(&format!("/api/v1/nodes/node-0?resourceVersion={future}")).await.status, 504);
    let exact = client.get(&format!("/api/v1/pods?resourceVersion={future}&resourceVersionMatch=Exact")).await;
    assert_eq!((exact.status.as_u16(), exact.headers["retry-after"].to_str().unwrap()), (504, "1"));
}

#[tokio::test]
async fn list_at_future_version_waits_until_the_version_exists() {
    let up = upstream().future_wait(Duration::from_secs(120)).run().await;
    let (client, next) = (Client::of(&up), up.revision() + 1);
    let path = format!("/api/v1/pods?resourceVersion={next}");
    let (list, _) = tokio::join!(client.get(&path), async {
        up.until(|counts| counts.lists.of("pods") == 1).await;
        up.create_pod("t1", "late")
    });
    assert_eq!(list.names(), ["late"]);
}

#[tokio::test]
async fn missing_object_or_path_returns_404_as_in_the_apiserver() {
    let up = upstream().run().await;
    let client = Client::of(&up);
    let missing = client.get("/apis/apps/v1/namespaces/default/deployments/nope").await;
    assert_eq!(missing.json()["message"], "deployments.apps \"nope\" not found");
    assert_eq!(missing.json()["details"], json!({"name": "nope", "group": "apps", "kind": "deployments"}));
    assert_eq!(client.get("/api/v1/foos").await.json()["message"], "the server could not find the requested resource");
    assert_eq!(client.get("/apis/nope/v1/x").await.text(), "404 page not found\n");
    assert_eq!(client.call(Method::HEAD, "/api/v1/pods", "", "").await.status, 405);
    assert_eq!(client.call(Method::HEAD, "/apis/demo.kube-fanout.io/v1/widgets", "", "").await.status, 200);
}

#[tokio::test]
async fn discovery_serves_legacy_and_aggregated_formats() {
    let up = upstream().run().await;
    let legacy = Client::of(&up);
    assert!(legacy.get("/apis").await.text().contains(r#""groupVersion":"apps/v1""#));
    let core = legacy.get("/api/v1").await.json();
    let pods = &core["resources"][0];
    assert_eq!(
        (&pods["name"], &pods["shortNames"], &pods["categories"]),
        (&json!("pods"), &json!(["po"]), &json!(["all"]))
    );

    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let apis = Client::of(&up).accept(aggregated).get("/apis").await;
    assert_eq!(apis.headers["content-type"], "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
    let widgets = &apis.json()["items"][1];
    assert_eq!(widgets["versions"][0]["resources"][0]["responseKind"]["kind"], "Widget");
    assert_eq!(legacy.get("/readyz").await.text(), "ok");
    assert_eq!(legacy.get("/version").await.json()["major"], "1");
    let crds = legacy.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").await;
    assert_eq!(crds.names(), ["widgets.demo.kube-fanout.io"]);
    let services = legacy.get("/apis/apiregistration.k8s.io/v1/apiservices").await.json();
    assert!(services["items"].as_array().unwrap().iter().all(|service| service["spec"].get("service").is_none()));
}

#[tokio::test]
async fn accept_header_selects_table_partial_or_plain_objects() {
    let up = upstream().run().await;
    up.put_pod(&Pod::new("t1", "a").node("n1").restarts(3));
    let table = Client::of(&up).accept("application/json;as=Table;v=v1;g=meta.k8s.io").get("/api/v1/pods").await.json();
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["columnDefinitions"][2]["name"], "Status");
    let row = &table["rows"][0];
    assert_eq!(row["cells"].as_array().unwrap()[..4], [json!("a"), json!("1/1"), json!("Running"), json!("3")]);
    assert_eq!(
        (&row["object"]["kind"], &row["object"]["metadata"]["name"]),
        (&json!("PartialObjectMetadata"), &json!("a"))
    );

    let partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let list = Client::of(&up).accept(partial).get("/api/v1/pods").await.json();
    assert_eq!(
        (&list["kind"], &list["items"][0]["kind"]),
        (&json!("PartialObjectMetadataList"), &json!("PartialObjectMetadata"))
    );
    assert!(list["items"][0].get("spec").is_none());
    let empty = Client::of(&up).accept(partial).get("/api/v1/namespaces/none/pods").await;
    assert!(empty.text().ends_with("},\"items\":null}\n"), "{}", empty.text());

    let refused = Client::of(&up).accept("application/vnd.kubernetes.protobuf").get("/api/v1/pods").await;
    assert_eq!(refused.status, 406);
    let plain =
        Client::of(&up).accept("application/vnd.kubernetes.protobuf,application/json").get("/api/v1/pods").await;
    assert_eq!(plain.json()["kind"], "PodList");
    let pretty = Client::of(&up).get("/api/v1/namespaces/t1/pods?pretty=true").await;
    assert!(pretty.text().starts_with("{\n  \"kind\": \"PodList\",\n") && pretty.text().ends_with("\n}"));
}

#[tokio::test]
async fn invalid_queries_return_the_apiservers_codes() {
    let up = upstream().run().await;
    let client = Client::of(&up);
    for (code, reason, query) in [
        (422, "Invalid", "resourceVersionMatch=Exact"),
        (422, "Invalid", "resourceVersion=0&resourceVersionMatch=Exact"),
        (422, "Invalid", "sendInitialEvents=true"),
        (422, "Invalid", "watch=1&sendInitialEvents=true"),
        (422, "Invalid", "watch=1&resourceVersion=5&resourceVersionMatch=NotOlderThan"),
        (422, "Invalid", "watch=1&resourceVersion=0&continue=x&resourceVersionMatch=NotOlderThan"),
        (422, "Invalid", "resourceVersion=5&resourceVersionMatch=Foo"),
        (400, "BadRequest", "limit=abc"),
        (400, "BadRequest", "resourceVersion=abc"),
        (400, "BadRequest", "continue=x"),
        (500, "", "watch=1&resourceVersion=abc"),
    ] {
        let refused = client.get(&format!("/api/v1/pods?{query}")).await;
        let given = refused.json()["reason"].as_str().unwrap_or_default().to_owned();
        assert_eq!((refused.status.as_u16(), given.as_str()), (code, reason), "{query}");
    }
}

#[tokio::test]
async fn errors_are_indented_if_accept_has_only_conversions() {
    let up = upstream().run().await;
    let (missing, table) = ("/api/v1/namespaces/t1/pods/nope", "application/json;as=Table;v=v1;g=meta.k8s.io");
    assert!(Client::of(&up).accept(table).get(missing).await.text().starts_with("{\n  \"kind\": \"Status\",\n"));
    let either = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    assert!(Client::of(&up).accept(either).get(missing).await.text().starts_with("{\"kind\":\"Status\","));
}

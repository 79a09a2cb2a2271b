//! Watches of Tables: their rows are as the apiserver prints them, and all watches share one stream.

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::bed::{
    self, Answer, Ended, Frame, Http, Plan, Plane, Protocol, Proxy, RequestSpec, TOO_LARGE, Target, Watch, eventually,
    log_line, unique, within,
};
use crate::websocket;

/// The Accept header of kubectl.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,\
                     application/json";
const INCLUDES: [&str; 4] = ["", "&includeObject=None", "&includeObject=Metadata", "&includeObject=Object"];

/// The protocol of a watch.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Http(Protocol),
    WebSocket,
}

/// Whether these lines of a watch of this path end with the last line that it will send.
type IsOver = fn(&str, &[String]) -> bool;

/// Opens a watch, and then reads its lines until `is_over`. The watch has been answered when this returns.
async fn start(target: Target, way: Way, path: String, is_over: IsOver) -> tokio::task::JoinHandle<Vec<String>> {
    match way {
        Way::Http(protocol) => {
            let mut watch = Http::new(target, protocol).watch(RequestSpec::get(&path).accept(TABLE)).await;
            tokio::spawn(async move {
                let mut lines = Vec::new();
                while !is_over(&path, &lines) {
                    let Some(Frame::Json(line)) = watch.frame().await else { panic!("{path} ended: {lines:#?}") };
                    lines.push(String::from_utf8(line.to_vec()).expect("JSON is text"));
                }
                lines
            })
        }
        Way::WebSocket => {
            let mut socket = websocket::open(&target, &path, TABLE).await;
            tokio::spawn(async move {
                let mut lines = Vec::new();
                while !is_over(&path, &lines) {
                    let message = within("a WebSocket message", socket.next()).await.expect("it continues");
                    lines.push(message.expect("a message").into_text().expect("JSON is text").to_string());
                }
                lines
            })
        }
    }
}

/// Whether the last line is for the object whose first cells are `cells`.
fn is_of(lines: &[String], cells: &str) -> bool {
    lines.last().is_some_and(|line| line.contains(&format!("\"cells\":[{cells},")))
}

/// Splits an event's line into the line without columns and ages, and the columns.
fn taken_apart(line: &str) -> (String, String) {
    const COLUMNS: &str = "\"columnDefinitions\":";
    let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let at = line.find(COLUMNS).unwrap_or_else(|| panic!("no Table: {line}")) + COLUMNS.len();
    let rows = at + line[at..].find(",\"rows\":[{\"cells\":").unwrap_or_else(|| panic!("no rows: {line}"));
    let columns = line[at..rows].to_owned();
    let rest = bed::ages::taken_out(&line[rows..], &event["object"]).0;
    (format!("{}{rest}", &line[..at]), columns)
}

/// Opens each watch once directly and several times through the proxy, runs `write`, and compares all events. `open` is
/// called when the proxied ones are open and the direct ones are not. Each is read until it is over. Returns the number
/// of compared events.
async fn compare(
    plane: &Plane,
    proxy: &Proxy,
    paths: &[String],
    (ways, is_over): (&[Way], IsOver),
    open: impl AsyncFnOnce(),
    write: impl AsyncFnOnce(),
) -> usize {
    let start_all = |target: Target, ways: Vec<Way>| {
        let watches = paths.iter().flat_map(move |path| ways.clone().into_iter().map(move |way| (path.clone(), way)));
        join_all(watches.map(move |(path, way)| {
            let target = target.clone();
            async move { (path.clone(), way, start(target, way, path, is_over).await) }
        }))
    };
    let through = start_all(proxy.target(), ways.to_vec()).await;
    open().await;
    let direct = start_all(plane.target(), vec![Way::Http(Protocol::H2)]).await;
    write().await;
    let mut expected = Vec::new();
    for (path, _, lines) in direct {
        expected.push((path, lines.await.expect("no panic")));
    }
    let mut compared = 0;
    for (path, way, lines) in through {
        let lines = lines.await.expect("no panic");
        let (_, direct) = expected.iter().find(|(of, _)| *of == path).expect("opened twice");
        let ours: Vec<_> = lines.iter().map(|line| taken_apart(line)).collect();
        let theirs: Vec<_> = direct.iter().map(|line| taken_apart(line)).collect();
        assert_eq!(ours.len(), theirs.len(), "{path} {way:?}: {lines:#?} {direct:#?}");
        for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            assert_eq!(ours.0, theirs.0, "{path} {way:?}");
            // The apiserver may repeat the columns if there are several watches. For a single watch it sends them once
            // (R-TABLE-1).
            assert_eq!(ours.1, if at == 0 { &theirs.1 } else { "null" }, "{path} {way:?}");
        }
        compared += ours.len();
    }
    compared
}

fn pod(name: &str, app: &str) -> Value {
    let spec = json!({"nodeName": "table-node", "containers": [{"name": "c", "image": "i"}]});
    json!({"metadata": {"name": name, "labels": {"app": app}, "annotations": {"a": "<b>&"}}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn table_watches_match_direct_and_share_one_upstream_watch() {
    let Some(bed) = bed::alone().await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let (client, namespace) = (bed.direct(), bed.namespace("tables").await);
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    client.create(&pods, pod("before", "x")).await;
    let before = bed.settled_watches("pods").await;
    let version = client.version(&pods).await;
    let selectors = ["", "labelSelector=app%3Dx", "fieldSelector=metadata.name%3Da", "labelSelector=app%20notin%20(x)"];
    let paths: Vec<_> = selectors
        .iter()
        .flat_map(|selector| INCLUDES.map(|include| format!("{selector}{include}")))
        .map(|query| format!("{pods}?watch=1&resourceVersion={version}&{query}"))
        .collect();
    let ways = [Way::Http(Protocol::H1), Way::Http(Protocol::H2), Way::Http(Protocol::H2), Way::WebSocket];
    let one_more = async || {
        eventually("one feed is what the apiserver sees", async || {
            (bed.open_watches("pods").await == before + 1).then_some(())
        })
        .await;
    };
    let writes = async || {
        let label = |app: &str| json!({"metadata": {"labels": {"app": app}}});
        let named = |name: &str| format!("{pods}/{name}");
        client.create(&pods, pod("a", "x")).await;
        client.create(&pods, pod("b", "y")).await;
        client.patch(&named("a"), label("y")).await;
        client.patch(&named("before"), label("z")).await;
        let waiting = json!({"waiting": {"reason": "ImagePullBackOff"}});
        let container =
            json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 3, "state": waiting});
        let status = json!({"status": {"phase": "Pending", "containerStatuses": [container]}});
        client.patch(&named("a/status"), status).await;
        client.patch(&named("a"), label("x")).await;
        client.patch(&named("b/status"), json!({"status": {"phase": "Succeeded"}})).await;
        client.delete(&named("a")).await;
        client.delete(&named("b")).await;
        // The last event of each selector.
        client.create(&pods, pod("a", "x")).await;
        client.create(&pods, pod("end", "y")).await;
    };
    let is_over: IsOver = |path, lines| {
        let is_only_x = path.contains("metadata.name%3Da") || path.contains("app%3Dx");
        let is_again = lines.len() > 4 && lines.last().is_some_and(|line| line.starts_with("{\"type\":\"ADDED\""));
        if is_only_x { is_again && is_of(lines, "\"a\"") } else { is_of(lines, "\"end\"") }
    };
    let compared = compare(&bed, &proxy, &paths, (&ways, is_over), one_more, writes).await;
    let watches = i64::try_from(paths.len() * ways.len()).expect("some");
    // The proxy counts a watch when it notices that the client has disconnected.
    let metrics = eventually("all are counted", async || {
        let metrics = proxy.metrics().await;
        (metrics.sum("kube_fanout_served_total", &[("verb", "watch")]) >= watches).then_some(metrics)
    })
    .await;
    let served = |label: &str| metrics.sum("kube_fanout_served_total", &[("verb", "watch"), ("representation", label)]);
    assert_eq!(
        [served("table"), served("table_none"), served("table_object")],
        [watches / 2, watches / 4, watches / 4]
    );
    assert_eq!(metrics.sum("kube_fanout_representation_checks_total", &[("outcome", "different")]), 0);
    assert!(metrics.sum("kube_fanout_representation_checks_total", &[("outcome", "equal")]) > 0);
    log_line(&format!("{watches} Table watches, {compared} events equal to direct ones, one watch upstream"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_resource_tables_have_their_printer_columns() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let (client, namespace, group) = (bed.direct(), bed.namespace("tables").await, unique("table") + ".example.com");
    let column = |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
    let columns = [
        column("Color", "string", ".spec.color"),
        column("Size", "integer", ".spec.size"),
        column("Since", "date", ".metadata.creationTimestamp"),
    ];
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let served = json!({"name": "v1", "served": true, "storage": true, "schema": schema,
        "additionalPrinterColumns": columns});
    let names = json!({"plural": "widgets", "singular": "widget", "kind": "Widget"});
    let definition = json!({"metadata": {"name": format!("widgets.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "versions": [served], "names": names}});
    client.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    let widgets = format!("/apis/{group}/v1/namespaces/{namespace}/widgets");
    for http in [&client, &proxy.client()] {
        eventually("the custom resource is served", async || {
            (http.get(&format!("{widgets}?resourceVersion=0")).await.status == 200).then_some(())
        })
        .await;
    }
    let definition = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.{group}");
    let widget = |name: &str, color: &str| {
        json!({"apiVersion": format!("{group}/v1"), "kind": "Widget",
            "metadata": {"name": name, "labels": {"color": "red"}}, "spec": {"color": color, "size": 3}})
    };
    client.create(&widgets, widget("first", "red")).await;
    let version = client.version(&widgets).await;
    let paths: Vec<_> = ["", "labelSelector=color%3Dred"]
        .iter()
        .flat_map(|selector| INCLUDES.map(|include| format!("{selector}{include}&allowWatchBookmarks=false")))
        .map(|query| format!("{widgets}?watch=1&resourceVersion={version}&{query}"))
        .collect();
    let writes = async || {
        client.create(&widgets, widget("second", "re\"d,\\\"object\":{}")).await;
        let green = json!({"metadata": {"labels": {"color": "green"}}, "spec": {"color": "green", "size": 4}});
        client.patch(&format!("{widgets}/first"), green).await;
        client.patch(&format!("{widgets}/first"), json!({"metadata": {"labels": {"color": "red"}}})).await;
        client.delete(&format!("{widgets}/first")).await;
        client.create(&widgets, widget("end", "red")).await;
    };
    let ways = [Way::Http(Protocol::H2), Way::WebSocket];
    let is_over: IsOver = |_, lines| is_of(lines, "\"end\"");
    let compared = compare(&bed, &proxy, &paths, (&ways, is_over), async || {}, writes).await;
    assert!(compared > 0);
    log_line(&format!("{compared} events of custom resources equal to direct ones"));

    // A change of the columns ends the history: the watch ends, and the next one has the new columns.
    let version = client.version(&widgets).await;
    let from = |version: u64| RequestSpec::get(&format!("{widgets}?watch=1&resourceVersion={version}")).accept(TABLE);
    let (watch, mut manifest) = (proxy.client().watch(from(version)).await, client.json(&definition).await);
    manifest["spec"]["versions"][0]["additionalPrinterColumns"][0]["name"] = json!("Hue");
    client.patch(&definition, json!({"spec": {"versions": manifest["spec"]["versions"]}})).await;
    let mut watch = watch;
    assert_eq!(watch.rest().await, (Vec::new(), Ended::Clean));
    let lists_the_new = async || {
        let list = client.fetch(RequestSpec::get(&widgets).accept(TABLE)).await.text();
        list.contains("\"Hue\"").then_some(())
    };
    eventually("the apiserver prints by the new definition", lists_the_new).await;
    // The apiserver's window of a changed definition starts at the change, so earlier changes are unavailable on both
    // sides.
    let version = client.version(&widgets).await;
    let mut watch = proxy.client().watch(from(version)).await;
    client.create(&widgets, widget("third", "blue")).await;
    let event = watch.change().await;
    assert_eq!((&event.object["columnDefinitions"][1]["name"], event.version() > version), (&json!("Hue"), true));
}

/// Printers differ in how they print empty values. The proxy must parse every kind's list and bookmark, because
/// otherwise each of its watches needs a stream.
#[tokio::test]
async fn table_rows_of_every_resource_are_parsed_and_cached() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let (direct, through) = (bed.direct(), proxy.client());
    let mut collections = Vec::new();
    let own = ["apps/v1", "batch/v1", "policy/v1", "autoscaling/v2"];
    let domains = ["apiextensions", "coordination", "discovery", "networking", "rbac.authorization", "storage"];
    let groups = own.map(str::to_owned).into_iter().chain(domains.map(|group| format!("{group}.k8s.io/v1")));
    for group in groups.map(|group| format!("/apis/{group}")).chain(["/api/v1".to_owned()]) {
        for resource in direct.json(&group).await["resources"].as_array().expect("resources") {
            if resource["verbs"].as_array().expect("verbs").contains(&json!("watch")) {
                collections.push(format!("{group}/{}", resource["name"].as_str().expect("a name")));
            }
        }
    }
    for some in collections.chunks(16) {
        join_all(some.iter().map(async |collection| {
            let version = direct.version(collection).await;
            join_all(INCLUDES.map(async |include| {
                let path = format!("{collection}?watch=1&resourceVersion={version}{include}");
                // Until the proxy has read upstream's first Table, it forwards the watches.
                eventually(&format!("served from the cache: {path}"), async || {
                    let (head, _) = through.send(RequestSpec::get(&path).accept(TABLE)).await.into_parts();
                    let answer = Answer { status: head.status, headers: head.headers, body: Bytes::new() };
                    assert_eq!(answer.status, 200, "{path}");
                    answer.is_cached().then_some(())
                })
                .await;
            }))
            .await;
        }))
        .await;
    }
    log_line(&format!("{} resources have Table watches", collections.len()));
}

/// kubectl's watch of one object, which begins with its state.
#[tokio::test]
async fn table_watch_of_one_object_is_served_from_shared_stream() {
    let Some(bed) = bed::alone().await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let (client, namespace) = (bed.direct(), bed.namespace("tables").await);
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    client.create(&maps, json!({"metadata": {"name": "a"}})).await;
    client.create(&maps, json!({"metadata": {"name": "b"}})).await;
    let before = bed.settled_watches("configmaps").await;
    let starts = ["resourceVersion=0", "resourceVersion=", "resourceVersion=0&labelSelector=none"];
    let names = ["a", "b", "missing"].map(|name| format!("fieldSelector=metadata.name%3D{name}"));
    let queries = starts.iter().flat_map(|start| names.iter().map(move |name| format!("{start}&{name}")));
    let queries = queries.flat_map(|query| INCLUDES.map(|include| format!("{query}{include}")));
    let paths: Vec<_> = queries.map(|query| format!("{maps}?watch=1&{query}")).collect();
    let one_more = async || {
        eventually("one feed is what the apiserver sees", async || {
            (bed.open_watches("configmaps").await == before + 1).then_some(())
        })
        .await;
    };
    let writes = async || {
        client.patch(&format!("{maps}/a"), json!({"data": {"k": "v"}})).await;
        client.delete(&format!("{maps}/b")).await;
        client.create(&maps, json!({"metadata": {"name": "missing"}})).await;
        // The last event of each name, also for watches with the label selector.
        let end =
            json!({"metadata": {"labels": {"none": "y"}}, "data": {"k": null, "1": "", "2": "", "3": "", "4": ""}});
        client.patch(&format!("{maps}/a"), end.clone()).await;
        client.create(&maps, json!({"metadata": {"name": "b"}})).await;
        client.patch(&format!("{maps}/b"), end.clone()).await;
        client.patch(&format!("{maps}/missing"), end).await;
    };
    let ways = [Way::Http(Protocol::H1), Way::Http(Protocol::H2)];
    let is_over: IsOver = |_, lines| ["a", "b", "missing"].iter().any(|name| is_of(lines, &format!("\"{name}\",4")));
    let compared = compare(&bed, &proxy, &paths, (&ways, is_over), one_more, writes).await;
    // Includes the patches at the end, which are the only events of the watches with the label selector.
    assert_eq!(compared, 2 * 4 * (2 * (3 + 4 + 2) + 3), "states and events");
    log_line(&format!("{} Table watches of one object, {compared} events equal to direct ones", 2 * paths.len()));
}

/// The proxy forwards watches that one stream cannot serve.
#[tokio::test]
async fn table_watch_without_version_or_before_history_is_forwarded() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let (client, namespace) = (bed.direct(), bed.namespace("tables").await);
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let old = client.version(&maps).await;
    client.create(&maps, json!({"metadata": {"name": "a"}})).await;
    let created = client.create(&maps, json!({"metadata": {"name": "b"}})).await;
    let open = async |http: Http, query: &str| {
        let request = RequestSpec::get(&format!("{maps}?watch=1&{query}")).accept(TABLE);
        let response = http.send(request).await;
        assert_eq!(response.status(), 200, "{query}");
        let is_cached = response.headers().get("kube-fanout-served").is_some_and(|by| by == "cache");
        (Watch::new(response), is_cached)
    };
    // The first event. If the state was not available in time, the watch is opened again.
    let begun = async |http: Http, query: &str| {
        eventually("a watch begins", async || {
            let (mut watch, is_cached) = open(http.clone(), query).await;
            assert!(!is_cached, "{query}");
            let line = watch.event().await.expect("the watch continues").line;
            (!line.contains(TOO_LARGE)).then_some((watch, line))
        })
        .await
    };
    // The feed starts here.
    let now = bed::version_of(&created);
    let from_now = format!("resourceVersion={now}");
    let (mut watch, _) = eventually("the watch is served from the cache", async || {
        Some(open(proxy.client(), &from_now).await).filter(|(_, is_cached)| *is_cached)
    })
    .await;
    for query in [format!("resourceVersion={old}"), String::new(), "resourceVersion=0".to_owned()] {
        let direct = begun(bed.direct(), &query).await;
        let through = begun(proxy.client(), &query).await;
        let last = unique("later");
        client.create(&maps, json!({"metadata": {"name": last}})).await;
        // All events up to the one of that object.
        let [ours, theirs] = join_all([through, direct].map(async |(mut watch, line): (Watch, String)| {
            let mut lines = vec![line];
            while !is_of(&lines, &format!("\"{last}\"")) {
                lines.push(watch.event().await.expect("the watch continues").line);
            }
            lines.iter().map(|line| taken_apart(line).0).collect::<Vec<_>>()
        }))
        .await
        .try_into()
        .expect("two");
        assert_eq!(ours, theirs, "{query}");
        assert!(theirs.len() > 2, "{query}: {theirs:?}");
    }
    let first = watch.event().await.expect("the watch continues").line;
    assert!(!first.contains("\"b\"") && first.contains("later"), "no event before the version: {first}");
    let forwarded = proxy.forwarded().await;
    let times = |reason: &str| forwarded.iter().find(|(why, _)| why.contains(reason)).map_or(0, |(_, times)| *times);
    assert!(times("too_old") >= 1 && times("\"table\"") >= 2, "{forwarded:?}");
}

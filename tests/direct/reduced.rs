//! Reads without `metadata.managedFields`, for clients that ask and for those that the configuration names.

use futures_util::future::{join, join_all};
use http::Method;
use kube_fanout::serve::WatchCompression;
use serde_json::{Value, json};

use crate::compressed_watches::GzipWatch;
use crate::direct::{self, Answer, CONFIGMAPS, Client, Protocol, WIDGETS, upstream_client};

pub const DROPS: &str = "application/json;drop=metadata.managedFields";
pub const DROPS_OF_METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1;drop=spec+metadata.managedFields";
const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// The member as the server writes it. Its text has brackets, and Go's order of members is also the sorted one.
pub fn managed(manager: &str) -> String {
    format!(r#","managedFields":[{{"manager":"{manager}]}}","operation":"Update"}}]"#)
}

/// A configmap that `manager` wrote. Its data has the name of the field too.
fn configmap(name: &str, value: &str, manager: &str) -> Value {
    let fields: Value = serde_json::from_str(&format!("{{\"n\":0{}}}", managed(manager))).expect("an object");
    json!({
        "metadata": {"name": name, "namespace": "default", "managedFields": fields["managedFields"]},
        "data": {"value": value, "managedFields": managed("x")},
    })
}

/// Reads a response to its end, and of a watch the initial events.
async fn get(client: &Client, path: &str, accept: &str) -> Answer {
    let call = client.request(Method::GET, path).header("accept", accept);
    if path.contains("watch=") { call.initial_events().await } else { call.send().await }
}

/// Opens a compressed watch of a client that leaves the field out.
pub async fn gzip_watch(client: &Client, path: &str) -> GzipWatch {
    GzipWatch::of(client.request(Method::GET, path).header("accept", DROPS)).await.expect("compressed")
}

/// Returns the decompressed text of a whole response, and of a watch the initial events.
async fn gunzipped(client: &Client, path: &str) -> String {
    if path.contains("watch=") {
        let mut watch = gzip_watch(client, path).await;
        watch.listed().await;
        return String::from_utf8(watch.text).expect("text");
    }
    let answer =
        client.request(Method::GET, path).header("accept", DROPS).header("accept-encoding", "gzip").send().await;
    assert_eq!(answer.header("content-encoding"), Some("gzip"), "{path}");
    let mut text = String::new();
    let mut decoder = flate2::bufread::GzDecoder::new(&*answer.body);
    std::io::Read::read_to_string(&mut decoder, &mut text).expect("a complete member");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_without_the_field_have_all_other_bytes() {
    let up = demo::upstream().pods(1).run().await;
    let mut rv = 0;
    for n in 0..300 {
        rv = up.put("configmaps", configmap(&format!("c-{n}"), &"v".repeat(500 + n), "writer"));
    }
    up.put("widgets", json!({"metadata": {"name": "w", "namespace": "default", "managedFields": [{"manager": "m"}]}}));
    let app = direct::app(&up)
        .preload("configmaps")
        .with(|config| config.serve.compress_watches = WatchCompression::All)
        .run()
        .await;
    app.reached("configmaps", rv).await;
    let direct = upstream_client(&up);
    let watch = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    for path in [
        format!("{CONFIGMAPS}?resourceVersion=0"),
        CONFIGMAPS.to_owned(),
        "/api/v1/namespaces/default/configmaps/c-7?resourceVersion=0".to_owned(),
        format!("{CONFIGMAPS}?{watch}"),
    ] {
        let full = get(&direct, &path, "application/json").await.text();
        let expected = full.replace(&managed("writer"), "");
        assert!(expected.len() < full.len() && expected.contains("managedFields"), "{path}");
        for client in BOTH.map(|protocol| app.over(protocol)) {
            let ours = get(&client, &path, DROPS).await;
            assert!(ours.is_cached() && ours.text() == expected, "{path}");
            assert_eq!(ours.header("content-type"), Some("application/json"), "{path}");
            if !path.contains("/c-7") {
                assert!(gunzipped(&client, &path).await == expected, "{path} compressed");
            }
            assert!(get(&client, &path, "application/json;drop=spec").await.text() == full, "another field: {path}");
        }
    }
    for client in BOTH.map(|protocol| app.over(protocol)) {
        let (mut token, mut pages) = (Some(String::new()), 0);
        while let Some(after) = token {
            let path = format!("{CONFIGMAPS}?limit=70&continue={after}");
            let (ours, theirs) = (get(&client, &path, DROPS).await, direct.get(&path).await);
            assert!(ours.is_cached() && ours.text() == theirs.text().replace(&managed("writer"), ""), "{path}");
            (token, pages) = (ours.continue_token(), pages + 1);
        }
        assert_eq!(pages, 5);
    }
    let widget = get(&app, &format!("{WIDGETS}?resourceVersion=0&fieldSelector=metadata.name%3Dw"), DROPS).await;
    let expected = direct.get(&format!("{WIDGETS}?fieldSelector=metadata.name%3Dw")).await.json();
    assert_eq!(widget.json()["items"][0]["metadata"].get("managedFields"), None);
    assert_eq!(widget.json()["items"][0]["metadata"]["uid"], expected["items"][0]["metadata"]["uid"]);
    let many = format!("application/json;drop={}", "metadata.managedFields+".repeat(1_000));
    assert_eq!(get(&app, CONFIGMAPS, &many).await.status, 400, "the header is too long");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configuration_names_clients_that_do_not_ask() {
    let up = demo::upstream().pods(1).run().await;
    let rv = up.put("configmaps", configmap("c", "v", "writer"));
    let plan = direct::app(&up).preload("configmaps").unix().with(|config| {
        config.serve.reduced.callers.listeners = vec![config.listen[1].clone()];
        config.serve.reduced.user_agents = vec!["agent/".to_owned()];
    });
    let app = plan.run().await;
    app.reached("configmaps", rv).await;
    for (agent, is_reduced) in [("agent/1.2", true), ("agent", false), ("my-agent/1.2", false), ("Agent/1.2", false)] {
        let request = app.request(Method::GET, &format!("{CONFIGMAPS}?resourceVersion=0"));
        let text = request.header("user-agent", agent).send().await.text();
        assert_eq!(!text.contains(&managed("writer")), is_reduced, "{agent}");
    }
    let socket = app.listener(1).get(&format!("{CONFIGMAPS}?resourceVersion=0")).await;
    assert!(socket.is_cached() && !socket.text().contains(&managed("writer")));
}

fn versions(text: &str) -> Vec<(String, u64)> {
    let event = |line: &str| {
        let event: Value = serde_json::from_str(line).expect("an event");
        let rv = event["object"]["metadata"]["resourceVersion"].as_str().and_then(|rv| rv.parse().ok());
        (event["type"].as_str().expect("a type").to_owned(), rv.expect("a version"))
    };
    text.lines().map(event).collect()
}

/// The events are in the history, and the bookmark before the end of the watch has the version of the last of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_is_not_sent_events_without_a_visible_change() {
    let up = demo::upstream().pods(1).run().await;
    let app = direct::app(&up).preload("configmaps").run().await;
    let start = up.put("configmaps", configmap("c", "1", "a"));
    app.reached("configmaps", start).await;
    let same: Vec<u64> = ["b", "c", "d"].map(|manager| up.put("configmaps", configmap("c", "1", manager))).to_vec();
    let last = same[2];
    app.reached("configmaps", last).await;
    // Only the end of a watch shows which events were not sent. A machine that stalls needs a longer watch.
    let mut watches = Vec::new();
    for lasts in ["3", "20", "60"] {
        let path = format!("{CONFIGMAPS}?watch=true&resourceVersion={start}&allowWatchBookmarks=true");
        let path = format!("{path}&timeoutSeconds={lasts}");
        let clients = BOTH.map(|protocol| app.over(protocol));
        let read = async |client: &Client, accept: &str| {
            versions(&client.request(Method::GET, &path).header("accept", accept).send().await.text())
        };
        let read = clients.iter().map(|client| Box::pin(join(read(client, "application/json"), read(client, DROPS))));
        watches = join_all(read).await;
        let has_come = |events: &[(String, u64)]| events.last().is_some_and(|(_, rv)| *rv >= last);
        if watches.iter().all(|(plain, reduced)| has_come(plain) && has_come(reduced)) {
            break;
        }
    }
    for (plain, reduced) in watches {
        assert_eq!(plain.iter().filter(|(event_type, _)| event_type == "MODIFIED").count(), 3);
        assert!(reduced.iter().all(|(event_type, _)| event_type == "BOOKMARK"), "{reduced:?}");
        assert_eq!(reduced.last().map(|(_, rv)| *rv), Some(last), "the version goes on");
    }
    // A client that resumes from any of the versions receives what changes next, and only that.
    let watches = [start, same[0], last].map(|from| app.watch(CONFIGMAPS).accept(DROPS).from(from));
    let mut open = Vec::new();
    for watch in watches {
        open.push(watch.await);
    }
    let metadata = app.watch(CONFIGMAPS).accept(DROPS_OF_METADATA).from(start).await;
    let changed = up.put("configmaps", configmap("c", "2", "d"));
    for watch in &open {
        watch.received(1).await;
        assert_eq!(watch.changes().iter().map(|event| event.rv).collect::<Vec<_>>(), [changed]);
    }
    let deleted = up.delete("configmaps", "default", "c");
    metadata.received(1).await;
    let seen: Vec<_> = metadata.changes().iter().map(|event| event.rv).collect();
    assert_eq!(seen, [deleted], "its metadata did not change before");
    let metrics = app.admin("/metrics").await.text();
    let unsent = |line: &&str| line.starts_with("kube_fanout_watch_unchanged_events_total ");
    let unsent: u64 =
        metrics.lines().filter(unsent).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum();
    assert!(unsent >= 2 * 3 + 3 + 2 + 4, "{unsent}: {metrics}");
}

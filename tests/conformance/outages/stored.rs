//! The contents of a collection in etcd, read through its JSON gateway. Unlike an apiserver, etcd keeps the history
//! over restarts.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::{Value, json};
use verify::RecordedEventType;

use crate::bed::{Frame, Http, Identity, Plane, Protocol, RequestSpec, Target};

/// The changes of a collection of the core group after version `from`, up to and including `to`, which must be a change
/// of it. Values must be stored as JSON without compaction.
pub async fn changes(plane: &Plane, resource: &str, from: u64, to: u64) -> Vec<(RecordedEventType, Value)> {
    let prefix = format!("/registry/{resource}/");
    // The byte after the slash.
    let end = format!("/registry/{resource}0");
    let create = json!({"create_request": {
        "key": STANDARD.encode(&prefix), "range_end": STANDARD.encode(end), "start_revision": (from + 1).to_string(),
    }});
    let target = Target { url: plane.etcd_url(), ca: None, identity: Identity::anonymous() };
    let request = RequestSpec::get("/v3/watch").with(Method::POST, "application/json", create.to_string());
    let mut watch = Http::new(target, Protocol::H1).watch(request).await;
    let mut changes = Vec::new();
    loop {
        let Some(Frame::Json(line)) = watch.frame().await else { panic!("etcd's watch continues") };
        let line: Value = serde_json::from_slice(&line).expect("JSON");
        let result = &line["result"];
        assert!(result.is_object() && result["compact_revision"].is_null(), "{line}");
        let events = result["events"].as_array().map(Vec::as_slice).unwrap_or_default();
        let changes_of_batch = events.iter().map(|event| change(event, &prefix));
        changes.extend(changes_of_batch.filter(|(version, ..)| *version <= to).map(|(_, kind, object)| (kind, object)));
        if events.iter().any(|event| number(&event["kv"]["mod_revision"]) >= to) {
            return changes;
        }
    }
}

/// A change: its version, and the corresponding watch event of an apiserver.
fn change(event: &Value, prefix: &str) -> (u64, RecordedEventType, Value) {
    let kv = &event["kv"];
    let (version, made) = (number(&kv["mod_revision"]), number(&kv["create_revision"]));
    let (kind, mut object) = if event["type"] == "DELETE" {
        let key = String::from_utf8(decoded(&kv["key"])).expect("a key is text");
        let (namespace, name) = key.strip_prefix(prefix).and_then(|key| key.split_once('/')).expect("a key");
        (RecordedEventType::Deleted, json!({"metadata": {"namespace": namespace, "name": name}}))
    } else {
        let object = serde_json::from_slice(&decoded(&kv["value"])).expect("it is stored as JSON");
        (if made == version { RecordedEventType::Added } else { RecordedEventType::Modified }, object)
    };
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    (version, kind, object)
}

/// Parses a 64-bit number, which the gateway writes as text and omits if it is 0.
fn number(value: &Value) -> u64 {
    value.as_str().map_or(0, |text| text.parse().expect("a number"))
}

fn decoded(text: &Value) -> Vec<u8> {
    STANDARD.decode(text.as_str().expect("text")).expect("base64")
}

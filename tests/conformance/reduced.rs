//! Reads without `metadata.managedFields`: equal to the apiserver's own without the field, and what a client that holds
//! such objects can write.

use futures_util::future::join;
use http::Method;
use serde_json::{Value, json};

use crate::bed::protobuf::{self, Field};
use crate::bed::{self, Answer, Http, Pair, RequestSpec, fill, log_line, version_of};
use crate::custom::define;

pub const JSON: &str = "application/json";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const APPLY: &str = "application/apply-patch+yaml";
pub const DROP: &str = ";drop=metadata.managedFields";
const STATE: &str = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

/// Removes every `managedFields` member, which the apiserver never writes first.
pub fn without_members(text: &str) -> String {
    const MEMBER: &str = ",\"managedFields\":[";
    let mut parts = text.split(MEMBER);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (mut depth, mut is_string, mut is_escaped) = (1, false, false);
        let end = part.bytes().position(|byte| {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if is_string => is_escaped = true,
                b'"' => is_string = !is_string,
                b'[' if !is_string => depth += 1,
                b']' if !is_string => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        kept.push_str(&part[end.expect("a whole list") + 1..]);
    }
    kept
}

/// Encodes the fields of a message in order. The tests' reader loses fixed-size fields, which no compared kind has.
fn encoded(fields: &[(u64, Field<'_>)]) -> Vec<u8> {
    fn put(out: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            out.push(u8::try_from(value & 0x7f).expect("seven bits") | 0x80);
            value >>= 7;
        }
        out.push(u8::try_from(value).expect("seven bits"));
    }
    let mut out = Vec::new();
    for (number, field) in fields {
        match field {
            Field::Number(value) => {
                put(&mut out, number << 3);
                put(&mut out, *value);
            }
            Field::Bytes(bytes) => {
                put(&mut out, number << 3 | 2);
                put(&mut out, bytes.len() as u64);
                out.extend_from_slice(bytes);
            }
        }
    }
    out
}

/// Returns an object's message without the managed fields in its metadata.
fn without_field(object: &[u8]) -> Vec<u8> {
    let fields = protobuf::fields(object).expect("an object");
    let (metadata, others) = fields.split_first().expect("metadata comes first");
    let (1, Field::Bytes(metadata)) = metadata else { panic!("metadata comes first") };
    let metadata: Vec<_> =
        protobuf::fields(metadata).expect("metadata").into_iter().filter(|(number, _)| *number != 17).collect();
    let metadata = encoded(&metadata);
    encoded(&[&[(1, Field::Bytes(&metadata))], others].concat())
}

/// Returns a whole list or object in protobuf without the managed fields.
pub fn without_fields(document: &[u8], is_list: bool) -> Vec<u8> {
    let unknown = document.strip_prefix(b"k8s\0").expect("an envelope");
    let mut fields = protobuf::fields(unknown).expect("an envelope");
    let (_, Field::Bytes(raw)) = fields[1] else { panic!("the object comes second") };
    let raw = if is_list {
        let list = protobuf::fields(raw).expect("a list");
        let items: Vec<_> = list
            .iter()
            .map(|(number, field)| match field {
                Field::Bytes(item) if *number == 2 => (*number, without_field(item)),
                Field::Bytes(bytes) => (*number, bytes.to_vec()),
                Field::Number(_) => panic!("a list has messages only"),
            })
            .collect();
        encoded(&items.iter().map(|(number, item)| (*number, Field::Bytes(item))).collect::<Vec<_>>())
    } else {
        without_field(raw)
    };
    fields[1].1 = Field::Bytes(&raw);
    [b"k8s\0".to_vec(), encoded(&fields)].concat()
}

fn metadata_of(media_type: &str, list: &str) -> String {
    format!("{media_type};as=PartialObjectMetadata{list};g=meta.k8s.io;v=v1")
}

#[tokio::test]
async fn reads_equal_the_apiservers_without_the_field() {
    // No other client writes or renews anything, so both servers report the same version.
    let Some(bed) = bed::quiet("reduced").await else { return };
    let pair = Pair::on(bed).await;
    let pods = format!("/api/v1/namespaces/{}/pods", fill(&pair.bed, "reduced", ("pods", 30, 500), "words").await);
    pair.maps().await;
    let (kind, last) = define(&pair).await;
    pair.settle(last).await;
    let widgets = format!("/apis/{}/v1/namespaces/{}/widgets", kind.group, pair.namespace);
    let one = pair.direct.json(&pods).await["items"][0]["metadata"]["name"].as_str().expect("a name").to_owned();
    for (path, forms) in [(&pods, &[JSON, PROTOBUF][..]), (&pair.path(""), &[JSON, PROTOBUF]), (&widgets, &[JSON])] {
        for form in forms {
            let list = format!("{path}?resourceVersion=0");
            let watch = format!("{path}?{STATE}");
            let mut reads = vec![(list.clone(), (*form).to_owned()), (list, metadata_of(form, "List"))];
            if *form == JSON {
                reads.extend([(watch.clone(), JSON.to_owned()), (watch, metadata_of(JSON, ""))]);
            }
            if path == &pods {
                reads.push((format!("{path}/{one}?resourceVersion=0"), (*form).to_owned()));
            }
            for (path, accept) in reads {
                let what = format!("{path} as {accept}");
                let read = async |http: &Http, accept: &str| {
                    let request = RequestSpec::get(&path).accept(accept);
                    if !path.contains(STATE) {
                        return http.fetch(request).await;
                    }
                    http.initial_state(request).await.answer
                };
                let reduced = format!("{accept}{DROP}");
                let (ours, theirs) = join(read(&pair.through, &reduced), read(&pair.direct, &accept)).await;
                assert!(ours.is_cached(), "{what}");
                assert_eq!((ours.status, ours.content_type()), (theirs.status, theirs.content_type()), "{what}");
                if *form == JSON {
                    let bare =
                        |text: String| text.lines().filter(|line| !line.contains("BOOKMARK")).collect::<String>();
                    let (actual, full) = (bare(ours.text()), bare(theirs.text()));
                    assert!(full.contains("managedFields"), "{what}");
                    assert_eq!(actual, without_members(&full), "{what}");
                } else {
                    let expected = without_fields(&theirs.body, !path.contains(&one));
                    assert!(expected.len() < theirs.body.len() && ours.body == expected, "{what}");
                }
                log_line(&format!("{what}: {} bytes, {} without the field", theirs.body.len(), ours.body.len()));
            }
        }
    }
    let released = pair.direct.fetch(RequestSpec::get(&pods).accept(&format!("{JSON}{DROP}"))).await;
    log_line(&format!("the apiserver leaves the field out: {}", !released.text().contains("managedFields")));
}

/// The managers of an object, with what they wrote.
fn owners(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let owner = |entry: Value| {
        let fields = entry["fieldsV1"]["f:data"].as_object().cloned().unwrap_or_default();
        let fields: Vec<_> = fields.keys().filter(|key| *key != ".").map(|key| key.trim_start_matches("f:")).collect();
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        format!("{} {}: {}", text("manager"), text("operation"), fields.join(" "))
    };
    let mut owners: Vec<_> = entries.into_iter().map(owner).collect();
    owners.sort();
    owners
}

/// What docs/GUIDES.md says about writes of clients that hold objects without the field.
#[tokio::test]
async fn writes_of_objects_without_the_field_keep_ownership() {
    let Some(pair) = Pair::new().await else { return };
    let write = async |name: &str, method: Method, form: &str, manager: &str, body: Value| -> Answer {
        let path = pair.path(&format!("/{name}?fieldManager={manager}"));
        pair.through.fetch(RequestSpec::get(&path).with(method, form, body.to_string())).await
    };
    let config = |name: &str, data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    // A client holds the object as the proxy shows it, and writes it back with one more key.
    let read = async |name: &str| {
        let applied = write(name, Method::PATCH, APPLY, "owner", config(name, json!({"a": "1"}))).await;
        assert!(applied.status.is_success(), "{}", applied.text());
        pair.settle(version_of(&applied.value())).await;
        let path = pair.path(&format!("/{name}?resourceVersion=0"));
        let mut object = pair.through.fetch(RequestSpec::get(&path).accept(&format!("{JSON}{DROP}"))).await.value();
        assert_eq!((object["metadata"].get("managedFields"), &object["data"]), (None, &json!({"a": "1"})));
        object["data"]["b"] = json!("2");
        object
    };
    let kept = ["client Update: b", "owner Apply: a"].as_slice();
    let shared = ["client Apply: a b", "owner Apply: a"].as_slice();
    for (name, method, form, is_reset, expected) in [
        ("put", Method::PUT, JSON, false, kept),
        ("merge", Method::PATCH, "application/merge-patch+json", false, kept),
        ("strategic", Method::PATCH, "application/strategic-merge-patch+json", false, kept),
        ("apply", Method::PATCH, APPLY, false, shared),
        ("reset", Method::PUT, JSON, true, &[]),
    ] {
        let mut object = read(name).await;
        if is_reset {
            object["metadata"]["managedFields"] = json!([{}]);
        }
        let written = write(name, method, form, "client", object).await;
        assert!(written.status.is_success(), "{name}: {}", written.text());
        let stored = pair.direct.json(&pair.path(&format!("/{name}"))).await;
        log_line(&format!("{name}: {:?}", owners(&stored)));
        assert_eq!(owners(&stored), expected, "{name}");
    }
    // Another manager applies the same values. Nothing visible changes, and so the client holds an older version.
    let mut held = read("conflict").await;
    let version = version_of(&held);
    let query = format!("?watch=1&fieldSelector=metadata.name%3Dconflict&resourceVersion={version}");
    let watch = RequestSpec::get(&pair.path(&query)).accept(&format!("{JSON}{DROP}"));
    let mut watch = pair.through.watch(watch).await;
    let same = write("conflict", Method::PATCH, APPLY, "other", config("conflict", json!({"a": "1"}))).await.value();
    assert!(version_of(&same) > version, "the managed fields changed");
    pair.settle(version_of(&same)).await;
    let conflict = write("conflict", Method::PUT, JSON, "client", held.clone()).await;
    assert_eq!(conflict.status, 409, "{}", conflict.text());
    // It reads the object again, which may also be from the cache, and repeats the update.
    let path = pair.path("/conflict");
    let again = pair.through.fetch(RequestSpec::get(&path).accept(&format!("{JSON}{DROP}"))).await.value();
    held["metadata"]["resourceVersion"] = again["metadata"]["resourceVersion"].clone();
    let written = write("conflict", Method::PUT, JSON, "client", held).await;
    assert_eq!(written.status, 200, "{}", written.text());
    let event = watch.change().await;
    assert_eq!(event.version(), version_of(&written.value()), "the first event shows a change");
    pair.proxy.assert_sound();
}

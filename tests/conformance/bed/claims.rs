//! Checks of the resourceVersions in answers. They are not compared between servers, because two servers may answer
//! from different moments. This module finds versions that are impossible on their own.

use serde_json::Value;

use super::frames::{Frame, Unframed};
use super::http::Answer;
use super::{normal, protobuf};

/// Describes the first impossible version in an answer, if there is one. `settled` is the version of the last write.
/// The version of a list, or of a bookmark, must not be lower than that of an object in it or before it, nor higher
/// than `settled`.
pub fn impossible(answer: &Answer, settled: u64) -> Option<String> {
    let mut newest = 0;
    let claims = if normal::is_watch(answer) { of_watch(answer) } else { of_list(answer) };
    claims.into_iter().find_map(|claim| match claim {
        Claim::Object(version) => {
            newest = newest.max(version);
            (version > settled).then(|| format!("an object is of version {version}, and there is none after {settled}"))
        }
        Claim::State(version) => {
            let can_be = (newest..=settled).contains(&version);
            (!can_be).then(|| format!("a state is of version {version}: not from {newest} to {settled}"))
        }
    })
}

/// A version in an answer: of one object, or of a whole state.
#[derive(Debug, PartialEq, Eq)]
enum Claim {
    Object(u64),
    State(u64),
}

/// The versions in a list: those of its objects first, then its own.
fn of_list(answer: &Answer) -> Vec<Claim> {
    if !answer.status.is_success() {
        return Vec::new();
    }
    if let Some((kind, message)) = protobuf::document(&answer.body) {
        // In meta.k8s.io/v1beta1 the items are field 1. The versions of such lists are checked in their JSON form only.
        let fields = protobuf::fields(message).filter(|_| kind.ends_with("List")).unwrap_or_default();
        let items = fields.into_iter().filter(|(number, _)| *number == 2);
        let items = items.filter_map(|(_, item)| match item {
            protobuf::Field::Bytes(item) => object_version(item).map(Claim::Object),
            protobuf::Field::Number(_) => None,
        });
        let is_current = protobuf::version(&answer.body) != "meta.k8s.io/v1beta1";
        let own = protobuf::bytes(message, 1).filter(|_| is_current && kind.ends_with("List"));
        let own = own.and_then(|metadata| protobuf::text(metadata, 2).parse().ok()).map(Claim::State);
        return items.filter(|_| is_current).chain(own).collect();
    }
    let document: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let of = |key: &str| document[key].as_array().into_iter().flatten();
    let items = of("items").chain(of("rows").map(|row| &row["object"])).filter_map(version).map(Claim::Object);
    let is_list = document["items"].is_array() || document["rows"].is_array();
    items.chain(version(&document).filter(|_| is_list).map(Claim::State)).collect()
}

/// The versions in a watch, in the order of its events.
fn of_watch(answer: &Answer) -> Vec<Claim> {
    let mut frames = Unframed::new(answer.content_type());
    frames.push(&answer.body);
    let claim = |frame: &Frame| match frame {
        Frame::Json(line) => {
            let event: Value = serde_json::from_slice(line).ok()?;
            let object = &event["object"];
            match event["type"].as_str()? {
                "BOOKMARK" => version(object).map(Claim::State),
                _ => version(object).or_else(|| version(&object["rows"][0]["object"])).map(Claim::Object),
            }
        }
        Frame::Protobuf(frame) => {
            let event = frame.get(4..)?;
            let object = protobuf::bytes(protobuf::bytes(event, 2)?, 1)?;
            let version = object_version(protobuf::document(object)?.1)?;
            Some(if protobuf::text(event, 1) == "BOOKMARK" { Claim::State(version) } else { Claim::Object(version) })
        }
    };
    std::iter::from_fn(|| frames.next()).filter_map(|frame| claim(&frame)).collect()
}

fn version(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

fn object_version(message: &[u8]) -> Option<u64> {
    protobuf::text(protobuf::bytes(message, 1)?, 6).parse().ok()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue, StatusCode};
    use serde_json::json;

    use super::*;

    fn answer(body: String) -> Answer {
        let headers = HeaderMap::from_iter([(
            "content-type".parse().expect("a name"),
            HeaderValue::from_static("application/json"),
        )]);
        Answer { status: StatusCode::OK, headers, body: Bytes::from(body) }
    }

    fn object(version: &str) -> Value {
        json!({"metadata": {"resourceVersion": version}})
    }

    #[test]
    fn list_version_below_items_or_above_latest_is_impossible() {
        let list = |version: &str| {
            let items = json!([object("5"), object("7")]);
            answer(json!({"kind": "List", "metadata": {"resourceVersion": version}, "items": items}).to_string())
        };
        for (version, can_be) in [("7", true), ("9", true), ("6", false), ("0", false), ("10", false)] {
            assert_eq!(impossible(&list(version), 9).is_none(), can_be, "{version}");
        }
        assert!(impossible(&list("7"), 6).is_some());
    }

    #[test]
    fn bookmark_version_below_earlier_events_is_impossible() {
        let watch = |bookmark: &str| {
            let events = [("ADDED", "5"), ("ADDED", "7"), ("BOOKMARK", bookmark)];
            let lines =
                events.map(|(kind, version)| json!({"type": kind, "object": object(version)}).to_string() + "\n");
            answer(lines.concat())
        };
        for (version, can_be) in [("7", true), ("9", true), ("6", false), ("10", false)] {
            assert_eq!(impossible(&watch(version), 9).is_none(), can_be, "{version}");
        }
    }
}

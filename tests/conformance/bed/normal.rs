//! Normalizes answers: removes what may differ between two answers to the same request at two moments.
//!
//! - The version of a list, unless the request named an exact one. The cluster's version rises with every lease that
//!   the apiserver renews, and the two answers are made at different moments.
//! - The same version in the list's continue token, and in the bookmark that ends initial events.
//! - The slash at the start of a continue token, which a cache writes and etcd does not (R-CONTINUE-3).
//! - Bookmarks that only report progress: the server decides when to send them.
//! - Ages in the rows of a watched Table, because each is from the moment when the row was printed
//!   (docs/DIFFERENCES.md). The ages of a listed Table are separated from its text, and compared by
//!   [`ages::all_agree`].
//! - The server's own version in `Too large resource version` and `too old resource version`.

use serde_json::Value;

use super::ages;
use super::frames::{Frame, Unframed};
use super::http::Answer;
use super::protobuf;

/// The part of an answer that tests compare.
#[derive(Debug)]
pub struct Body {
    pub text: String,
    /// The ages in a Table, which `text` does not contain; empty for anything else.
    pub ages: Vec<String>,
}

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// The annotation of the bookmark that ends initial events (KEP-3157).
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Normalizes the body of an answer that is not a watch. With `exact`, keeps the list's version, also in its continue
/// token.
pub fn body(answer: &Answer, exact: bool) -> Body {
    let plain = |text| Body { text, ages: Vec::new() };
    if answer.content_type().starts_with(PROTOBUF) {
        return plain(protobuf_body(&answer.body, exact));
    }
    let text = without_versions(&answer.text());
    if answer.content_type().starts_with("application/yaml") {
        let is_table = text.contains("\nkind: Table\n");
        let text = yaml_body(text, exact);
        let (text, ages) = if is_table { ages::taken_out_of_yaml(&text) } else { (text, Vec::new()) };
        return Body { text, ages };
    }
    let Ok(document) = serde_json::from_str::<Value>(&text) else { return plain(text) };
    let kind = document["kind"].as_str().unwrap_or_default();
    // A CustomResourceDefinition may choose any kind for its lists.
    let is_versioned = document["items"].is_array() || kind.ends_with("List") || matches!(kind, "Status" | "Table");
    let text = if is_versioned { json_body(text, &document["metadata"], exact) } else { text };
    if kind != "Table" {
        return plain(text);
    }
    let (text, ages) = ages::taken_out(&text, &document);
    Body { text, ages }
}

fn json_body(mut text: String, metadata: &Value, exact: bool) -> String {
    if let Some(token) = metadata["continue"].as_str().filter(|token| !token.is_empty()) {
        text = text.replacen(token, &continue_token(token, exact), 1);
    }
    let Some(version) = metadata["resourceVersion"].as_str().filter(|_| !exact) else { return text };
    // Lists of built-in resources begin with their metadata; lists of custom resources end with it.
    let begins = text.trim_start_matches(['{', '\n', ' ']).starts_with("\"kind\"");
    let found = [":", ": "].into_iter().find_map(|colon| {
        let written = format!("\"resourceVersion\"{colon}\"{version}\"");
        let at = if begins { text.find(&written) } else { text.rfind(&written) };
        at.map(|at| at..at + written.len())
    });
    if let Some(range) = found {
        text.replace_range(range, "\"resourceVersion\":\"N\"");
    }
    text
}

/// Normalizes a YAML document, in which a list ends with its metadata.
fn yaml_body(text: String, exact: bool) -> String {
    let Some((head, metadata)) = text.rsplit_once("\nmetadata:\n") else { return text };
    if !head.contains("List\n") && !head.contains("kind: Table\n") {
        return text;
    }
    let lines = metadata.lines().map(|line| match line.split_once(": ") {
        Some(("  continue", token)) if token.len() > 2 => format!("  continue: {}", continue_token(token, exact)),
        Some(("  resourceVersion", _)) if !exact => "  resourceVersion: N".to_owned(),
        _ => line.to_owned(),
    });
    format!("{head}\nmetadata:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

/// Normalizes the body of an answer to a write: removes the ids and times of the new object.
pub fn written(answer: &Answer) -> Body {
    if answer.content_type().starts_with(PROTOBUF) {
        // Ids and times in protobuf are not located. Their length is the same in both answers, so the lengths are
        // compared.
        return Body { text: format!("{} bytes of protobuf", answer.body.len()), ages: Vec::new() };
    }
    let is_hex = |byte: &u8| byte.is_ascii_hexdigit();
    let mut text = answer.body.to_vec();
    for at in 0..text.len() {
        let id = text.get(at..at + 36).filter(|id| {
            [8, 13, 18, 23].iter().all(|dash| id[*dash] == b'-') && id.iter().filter(|byte| is_hex(byte)).count() == 32
        });
        if id.is_some() {
            text[at..at + 36].fill(b'0');
        }
        let time = text.get(at..at + 20).filter(|time| time[4] == b'-' && time[10] == b'T' && time[19] == b'Z');
        if time.is_some_and(|time| time[..4].iter().all(u8::is_ascii_digit)) {
            text[at..at + 20].fill(b'0');
        }
    }
    let (text, document) = (String::from_utf8_lossy(&text), serde_json::from_slice::<Value>(&text).unwrap_or_default());
    let (text, ages) = ages::taken_out(&text, &document);
    Body { text, ages }
}

/// Whether the answer is a stream of events.
pub fn is_watch(answer: &Answer) -> bool {
    if answer.content_type().starts_with(PROTOBUF) {
        return answer.content_type().ends_with(";stream=watch");
    }
    let is_event = |line: &[u8]| {
        serde_json::from_slice::<Value>(line).is_ok_and(|event| event["type"].is_string() && !event["object"].is_null())
    };
    let mut lines = answer.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    answer.content_type() == "application/json" && lines.all(is_event)
}

/// The position in a continue token; with `exact`, also the version.
fn continue_token(token: &str, exact: bool) -> String {
    use base64::Engine;
    let decoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(token).unwrap_or_default();
    let decoded: Value = serde_json::from_slice(&decoded).unwrap_or_default();
    let start = decoded["start"].as_str().unwrap_or(token).trim_start_matches('/');
    format!("AFTER {start} AT {}", if exact { &decoded["rv"] } else { &Value::Null })
}

fn protobuf_body(document: &[u8], exact: bool) -> String {
    let Some((kind, message)) = protobuf::document(document) else { return format!("{document:?}") };
    if kind == "Status" {
        return status(message);
    }
    if !kind.ends_with("List") {
        return format!("{kind} {message:?}");
    }
    let Some(fields) = protobuf::fields(message) else { return format!("{kind} {message:?}") };
    // In meta.k8s.io/v1beta1 the items are field 1 and the list's metadata field 2.
    let own = if protobuf::version(document) == "meta.k8s.io/v1beta1" { 2 } else { 1 };
    let parts = fields.into_iter().map(|(number, field)| match field {
        protobuf::Field::Bytes(metadata) if number == own => {
            let token = protobuf::text(metadata, 3);
            let token = if token.is_empty() { token } else { continue_token(&token, exact) };
            let rest = protobuf::fields(metadata).unwrap_or_default();
            let kept = |number| exact && number == 2 || !matches!(number, 2 | 3);
            let rest: Vec<_> = rest.into_iter().filter(|(number, _)| kept(*number)).collect();
            format!("continue {token} {rest:?}")
        }
        field => format!("{number} {field:?}"),
    });
    std::iter::once(kind).chain(parts).collect::<Vec<_>>().join("\n")
}

/// Normalizes a Status in protobuf.
fn status(message: &[u8]) -> String {
    let message_text = protobuf::text(message, 3);
    let rest = protobuf::fields(message).unwrap_or_default().into_iter().filter(|(number, _)| *number != 3);
    format!("Status {:?} {:?}", without_versions(&message_text), rest.collect::<Vec<_>>())
}

/// `text` without the server's own version.
fn without_versions(text: &str) -> String {
    let own = text
        .split_once("Too large resource version: ")
        .and_then(|(_, rest)| rest.split_once(", current: "))
        .map(|(_, current)| (", current: ", current, ", current: M"))
        .or_else(|| {
            let (_, rest) = text.split_once("too old resource version: ")?;
            let (_, window) = rest.split_once(" (")?;
            Some((" (", window, " (M"))
        });
    let Some((before, rest, instead)) = own else { return text.to_owned() };
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    text.replacen(&format!("{before}{digits}"), instead, 1)
}

/// Normalizes the events of a watch that has ended.
pub fn events(answer: &Answer) -> Vec<String> {
    let mut frames = Unframed::new(answer.content_type());
    frames.push(&answer.body);
    let mut events = Vec::new();
    while let Some(frame) = frames.next() {
        events.extend(event(&frame));
    }
    if !frames.is_empty() {
        events.push("an event that is cut off".to_owned());
    }
    events
}

/// Normalizes one event; `None` for a bookmark that only reports progress.
pub fn event(frame: &Frame) -> Option<String> {
    match frame {
        Frame::Json(line) => {
            let text = String::from_utf8_lossy(line).into_owned();
            let Ok(event) = serde_json::from_str::<Value>(&text) else { return Some(text) };
            let object = &event["object"];
            match event["type"].as_str() {
                Some("BOOKMARK") => {
                    // Objects of some kinds have annotations too, which API conversions add.
                    text.contains(INITIAL_EVENTS_END).then(|| without_version(&text, object))
                }
                Some("ERROR") => Some(without_versions(&text)),
                _ if object["kind"] == "Table" => Some(ages::taken_out(&text, object).0),
                _ => Some(text),
            }
        }
        Frame::Protobuf(frame) => {
            let event = frame.get(4..).unwrap_or_default();
            let kind = protobuf::text(event, 1);
            let object = protobuf::bytes(event, 2).and_then(|raw| protobuf::bytes(raw, 1)).unwrap_or_default();
            let Some((of, message)) = protobuf::document(object) else { return Some(format!("{frame:?}")) };
            match kind.as_str() {
                "BOOKMARK" => {
                    let metadata = protobuf::bytes(message, 1).unwrap_or_default();
                    let all = protobuf::fields(metadata).unwrap_or_default().into_iter();
                    let annotations: Vec<_> = all.filter(|(at, _)| *at == 12).map(|(_, field)| field).collect();
                    if !String::from_utf8_lossy(metadata).contains(INITIAL_EVENTS_END) {
                        return None;
                    }
                    let rest = protobuf::fields(message).unwrap_or_default().into_iter().filter(|(at, _)| *at != 1);
                    Some(format!("BOOKMARK {of} {annotations:?} {:?}", rest.collect::<Vec<_>>()))
                }
                "ERROR" => Some(format!("ERROR {}", status(message))),
                _ => Some(format!("{frame:?}")),
            }
        }
    }
}

fn without_version(text: &str, object: &Value) -> String {
    let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    text.replace(&format!("\"resourceVersion\":\"{version}\""), "\"resourceVersion\":\"N\"")
}

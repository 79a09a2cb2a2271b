//! Hand-written objects in both encodings, as the apiserver writes them, without the code under test.

use std::sync::Arc;

use bytes::Bytes;

use crate::wire::{FeedEncoding, JsonLayout, ListPage, ObjectReader, WatchItem};
use kubeapi::{FieldValueKind, SelectableFieldSpec, SelectableFieldTable};

/// Every encoding and shape that a feed can have.
pub(super) const FEEDS: [(FeedEncoding, JsonLayout); 3] = [
    (FeedEncoding::Json, JsonLayout::BuiltIn),
    (FeedEncoding::Json, JsonLayout::Custom),
    (FeedEncoding::Protobuf, JsonLayout::BuiltIn),
];

/// A pod, or a custom resource of the same structure.
#[derive(Clone)]
pub(super) struct Pod {
    pub(super) namespace: &'static str,
    pub(super) name: &'static str,
    pub(super) rv: u64,
    pub(super) labels: Vec<(&'static str, &'static str)>,
    pub(super) node: &'static str,
    pub(super) host_network: bool,
    pub(super) ips: Vec<&'static str>,
    /// Length of an annotation that makes the object large.
    pub(super) padding: usize,
}

impl Default for Pod {
    fn default() -> Self {
        Self {
            namespace: "default",
            name: "web-1",
            rv: 4711,
            labels: vec![("app", "web"), ("tier", "front")],
            node: "node-7",
            host_network: false,
            ips: vec!["10.0.0.1", "fd00::1"],
            padding: 40,
        }
    }
}

impl Pod {
    pub(super) fn body(&self, encoding: FeedEncoding, shape: JsonLayout) -> Vec<u8> {
        match (encoding, shape) {
            (FeedEncoding::Protobuf, _) => self.protobuf(),
            (FeedEncoding::Json | FeedEncoding::Table, JsonLayout::BuiltIn) => {
                format!("{}}}", self.json_members()).into_bytes()
            }
            (FeedEncoding::Json | FeedEncoding::Table, JsonLayout::Custom) => {
                format!(r#"{{"apiVersion":"v1","kind":"Pod",{}}}"#, self.json_members()).into_bytes()
            }
        }
    }

    /// Returns a GET response, without JSON's final newline.
    pub(super) fn document(&self, encoding: FeedEncoding, shape: JsonLayout) -> Vec<u8> {
        let body = self.body(encoding, shape);
        match (encoding, shape) {
            (FeedEncoding::Protobuf, _) => unknown("v1", "Pod", &body),
            (FeedEncoding::Json | FeedEncoding::Table, JsonLayout::BuiltIn) => {
                [br#"{"kind":"Pod","apiVersion":"v1","#.as_slice(), &body].concat()
            }
            (FeedEncoding::Json | FeedEncoding::Table, JsonLayout::Custom) => body,
        }
    }

    pub(super) fn event(&self, encoding: FeedEncoding, shape: JsonLayout, event_type: &str) -> Bytes {
        event(encoding, event_type, &self.document(encoding, shape))
    }

    fn json_members(&self) -> String {
        let Self { namespace, name, rv, labels, node, host_network, ips, padding } = self;
        let labels: Vec<_> = labels.iter().map(|(key, value)| format!(r#""{key}":"{value}""#)).collect();
        let labels = if labels.is_empty() { String::new() } else { format!(r#","labels":{{{}}}"#, labels.join(",")) };
        let padding = "p".repeat(*padding);
        let namespace = if namespace.is_empty() { String::new() } else { format!(r#""namespace":"{namespace}","#) };
        let host_network = if *host_network { r#","hostNetwork":true"# } else { "" };
        let ips: Vec<_> = ips.iter().map(|ip| format!(r#"{{"ip":"{ip}"}}"#)).collect();
        let ips = if ips.is_empty() { String::new() } else { format!(r#","podIPs":[{}]"#, ips.join(",")) };
        let metadata = format!(r#""name":"{name}",{namespace}"uid":"u-1","resourceVersion":"{rv}"{labels}"#);
        let annotations = format!(r#"{{"note":"{padding}\n\u003c"}}"#);
        let spec = format!(r#"{{"containers":null,"nodeName":"{node}"{host_network}}}"#);
        let status = format!(r#"{{"phase":"Running"{ips}}}"#);
        format!(r#""metadata":{{{metadata},"annotations":{annotations}}},"spec":{spec},"status":{status}"#)
    }

    fn protobuf(&self) -> Vec<u8> {
        let mut metadata = vec![
            text(1, self.name),
            text(2, ""),
            text(3, self.namespace),
            text(4, ""),
            text(5, "u-1"),
            text(6, &self.rv.to_string()),
            number(7, 0),
            bytes(8, &number(1, 1_700_000_000)),
        ];
        metadata.extend(self.labels.iter().map(|(key, value)| entry(11, key, value)));
        metadata.push(entry(12, "note", &format!("{}\n<", "p".repeat(self.padding))));
        // managedFields: a two-byte tag.
        metadata.push(bytes(17, &text(1, "kubelet")));
        let spec = [text(3, "Always"), text(10, self.node), number(11, u64::from(self.host_network))];
        let mut status = vec![text(1, "Running")];
        status.extend(self.ips.iter().map(|ip| bytes(12, &text(1, ip))));
        [bytes(1, &metadata.concat()), bytes(2, &spec.concat()), bytes(3, &status.concat())].concat()
    }
}

/// Formats `namespace/name` and version of an event; bookmarks and errors as words.
pub(super) fn reported(item: &WatchItem) -> String {
    match item {
        WatchItem::Change { event_type, object, .. } => format!("{event_type} {} {}", object.key, object.rv),
        WatchItem::Bookmark { rv, initial_events_end, .. } => format!("bookmark {rv} {initial_events_end}"),
        WatchItem::Error { status } => format!("error {} {}", status.code, status.reason),
    }
}

pub(super) fn keys(page: &ListPage) -> Vec<String> {
    page.items.iter().map(|object| object.key.to_string()).collect()
}

pub(super) fn reader(encoding: FeedEncoding, shape: JsonLayout) -> ObjectReader {
    ObjectReader::new(encoding, shape, Arc::new(pod_fields()))
}

/// One field of each kind, one with a fallback, one inside a repeated message.
pub(super) fn pod_fields() -> SelectableFieldTable {
    let field = |key: &str, json: &[&[&str]], proto: &[&[u32]], kind| SelectableFieldSpec {
        key: key.to_owned(),
        json: json.iter().map(|path| path.iter().map(|step| (*step).to_owned()).collect()).collect(),
        proto: proto.iter().map(|path| path.to_vec()).collect(),
        kind,
    };
    SelectableFieldTable {
        fields: vec![
            field("spec.nodeName", &[&["spec", "nodeName"]], &[&[2, 10]], FieldValueKind::Text),
            field("spec.hostNetwork", &[&["spec", "hostNetwork"]], &[&[2, 11]], FieldValueKind::Bool),
            field("status.podIP", &[&["status", "podIPs", "0", "ip"]], &[&[3, 12, 1]], FieldValueKind::Text),
            field(
                "nodeOrPhase",
                &[&["spec", "nodeName"], &["status", "phase"]],
                &[&[2, 10], &[3, 1]],
                FieldValueKind::Text,
            ),
            field("status.count", &[&["status", "count"]], &[&[3, 90]], FieldValueKind::Integer),
        ],
        ..SelectableFieldTable::default()
    }
}

pub(super) fn fields_of(object: &crate::wire::ObjectRevision) -> Vec<&str> {
    object.attributes.fields().collect()
}

pub(super) fn event(encoding: FeedEncoding, event_type: &str, document: &[u8]) -> Bytes {
    match encoding {
        FeedEncoding::Json | FeedEncoding::Table => {
            [format!(r#"{{"type":"{event_type}","object":"#).as_bytes(), document, b"}\n"].concat().into()
        }
        FeedEncoding::Protobuf => length_prefixed(&[text(1, event_type), bytes(2, &bytes(1, document))].concat()),
    }
}

pub(super) fn length_prefixed(message: &[u8]) -> Bytes {
    let len = u32::try_from(message.len()).expect("a small message").to_be_bytes();
    [len.as_slice(), message].concat().into()
}

pub(super) fn unknown(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let type_meta = [text(1, api_version), text(2, kind)].concat();
    [b"k8s\0".to_vec(), bytes(1, &type_meta), bytes(2, raw), text(3, ""), text(4, "")].concat()
}

// The wire format by its definition: a tag is number << 3 | type; varints carry 7 bits per byte, lowest first.

pub(super) fn text(number: u32, value: &str) -> Vec<u8> {
    bytes(number, value.as_bytes())
}

pub(super) fn bytes(number: u32, value: &[u8]) -> Vec<u8> {
    [varint(u64::from(number) << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

pub(super) fn number(number: u32, value: u64) -> Vec<u8> {
    [varint(u64::from(number) << 3), varint(value)].concat()
}

pub(super) fn entry(number: u32, key: &str, value: &str) -> Vec<u8> {
    bytes(number, &[text(1, key), text(2, value)].concat())
}

fn varint(value: u64) -> Vec<u8> {
    if value < 0x80 {
        return vec![u8::try_from(value).expect("seven bits")];
    }
    let mut out = vec![u8::try_from(value & 0x7f).expect("seven bits") | 0x80];
    out.extend(varint(value >> 7));
    out
}

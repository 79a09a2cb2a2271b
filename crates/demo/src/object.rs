//! One revision of one object: its metadata, the values for selectors, and its bytes as a GET returns them.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::json::{Json, JsonMembers, write_string};
use super::kinds::DemoResourceKind;

/// The `ObjectMeta` of an object, as far as the server itself reads or writes it. `others` has the remaining members.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DemoObjectMeta {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) rv: u64,
    pub(crate) generation: Option<u64>,
    pub(crate) created: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) others: JsonMembers,
}

/// One revision of an object. It is immutable, and shared by the store, the ring and every open watch.
#[derive(Debug)]
pub(crate) struct StoredObject {
    pub(crate) meta: DemoObjectMeta,
    /// The JSON of the object with `kind` and `apiVersion`, without a final newline.
    pub(crate) body: Bytes,
    /// The values for field selectors, in the order of `DemoResourceKind::selectable.fields`.
    pub(crate) fields: Vec<String>,
    /// The position of the digits of `metadata.resourceVersion` in `body`.
    rv_at: std::ops::Range<usize>,
    /// The number of bytes after the opening brace of `body` that a list item omits: the type of a built-in kind.
    type_len: usize,
}

/// The order of the metadata members in the Go struct, in which those of built-in kinds are written.
const STRUCT_ORDER: [&str; 14] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];
/// The metadata members in sorted order, as custom resources have them.
const SORTED_ORDER: [&str; 14] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "uid",
];
/// The members of the metadata that `DemoObjectMeta` holds in `others`.
const OTHERS: [&str; 6] = [
    "generateName",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

impl DemoObjectMeta {
    /// Reads the members that clients may set. A resourceVersion that is not a number is ignored.
    pub(crate) fn read(mut fields: JsonMembers) -> Self {
        let mut text = |key: &str| match fields.take(key) {
            Some(Json::String(text)) => text,
            _ => String::new(),
        };
        let (name, namespace, uid) = (text("name"), text("namespace"), text("uid"));
        let (rv, created) = (text("resourceVersion").parse().unwrap_or(0), text("creationTimestamp"));
        let generation = fields.get("generation").and_then(Json::as_u64);
        let (labels, annotations) = (string_map(fields.take("labels")), string_map(fields.take("annotations")));
        fields.0.retain(|(key, value)| OTHERS.contains(&key.as_str()) && !matches!(value, Json::Null));
        Self { name, namespace, uid, rv, generation, created, labels, annotations, others: fields }
    }

    /// Returns the storage key, by which lists are ordered.
    pub(crate) fn key(&self) -> String {
        if self.namespace.is_empty() { self.name.clone() } else { format!("{}/{}", self.namespace, self.name) }
    }

    /// Writes the metadata; returns the position of the resourceVersion's digits in `out`.
    fn write(&self, sorted: bool, out: &mut Vec<u8>) -> std::ops::Range<usize> {
        let mut rv_at = 0..0;
        let mut opening = b'{';
        for key in if sorted { SORTED_ORDER } else { STRUCT_ORDER } {
            let present = match key {
                "namespace" => !self.namespace.is_empty(),
                "uid" => !self.uid.is_empty(),
                "generation" => self.generation.is_some(),
                "creationTimestamp" => !self.created.is_empty(),
                "labels" => !self.labels.is_empty(),
                "annotations" => !self.annotations.is_empty(),
                "name" | "resourceVersion" => true,
                _ => self.others.get(key).is_some(),
            };
            if !present {
                continue;
            }
            out.push(opening);
            opening = b',';
            write_string(key, out);
            out.push(b':');
            match key {
                "name" => write_string(&self.name, out),
                "namespace" => write_string(&self.namespace, out),
                "uid" => write_string(&self.uid, out),
                "generation" => out.extend_from_slice(self.generation.unwrap_or(0).to_string().as_bytes()),
                "creationTimestamp" => write_string(&self.created, out),
                "labels" => write_map(&self.labels, out),
                "annotations" => write_map(&self.annotations, out),
                "resourceVersion" => {
                    write_string(&self.rv.to_string(), out);
                    rv_at = out.len() - 1 - self.rv.to_string().len()..out.len() - 1;
                }
                _ => self.others.get(key).unwrap_or(&Json::Null).write(out),
            }
        }
        out.push(b'}');
        rv_at
    }
}

impl StoredObject {
    pub(crate) fn new(kind: &DemoResourceKind, meta: DemoObjectMeta, rest: JsonMembers) -> Self {
        let fields = kind
            .selectable
            .fields
            .iter()
            .map(|(_, path, missing)| {
                let (first, deeper) = path.split_once('.').unwrap_or((path, ""));
                let found =
                    rest.get(first).and_then(|value| if deeper.is_empty() { Some(value) } else { value.at(deeper) });
                found.map_or_else(|| (*missing).to_owned(), Json::selectable)
            })
            .collect();
        let (body, rv_at, type_len) =
            if kind.custom { sorted_body(kind, &meta, rest) } else { struct_body(kind, &meta, rest) };
        Self { meta, body: body.into(), fields, rv_at, type_len }
    }

    /// Returns the object as an element of `items`, in two consecutive parts. Built-in kinds omit their type there.
    pub(crate) fn item(&self) -> (&[u8], &[u8]) {
        (&self.body[..1], &self.body[1 + self.type_len..])
    }

    /// Returns the same bytes with another resourceVersion, as in a DELETED event.
    pub(crate) fn restamped(&self, rv: u64) -> Bytes {
        let mut out = Vec::with_capacity(self.body.len() + 4);
        out.extend_from_slice(&self.body[..self.rv_at.start]);
        out.extend_from_slice(rv.to_string().as_bytes());
        out.extend_from_slice(&self.body[self.rv_at.end..]);
        out.into()
    }

    /// Returns the `PartialObjectMetadata` at this resourceVersion. It uses the struct's order, also for custom
    /// resources.
    pub(crate) fn partial(&self, rv: u64) -> Vec<u8> {
        let mut out = br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#.to_vec();
        DemoObjectMeta { rv, ..self.meta.clone() }.write(false, &mut out);
        out.push(b'}');
        out
    }

    /// Returns all members except type and metadata, parsed from the bytes.
    pub(crate) fn rest(&self) -> JsonMembers {
        let parsed = Json::parse(&self.body).ok().and_then(Json::into_fields);
        let mut fields = parsed.unwrap_or_default();
        fields.0.retain(|(key, _)| !matches!(key.as_str(), "kind" | "apiVersion" | "metadata"));
        fields
    }
}

fn struct_body(
    kind: &DemoResourceKind,
    meta: &DemoObjectMeta,
    mut rest: JsonMembers,
) -> (Vec<u8>, std::ops::Range<usize>, usize) {
    let rank = |key: &str| kind.layout.iter().position(|known| *known == key).unwrap_or(usize::MAX);
    rest.0.sort_by_key(|(key, _)| rank(key));
    let mut out = Vec::with_capacity(3072);
    out.push(b'{');
    write_member("kind", &kind.name.into(), &mut out);
    out.push(b',');
    write_member("apiVersion", &kind.api_version().into(), &mut out);
    out.push(b',');
    let type_len = out.len() - 1;
    out.extend_from_slice(br#""metadata":"#);
    let rv_at = meta.write(false, &mut out);
    for (key, value) in &rest.0 {
        out.push(b',');
        write_member(key, value, &mut out);
    }
    out.push(b'}');
    (out, rv_at, type_len)
}

fn sorted_body(
    kind: &DemoResourceKind,
    meta: &DemoObjectMeta,
    mut rest: JsonMembers,
) -> (Vec<u8>, std::ops::Range<usize>, usize) {
    rest.set("apiVersion", kind.api_version().into());
    rest.set("kind", kind.name.into());
    rest.set("metadata", Json::Null);
    let mut whole = Json::Object(rest);
    whole.sort();
    let mut out = Vec::with_capacity(1024);
    let mut rv_at = 0..0;
    let mut opening = b'{';
    for (key, value) in &whole.into_fields().unwrap_or_default().0 {
        out.push(opening);
        opening = b',';
        if key == "metadata" {
            out.extend_from_slice(br#""metadata":"#);
            rv_at = meta.write(true, &mut out);
        } else {
            write_member(key, value, &mut out);
        }
    }
    out.push(b'}');
    (out, rv_at, 0)
}

fn write_member(key: &str, value: &Json, out: &mut Vec<u8>) {
    write_string(key, out);
    out.push(b':');
    value.write(out);
}

fn write_map(map: &BTreeMap<String, String>, out: &mut Vec<u8>) {
    let mut opening = b'{';
    for (key, value) in map {
        out.push(opening);
        opening = b',';
        write_string(key, out);
        out.push(b':');
        write_string(value, out);
    }
    out.push(b'}');
}

fn string_map(json: Option<Json>) -> BTreeMap<String, String> {
    let fields = json.and_then(Json::into_fields).unwrap_or_default();
    fields.0.into_iter().filter_map(|(key, value)| Some((key, value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::kinds::{KINDS, PODS, by_plural};
    use super::*;

    fn object(kind: usize) -> StoredObject {
        let metadata = br#"{"labels":{"app":"x"},"namespace":"n","name":"a","resourceVersion":"7","uid":"u"}"#;
        let meta = DemoObjectMeta::read(Json::parse(metadata).unwrap().into_fields().unwrap());
        let rest = Json::parse(br#"{"status":{"phase":"Running"},"spec":{"nodeName":"n1","a":1}}"#).unwrap();
        StoredObject::new(&KINDS[kind], meta, rest.into_fields().unwrap())
    }

    #[test]
    fn built_in_kinds_are_serialized_in_struct_order() {
        let pod = object(PODS);
        let tail = concat!(
            r#""metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","labels":{"app":"x"}},"#,
            r#""spec":{"nodeName":"n1","a":1},"status":{"phase":"Running"}}"#
        );
        assert_eq!(pod.body, format!(r#"{{"kind":"Pod","apiVersion":"v1",{tail}"#));
        let (open, rest) = pod.item();
        assert_eq!([open, rest].concat(), format!("{{{tail}").into_bytes());
        assert_eq!(pod.fields[..2], ["n1", "n1"]);
    }

    #[test]
    fn custom_objects_have_sorted_keys_and_accept_a_new_version() {
        let widget = object(by_plural("widgets").unwrap());
        let expected = concat!(
            r#"{"apiVersion":"demo.kube-fanout.io/v1","kind":"Widget","metadata":{"labels":{"app":"x"},"#,
            r#""name":"a","namespace":"n","resourceVersion":"1234","uid":"u"},"#,
            r#""spec":{"a":1,"nodeName":"n1"},"status":{"phase":"Running"}}"#
        );
        assert_eq!(widget.restamped(1234), expected);
    }
}

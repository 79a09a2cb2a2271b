//! A reader for the protobuf that `kubectl create` writes. Its typed client sends simple objects in protobuf, even
//! where it reads JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::json::{Json, JsonMembers};
use super::kinds::DemoResourceKind;

const MAGIC: &[u8] = b"k8s\0";

/// Reads the object in a `k8s\0` envelope. `None` if the kind is not supported or the bytes are not such an envelope.
pub(crate) fn read(kind: &DemoResourceKind, body: &[u8]) -> Option<Json> {
    // The envelope is a runtime.Unknown: its field 1 is the type, field 2 the message.
    let envelope = message(body.strip_prefix(MAGIC)?)?;
    let object = message(find(&envelope, 2)?)?;
    let mut fields = JsonMembers::default();
    fields.set("metadata", metadata(&message(find(&object, 1)?)?)?);
    let (text, encoded) = (|bytes: &[u8]| text(bytes), |bytes: &[u8]| Some(Json::from(STANDARD.encode(bytes))));
    match kind.plural {
        "namespaces" => {}
        "configmaps" => {
            set_map(&mut fields, "data", &object, 2, text)?;
            set_map(&mut fields, "binaryData", &object, 3, encoded)?;
        }
        "secrets" => {
            set_map(&mut fields, "data", &object, 2, encoded)?;
            set_map(&mut fields, "stringData", &object, 4, text)?;
            if let Some(bytes) = find(&object, 3) {
                fields.set("type", text(bytes)?);
            }
        }
        _ => return None,
    }
    Some(Json::Object(fields))
}

fn metadata(object: &[(u64, &[u8])]) -> Option<Json> {
    let mut fields = JsonMembers::default();
    for (number, key) in [(1, "name"), (2, "generateName"), (3, "namespace"), (5, "uid"), (6, "resourceVersion")] {
        if let Some(bytes) = find(object, number).filter(|bytes| !bytes.is_empty()) {
            fields.set(key, text(bytes)?);
        }
    }
    set_map(&mut fields, "labels", object, 11, text)?;
    set_map(&mut fields, "annotations", object, 12, text)?;
    Some(Json::Object(fields))
}

/// Sets a member from a map field, which is a repeated message of a key and a value.
fn set_map(
    fields: &mut JsonMembers,
    key: &str,
    object: &[(u64, &[u8])],
    number: u64,
    value: impl Fn(&[u8]) -> Option<Json>,
) -> Option<()> {
    let mut map = vec![];
    for (_, bytes) in object.iter().filter(|(found, _)| *found == number) {
        let entry = message(bytes)?;
        let name = std::str::from_utf8(find(&entry, 1).unwrap_or_default()).ok()?;
        map.push((name.to_owned(), value(find(&entry, 2).unwrap_or_default())?));
    }
    map.sort_by(|a, b| a.0.cmp(&b.0));
    if !map.is_empty() {
        fields.set(key, Json::Object(JsonMembers(map)));
    }
    Some(())
}

fn text(bytes: &[u8]) -> Option<Json> {
    std::str::from_utf8(bytes).ok().map(Json::from)
}

fn find<'a>(fields: &[(u64, &'a [u8])], number: u64) -> Option<&'a [u8]> {
    fields.iter().find(|(found, _)| *found == number).map(|(_, bytes)| *bytes)
}

/// Returns the length-delimited fields of a message and skips numbers; `None` if it is not well-formed.
fn message(mut bytes: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut fields = vec![];
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let len = match tag & 7 {
            0 => {
                varint(&mut bytes)?;
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (value, rest) = bytes.split_at_checked(len)?;
        if tag & 7 == 2 {
            fields.push((tag >> 3, value));
        }
        bytes = rest;
    }
    Some(fields)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::kinds::{KINDS, by_plural};
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
        out.extend_from_slice(bytes);
        out
    }

    #[test]
    fn config_map_is_decoded_from_its_protobuf_envelope() {
        let metadata = [field(1, b"foo"), field(3, b"default")].concat();
        let entry = [field(1, b"k"), field(2, b"v")].concat();
        let object = [field(1, &metadata), field(2, &entry)].concat();
        let body = [b"k8s\0".to_vec(), field(1, &field(1, b"v1")), field(2, &object), vec![0x1a, 0, 0x22, 0]].concat();
        let kind = &KINDS[by_plural("configmaps").unwrap()];
        let expected = br#"{"metadata":{"name":"foo","namespace":"default"},"data":{"k":"v"}}"#;
        assert_eq!(read(kind, &body).unwrap().to_bytes(), expected);
        for len in 0..body.len() {
            drop(read(kind, &body[..len]));
        }
    }
}

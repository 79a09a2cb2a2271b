//! Decoder of one protobuf object: a field walk that skips everything that a [`PathTrie`] does not select. So its cost
//! does not depend on the object's size.

use std::borrow::Cow;

use super::WireError;
use super::bookmark::INITIAL_EVENTS_END;
use super::object::{DecodedFields, RvSpan, parse_resource_version, sort_labels};
use super::path_trie::{FieldSlots, NodeId, PathTrie};
use super::protobuf::{self, Fields, Value, map_entry};
use kubeapi::{Attributes, FieldKind, FieldTable, ObjectKey, ResourceVersion};

/// The paths that are read from the objects of one feed.
pub(super) struct ProtoPaths {
    trie: PathTrie<u32>,
    fields: Vec<FieldSlots>,
}

/// The fields of an `ObjectMeta` that are read.
#[derive(Default)]
pub(super) struct ProtoMetadata<'a> {
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    resource_version: &'a str,
    labels: Vec<(&'a str, &'a str)>,
    pub(super) initial_events_end: bool,
}

impl ProtoPaths {
    pub(super) fn new(table: &FieldTable) -> Self {
        let mut trie = PathTrie::new();
        let fields = FieldSlots::protobuf(&mut trie, table);
        Self { trie, fields }
    }

    /// Reads the selectable fields of `body` and adds its metadata.
    pub(super) fn reading(&self, body: &[u8], metadata: ProtoMetadata<'_>) -> Result<DecodedFields, WireError> {
        let (rv, rv_at) = metadata.resource_version(body)?;
        let mut values = vec![None; self.trie.slots()];
        // Needed even without selectable fields: the top level has three fields, and the walk detects a truncated body.
        self.walk(PathTrie::<u32>::ROOT, body, &mut values)?;
        let text = |kind, slot: usize| values[slot].map(|value| render(kind, value)).transpose();
        let fields = FieldSlots::values(&self.fields, text)?;
        let ProtoMetadata { name, namespace, mut labels, .. } = metadata;
        sort_labels(&mut labels)?;
        let key = ObjectKey::new(namespace, name);
        Ok(DecodedFields { key, rv, rv_at, attributes: Attributes::new(&labels, &fields) })
    }

    fn walk<'a>(&self, node: NodeId, message: &'a [u8], values: &mut [Option<Value<'a>>]) -> Result<(), WireError> {
        // The bits of the children seen: only the first element of a repeated field counts.
        let mut seen = 0_u64;
        let mut fields = Fields::new(message);
        while let Some(field) = fields.next()? {
            if field.number == OBJECT_METADATA && node == PathTrie::<u32>::ROOT && field.start > 0 {
                return Err(WireError::Protobuf("object with two metadata fields"));
            }
            let Some((bit, child)) = self.trie.child(node, |number| *number == field.number) else { continue };
            if seen & bit != 0 {
                continue;
            }
            seen |= bit;
            if let Some(slot) = self.trie.slot_at(child) {
                values[slot] = Some(field.value);
            }
            if !self.trie.is_leaf(child) {
                self.walk(child, field.bytes()?, values)?;
            }
        }
        Ok(())
    }
}

impl<'a> ProtoMetadata<'a> {
    /// Reads the metadata, which is field 1 of `body` and must come first, as Go writes it.
    pub(super) fn read(body: &'a [u8]) -> Result<Self, WireError> {
        let (at, len) = protobuf::leading_message(body).ok_or(WireError::NoMetadata)?;
        let mut metadata = Self::default();
        let mut fields = Fields::new(&body[at..at + len]);
        while let Some(field) = fields.next()? {
            match field.number {
                META_NAME => metadata.name = field.text()?,
                META_NAMESPACE => metadata.namespace = field.text()?,
                META_RESOURCE_VERSION if !metadata.resource_version.is_empty() => {
                    return Err(WireError::BadResourceVersion);
                }
                META_RESOURCE_VERSION => metadata.resource_version = field.text()?,
                META_LABELS => {
                    metadata.labels.push(map_entry(field.bytes()?)?);
                }
                META_ANNOTATIONS => {
                    // Only bookmarks have it. Comparing the length first is cheaper than passing the event type.
                    let entry = field.bytes()?;
                    metadata.initial_events_end |= entry.len() == INITIAL_EVENTS_END_ENTRY_LEN
                        && map_entry(entry)? == (INITIAL_EVENTS_END, "true");
                }
                _ => {}
            }
        }
        Ok(metadata)
    }

    fn resource_version(&self, body: &[u8]) -> Result<(ResourceVersion, RvSpan), WireError> {
        let digits = self.resource_version;
        let rv = parse_resource_version(digits)?;
        let at = digits.as_ptr().addr() - body.as_ptr().addr();
        let len = u8::try_from(digits.len()).map_err(|_| WireError::BadResourceVersion)?;
        // Re-stamping rewrites the single length byte before the digits. That byte follows the tag; a longer encoding
        // of the same length would have a continuation byte in between.
        let header = at.checked_sub(2).and_then(|header| body.get(header..at));
        if header != Some(&[RESOURCE_VERSION_TAG, len]) {
            return Err(WireError::BadResourceVersion);
        }
        Ok((rv, RvSpan { offset: u32::try_from(at).map_err(|_| WireError::BadResourceVersion)?, len }))
    }
}

/// Returns a selectable field's text (R-FIELD-4).
fn render(kind: FieldKind, value: Value<'_>) -> Result<Cow<'_, str>, WireError> {
    Ok(match (kind, value) {
        (FieldKind::Text | FieldKind::Any, Value::Bytes(bytes)) => protobuf::text(bytes)?.into(),
        (FieldKind::Bool, Value::Varint(bit)) => if bit != 0 { "true" } else { "false" }.into(),
        (FieldKind::Integer | FieldKind::Any, Value::Varint(number)) => number.cast_signed().to_string().into(),
        _ => return Err(WireError::Protobuf("selectable field of an unexpected type")),
    })
}

/// The field number of the metadata in every top-level kind.
const OBJECT_METADATA: u32 = 1;

/// The field numbers of `ObjectMeta`.
pub(super) const META_NAME: u32 = 1;
pub(super) const META_NAMESPACE: u32 = 3;
pub(super) const META_RESOURCE_VERSION: u32 = 6;
pub(super) const META_LABELS: u32 = 11;
pub(super) const META_ANNOTATIONS: u32 = 12;
const RESOURCE_VERSION_TAG: u8 = protobuf::tag(6);

/// The length of the key and the value, each with tag and length.
const INITIAL_EVENTS_END_ENTRY_LEN: usize = 2 + INITIAL_EVENTS_END.len() + 2 + "true".len();

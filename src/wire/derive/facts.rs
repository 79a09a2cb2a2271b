//! The table: how the API's types are laid out in both encodings, one [`Facts`] per minor of Kubernetes.
//!
//! `facts/facts.txt` is generated from the published Go modules by `make facts` (tests/facts), because no other source
//! has all of it: the `.proto` files know neither omitempty nor the order of the JSON, and not always its names
//! (R-DERIVE-5). Lines, after `minors: FIRST LAST`:
//!
//! ```text
//! kind: apps/v1 Deployment apps/v1.Deployment
//! message: apps/v1.DeploymentSpec
//! replicas 1 int32 ep
//! JSON-NAME NUMBER TYPE[:MESSAGE] FLAGS [SINCE-UNTIL]
//! ```
//!
//! Fields are in Go's order of declaration, which is that of the JSON. Flags: `e` omitempty, `z` omitzero, `p` pointer,
//! `r` repeated, `m` map with text keys, `i` embedded; `-` none. Without a range, a line holds for every minor.

mod parse;

use std::ops::RangeInclusive;
use std::sync::OnceLock;

/// The types of one minor.
pub(super) struct Facts {
    kinds: Vec<ObjectKind>,
    messages: Vec<Message>,
    object_meta: MessageId,
}

/// One line of the kinds.
struct ObjectKind {
    api_version: &'static str,
    kind: &'static str,
    message: MessageId,
}

/// An index into the messages of the same [`Facts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MessageId(u16);

/// One message, its fields in the order of its JSON.
#[derive(Default)]
pub(super) struct Message {
    pub(super) fields: Vec<FieldFact>,
    /// Field number → index into `fields`, or [`NONE`].
    by_number: Vec<u8>,
}

/// One field in both encodings.
pub(super) struct FieldFact {
    /// `,"name":`
    key: Box<[u8]>,
    pub(super) name: &'static str,
    pub(super) kind: ValueKind,
    pub(super) arity: Arity,
    /// Left out although it is on the wire.
    pub(super) omit: Omit,
    pub(super) absent: Absent,
    /// Written at the beginning of each element: what only a hand-written conversion puts there.
    pub(super) element_head: &'static [u8],
}

/// The kind of one value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ValueKind {
    Bool,
    Int32,
    Int64,
    Double,
    Text,
    Bytes,
    /// A message of strings, an array in JSON: `ExtraValue`.
    Strings,
    Time,
    MicroTime,
    Duration,
    Quantity,
    IntOrString,
    /// `RawExtension`, `FieldsV1` and JSON: a message with JSON as its bytes.
    Raw,
    /// `JSONSchemaPropsOrBool` and the other two unions of schemas.
    OrBool(MessageId),
    OrArray(MessageId),
    OrStrings(MessageId),
    Message(MessageId),
}

/// How many values there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arity {
    One,
    Pointer,
    Many,
    Map,
    /// One message, whose fields are the parent's in JSON.
    Embedded,
}

/// When a singular field that is on the wire is left out of the JSON.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Omit {
    Never,
    /// omitempty, which counts for scalars and not for structs.
    ZeroScalar,
    /// omitzero, which `ObjectMeta.creationTimestamp` has since 1.34.
    ZeroTime,
}

/// The JSON of a field that is not on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Absent {
    /// omitempty; or a singular field, which the server's encoder always writes: the server has no such field.
    Nothing,
    Null,
    /// The items of a list, which are made from an empty slice, not from none.
    EmptyList,
    /// `null` or `[]`: see [`RefusalReason::NilOrEmpty`](super::RefusalReason::NilOrEmpty).
    Ambiguous,
}

/// Whether Kubernetes itself defines types of this group and version, in any minor of the table.
pub fn is_of_kubernetes(api_version: &str) -> bool {
    let kinds = TEXT.lines().filter_map(|line| line.strip_prefix("kind: "));
    kinds.filter_map(|kind| kind.split_once(' ')).any(|(known, _)| known == api_version)
}

impl Facts {
    /// The facts of release `1.minor`, if the table has it.
    pub(super) fn of(minor: u32) -> Option<&'static Self> {
        static TABLES: [OnceLock<Facts>; MINORS_MAX] = [const { OnceLock::new() }; MINORS_MAX];
        let minors = Self::minors();
        let table = TABLES.get(usize::try_from(minor.checked_sub(*minors.start())?).ok()?)?;
        minors.contains(&minor).then(|| table.get_or_init(|| parse::facts(TEXT, minor)))
    }

    /// The facts of the newest release in the table.
    pub(super) fn newest() -> &'static Self {
        Self::of(*Self::minors().end()).expect("the table has its own minors")
    }

    /// The releases in the table.
    pub(super) fn minors() -> RangeInclusive<u32> {
        static MINORS: OnceLock<RangeInclusive<u32>> = OnceLock::new();
        MINORS.get_or_init(|| parse::minors(TEXT)).clone()
    }

    /// The message that `kind` of `api_version` is, if it is one of the API's own and has a protobuf form.
    pub(super) fn kind(&self, api_version: &str, kind: &str) -> Option<&Message> {
        let known = self.kinds.iter().find(|known| known.kind == kind && known.api_version == api_version)?;
        Some(self.message(known.message))
    }

    /// The metadata of every object.
    pub(super) fn object_meta(&self) -> &Message {
        self.message(self.object_meta)
    }

    pub(super) fn message(&self, id: MessageId) -> &Message {
        &self.messages[usize::from(id.0)]
    }
}

impl Message {
    /// The place in `fields` of the field with this number.
    #[inline]
    pub(super) fn index_of(&self, number: u32) -> Option<u8> {
        let index = *self.by_number.get(usize::try_from(number).ok()?)?;
        (index != NONE).then_some(index)
    }
}

impl FieldFact {
    /// `,"name":`, or without its comma.
    #[inline]
    pub(super) fn key(&self, comma: bool) -> &[u8] {
        &self.key[usize::from(!comma)..]
    }
}

const TEXT: &str = include_str!("facts/facts.txt");
/// Room for the minors of the table; parsing it fails when it has more.
const MINORS_MAX: usize = 8;
/// In [`Message::by_number`]: no such field.
const NONE: u8 = u8::MAX;

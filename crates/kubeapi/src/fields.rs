/// The selectable fields of one resource: which keys a field selector may name, and where their values are.
///
/// Source: R-FIELD-4 to R-FIELD-6. `metadata.name` and `metadata.namespace` are not stored: they are the object's key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldTable {
    /// Fields whose value is read from each object, in the order of [`Attributes::fields`](super::Attributes::fields).
    pub fields: Vec<FieldRule>,
    /// Accepted keys that mean another one: `spec.host` is `spec.nodeName`.
    pub aliases: Vec<(String, String)>,
    /// Accepted keys that no object ever has: they compare as `""`.
    pub absent: Vec<String>,
    /// Whether `metadata.namespace` is an accepted key.
    pub namespace_key: bool,
}

impl FieldTable {
    /// Where `key` is in [`fields`](Self::fields), and its value in [`Attributes::fields`](super::Attributes::fields).
    pub fn position(&self, key: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.key == key)
    }
}

/// One selectable field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRule {
    /// The selector key: `spec.nodeName`.
    pub key: String,
    /// Where it is in JSON, tried in order; the first that is present and not empty wins. In a built-in resource a step
    /// `0` is the first element of an array: `["status", "podIPs", "0", "ip"]`.
    pub json: Vec<Vec<String>>,
    /// The same places by protobuf field numbers (first element for repeated fields), parallel to `json`. Empty for
    /// custom resources, which have no protobuf form.
    pub proto: Vec<Vec<u32>>,
    pub kind: FieldKind,
}

/// How a field's value turns into the text that selectors compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// As it is.
    Text,
    /// `true` or `false`; absent is `false`.
    Bool,
    /// Decimal; absent is `0`.
    Integer,
    /// A custom resource's field: text as it is, numbers and booleans in their JSON spelling, absent is `""`.
    Any,
}

impl FieldKind {
    /// The text of a field that the object lacks.
    pub fn absent_text(self) -> &'static str {
        match self {
            Self::Text | Self::Any => "",
            Self::Bool => "false",
            Self::Integer => "0",
        }
    }
}

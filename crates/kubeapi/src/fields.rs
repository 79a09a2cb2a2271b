/// The selectable fields of one resource: the keys that a field selector may name, and the paths of their values.
///
/// Source: R-FIELD-4 to R-FIELD-6. `metadata.name` and `metadata.namespace` are not stored: they are the object's key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SelectableFieldTable {
    /// The fields whose value is read from each object, in the order of
    /// [`SelectableAttributes::fields`](super::SelectableAttributes::fields).
    pub fields: Vec<SelectableFieldSpec>,
    /// The aliases of accepted keys: `spec.host` means `spec.nodeName`.
    pub aliases: Vec<(String, String)>,
    /// The accepted keys that no object has: they compare as `""`.
    pub absent: Vec<String>,
    /// Whether `metadata.namespace` is an accepted key.
    pub namespace_key: bool,
}

impl SelectableFieldTable {
    /// Returns the position of `key` in [`fields`](Self::fields), and of its value in
    /// [`SelectableAttributes::fields`](super::SelectableAttributes::fields).
    pub fn position(&self, key: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.key == key)
    }
}

/// One selectable field of a resource, and where its value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectableFieldSpec {
    /// The key of the field in selectors, such as `spec.nodeName`.
    pub key: String,
    /// The JSON paths of the value, in order: the first value that is present and not empty applies. In a built-in
    /// resource, a step `0` is the first element of an array: `["status", "podIPs", "0", "ip"]`.
    pub json: Vec<Vec<String>>,
    /// The paths in `json` as protobuf field numbers (first element of repeated fields). Empty for custom resources,
    /// which have no protobuf form.
    pub proto: Vec<Vec<u32>>,
    pub kind: FieldValueKind,
}

/// The conversion of a field's value to the text that selectors compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValueKind {
    /// The value is used unchanged.
    Text,
    /// The value is a boolean, `true` or `false`; an absent one is `false`.
    Bool,
    /// The value is a decimal number; an absent one is `0`.
    Integer,
    /// The value is that of a custom resource's field: text unchanged, numbers and booleans in their JSON spelling,
    /// absent is `""`.
    Any,
}

impl FieldValueKind {
    /// Returns the text of a field that the object lacks.
    pub fn absent_text(self) -> &'static str {
        match self {
            Self::Text | Self::Any => "",
            Self::Bool => "false",
            Self::Integer => "0",
        }
    }
}

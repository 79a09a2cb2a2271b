use kubeapi::protobuf::ProtobufError;

/// A body that cannot be written in another encoding, with the field that prevents it. Nothing of the body was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {reason}", if path.is_empty() { "the object" } else { "" }, path)]
pub struct TranscodeError {
    /// The path of JSON names from the object down, such as `spec.containers.ports`; empty for the object itself.
    pub path: String,
    pub reason: TranscodeRefusal,
}

/// The reason that a field cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TranscodeRefusal {
    /// The field does not exist in the server's release: the server is a newer one, or a fork.
    #[error("unknown protobuf field number {0}")]
    UnknownField(u32),
    /// The data is not a message, or not one that the apiserver's encoder writes.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// The data is well-formed, but not a value of the field's type.
    #[error("invalid value: {0}")]
    Value(&'static str),
    /// The field is absent on the wire. Kinds that are stored as JSON keep `[]` apart from `null`, and protobuf does
    /// not.
    #[error("an empty list cannot be told apart from a missing one in protobuf")]
    NilOrEmpty,
    /// Messages or JSON values are nested deeper than any that an apiserver serves.
    #[error("values are nested too deeply")]
    TooDeep,
    /// The JSON would be much larger than that of any valid body of the same size.
    #[error("the JSON form exceeds the limit of {0} bytes")]
    TooLarge(usize),
}

impl TranscodeError {
    /// Creates a refusal. `path` is ordered from the innermost field outwards.
    pub(in crate::wire) fn new(path: &[&'static str], why: TranscodeRefusal) -> Self {
        let names: Vec<_> = path.iter().rev().copied().collect();
        Self { path: names.join("."), reason: why }
    }
}

impl From<ProtobufError> for TranscodeRefusal {
    fn from(error: ProtobufError) -> Self {
        Self::Malformed(match error {
            ProtobufError::Malformed(what) => what,
            ProtobufError::Truncated => "truncated field",
        })
    }
}

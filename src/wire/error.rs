use kubeapi::StatusDecodeError;
use kubeapi::protobuf::ProtobufError;

/// Reason why bytes from upstream were rejected. Nothing of the rejected frame or page has been applied.
///
/// After any of these errors the stream is unusable: the rest of a watch cannot be interpreted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The stream ended inside a frame, or a document is shorter than its own length fields say.
    #[error("the data ends in the middle of a frame")]
    Truncated,
    /// A watch frame exceeds the limit given to [`FrameSplitter::new`](super::FrameSplitter::new), or an object is 4
    /// GiB or more.
    #[error("a frame is larger than {max} bytes")]
    FrameTooLarge { max: usize },
    /// Not JSON, more than one JSON value, a field of the wrong type, or a duplicate of a key that is read.
    #[error("malformed JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A JSON document is not UTF-8.
    #[error("JSON is not valid UTF-8")]
    NotUtf8,
    /// JSON nested deeper than Go's decoder accepts (10,000 levels), which no apiserver can produce.
    #[error("JSON is nested deeper than 10000 levels")]
    TooDeep,
    /// Not a protobuf message, or its fields contradict the API's definitions.
    #[error("malformed protobuf: {0}")]
    Protobuf(&'static str),
    /// Well-formed, but not laid out as the apiserver does: cutting and rejoining it would not give the same bytes.
    #[error("unexpected layout: {0}")]
    Layout(&'static str),
    /// The object has no `metadata`.
    #[error("the object has no metadata")]
    NoMetadata,
    /// `metadata.name` is missing or empty, or name or namespace contains `/` (it would be ambiguous as a key).
    #[error("the object has no valid name or namespace")]
    BadName,
    /// A resourceVersion is missing, empty, `0`, not a canonical decimal `u64`, or not where it can be re-stamped.
    #[error("missing or invalid resourceVersion")]
    BadResourceVersion,
    /// The type of a watch event is not one of the API's five.
    #[error("unknown watch event type")]
    UnknownEventType,
    /// JSON where protobuf was expected, or the reverse.
    #[error("the data is not in the negotiated encoding")]
    WrongForm,
    /// An object of another kind than [`ObjectReader::expecting`](super::ObjectReader::expecting) named.
    #[error("the object is of another kind than the feed")]
    WrongKind,
    /// A Table with other columns than those before it.
    #[error("the columns of the Table changed")]
    OtherColumns,
}

impl From<ProtobufError> for WireError {
    fn from(error: ProtobufError) -> Self {
        match error {
            ProtobufError::Truncated => Self::Truncated,
            ProtobufError::Malformed(what) => Self::Protobuf(what),
        }
    }
}

impl From<StatusDecodeError> for WireError {
    fn from(error: StatusDecodeError) -> Self {
        match error {
            StatusDecodeError::Json(error) => Self::Json(error),
            StatusDecodeError::Protobuf(error) => error.into(),
            StatusDecodeError::OtherKind(_) => Self::WrongKind,
        }
    }
}

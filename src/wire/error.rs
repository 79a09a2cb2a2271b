use kubeapi::StatusDecodeError;
use kubeapi::protobuf::ProtobufError;

/// The reason that bytes from upstream were rejected. Nothing of the rejected frame or page has been applied.
///
/// After any of these errors the stream is unusable: the rest of a watch cannot be interpreted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The stream ended inside a frame, or a document is shorter than its own length fields say.
    #[error("the response ends in the middle of a frame")]
    Truncated,
    /// A watch frame exceeds the limit given to [`FrameSplitter::new`](super::FrameSplitter::new), the Status in an
    /// ERROR event is larger than 1 MiB, or an object is 4 GiB or more.
    #[error("a watch frame or object is larger than {max} bytes")]
    FrameTooLarge { max: usize },
    /// The data is not JSON, has more than one JSON value, a field of the wrong type, or a duplicate of a key that is
    /// read.
    #[error("malformed JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A JSON document is not UTF-8.
    #[error("the JSON is not valid UTF-8")]
    NotUtf8,
    /// The JSON is nested deeper than Go's decoder accepts (10,000 levels), which no apiserver can produce.
    #[error("the JSON is nested deeper than 10000 levels")]
    TooDeep,
    /// The data is not a protobuf message, or its fields contradict the API's definitions.
    #[error("malformed protobuf: {0}")]
    Protobuf(&'static str),
    /// The data is well-formed, but its layout differs from the apiserver's, so splitting and rejoining it would not
    /// give the same bytes.
    #[error("unexpected layout of upstream's data: {0}")]
    Layout(&'static str),
    /// The object has no `metadata`.
    #[error("the object has no metadata")]
    NoMetadata,
    /// `metadata.name` is missing or empty, or name or namespace contains `/` (it would be ambiguous as a key).
    #[error("the object has no valid name or namespace")]
    BadName,
    /// A resourceVersion is missing, empty, `0`, not a canonical decimal `u64`, or at a place where it cannot be
    /// replaced.
    #[error("missing or invalid resourceVersion")]
    BadResourceVersion,
    /// The type of a watch event is not one of the API's five.
    #[error("upstream sent an unknown watch event type")]
    UnknownEventType,
    /// The data is JSON where protobuf was expected, or the reverse.
    #[error("the response is not in the negotiated encoding")]
    WrongEncoding,
    /// The object is of another kind than [`ObjectReader::with_kind`](super::ObjectReader::with_kind) named.
    #[error("the object is of another kind than the feed")]
    WrongKind,
    /// The Table has other columns than those before it.
    #[error("upstream changed the Table's columns; the feed restarts")]
    OtherColumns,
    /// The compressed body is not gzip, is incomplete, or its checksum is wrong.
    #[error("malformed gzip data")]
    Gzip,
    /// A difference between proxies cannot be applied.
    #[error("cannot apply the difference to an earlier version: {0}")]
    Delta(#[from] DeltaError),
}

/// The reason that a difference was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    #[error("malformed")]
    Malformed,
    /// The receiver does not have the base in that version.
    #[error("unknown base")]
    UnknownBase,
    /// The result is not the frame that was sent, so sender and receiver have different bytes for the base.
    #[error("wrong digest")]
    WrongDigest,
}

impl DeltaError {
    /// Returns the reason as a metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "delta_malformed",
            Self::UnknownBase => "delta_unknown_base",
            Self::WrongDigest => "delta_wrong_digest",
        }
    }
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

use std::fmt;

/// The encoding in which a feed is fetched and served verbatim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Encoding {
    /// JSON as Go's `encoding/json` writes it, compact.
    Json,
    /// Protobuf, for built-in kinds only: custom resources have no protobuf encoding.
    Protobuf,
    /// Table rows as printed by upstream, each with its whole object, in JSON.
    Table,
}

/// The apiserver's layout of one resource's JSON. Protobuf has one layout and ignores it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JsonLayout {
    /// The layout of Go structs: declaration order, `TypeMeta` first, and list items without `TypeMeta`.
    BuiltIn,
    /// The layout of custom resources: keys sorted at every level, and list items with `TypeMeta` (R-JSON-4).
    Custom,
}

impl Encoding {
    /// Returns the encoding of the bytes: a Table is JSON.
    #[must_use]
    pub fn byte_encoding(self) -> Self {
        match self {
            Self::Json | Self::Table => Self::Json,
            Self::Protobuf => Self::Protobuf,
        }
    }

    /// Returns `json`, `protobuf` or `table`, for logs, metric labels and configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Protobuf => "protobuf",
            Self::Table => "table",
        }
    }

    /// Returns the exact `Content-Type` of GET, LIST and error responses (R-TYPE-1).
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json | Self::Table => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// Returns the `Content-Type` of watch responses. For JSON it has no `;stream=watch`, even if the client requested
    /// that (R-TYPE-1).
    pub fn watch_media_type(self) -> &'static str {
        match self {
            Self::Json | Self::Table => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }

    /// Returns the encoding of an *upstream* response from its `Content-Type`; `None` for other media types. It ignores
    /// parameters, except that `as=`, which upstream sends for discovery only, yields `None`.
    pub fn from_content_type(value: &str) -> Option<Self> {
        let mut parts = value.split(';').map(str::trim);
        let media_type = parts.next()?;
        let converted = |part: &str| part.split_once('=').is_some_and(|(key, _)| key.trim().eq_ignore_ascii_case("as"));
        if parts.any(converted) {
            return None;
        }
        [Self::Json, Self::Protobuf].into_iter().find(|encoding| media_type.eq_ignore_ascii_case(encoding.media_type()))
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

use std::fmt;

/// The encoding a feed is fetched in and served in, verbatim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Encoding {
    /// Go's `byte_encoding/json`, compact.
    Json,
    /// Built-in kinds only: custom resources have no protobuf form.
    Protobuf,
    /// The rows that upstream prints of them, each with its whole object, in JSON.
    Table,
}

/// How the apiserver lays out one resource's JSON. Protobuf has one layout, and ignores this.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JsonLayout {
    /// Go structs: declaration order, `TypeMeta` first, and list items without `TypeMeta`.
    BuiltIn,
    /// Custom resources: keys sorted at every level, and list items with `TypeMeta` (R-JSON-4).
    Custom,
}

impl Encoding {
    /// The encoding of its bytes: a Table is JSON.
    #[must_use]
    pub fn byte_encoding(self) -> Self {
        match self {
            Self::Json | Self::Table => Self::Json,
            Self::Protobuf => Self::Protobuf,
        }
    }

    /// `json`, `protobuf` or `table`: for logs, metric labels and configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Protobuf => "protobuf",
            Self::Table => "table",
        }
    }

    /// The `Content-Type` of GET, LIST and error answers, to the byte (R-TYPE-1).
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json | Self::Table => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// The `Content-Type` of watch answers. JSON has no `;stream=watch` there, even if it was asked for (R-TYPE-1).
    pub fn watch_media_type(self) -> &'static str {
        match self {
            Self::Json | Self::Table => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }

    /// The encoding of an *upstream* answer, from its `Content-Type`. Parameters are ignored, except that `as=`, which
    /// upstream puts on discovery only, is no encoding of a resource. `None` for every other media type.
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

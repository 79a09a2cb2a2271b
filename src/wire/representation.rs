use std::fmt;

use kubeapi::MetaApiVersion;

base::labelled_enum! {
    /// The encoding in which a feed is fetched and served verbatim.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
    pub enum FeedEncoding {
        /// JSON as Go's `encoding/json` writes it, compact.
        Json = "json",
        /// Protobuf, for built-in kinds only: custom resources have no protobuf encoding.
        Protobuf = "protobuf",
        /// Table rows as printed by upstream, each with its whole object, in JSON.
        Table = "table",
    }
}

/// The apiserver's layout of one resource's JSON. Protobuf has one layout and ignores it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JsonLayout {
    /// The layout of Go structs: declaration order, `TypeMeta` first, and list items without `TypeMeta`.
    BuiltIn,
    /// The layout of custom resources: keys sorted at every level, and list items with `TypeMeta` (R-JSON-4).
    Custom,
}

impl FeedEncoding {
    /// Returns the encoding of the bytes: a Table is JSON.
    #[must_use]
    pub fn byte_encoding(self) -> Self {
        match self {
            Self::Json | Self::Table => Self::Json,
            Self::Protobuf => Self::Protobuf,
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

impl fmt::Display for FeedEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The representation of a response's objects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Representation {
    /// The objects themselves, in this encoding.
    Object(FeedEncoding),
    /// The objects' `PartialObjectMetadata`, for metadata-only clients.
    Metadata(FeedEncoding, MetaApiVersion),
    /// The objects, or their metadata of this version, without the fields that the client leaves out:
    /// `metadata.managedFields`.
    Reduced(FeedEncoding, Option<MetaApiVersion>),
    /// A `Table` of `meta.k8s.io/v1`, for kubectl's output, with rows from upstream.
    Table(IncludeObjectPolicy),
    /// A `Table` that the proxy prints from objects, at the time of the request.
    Printed(IncludeObjectPolicy),
}

base::labelled_enum! {
    /// The part of its object that a row of a Table contains, as a request chooses with `includeObject`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
    pub enum IncludeObjectPolicy {
        None = "None",
        Metadata = "Metadata",
        Object = "Object",
    }
}

impl Representation {
    /// All representations of objects.
    #[cfg(test)]
    pub const ALL: [Self; 18] = [
        Self::Object(FeedEncoding::Json),
        Self::Object(FeedEncoding::Protobuf),
        Self::Metadata(FeedEncoding::Json, MetaApiVersion::V1),
        Self::Metadata(FeedEncoding::Protobuf, MetaApiVersion::V1),
        Self::Metadata(FeedEncoding::Json, MetaApiVersion::V1beta1),
        Self::Metadata(FeedEncoding::Protobuf, MetaApiVersion::V1beta1),
        Self::Reduced(FeedEncoding::Json, None),
        Self::Reduced(FeedEncoding::Protobuf, None),
        Self::Reduced(FeedEncoding::Json, Some(MetaApiVersion::V1)),
        Self::Reduced(FeedEncoding::Protobuf, Some(MetaApiVersion::V1)),
        Self::Reduced(FeedEncoding::Json, Some(MetaApiVersion::V1beta1)),
        Self::Reduced(FeedEncoding::Protobuf, Some(MetaApiVersion::V1beta1)),
        Self::Printed(IncludeObjectPolicy::None),
        Self::Printed(IncludeObjectPolicy::Metadata),
        Self::Printed(IncludeObjectPolicy::Object),
        Self::Table(IncludeObjectPolicy::None),
        Self::Table(IncludeObjectPolicy::Metadata),
        Self::Table(IncludeObjectPolicy::Object),
    ];

    /// The maximum number of representations of one feed's objects.
    pub const COUNT: usize = 15;

    /// Returns the representation of received bodies in a feed of this encoding.
    pub fn verbatim(encoding: FeedEncoding) -> Self {
        match encoding {
            FeedEncoding::Json | FeedEncoding::Protobuf => Self::Object(encoding),
            FeedEncoding::Table => Self::Table(IncludeObjectPolicy::Object),
        }
    }

    /// Returns the same representation without the fields that a client leaves out. A Table has no such form.
    #[must_use]
    pub fn reduced(self) -> Self {
        match self {
            Self::Object(encoding) => Self::Reduced(encoding, None),
            Self::Metadata(encoding, version) => Self::Reduced(encoding, Some(version)),
            Self::Reduced(..) | Self::Table(_) | Self::Printed(_) => self,
        }
    }

    /// Returns the same representation with all fields.
    #[must_use]
    pub fn full(self) -> Self {
        match self {
            Self::Reduced(encoding, None) => Self::Object(encoding),
            Self::Reduced(encoding, Some(version)) => Self::Metadata(encoding, version),
            full => full,
        }
    }

    /// Returns the representation of the cached objects that it is written from at the time of a request.
    #[must_use]
    pub fn unprinted(self) -> Self {
        if matches!(self, Self::Printed(_)) { Self::Object(FeedEncoding::Json) } else { self }
    }

    /// Returns the encoding, which is JSON or protobuf.
    pub fn encoding(self) -> FeedEncoding {
        match self {
            Self::Object(encoding) | Self::Metadata(encoding, _) | Self::Reduced(encoding, _) => {
                encoding.byte_encoding()
            }
            Self::Table(_) | Self::Printed(_) => FeedEncoding::Json,
        }
    }

    /// Returns the index of the representation among those of one feed's objects. Tables are derived from rows, and
    /// rows yield nothing else, so the two groups share indices.
    pub fn index(self) -> usize {
        let encoding = usize::from(self.encoding() == FeedEncoding::Protobuf);
        match self {
            Self::Object(_) => encoding,
            Self::Metadata(_, MetaApiVersion::V1) => 2 + encoding,
            Self::Metadata(_, MetaApiVersion::V1beta1) => 4 + encoding,
            Self::Reduced(..) => 6 + self.full().index(),
            Self::Table(include) => include as usize,
            Self::Printed(include) => 12 + include as usize,
        }
    }

    /// Returns the name for logs and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Object(encoding) => encoding.as_str(),
            Self::Metadata(FeedEncoding::Protobuf, MetaApiVersion::V1) => "metadata_protobuf",
            Self::Metadata(_, MetaApiVersion::V1) => "metadata_json",
            Self::Metadata(FeedEncoding::Protobuf, MetaApiVersion::V1beta1) => "metadata_v1beta1_protobuf",
            Self::Metadata(_, MetaApiVersion::V1beta1) => "metadata_v1beta1_json",
            Self::Reduced(FeedEncoding::Protobuf, None) => "reduced_protobuf",
            Self::Reduced(_, None) => "reduced_json",
            Self::Reduced(FeedEncoding::Protobuf, Some(_)) => "reduced_metadata_protobuf",
            Self::Reduced(_, Some(_)) => "reduced_metadata_json",
            Self::Table(IncludeObjectPolicy::None) | Self::Printed(IncludeObjectPolicy::None) => "table_none",
            Self::Table(IncludeObjectPolicy::Metadata) | Self::Printed(IncludeObjectPolicy::Metadata) => "table",
            Self::Table(IncludeObjectPolicy::Object) | Self::Printed(IncludeObjectPolicy::Object) => "table_object",
        }
    }

    /// Returns the `Accept` header that requests the representation from upstream, for lists or for single objects.
    pub fn accept(self, list: bool) -> String {
        let media_type = self.encoding().media_type();
        match self {
            Self::Object(_) => media_type.to_owned(),
            Self::Metadata(_, version) => {
                let list = if list { "List" } else { "" };
                format!("{media_type};as=PartialObjectMetadata{list};g=meta.k8s.io;v={}", version.as_str())
            }
            Self::Reduced(..) => self.full().accept(list),
            Self::Table(_) | Self::Printed(_) => TABLE_ACCEPT.to_owned(),
        }
    }
}

impl fmt::Display for Representation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl IncludeObjectPolicy {
    /// Parses `includeObject`; absent and empty mean metadata. `None` for values that upstream rejects.
    pub fn parse(value: &str) -> Option<Self> {
        match value {
            "None" => Some(Self::None),
            "" | "Metadata" => Some(Self::Metadata),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

/// The `Accept` header that requests a Table, for a list or a single object.
pub const TABLE_ACCEPT: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn representations_of_one_feed_have_distinct_slots() {
        let is_table = |representation: &Representation| matches!(representation, Representation::Table(_));
        for tables in [false, true] {
            let of_one_feed = Representation::ALL.into_iter().filter(|one| is_table(one) == tables);
            for (place, representation) in of_one_feed.enumerate() {
                assert_eq!(representation.index(), place, "{representation}");
                assert!(place < Representation::COUNT, "{representation}");
            }
        }
    }

    #[test]
    fn metadata_accept_header_names_kind_group_and_version() {
        let json = Representation::Metadata(FeedEncoding::Json, MetaApiVersion::V1beta1);
        assert_eq!(json.accept(true), "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1");
        let protobuf = Representation::Metadata(FeedEncoding::Protobuf, MetaApiVersion::V1);
        assert_eq!(
            protobuf.accept(false),
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
        );
        assert_eq!(Representation::Object(FeedEncoding::Json).accept(true), "application/json");
    }
}

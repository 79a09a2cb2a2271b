use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The media type of requested objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectEncoding {
    Json,
    Protobuf,
    Metadata,
    MetadataProtobuf,
    Table,
}

const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const METADATA_PROTOBUF: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_PROTOBUF_LIST: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PROTOBUF_STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

impl ObjectEncoding {
    /// Returns the Accept header of a watch.
    pub(super) fn of_watch(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => PROTOBUF_STREAM,
            Self::Metadata => METADATA,
            Self::MetadataProtobuf => METADATA_PROTOBUF,
            Self::Table => TABLE,
        }
    }

    /// Returns the Accept header of a LIST.
    pub(super) fn of_list(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => PROTOBUF,
            Self::Metadata => METADATA_LIST,
            Self::MetadataProtobuf => METADATA_PROTOBUF_LIST,
            Self::Table => TABLE,
        }
    }

    pub(super) fn is_protobuf(self) -> bool {
        matches!(self, Self::Protobuf | Self::MetadataProtobuf)
    }
}

/// Which objects a watch selects. The values of the watches are spread over those of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelectorKind {
    All,
    Namespace,
    Node,
    Name,
    Label,
}

/// The kind of objects that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadObjectKind {
    Pod,
    Configmap,
    /// A kind without a watch cache upstream.
    Event,
    /// A kind without namespaces.
    Node,
}

impl WorkloadObjectKind {
    pub(super) fn collection(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Configmap => "configmaps",
            Self::Event => "events",
            Self::Node => "nodes",
        }
    }
}

/// How an object is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteMethod {
    /// The writer sends a merge patch of one annotation. The request is small; the server reads, merges and writes.
    Patch,
    /// The writer sends the whole object, as the server returned it.
    Put,
}

/// A burst of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestStormKind {
    /// A storm of informers that all start at the same moment.
    Join,
    /// A storm of full LISTs.
    List,
    /// A storm in which all connections are closed, and the watches resume at their positions.
    Resume,
    /// A storm of small GETs.
    Get,
}

/// The position at which a measured watch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchStartMode {
    /// The watch starts at a recent version, which is requested once for all watches.
    Now,
    /// The watch starts with the existing objects, in the stream.
    WatchList,
    /// The watch starts with a LIST of its own.
    List,
}

/// A rate of writes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WriteRate {
    PerSecond(f64),
    /// The writers send as fast as they can.
    Max,
}

impl Serialize for WriteRate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::PerSecond(rate) => serializer.serialize_f64(*rate),
            Self::Max => serializer.serialize_str("max"),
        }
    }
}

impl<'de> Deserialize<'de> for WriteRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum WriteRateValue {
            Number(f64),
            Text(String),
        }
        let wrong = || serde::de::Error::custom("expected writes per second, or max");
        match WriteRateValue::deserialize(deserializer).map_err(|_| wrong())? {
            WriteRateValue::Number(rate) => Ok(Self::PerSecond(rate)),
            WriteRateValue::Text(text) if text == "max" => Ok(Self::Max),
            WriteRateValue::Text(text) => text.parse().map(Self::PerSecond).map_err(|_| wrong()),
        }
    }
}

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::auth::AuthMode;
use crate::net::Http2Codec;
use crate::serve::{Consistency, Sensitive};

/// The format version of the file.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) enum ApiVersion {
    #[serde(rename = "kube-fanout.io/v1alpha1")]
    V1Alpha1,
}

/// The kind of the file.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) enum Kind {
    Configuration,
}

/// Values of `auth`.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum AuthValue {
    None,
    Delegated,
}

/// Values of `consistency`.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum ConsistencyValue {
    Strict,
    Bounded,
}

/// A sensitive kind in `feeds.sensitive`.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum SensitiveValue {
    Secrets,
    ConfigMaps,
}

/// Values of `http2.codec`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum CodecWord {
    #[default]
    Own,
    Hyper,
}

/// Values of `log.format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum LogFormat {
    Text,
    Json,
}

impl From<AuthValue> for AuthMode {
    fn from(word: AuthValue) -> Self {
        match word {
            AuthValue::None => Self::None,
            AuthValue::Delegated => Self::Delegated,
        }
    }
}

impl From<CodecWord> for Http2Codec {
    fn from(word: CodecWord) -> Self {
        match word {
            CodecWord::Own => Self::Own,
            CodecWord::Hyper => Self::Hyper,
        }
    }
}

impl From<ConsistencyValue> for Consistency {
    fn from(word: ConsistencyValue) -> Self {
        match word {
            ConsistencyValue::Strict => Self::Strict,
            ConsistencyValue::Bounded => Self::Bounded,
        }
    }
}

impl From<SensitiveValue> for Sensitive {
    fn from(word: SensitiveValue) -> Self {
        match word {
            SensitiveValue::Secrets => Self::Secrets,
            SensitiveValue::ConfigMaps => Self::ConfigMaps,
        }
    }
}

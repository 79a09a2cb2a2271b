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
pub(super) enum AuthWord {
    None,
    Delegated,
}

/// Values of `consistency`.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum ConsistencyWord {
    Strict,
    Bounded,
}

/// A sensitive kind in `feeds.sensitive`.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum SensitiveWord {
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

impl From<AuthWord> for AuthMode {
    fn from(word: AuthWord) -> Self {
        match word {
            AuthWord::None => Self::None,
            AuthWord::Delegated => Self::Delegated,
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

impl From<ConsistencyWord> for Consistency {
    fn from(word: ConsistencyWord) -> Self {
        match word {
            ConsistencyWord::Strict => Self::Strict,
            ConsistencyWord::Bounded => Self::Bounded,
        }
    }
}

impl From<SensitiveWord> for Sensitive {
    fn from(word: SensitiveWord) -> Self {
        match word {
            SensitiveWord::Secrets => Self::Secrets,
            SensitiveWord::ConfigMaps => Self::ConfigMaps,
        }
    }
}

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::Value;

use super::{AdminAnswer, answer};

/// The answer of `/debug/config`: what the process runs with. It has paths of files and nothing that is in them.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigShown {
    /// The configuration file, if there is one.
    pub file: Option<String>,
    /// Why the file as it is now cannot be used.
    pub trouble: Option<String>,
    /// The keys that have changed in the file and take a restart.
    pub restart: Vec<String>,
    pub settings: BTreeMap<String, Value>,
}

/// Reads what the process runs with.
pub type ConfigReader = Arc<dyn Fn() -> ConfigShown + Send + Sync>;

pub(super) fn page(shown: &ConfigShown) -> AdminAnswer {
    let json = serde_json::to_vec(shown).expect("text for keys");
    answer(StatusCode::OK, HeaderValue::from_static("application/json"), json)
}

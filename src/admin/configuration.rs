use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::Value;

use super::{AdminResponse, answer};

/// The response of `/debug/config`: the running configuration. It has the paths of files, but not their content.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigPage {
    /// The path of the configuration file, if there is one.
    pub file: Option<String>,
    /// The reason that the current content of the file cannot be used; `None` if it can.
    pub trouble: Option<String>,
    /// The keys that changed in the file and require a restart.
    pub restart: Vec<String>,
    pub settings: BTreeMap<String, Value>,
}

/// A function that returns the running configuration for its debug page.
pub type ConfigReader = Arc<dyn Fn() -> ConfigPage + Send + Sync>;

pub(super) fn page(shown: &ConfigPage) -> AdminResponse {
    let json = serde_json::to_vec(shown).expect("text for keys");
    answer(StatusCode::OK, HeaderValue::from_static("application/json"), json)
}

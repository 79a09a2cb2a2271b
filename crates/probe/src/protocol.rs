use serde::{Deserialize, Serialize};

/// The protocol of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WatchProtocol {
    H1,
    H2,
    Ws,
}

impl WatchProtocol {
    pub fn shares_connections(self) -> bool {
        self == Self::H2
    }
}

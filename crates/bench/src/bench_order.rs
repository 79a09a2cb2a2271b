use super::plan::Plan;
use super::scenario::Variant;
use probe::{TargetCredentials, WatchProtocol};

/// A server that is measured.
#[derive(Clone, Debug, Default)]
pub struct Side {
    pub name: String,
    pub url: String,
    /// What it speaks, if not what the plan says.
    pub protocol: Option<WatchProtocol>,
    /// Its process, if it runs on this machine.
    pub pid: Option<u32>,
    /// The URL of its metrics, if they say what it costs.
    pub metrics: Option<String>,
}

impl Side {
    /// The plan as it is measured against this server.
    pub fn plan(&self, plan: &Plan) -> Plan {
        Plan { protocol: self.protocol.unwrap_or(plan.protocol), ..plan.clone() }
    }
}

/// What the bench is asked to do.
#[derive(Clone, Debug)]
pub struct BenchOrder {
    pub scenario: String,
    pub about: String,
    pub variants: Vec<Variant>,
    pub sides: Vec<Side>,
    /// Where objects are written, for all sides.
    pub write: String,
    pub credentials: TargetCredentials,
    pub rounds: usize,
    /// The objects stay when it is over.
    pub keep: bool,
    /// As it was typed, for the record.
    pub command: Vec<String>,
}

use super::plan::BenchPlan;
use super::scenario::ScenarioVariant;
use probe::{TargetCredentials, WatchProtocol};

/// A server that is measured.
#[derive(Clone, Debug, Default)]
pub struct MeasuredServer {
    pub name: String,
    pub url: String,
    /// The protocol for this server, if it differs from the plan's.
    pub protocol: Option<WatchProtocol>,
    /// The process ID of the server, if it runs on this machine.
    pub pid: Option<u32>,
    /// The URL of the server's metrics, if CPU and memory are read from them.
    pub metrics: Option<String>,
}

impl MeasuredServer {
    /// Returns the plan for this server, with the server's own protocol.
    pub fn plan(&self, plan: &BenchPlan) -> BenchPlan {
        BenchPlan { protocol: self.protocol.unwrap_or(plan.protocol), ..plan.clone() }
    }
}

/// The options of one bench command.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    pub scenario: String,
    pub about: String,
    pub variants: Vec<ScenarioVariant>,
    pub sides: Vec<MeasuredServer>,
    /// The URL of the server to which objects are written, for all sides.
    pub write: String,
    pub credentials: TargetCredentials,
    pub rounds: usize,
    /// Whether the objects are kept at the end.
    pub keep: bool,
    /// The command line, to be recorded with the results.
    pub command: Vec<String>,
}

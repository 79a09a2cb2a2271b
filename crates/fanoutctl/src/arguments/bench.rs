use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value};

use super::CredentialArguments;

/// What `bench` may be told: against what, and with what load.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct BenchArguments {
    /// The server to measure: http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "URL", required_unless_present_any = ["compare", "list_scenarios"])]
    pub target: Option<String>,
    /// Measure two or more servers in turn instead, and print the ratios of the others to the first
    #[arg(long, num_args = 2..=8, value_name = "URL", conflicts_with = "target")]
    pub compare: Vec<String>,
    /// What the servers are called in the results [default: target, or A,B,...]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub names: Vec<String>,
    /// What each of them speaks, where that is not the same [default: --protocol]
    #[arg(long, value_name = "P,Q", value_delimiter = ',', requires = "compare", value_parser = ["h1", "h2", "ws"])]
    pub protocols: Vec<String>,
    /// How often each server is measured, the order alternating
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub rounds: usize,
    /// The apiserver that objects are written to [default: the kubeconfig's, or the target]
    #[arg(long, value_name = "URL")]
    pub write: Option<String>,
    #[command(flatten)]
    pub credentials: CredentialArguments,
    /// The server's process, for its CPU time and memory
    #[arg(long, value_name = "PID", conflicts_with = "compare")]
    pub pid: Option<u32>,
    /// The same of the servers of --compare
    #[arg(long, value_name = "A,B", value_delimiter = ',', requires = "compare")]
    pub pids: Vec<u32>,
    /// Read them from its metrics instead; once for each server
    #[arg(long, value_name = "URL")]
    pub metrics: Vec<String>,
    /// Start from a scenario, by its name or its file; flags win
    #[arg(long, value_name = "NAME|FILE")]
    pub scenario: Option<String>,
    /// Print the scenarios that there are, and end
    #[arg(long)]
    pub list_scenarios: bool,
    /// Leave the objects for the next run
    #[arg(long)]
    pub keep: bool,
    /// Write the results here too, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with pictures here, HTML
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub load: LoadArguments,
}

/// The keys of a plan, as flags. What is not said is left to the scenario and the defaults.
#[derive(Clone, Debug, Default, Serialize, clap::Args)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "Load")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct LoadArguments {
    /// Watches to hold [default: 100]
    #[arg(long, value_name = "N")]
    pub watches: Option<usize>,
    /// Connections that they share [default: one each]
    #[arg(long, value_name = "N")]
    pub connections: Option<usize>,
    /// [default: h2]
    #[arg(long, value_parser = ["h1", "h2", "ws"])]
    pub protocol: Option<String>,
    /// [default: json]
    #[arg(long, value_parser = ["json", "protobuf", "metadata", "metadata-protobuf", "table"])]
    pub encoding: Option<String>,
    /// What to watch, list or get; {i} in it is the watch's number [default: /api/v1/pods]
    #[arg(long, value_name = "PATH")]
    pub path: Option<String>,
    /// What each watch selects, the values spread over those of the objects [default: all]
    #[arg(long, value_parser = ["all", "namespace", "node", "name", "label"])]
    pub select: Option<String>,
    /// Select what no object has
    #[arg(long)]
    pub non_matching: bool,
    /// Begin with the objects there are (sendInitialEvents) instead of at the version of now
    #[arg(long)]
    pub watch_list: bool,
    /// Connections and watches that are opened at the same time [default: 64]
    #[arg(long, value_name = "N")]
    pub opening: Option<usize>,
    /// Flow-control window of an HTTP/2 stream [default: 1024]
    #[arg(long, value_name = "N")]
    pub stream_window_kib: Option<u32>,
    /// And of a connection [default: 16384]
    #[arg(long, value_name = "N")]
    pub connection_window_kib: Option<u32>,
    /// Give windows back as Go's client does: an update for every 4 KiB, of stream and connection
    #[arg(long)]
    pub go_windows: bool,
    /// Connections whose watches are opened and never read [default: 0]
    #[arg(long, value_name = "PERCENT")]
    pub stuck: Option<u32>,
    /// Connections that are read slowly [default: 0]
    #[arg(long, value_name = "PERCENT")]
    pub slow: Option<u32>,
    /// How slowly [default: 64]
    #[arg(long, value_name = "N")]
    pub slow_kib_per_s: Option<u32>,
    /// Watches beside the measured ones, on connections of their own [default: 0]
    #[arg(long, value_name = "N")]
    pub companions: Option<usize>,
    /// They reconnect so often; 0 is never [default: 0]
    #[arg(long, value_name = "N")]
    pub companion_reconnect_ms: Option<u64>,
    /// They read, instead of being stuck
    #[arg(long)]
    pub companion_reads: bool,
    /// Writes per second, or max [default: 50]
    #[arg(long, value_name = "N|max")]
    pub rate: Option<String>,
    /// Writes under way at the same time [default: 4]
    #[arg(long, value_name = "N")]
    pub writers: Option<usize>,
    /// A merge patch of an annotation, or the whole object [default: patch]
    #[arg(long, value_parser = ["patch", "put"])]
    pub write_with: Option<String>,
    /// Objects to create and write to [default: 100]
    #[arg(long, value_name = "N")]
    pub objects: Option<usize>,
    /// How large each is in JSON [default: 2500]
    #[arg(long, value_name = "N")]
    pub object_bytes: Option<usize>,
    /// [default: pod]
    #[arg(long, value_parser = ["pod", "configmap"])]
    pub shape: Option<String>,
    /// What the namespaces' names begin with [default: kube-fanout-bench]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Namespaces that the objects are spread over [default: 1]
    #[arg(long, value_name = "N")]
    pub namespaces: Option<usize>,
    /// Nodes, and values of a label, that they are spread over [default: 100]
    #[arg(long, value_name = "N")]
    pub spread: Option<usize>,
    /// Seconds before the window [default: 2]
    #[arg(long, value_name = "N")]
    pub warmup: Option<f64>,
    /// Seconds of the window [default: 10]
    #[arg(long, value_name = "N")]
    pub seconds: Option<f64>,
    /// Seconds that opening, and the last deliveries, may take [default: 60]
    #[arg(long, value_name = "N")]
    pub patience: Option<f64>,
    /// Instead of a steady load: informers that join, LISTs, watches that are cut and resume, GETs
    #[arg(long, value_parser = ["join", "list", "resume", "get"])]
    pub storm: Option<String>,
    /// Requests of a storm of LISTs or GETs [default: as many as the time allows]
    #[arg(long, value_name = "N")]
    pub requests: Option<usize>,
    /// Requests under way on each connection [default: 1]
    #[arg(long, value_name = "N")]
    pub in_flight: Option<usize>,
}

impl LoadArguments {
    /// What was said, by the names of the keys.
    pub fn keys(&self) -> Map<String, Value> {
        let said = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
        match serde_json::to_value(self) {
            Ok(Value::Object(keys)) => keys.into_iter().filter(|(_, value)| said(value)).collect(),
            _ => Map::new(),
        }
    }
}

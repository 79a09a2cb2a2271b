use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value};

use super::CredentialArguments;

/// The arguments of `bench`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct BenchArguments {
    /// Server to measure: http://HOST:PORT or https://HOST:PORT
    #[arg(long, value_name = "URL", required_unless_present_any = ["compare", "list_scenarios"])]
    pub target: Option<String>,
    /// Measure several servers in turn, and print the ratios of the others to the first
    #[arg(long, num_args = 2..=8, value_name = "URL", conflicts_with = "target")]
    pub compare: Vec<String>,
    /// Names of the servers in the results [default: target, or A,B,...]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub names: Vec<String>,
    /// Protocol of each server, if they differ [default: --protocol]
    #[arg(long, value_name = "P,Q", value_delimiter = ',', requires = "compare", value_parser = ["h1", "h2", "ws"])]
    pub protocols: Vec<String>,
    /// Measurements of each server, in alternating order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub rounds: usize,
    /// Apiserver to write objects to [default: that of the kubeconfig, or the target]
    #[arg(long, value_name = "URL")]
    pub write: Option<String>,
    #[command(flatten)]
    pub credentials: CredentialArguments,
    /// Process of the server, to measure its CPU time and memory
    #[arg(long, value_name = "PID", conflicts_with = "compare")]
    pub pid: Option<u32>,
    /// Processes of the servers of --compare
    #[arg(long, value_name = "A,B", value_delimiter = ',', requires = "compare")]
    pub pids: Vec<u32>,
    /// Read CPU time and memory from this metrics URL instead; repeat for each server
    #[arg(long, value_name = "URL")]
    pub metrics: Vec<String>,
    /// Start from this scenario, a name or a file; flags override it
    #[arg(long, value_name = "NAME|FILE")]
    pub scenario: Option<String>,
    /// Print the built-in scenarios and exit
    #[arg(long)]
    pub list_scenarios: bool,
    /// Keep the objects for the next run
    #[arg(long)]
    pub keep: bool,
    /// Also write the results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write an HTML report with charts to this file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub load: BenchLoadArguments,
}

/// The keys of a plan, as flags. The scenario and the defaults supply those that are not given.
#[derive(Clone, Debug, Default, Serialize, clap::Args)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "Load")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct BenchLoadArguments {
    /// Watches to open [default: 100]
    #[arg(long, value_name = "N")]
    pub watches: Option<usize>,
    /// Connections that the watches share [default: one per watch]
    #[arg(long, value_name = "N")]
    pub connections: Option<usize>,
    /// Protocol of the watches [default: h2]
    #[arg(long, value_parser = ["h1", "h2", "ws"])]
    pub protocol: Option<String>,
    /// Encoding of the responses [default: json]
    #[arg(long, value_parser = ["json", "protobuf", "metadata", "metadata-protobuf", "table"])]
    pub encoding: Option<String>,
    /// Path to watch, list or get; {i} is replaced by the number of the watch [default: /api/v1/pods]
    #[arg(long, value_name = "PATH")]
    pub path: Option<String>,
    /// What each watch selects; values are spread over those of the objects [default: all]
    #[arg(long, value_parser = ["all", "namespace", "node", "name", "label"])]
    pub select: Option<String>,
    /// Select a value that no object has
    #[arg(long)]
    pub non_matching: bool,
    /// Start with the initial objects (sendInitialEvents) instead of at the current resourceVersion
    #[arg(long)]
    pub watch_list: bool,
    /// Accept gzip for watches, and decompress them
    #[arg(long)]
    pub gzip: bool,
    /// Percentage of connections whose compressed events are counted, not decompressed [default: 0]
    #[arg(long, value_name = "PERCENT")]
    pub gzip_raw: Option<u32>,
    /// Connections and watches opened at the same time [default: 64]
    #[arg(long, value_name = "N")]
    pub opening: Option<usize>,
    /// Flow-control window of an HTTP/2 stream, in KiB [default: 1024]
    #[arg(long, value_name = "N")]
    pub stream_window_kib: Option<u32>,
    /// Flow-control window of an HTTP/2 connection, in KiB [default: 16384]
    #[arg(long, value_name = "N")]
    pub connection_window_kib: Option<u32>,
    /// Send window updates as Go's client does: every 4 KiB, for stream and connection
    #[arg(long)]
    pub go_windows: bool,
    /// Percentage of connections whose watches are opened and never read [default: 0]
    #[arg(long, value_name = "PERCENT")]
    pub stuck: Option<u32>,
    /// Percentage of connections that are read slowly [default: 0]
    #[arg(long, value_name = "PERCENT")]
    pub slow: Option<u32>,
    /// Read rate of slow connections, in KiB per second [default: 64]
    #[arg(long, value_name = "N")]
    pub slow_kib_per_s: Option<u32>,
    /// Additional watches that are not measured, on their own connections [default: 0]
    #[arg(long, value_name = "N")]
    pub companions: Option<usize>,
    /// Interval at which the additional watches reconnect, in ms; 0 is never [default: 0]
    #[arg(long, value_name = "N")]
    pub companion_reconnect_ms: Option<u64>,
    /// The additional watches read their streams instead of leaving them unread
    #[arg(long)]
    pub companion_reads: bool,
    /// Writes per second, or max [default: 50]
    #[arg(long, value_name = "N|max")]
    pub rate: Option<String>,
    /// Concurrent writes [default: 4]
    #[arg(long, value_name = "N")]
    pub writers: Option<usize>,
    /// How to write: a merge patch of an annotation, or the whole object [default: patch]
    #[arg(long, value_parser = ["patch", "put"])]
    pub write_with: Option<String>,
    /// Objects to create and write to [default: 100]
    #[arg(long, value_name = "N")]
    pub objects: Option<usize>,
    /// Size of each object in JSON, in bytes [default: 2500]
    #[arg(long, value_name = "N")]
    pub object_bytes: Option<usize>,
    /// Kind of the objects [default: pod]
    #[arg(long, value_parser = ["pod", "configmap", "event", "node"])]
    pub shape: Option<String>,
    /// Prefix of the namespaces' names [default: kube-fanout-bench]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Namespaces to spread the objects over [default: 1]
    #[arg(long, value_name = "N")]
    pub namespaces: Option<usize>,
    /// Node names and label values to spread the objects over [default: 100]
    #[arg(long, value_name = "N")]
    pub spread: Option<usize>,
    /// Seconds of load before the measurement [default: 2]
    #[arg(long, value_name = "N")]
    pub warmup: Option<f64>,
    /// Seconds of the measurement [default: 10]
    #[arg(long, value_name = "N")]
    pub seconds: Option<f64>,
    /// Timeout for opening the watches and for the last deliveries, in seconds [default: 60]
    #[arg(long, value_name = "N")]
    pub patience: Option<f64>,
    /// Run a burst instead of a steady load: informers that start, LISTs, watches that resume after a disconnect, or
    /// GETs
    #[arg(long, value_parser = ["join", "list", "resume", "get"])]
    pub storm: Option<String>,
    /// Number of LISTs or GETs in the burst [default: as many as the time allows]
    #[arg(long, value_name = "N")]
    pub requests: Option<usize>,
    /// Concurrent requests on each connection [default: 1]
    #[arg(long, value_name = "N")]
    pub in_flight: Option<usize>,
}

impl BenchLoadArguments {
    /// Returns the given flags, by the names of the keys.
    pub fn keys(&self) -> Map<String, Value> {
        let is_given = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
        match serde_json::to_value(self) {
            Ok(Value::Object(keys)) => keys.into_iter().filter(|(_, value)| is_given(value)).collect(),
            _ => Map::new(),
        }
    }
}

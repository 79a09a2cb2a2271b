use std::path::PathBuf;
use std::time::Duration;

use super::CredentialArguments;

/// The arguments of `verify`.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct VerifyArguments {
    #[command(subcommand)]
    pub judge: Option<JudgeCommand>,
    /// Server to verify: http://HOST:PORT or https://HOST:PORT
    #[arg(value_name = "URL", required = true)]
    pub url: Option<String>,
    /// Another server of the same cluster (a replica, a tier or the apiserver), and its CA file if that is not --ca;
    /// clients move between the servers and resume from their last resourceVersion; may be repeated
    #[arg(long, value_name = "URL[,CA]")]
    pub also: Vec<String>,
    /// Run only informers, each with one initial list or state; if an informer needs a second one, that is a violation
    #[arg(long)]
    pub informers: bool,
    /// Source of the true history: etcd's JSON gateway (etcd=URL, etcd=URL,CA or etcd=URL,CA,CERT,KEY) or the
    /// apiserver's URL, which is weaker; with both, bytes are also compared with the apiserver's [default: the kubeconfig's server, or URL]
    #[arg(long, value_name = "etcd=URL,..|URL")]
    pub truth: Vec<String>,
    /// Prefix of the resource's keys in etcd [default: /registry/[GROUP/]RESOURCE/]
    #[arg(long, value_name = "PREFIX")]
    pub etcd_prefix: Option<String>,
    /// Resource to write and read: configmaps, PLURAL.GROUP, or samples.verify.kube-fanout.io, whose
    /// CustomResourceDefinition is created if missing, and which etcd always stores as JSON
    #[arg(long, value_name = "RESOURCE", default_value = "configmaps")]
    pub resource: String,
    /// Number of clients: informers, watch-lists, LISTs, GETs and unusual watches, mixed by the seed
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub clients: u32,
    /// How long the clients run
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// Seed of all random choices [default: a new one]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Shell command that injects a fault, run at random times; may be repeated
    #[arg(long, value_name = "CMD")]
    pub fault: Vec<String>,
    /// Minimum and maximum time between two faults
    #[arg(long, value_names = ["MIN", "MAX"], num_args = 2, default_values = ["3s", "15s"],
          value_parser = humantime::parse_duration)]
    pub fault_every: Vec<Duration>,
    /// The run is inconclusive if clients receive fewer events [default: 3 per client and second]
    #[arg(long, value_name = "N")]
    pub min_events: Option<u64>,
    /// Directory for the record and the report
    #[arg(long, value_name = "DIR", default_value = "kube-fanout-verify")]
    pub out: PathBuf,
    /// Age up to which the server must keep events: a 410 for a younger resourceVersion is a violation
    #[arg(long, value_name = "DURATION", default_value = "75s", value_parser = humantime::parse_duration)]
    pub window: Duration,
    /// Maximum delivery time of a change while no fault is active
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    pub patience: Duration,
    #[command(flatten)]
    pub credentials: CredentialArguments,
    #[command(flatten)]
    pub load: VerifyLoadArguments,
}

/// The subcommands that work on recorded files only.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum JudgeCommand {
    /// Check the record of an earlier run again
    Judge {
        /// Record of the run: DIR/records.jsonl
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The result is inconclusive if clients received fewer events
        #[arg(long, value_name = "N", default_value_t = 1)]
        min_events: u64,
        /// Write the HTML report to this file
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
    },
}

/// The load, and the protocols of the clients.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct VerifyLoadArguments {
    /// Number of writers; each writes its own objects
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub writers: u32,
    /// Writes per second, for all writers together
    #[arg(long, value_name = "N", default_value_t = 50.0)]
    pub rate: f64,
    /// Number of objects to create, change and delete
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub objects: usize,
    /// Namespaces to spread the objects over
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub namespaces: usize,
    /// Transports of the clients
    #[arg(long, value_name = "T[,T]...", value_delimiter = ',', default_value = "h1,h2,ws",
          value_parser = ["h1", "h2", "ws"])]
    pub transports: Vec<String>,
    /// Number of clients that share an HTTP/2 connection
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub share: u32,
    /// Encodings of the clients; json must be the first. Contents are compared in json and metadata, bytes in all
    #[arg(long, value_name = "E[,E]...", value_delimiter = ',', default_value = "json,metadata,protobuf",
          value_parser = ["json", "metadata", "protobuf", "metadata-protobuf"])]
    pub encodings: Vec<String>,
    /// Maximum size of the record, in MiB; the run ends when it is reached
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub record_mebibytes: u64,
    /// Keep the objects at the end
    #[arg(long)]
    pub keep: bool,
}

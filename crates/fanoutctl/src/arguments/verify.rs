use std::path::PathBuf;
use std::time::Duration;

use super::CredentialArguments;

/// What `verify` may be told: against what, and how.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct VerifyArguments {
    #[command(subcommand)]
    pub judge: Option<JudgeCommand>,
    /// The server to verify: http://HOST:PORT or https://HOST:PORT
    #[arg(value_name = "URL", required = true)]
    pub url: Option<String>,
    /// A further server of the same cluster, and the file of its CA if that is not --ca: another replica, another tier,
    /// the apiserver; clients go from one to another with the versions that they have, and all are judged; may be
    /// repeated
    #[arg(long, value_name = "URL[,CA]")]
    pub also: Vec<String>,
    /// Clients are informers only, which go on for as long as any server lets them: who needs a second list or initial
    /// state is a violation
    #[arg(long)]
    pub informers: bool,
    /// Where the truth is learnt: etcd's JSON gateway (etcd=URL, and behind commas the files of its CA, a certificate
    /// and its key), or the apiserver's URL, which is weaker; given both, bytes are compared with the apiserver's as
    /// well [default: the kubeconfig's server, or URL]
    #[arg(long, value_name = "etcd=URL,..|URL")]
    pub truth: Vec<String>,
    /// What keys of the resource begin with in etcd [default: /registry/[GROUP/]RESOURCE/]
    #[arg(long, value_name = "PREFIX")]
    pub etcd_prefix: Option<String>,
    /// What is written and read, in namespaces of its own: configmaps, PLURAL.GROUP, or samples.verify.kube-fanout.io,
    /// whose definition is made if it is missing, and which etcd always holds as JSON
    #[arg(long, value_name = "RESOURCE", default_value = "configmaps")]
    pub resource: String,
    /// Clients: informers, watch-lists, lists, gets and odd watches, as the seed draws them
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub clients: u32,
    /// How long they run
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// What all choices are drawn from [default: a new one]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// A command of the shell that breaks something, at moments that the seed draws; may be repeated
    #[arg(long, value_name = "CMD")]
    pub fault: Vec<String>,
    /// From one fault to the next, at least and at most
    #[arg(long, value_names = ["LEAST", "MOST"], num_args = 2, default_values = ["3s", "15s"],
          value_parser = humantime::parse_duration)]
    pub fault_every: Vec<Duration>,
    /// With fewer events delivered to clients the run is void [default: 3 for each client and second]
    #[arg(long, value_name = "N")]
    pub min_events: Option<u64>,
    /// Where the record and the report go
    #[arg(long, value_name = "DIR", default_value = "kube-fanout-verify")]
    pub out: PathBuf,
    /// How long the server keeps what happened: a 410 for something younger is a violation
    #[arg(long, value_name = "DURATION", default_value = "75s", value_parser = humantime::parse_duration)]
    pub window: Duration,
    /// How long a change may take to be delivered while nothing is broken
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    pub patience: Duration,
    #[command(flatten)]
    pub credentials: CredentialArguments,
    #[command(flatten)]
    pub load: VerifyLoadArguments,
}

/// What may be judged without a server.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum JudgeCommand {
    /// Judge a record again
    Judge {
        /// The record of a run: DIR/records.jsonl
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// With fewer events delivered to clients it is void
        #[arg(long, value_name = "N", default_value_t = 1)]
        min_events: u64,
        /// Write the page here
        #[arg(long, value_name = "FILE")]
        page: Option<PathBuf>,
    },
}

/// How much is written, and what clients speak.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct VerifyLoadArguments {
    /// Who writes, each its own objects
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub writers: u32,
    /// Writes per second, of all writers
    #[arg(long, value_name = "N", default_value_t = 50.0)]
    pub rate: f64,
    /// Objects that are created, changed and deleted
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub objects: usize,
    /// Namespaces that they are spread over
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub namespaces: usize,
    /// How clients connect
    #[arg(long, value_name = "T[,T]...", value_delimiter = ',', default_value = "h1,h2,ws",
          value_parser = ["h1", "h2", "ws"])]
    pub transports: Vec<String>,
    /// How many clients share a connection over HTTP/2
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub share: u32,
    /// What they ask for; json must be the first. Content is compared in JSON and metadata, and bytes in all of them
    #[arg(long, value_name = "E[,E]...", value_delimiter = ',', default_value = "json,metadata,protobuf",
          value_parser = ["json", "metadata", "protobuf", "metadata-protobuf"])]
    pub encodings: Vec<String>,
    /// The record may be so long; then the run ends
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub record_mebibytes: u64,
    /// Leave the objects
    #[arg(long)]
    pub keep: bool,
}

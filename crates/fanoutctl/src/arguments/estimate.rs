use std::path::PathBuf;

/// The arguments of `estimate`.
#[derive(Debug, clap::Args)]
pub struct EstimateArguments {
    /// Audit log of an apiserver: audit.k8s.io/v1 events as JSON, one per line; "-" is standard input
    #[arg(long, value_name = "FILE")]
    pub audit_log: PathBuf,
    /// Number of proxies; for a proxy on each node, the number of nodes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub proxies: u64,
    /// Also cache these sensitive kinds: secrets
    #[arg(long, value_name = "RES[,RES]...", value_delimiter = ',')]
    pub cache_sensitive: Vec<String>,
    /// Maximum number of rows (user agent and resource) to print
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub rows: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

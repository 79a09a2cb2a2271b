use std::path::PathBuf;

/// What `estimate` is asked with.
#[derive(Debug, clap::Args)]
pub struct EstimateArguments {
    /// The audit log of an apiserver: audit.k8s.io/v1 as JSON, a line each; "-" is standard input
    #[arg(long, value_name = "FILE")]
    pub audit_log: PathBuf,
    /// How many proxies there would be, as many as nodes for proxies on nodes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub proxies: u64,
    /// Sensitive kinds that would be held all the same: secrets
    #[arg(long, value_name = "RES[,RES]...", value_delimiter = ',')]
    pub cache_sensitive: Vec<String>,
    /// Rows of user agents and resources that are printed
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub rows: usize,
    /// Say it as JSON, for programs
    #[arg(long)]
    pub json: bool,
}

use std::time::Duration;

/// The arguments of `size`. The defaults are those of a cluster with three agents on each node, such as a mesh proxy, a
/// log collector and a network agent.
#[derive(Debug, clap::Args)]
pub struct SizeArguments {
    /// Nodes in the cluster
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub nodes: u64,
    /// Agents on each node that watch the API, each with a connection
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub agents: u64,
    /// Watches of each agent that select a whole collection, such as all pods
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    pub whole: u64,
    /// Watches of each agent that select objects of its node
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    pub own: u64,
    /// Resources that are watched
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub resources: u64,
    /// Watched objects [default: 32 per node]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    pub objects: Option<u64>,
    /// Mean size of an object in JSON, in bytes
    #[arg(long, value_name = "N", default_value_t = 4_000, value_parser = clap::value_parser!(u64).range(1..=3_145_728))]
    pub object_bytes: u64,
    /// Changes of each resource per second [default: one per second for 50 nodes]
    #[arg(long, value_name = "R", value_parser = changes)]
    pub changes: Option<f64>,
    /// Central proxies [default: as many as connections and CPU need, and at least 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub replicas: Option<u64>,
    /// Age up to which the proxies keep events: window.age of their configuration
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = humantime::parse_duration)]
    pub window: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn changes(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.0..=1e6).contains(&rate) => Ok(rate),
        _ => Err("expected a number from 0 to 1000000".to_owned()),
    }
}

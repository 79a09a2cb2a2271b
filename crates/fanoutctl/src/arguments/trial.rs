use std::path::PathBuf;

use clap::Args;

/// The arguments of `try`.
#[derive(Debug, Clone, Args)]
pub struct TryArguments {
    /// Use the embedded apiserver of the demo instead of a kube-apiserver: needs no binary, shows less
    #[arg(long, conflicts_with = "testbed")]
    pub demo: bool,
    /// Binary of the control plane [default: target/testbed/kube-testbed; built if missing in a checkout]
    #[arg(long, value_name = "PATH")]
    pub testbed: Option<PathBuf>,
    /// Number of informers; each keeps all pods
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub informers: u32,
    /// Number of pods
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=5_000))]
    pub pods: u32,
    /// Pod changes per second
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rate: u32,
    /// Actions to run instead of keys: apiserver, proxy or quit; times count from when all informers are synced
    #[arg(long, value_name = "TIME ACTION, ...")]
    pub script: Option<String>,
    /// Directory for the files of the control plane, the credentials and the logs; it is kept
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

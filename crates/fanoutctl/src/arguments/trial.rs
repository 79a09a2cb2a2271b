use std::path::PathBuf;

use clap::Args;

/// What `try` is asked for.
#[derive(Debug, Clone, Args)]
pub struct TryArguments {
    /// Run on the embedded upstream of the demo instead of a kube-apiserver: needs nothing, shows less
    #[arg(long, conflicts_with = "testbed")]
    pub demo: bool,
    /// The control plane's binary [default: target/testbed/kube-testbed, which is built if this is a checkout]
    #[arg(long, value_name = "PATH")]
    pub testbed: Option<PathBuf>,
    /// Informers, each with the whole state
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub informers: u32,
    /// Pods that are changed
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=5_000))]
    pub pods: u32,
    /// Changes per second
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rate: u32,
    /// What is done when, in place of keys: times count from when all informers are there
    #[arg(long, value_name = "TIME DEED, ...")]
    pub script: Option<String>,
    /// Keep the control plane's files, the credentials and the logs in this directory
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

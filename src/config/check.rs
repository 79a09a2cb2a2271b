use super::{Problems, ServeArguments, ServeSettings};

/// The arguments of `check`.
#[derive(Debug, clap::Args)]
pub struct CheckArguments {
    #[command(flatten)]
    serve: ServeArguments,
    /// Number of proxies to estimate the cost for
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nodes: u64,
    /// Treat notes as failures
    #[arg(long)]
    pub strict: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl CheckArguments {
    /// The configuration that `serve` would run with.
    ///
    /// # Errors
    /// All problems of the configuration, at once.
    pub fn configuration(&self) -> Result<ServeSettings, Problems> {
        self.serve.clone().resolve()
    }
}

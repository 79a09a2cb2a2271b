use super::{Problems, Serve, ServeArguments};

/// What `check` is asked with.
#[derive(Debug, clap::Args)]
pub struct CheckArguments {
    #[command(flatten)]
    serve: ServeArguments,
    /// How many proxies like this one there will be: what they cost upstream together is said
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nodes: u64,
    /// What works worse, or passes through, counts as failed too
    #[arg(long)]
    pub strict: bool,
    /// Say it as JSON, for programs
    #[arg(long)]
    pub json: bool,
}

impl CheckArguments {
    /// The configuration that `serve` would run with.
    ///
    /// # Errors
    /// Everything that is wrong, at once.
    pub fn configuration(&self) -> Result<Serve, Problems> {
        self.serve.clone().resolve()
    }
}

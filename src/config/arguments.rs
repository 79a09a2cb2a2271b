use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::examples::{CHECK_EXAMPLES, HEALTH_EXAMPLES, SERVE_EXAMPLES};
use super::{ConfigProblems, ServeArguments, ServeSettings};

/// One upstream Kubernetes watch, thousands of unmodified clients.
///
/// kube-fanout keeps one list and watch per resource open to a kube-apiserver and serves LIST, GET and WATCH from
/// memory, with the cluster's own resourceVersions. It forwards all other requests.
#[derive(Debug, Parser)]
#[command(name = "kube-fanout", version, max_term_width = 100, after_help = TOOLS_HELP)]
pub struct CliArguments {
    #[command(subcommand)]
    pub command: CliCommand,
}

/// The commands of `fanoutctl`. `kube-fanout NAME` executes `fanoutctl NAME` if that binary is in the same directory.
pub const TOOL_COMMANDS: [&str; 6] = ["demo", "try", "bench", "verify", "estimate", "fanout"];

const TOOLS_HELP: &str = "Commands of the separate binary fanoutctl: demo, try, bench, verify, estimate, fanout.";

#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Serve clients in front of a kube-apiserver
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<ServeArguments>),
    /// Preflight checks: permissions, certificates, upstream, size, cost
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Box<CheckArguments>),
    /// Probe a running proxy; prints one line
    #[command(after_help = HEALTH_EXAMPLES)]
    Health(super::HealthArguments),
    /// Validate a configuration, or print the default file or its schema
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Run an exec credential plugin with a limit on open files; used by `serve`
    #[command(hide = true)]
    RunPlugin {
        open_files: u64,
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Print a completion script for a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of kube-fanout, or write the pages of all commands to a directory
    Man {
        /// Directory to write to, such as /usr/local/share/man/man1; created if missing
        dir: Option<PathBuf>,
    },
    /// A command of `fanoutctl`, with its name and arguments.
    #[command(skip)]
    Tool(Vec<OsString>),
}

impl CliCommand {
    /// Parses the arguments of the process.
    ///
    /// # Errors
    /// The arguments are invalid, or request help or the version.
    pub fn of_process() -> Result<Self, clap::Error> {
        #[allow(clippy::disallowed_methods, reason = "arguments are read here")]
        let arguments: Vec<_> = std::env::args_os().skip(1).collect();
        if arguments.first().is_some_and(|name| TOOL_COMMANDS.iter().any(|tool| name == tool)) {
            return Ok(Self::Tool(arguments));
        }
        CliArguments::try_parse().map(|arguments| arguments.command)
    }
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Validate the file and the flags; `kube-fanout check` also reads certificates and asks upstream
    Check(Box<ServeArguments>),
    /// Print a file with every key, its default and its description
    Default,
    /// Print the JSON schema of the file, for editors
    Schema,
}

/// The arguments of `check`.
#[derive(Debug, clap::Args)]
pub struct CheckArguments {
    #[command(flatten)]
    serve: ServeArguments,
    /// Number of proxies to estimate the cost for
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nodes: u64,
    /// Number of clients per proxy, each with a token and a watch, to estimate the reviews for
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub agents: u64,
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
    pub fn configuration(&self) -> Result<ServeSettings, ConfigProblems> {
        self.serve.clone().resolve()
    }
}

//! The command line of `fanoutctl`.

mod bench;
mod credentials;
mod estimate;
mod examples;
mod fanout;
mod size;
mod trial;
mod verify;

pub(crate) use bench::BenchArguments;
pub(crate) use credentials::CredentialArguments;
pub(crate) use estimate::EstimateArguments;
pub(crate) use fanout::{AdminArguments, FanoutSubcommand, OutputFormat, ServerArguments, terminal_colours};
pub(crate) use size::SizeArguments;
pub(crate) use trial::TryArguments;
pub(crate) use verify::{JudgeCommand, VerifyArguments};

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use kube_fanout::config::ServeArguments;

use examples::{BENCH_EXAMPLES, ESTIMATE_EXAMPLES, SIZE_EXAMPLES, TRY_EXAMPLES, VERIFY_EXAMPLES};

/// Demo, benchmark, verification and inspection tools for kube-fanout.
///
/// The container image contains only the proxy; proxies do not need this binary.
#[derive(Debug, Parser)]
#[command(name = "fanoutctl", version, max_term_width = 100)]
pub(crate) struct ToolArguments {
    #[command(subcommand)]
    pub(crate) command: ToolCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ToolCommand {
    /// Run a demo in one process: an embedded apiserver, the proxy and watch clients
    Demo {
        /// Pods in the demo cluster
        #[arg(long, default_value_t = 500, value_name = "N")]
        pods: u32,
        /// Pod changes per second
        #[arg(long, default_value_t = 50, value_name = "EVENTS_PER_S")]
        rate: u32,
        /// Watches opened through the proxy
        #[arg(long, default_value_t = 500, value_name = "N")]
        watches: u32,
        /// Stop after this many seconds [default: run until Ctrl-C]
        #[arg(long, value_name = "N")]
        seconds: Option<u64>,
    },
    /// Run a kube-apiserver, the proxy and informers locally, kill either server, and check that no event is lost
    #[command(after_help = TRY_EXAMPLES)]
    Try(TryArguments),
    /// Put load on an apiserver or a proxy and measure it (docs/tools/BENCH.md)
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(Box<BenchArguments>),
    /// Verify that an apiserver or a proxy keeps the guarantees of the Kubernetes API (docs/tools/VERIFY.md)
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(Box<VerifyArguments>),
    /// Estimate from an audit log how much load a proxy would remove
    #[command(after_help = ESTIMATE_EXAMPLES)]
    Estimate(EstimateArguments),
    /// Calculate the proxies that a cluster needs in each form: CPU, memory, traffic, watches at the apiserver
    #[command(after_help = SIZE_EXAMPLES)]
    Size(SizeArguments),
    /// Inspect running proxies: status, clients and decisions; also as `kubectl fanout`
    Fanout {
        #[command(subcommand)]
        verb: FanoutSubcommand,
    },
    /// Run the proxy of `try`, which kills and restarts it
    #[command(hide = true)]
    RunProxy(Box<ServeArguments>),
    /// Print a completion script for a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of fanoutctl, or write the pages of all commands to a directory
    Man {
        /// Directory to write to, such as /usr/local/share/man/man1; created if missing
        dir: Option<PathBuf>,
    },
}

impl ToolCommand {
    /// Reads the arguments of the process. If the process is named `kubectl-fanout`, it is a plugin of kubectl, and its
    /// arguments are those of `fanout`.
    ///
    /// # Errors
    /// If the arguments are invalid, or request help or the version.
    pub(crate) fn of_process() -> Result<Self, clap::Error> {
        if let Some(verb) = fanout::plugin_verb() {
            return verb.map(|verb| Self::Fanout { verb });
        }
        ToolArguments::try_parse().map(|arguments| arguments.command)
    }
}

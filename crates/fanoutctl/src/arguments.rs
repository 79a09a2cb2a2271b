//! The command line of `fanoutctl`.

mod bench;
mod credentials;
mod estimate;
mod examples;
mod fanout;
mod trial;
mod verify;

pub(crate) use bench::BenchArguments;
pub(crate) use credentials::CredentialArguments;
pub(crate) use estimate::EstimateArguments;
pub(crate) use fanout::{AdminArguments, FanoutVerb, OutputForm, ServerArguments, terminal_colours};
pub(crate) use trial::TryArguments;
pub(crate) use verify::{JudgeCommand, VerifyArguments};

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use kube_fanout::config::ServeArguments;

use examples::{BENCH_EXAMPLES, ESTIMATE_EXAMPLES, TRY_EXAMPLES, VERIFY_EXAMPLES};

/// Demo, benchmark and verification of kube-fanout, and questions to running proxies.
///
/// Nodes do not need this binary: the image has the proxy alone.
#[derive(Debug, Parser)]
#[command(name = "fanoutctl", version, max_term_width = 100)]
pub(crate) struct ToolArguments {
    #[command(subcommand)]
    pub(crate) command: ToolCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ToolCommand {
    /// Show it working on this machine: an embedded upstream, the proxy and watchers in one process
    Demo {
        /// Pods in the demo cluster
        #[arg(long, default_value_t = 500, value_name = "N")]
        pods: u32,
        /// Changes per second
        #[arg(long, default_value_t = 50, value_name = "EVENTS_PER_S")]
        rate: u32,
        /// Watches through the proxy
        #[arg(long, default_value_t = 500, value_name = "N")]
        watches: u32,
        /// End after so many seconds [default: run until Ctrl-C]
        #[arg(long, value_name = "N")]
        seconds: Option<u64>,
    },
    /// Try it on this machine: a kube-apiserver, the proxy and informers, all of which may be killed, and a live page
    #[command(after_help = TRY_EXAMPLES)]
    Try(TryArguments),
    /// Put load on an apiserver or on what stands in front of it, and measure both (docs/tools/BENCH.md)
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(Box<BenchArguments>),
    /// Find out whether an apiserver, or what stands in front of it, keeps its promises (docs/tools/VERIFY.md)
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(Box<VerifyArguments>),
    /// Estimate from an apiserver's audit log how much load proxies would remove
    #[command(after_help = ESTIMATE_EXAMPLES)]
    Estimate(EstimateArguments),
    /// Ask running proxies how they are, who reads what and why: also as `kubectl fanout`
    Fanout {
        #[command(subcommand)]
        verb: FanoutVerb,
    },
    /// Run the proxy of a trial, which `try` kills and starts again
    #[command(hide = true)]
    RunProxy(Box<ServeArguments>),
    /// Print a completion script for a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of fanoutctl, or write those of all commands
    Man {
        /// Where they are written, such as /usr/local/share/man/man1; made if it is not there
        dir: Option<PathBuf>,
    },
}

impl ToolCommand {
    /// Reads the arguments of the process. A process that is called `kubectl-fanout` is a plugin of kubectl, and its
    /// arguments are those of `fanout`.
    ///
    /// # Errors
    /// The arguments are wrong, or ask for help or the version.
    pub(crate) fn of_process() -> Result<Self, clap::Error> {
        if let Some(verb) = fanout::plugin_verb() {
            return verb.map(|verb| Self::Fanout { verb });
        }
        ToolArguments::try_parse().map(|arguments| arguments.command)
    }
}

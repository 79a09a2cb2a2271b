use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::ServeArguments;
#[cfg(feature = "bench")]
use super::examples::BENCH_EXAMPLES;
#[cfg(feature = "trial")]
use super::examples::TRY_EXAMPLES;
#[cfg(feature = "verify")]
use super::examples::VERIFY_EXAMPLES;
use super::examples::{CHECK_EXAMPLES, ESTIMATE_EXAMPLES, HEALTH_EXAMPLES, SERVE_EXAMPLES};

/// One upstream Kubernetes watch, thousands of unmodified clients.
///
/// kube-fanout keeps one list-watch per resource open to a kube-apiserver and answers LIST, GET and WATCH from memory,
/// with the cluster's own resourceVersions. Everything else is passed through.
#[derive(Debug, Parser)]
#[command(name = "kube-fanout", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve clients in front of a kube-apiserver
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<ServeArguments>),
    /// Show it working on this machine: an embedded upstream, the proxy and watchers in one process
    #[cfg(feature = "demo")]
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
    #[cfg(feature = "trial")]
    #[command(after_help = TRY_EXAMPLES)]
    Try(super::TryArguments),
    /// Put load on an apiserver or on what stands in front of it, and measure both (docs/BENCH.md)
    #[cfg(feature = "bench")]
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(Box<super::BenchArguments>),
    /// Find out whether an apiserver, or what stands in front of it, keeps its promises (docs/VERIFY.md)
    #[cfg(feature = "verify")]
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify(Box<super::VerifyArguments>),
    /// Say what proxies would have spared an apiserver, by its audit log
    #[command(after_help = ESTIMATE_EXAMPLES)]
    Estimate(super::EstimateArguments),
    /// Find out before it runs whether a proxy could: rights, certificates, upstream, sizes and what it would cost
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Box<super::CheckArguments>),
    /// Ask a running proxy how it is, in an image that has no shell and no curl
    #[command(after_help = HEALTH_EXAMPLES)]
    Health(super::HealthArguments),
    /// Ask running proxies how they are, who reads what and why: also as `kubectl fanout`
    #[cfg(feature = "inspect")]
    Fanout {
        #[command(subcommand)]
        verb: super::FanoutVerb,
    },
    /// Check a configuration, or show what one can say
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Become an exec plugin, with so many open files: how `serve` runs them
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
    /// Print the manual page of kube-fanout, or write those of all commands
    Man {
        /// Where they are written, such as /usr/local/share/man/man1; made if it is not there
        dir: Option<PathBuf>,
    },
}

impl Command {
    /// Reads what the process was called with.
    ///
    /// # Errors
    /// Wrong usage, or the help or the version that was asked for.
    pub fn of_process() -> Result<Self, clap::Error> {
        #[cfg(feature = "inspect")]
        if let Some(verb) = super::fanout::plugin_verb() {
            return verb.map(|verb| Self::Fanout { verb });
        }
        Arguments::try_parse().map(|arguments| arguments.command)
    }
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a file, flags and files that they name, as `serve` does before it binds anything
    Check(Box<ServeArguments>),
    /// Print a file with every key, its default and what it means
    Default,
    /// Print the JSON schema of the file, for editors
    Schema,
}

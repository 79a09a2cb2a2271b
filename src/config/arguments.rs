use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::ServeArguments;
use super::examples::{CHECK_EXAMPLES, HEALTH_EXAMPLES, SERVE_EXAMPLES};

/// One upstream Kubernetes watch, thousands of unmodified clients.
///
/// kube-fanout keeps one list-watch per resource open to a kube-apiserver and answers LIST, GET and WATCH from memory,
/// with the cluster's own resourceVersions. Everything else is passed through.
#[derive(Debug, Parser)]
#[command(name = "kube-fanout", version, max_term_width = 100, after_help = TOOLS_HELP)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of `fanoutctl`. `kube-fanout NAME` executes `fanoutctl NAME` if that binary is beside it.
pub const TOOL_COMMANDS: [&str; 6] = ["demo", "try", "bench", "verify", "estimate", "fanout"];

const TOOLS_HELP: &str =
    "Commands of fanoutctl, the binary for demos and measurements: demo, try, bench, verify, estimate, fanout.";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve clients in front of a kube-apiserver
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<ServeArguments>),
    /// Find out before it runs whether a proxy could: rights, certificates, upstream, sizes and what it would cost
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Box<super::CheckArguments>),
    /// Ask a running proxy how it is, in an image that has no shell and no curl
    #[command(after_help = HEALTH_EXAMPLES)]
    Health(super::HealthArguments),
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
    /// A command of `fanoutctl`, with its name and arguments.
    #[command(skip)]
    Tool(Vec<OsString>),
}

impl Command {
    /// Reads the arguments of the process.
    ///
    /// # Errors
    /// The arguments are wrong, or ask for help or the version.
    pub fn of_process() -> Result<Self, clap::Error> {
        #[allow(clippy::disallowed_methods, reason = "arguments are read here")]
        let arguments: Vec<_> = std::env::args_os().skip(1).collect();
        if arguments.first().is_some_and(|name| TOOL_COMMANDS.iter().any(|tool| name == tool)) {
            return Ok(Self::Tool(arguments));
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

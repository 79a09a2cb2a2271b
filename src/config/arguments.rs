use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::ServeArguments;

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
    /// Run an exec credential plugin with a limit on open files and on its time; used by `serve`
    #[command(hide = true)]
    RunPlugin {
        open_files: u64,
        seconds: u64,
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
    pub serve: ServeArguments,
    /// Number of proxies to estimate the cost for
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nodes: u64,
    /// Number of clients per proxy, each with a token and a watch, to estimate the reviews for
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub agents: u64,
    /// Name or address by which clients connect, such as the address of the Service; may be repeated
    #[arg(long, value_name = "HOST")]
    pub client_host: Vec<String>,
    /// Treat notes as failures
    #[arg(long)]
    pub strict: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const SERVE_EXAMPLES: &str = "\
Examples:
  On loopback, for a sidecar or a workstation, with the credentials of a kubeconfig:
    kube-fanout serve --kubeconfig ~/.kube/config --listen 127.0.0.1:8001
    kubectl --server=http://127.0.0.1:8001 get pods --watch
  A central proxy for all accounts of the cluster:
    kube-fanout serve --kubeconfig proxy.kubeconfig --listen 0.0.0.0:8443 --tls-cert tls.crt --tls-key tls.key \
      --auth delegated --client-ca ca.crt --impersonator-kubeconfig impersonator.kubeconfig
  In a pod, on a unix socket that another container mounts:
    kube-fanout serve --listen unix:/run/kube-fanout/api.sock --preload pods,nodes

Exit codes: 0 stopped by SIGTERM or SIGINT, 64 usage error, 78 invalid configuration, 1 other errors.";

const CHECK_EXAMPLES: &str = "\
Examples:
  Check the configuration of a DaemonSet on 1000 nodes, and estimate its cost:
    kube-fanout check --config node.yaml --kubeconfig node.kubeconfig --node-name node-1 --nodes 1000
  In a pipeline, with notes as failures:
    kube-fanout check --config central.yaml --kubeconfig proxy.kubeconfig --strict --json

`check` takes the flags of `serve`. It only reads: it changes nothing and does not listen.

Exit codes: 0 all checks passed, 1 a check failed, 2 inconclusive, 64 usage error.";

const HEALTH_EXAMPLES: &str = "\
Examples:
  The proxy in this container, at the address in its configuration:
    kube-fanout health
  Whether it is ready:
    kube-fanout health http://127.0.0.1:10256/readyz

Because it needs no shell and no curl, it works in images that have neither.

Exit codes: 0 healthy, 1 unhealthy, 2 no response, 64 usage error.";

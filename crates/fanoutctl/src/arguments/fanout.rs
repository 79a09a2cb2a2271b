use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use base::AdminPageAddress;
use kube_fanout::config::one_kubeconfig;

/// Inspect running kube-fanout proxies: status, clients and decisions.
#[derive(Debug, Parser)]
#[command(name = "kubectl-fanout", bin_name = "kubectl fanout", version, max_term_width = 100)]
pub(crate) struct KubectlPluginArguments {
    #[command(subcommand)]
    pub(crate) verb: FanoutSubcommand,
}

/// Parses the verb if the process was started as a kubectl plugin, under the name `kubectl-fanout`; `None` under other
/// names.
pub(super) fn plugin_verb() -> Option<Result<FanoutSubcommand, clap::Error>> {
    #[allow(clippy::disallowed_methods, reason = "the name of the process is not a setting")]
    let name = std::env::args_os().next()?;
    let is_plugin = PathBuf::from(name).file_stem().is_some_and(|name| name == "kubectl-fanout");
    is_plugin.then(|| KubectlPluginArguments::try_parse().map(|arguments| arguments.verb))
}

/// The verbs of `fanout`.
#[derive(Debug, Subcommand)]
pub enum FanoutSubcommand {
    /// Show whether a proxy is ready, what it caches, and the state of its feeds
    #[command(name = "status", after_help = STATUS_EXAMPLES)]
    State {
        #[command(flatten)]
        admin: AdminArguments,
        /// Output format
        #[arg(long, short, value_name = "FORMAT", default_value = "text")]
        output: OutputFormat,
    },
    /// Show feeds, watches and rates live: interactive on a terminal, plain text elsewhere
    #[command(after_help = TOP_KEYS)]
    Top {
        #[command(flatten)]
        admin: AdminArguments,
        /// Refresh interval
        #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = humantime::parse_duration)]
        every: Duration,
        /// Print text this many times and exit [default: run until q or Ctrl-C]
        #[arg(long, value_name = "N")]
        times: Option<u64>,
    },
    /// Explain the state of watches, and why watches ended and requests were refused or forwarded
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain {
        #[command(flatten)]
        admin: AdminArguments,
        /// Only users whose names contain this text
        #[arg(long, value_name = "TEXT")]
        user: Option<String>,
        /// Only user agents that contain this text
        #[arg(long, value_name = "TEXT")]
        agent: Option<String>,
        /// Only resources and paths that contain this text
        #[arg(long, value_name = "TEXT")]
        resource: Option<String>,
        /// Maximum number of watches, and of entries of each kind
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
        /// Output format
        #[arg(long, short, value_name = "FORMAT", default_value = "text")]
        output: OutputFormat,
    },
    /// Compare a proxy's cache with upstream at one resourceVersion: by key, resourceVersion and bytes
    #[command(after_help = DIFF_EXAMPLES)]
    Diff {
        /// pods, deployments.apps, widgets.v1.example.com
        resource: String,
        /// Only this namespace
        #[arg(long, short, value_name = "NAME")]
        namespace: Option<String>,
        /// Apiserver to compare with [default: the server of the kubeconfig]
        #[arg(long, value_name = "URL")]
        upstream: Option<String>,
        #[command(flatten)]
        server: ServerArguments,
        /// Output format
        #[arg(long, short, value_name = "FORMAT", default_value = "text")]
        output: OutputFormat,
    },
    /// Watch a resource through a proxy and print one line per event
    Tail {
        /// pods, deployments.apps, widgets.v1.example.com
        resource: String,
        /// Only this namespace
        #[arg(long, short, value_name = "NAME")]
        namespace: Option<String>,
        /// Only objects with these labels
        #[arg(long, short = 'l', value_name = "SELECTOR")]
        selector: Option<String>,
        /// Only objects with these fields
        #[arg(long, value_name = "SELECTOR")]
        field_selector: Option<String>,
        /// Resume after this resourceVersion [default: print the existing objects, then changes]
        #[arg(long, value_name = "VERSION")]
        from: Option<String>,
        /// Stop after this many seconds [default: when the server ends the watch]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        seconds: Option<u64>,
        #[command(flatten)]
        server: ServerArguments,
        /// Output format; json prints the frames unchanged
        #[arg(long, short, value_name = "FORMAT", default_value = "text")]
        output: OutputFormat,
    },
}

/// Where the admin pages of proxies are, and the token to read them with.
#[derive(Debug, Clone, clap::Args)]
pub struct AdminArguments {
    /// Admin address of a proxy: http://HOST:PORT or unix:PATH; may be repeated
    #[arg(long, value_name = "ADDR", default_value = "http://127.0.0.1:9090")]
    address: Vec<String>,
    /// Instead of addresses: all pods with these labels, each through `kubectl port-forward`
    #[arg(long, value_name = "SELECTOR", conflicts_with = "address")]
    pub pods: Option<String>,
    /// Namespace of those pods [default: kubectl's namespace]
    #[arg(long, short, value_name = "NAME", requires = "pods")]
    pub namespace: Option<String>,
    /// Only the pods on this node
    #[arg(long, value_name = "NAME", requires = "pods")]
    pub node: Option<String>,
    /// Context of the kubeconfig that kubectl uses for those pods
    #[arg(long, value_name = "NAME", requires = "pods")]
    pub context: Option<String>,
    /// Port of the admin pages in those pods
    #[arg(long, value_name = "PORT", default_value_t = 9090)]
    pub pod_port: u16,
    /// File with a bearer token, for the pages that show clients
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// The client address of a proxy, and the credentials to use there.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArguments {
    /// Client address of the proxy
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8001")]
    pub proxy: String,
    /// Credentials, and a CA to trust
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Additional CA certificates to trust, PEM
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// File with a bearer token; it is also sent over plain HTTP
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Do not verify the server certificate
    #[arg(long)]
    pub insecure_skip_tls_verify: bool,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Text for people
    Text,
    /// JSON for programs
    Json,
}

impl AdminArguments {
    /// Returns each address as given, with its parsed form.
    ///
    /// # Errors
    /// If an address is invalid.
    pub fn places(&self) -> Result<Vec<(String, AdminPageAddress)>, String> {
        self.address.iter().map(|text| Ok((text.clone(), AdminPageAddress::parse(text)?.0))).collect()
    }
}

impl ServerArguments {
    /// Returns the kubeconfig to read, if the flag or `KUBECONFIG` names one.
    ///
    /// # Errors
    /// If `KUBECONFIG` lists several files.
    pub fn kubeconfig(&self) -> Result<Option<PathBuf>, String> {
        let named = self.kubeconfig.clone().map(one_kubeconfig).transpose();
        Ok(named.map_err(|why| format!("--kubeconfig (KUBECONFIG): {why}"))?.flatten())
    }
}

/// Returns whether the terminal supports a screen with colours; `None` if it supports only lines of text.
#[allow(clippy::disallowed_methods, reason = "the terminal's environment variables are not settings")]
pub fn terminal_colours() -> Option<bool> {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    // https://no-color.org
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    (!is_dumb).then_some(!is_plain)
}

const STATUS_EXAMPLES: &str = "\
Examples:
  The proxy on this machine:
    kubectl fanout status
  All proxies of a namespace, at most 64:
    kubectl fanout status --pods app.kubernetes.io/name=kube-fanout -n kube-fanout
  The proxy of one node:
    kubectl fanout status --pods app.kubernetes.io/name=kube-fanout -n kube-fanout --node n7

Exit codes: 0 healthy, 1 unhealthy, 2 inconclusive, 64 usage error.";

const TOP_KEYS: &str = "\
Keys:
  Tab             switch between feeds and watches
  Up Down, k j    scroll by a row; PgUp PgDn by a page; Home End, g G to the first and the last row
  Left Right      previous or next proxy, if there are several (repeated --address, or --pods)
  s, r            next sort order, reverse order: feeds by readers, memory, name; watches by
                  behind, since, sent, open, agent, user, resource (among all open watches)
  /               filter rows by a text: Enter applies it, Esc clears it
  Space           pause or resume
  ?               help
  q, Esc, Ctrl-C  quit

Examples:
  The proxy on this machine, with its watches:
    kubectl fanout top --address unix:/run/kube-fanout/admin.sock
  All proxies of a namespace, at most 64:
    kubectl fanout top --pods app.kubernetes.io/name=kube-fanout -n kube-fanout
  Print once, for a script:
    kubectl fanout top --times 1

With --times, without a terminal, and with TERM=dumb it prints text. It honours NO_COLOR. If a proxy \
stops responding, `top` says so and keeps trying.

Exit codes: 0 quit, 2 no proxy responds at the start, 64 usage error.";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  Why does this controller lag?
    kubectl fanout explain --address unix:/run/kube-fanout/admin.sock --agent my-controller
  Which reads of pods are forwarded, and why?
    kubectl fanout explain --token-file token --resource pods

On a unix socket the proxy shows its clients. On other addresses it requires a token of a user who may get the paths \
/debug/watches and /debug/recent (nonResourceURLs).

Exit codes: 0 explained, 2 inconclusive, 64 usage error.";

const DIFF_EXAMPLES: &str = "\
Examples:
  Pods in the cache of the proxy on this machine, compared with the kubeconfig's server:
    kubectl fanout diff pods --kubeconfig ~/.kube/config
  A central proxy, as JSON:
    kubectl fanout diff deployments.apps --proxy https://fanout:8443 --ca fanout.crt -o json

It lists from the proxy's cache, and then from upstream at exactly the resourceVersion of that list.

Exit codes: 0 identical, 1 different, 2 inconclusive, 64 usage error.";

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use base::PagePlace;
use kube_fanout::config::one_kubeconfig;

/// Ask running kube-fanout proxies how they are, who reads what and why.
#[derive(Debug, Parser)]
#[command(name = "kubectl-fanout", bin_name = "kubectl fanout", version, max_term_width = 100)]
pub(crate) struct PluginArguments {
    #[command(subcommand)]
    pub(crate) verb: FanoutVerb,
}

/// The verb that a process was called with as a plugin of kubectl, which finds `kubectl-fanout` by that name; `None` by
/// any other.
pub(super) fn plugin_verb() -> Option<Result<FanoutVerb, clap::Error>> {
    #[allow(clippy::disallowed_methods, reason = "the name by which a plugin is called is no setting")]
    let name = std::env::args_os().next()?;
    let is_plugin = PathBuf::from(name).file_stem().is_some_and(|name| name == "kubectl-fanout");
    is_plugin.then(|| PluginArguments::try_parse().map(|arguments| arguments.verb))
}

/// What is asked.
#[derive(Debug, Subcommand)]
pub enum FanoutVerb {
    /// Whether a proxy is ready, what it holds, and how far its feeds are
    #[command(name = "status", after_help = STATUS_EXAMPLES)]
    State(AdminArguments),
    /// Feeds, watches and rates, live: a screen with keys on a terminal, and text elsewhere
    #[command(after_help = TOP_KEYS)]
    Top {
        #[command(flatten)]
        admin: AdminArguments,
        /// The time between two looks
        #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = humantime::parse_duration)]
        every: Duration,
        /// Print text so many times and end [default: go on until q or Ctrl-C]
        #[arg(long, value_name = "N")]
        times: Option<u64>,
    },
    /// Why clients wait, and why watches ended, and requests were refused or passed through
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain {
        #[command(flatten)]
        admin: AdminArguments,
        /// Only of users whose names contain this
        #[arg(long, value_name = "TEXT")]
        user: Option<String>,
        /// Only of user agents that contain this
        #[arg(long, value_name = "TEXT")]
        agent: Option<String>,
        /// Only of resources and paths that contain this
        #[arg(long, value_name = "TEXT")]
        resource: Option<String>,
        /// How many watches, and how much of each kind that happened
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
    },
    /// Compare what a proxy holds with upstream's storage at one version, by key, version and bytes
    #[command(after_help = DIFF_EXAMPLES)]
    Diff {
        /// pods, deployments.apps, widgets.v1.example.com
        resource: String,
        /// Only this namespace
        #[arg(long, short, value_name = "NAME")]
        namespace: Option<String>,
        /// Upstream [default: the server of the kubeconfig]
        #[arg(long, value_name = "URL")]
        upstream: Option<String>,
        #[command(flatten)]
        server: ServerArguments,
        /// How it is said
        #[arg(long, short, value_name = "FORM", default_value = "text")]
        output: OutputForm,
    },
    /// Print a watch of a proxy as it comes, a line for each event
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
        /// Go on behind this version [default: what there is, and then what happens]
        #[arg(long, value_name = "VERSION")]
        from: Option<String>,
        /// End after so many seconds [default: when the server ends the watch]
        #[arg(long, value_name = "N")]
        seconds: Option<u64>,
        #[command(flatten)]
        server: ServerArguments,
        /// How it is said: json prints frames as they came
        #[arg(long, short, value_name = "FORM", default_value = "text")]
        output: OutputForm,
    },
}

/// The admin pages of proxies, and what they are asked with.
#[derive(Debug, Clone, clap::Args)]
pub struct AdminArguments {
    /// The admin address of a proxy, http://HOST:PORT or unix:PATH; may be repeated
    #[arg(long, value_name = "ADDR", default_value = "http://127.0.0.1:9090")]
    address: Vec<String>,
    /// In place of addresses: all pods with these labels, each through a port-forward of kubectl
    #[arg(long, value_name = "SELECTOR", conflicts_with = "address")]
    pub pods: Option<String>,
    /// Where those pods are [default: kubectl's namespace]
    #[arg(long, short, value_name = "NAME", requires = "pods")]
    pub namespace: Option<String>,
    /// The port of the admin pages in those pods
    #[arg(long, value_name = "PORT", default_value_t = 9090)]
    pub pod_port: u16,
    /// A bearer token, for the pages that say who reads what
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// How it is said
    #[arg(long, short, value_name = "FORM", default_value = "text")]
    pub output: OutputForm,
}

/// The address that clients of a proxy have, and who asks there.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArguments {
    /// The address of the proxy that its clients have
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8001")]
    pub proxy: String,
    /// Credentials, and an authority to trust
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Certificates to trust as well, PEM
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Token to send, over plain HTTP too
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Believe any certificate
    #[arg(long)]
    pub insecure_skip_tls_verify: bool,
}

/// How something is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputForm {
    /// For people
    Text,
    /// For programs
    Json,
}

impl AdminArguments {
    /// Each address as it was named, and where that is.
    ///
    /// # Errors
    /// An address that is none.
    pub fn places(&self) -> Result<Vec<(String, PagePlace)>, String> {
        self.address.iter().map(|text| Ok((text.clone(), PagePlace::parse(text)?.0))).collect()
    }
}

impl ServerArguments {
    /// The kubeconfig to read, if one is named.
    ///
    /// # Errors
    /// `KUBECONFIG` is a list of several files.
    pub fn kubeconfig(&self) -> Result<Option<PathBuf>, String> {
        let named = self.kubeconfig.clone().map(one_kubeconfig).transpose();
        Ok(named.map_err(|why| format!("--kubeconfig (KUBECONFIG): {why}"))?.flatten())
    }
}

/// Whether there can be a screen in colours, or one without; `None` if the terminal can only print lines.
#[allow(clippy::disallowed_methods, reason = "what every program is told about its terminal is no setting")]
pub fn terminal_colours() -> Option<bool> {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    // https://no-color.org
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    (!is_dumb).then_some(!is_plain)
}

const STATUS_EXAMPLES: &str = "\
Examples:
  The proxy of this machine:
    kubectl fanout status
  All of a DaemonSet:
    kubectl fanout status --pods app.kubernetes.io/name=kube-fanout -n kube-fanout

Exit codes: 0 all is well, 1 something is not, 2 nothing can be said, 64 wrong usage.";

const TOP_KEYS: &str = "\
Keys:
  Tab             feeds, or watches
  Up Down, k j    scroll by a row; PgUp PgDn by a page; Home End, g G to the first and the last
  Left Right      another proxy, where there are several (--address again, or --pods)
  s, r            sort by something else, reverse: feeds by readers, memory, name; watches by
                  behind, since, sent, open, agent, user, resource, among all that are open
  /               only rows with a text: Enter keeps it, Esc drops it
  Space           pause, and go on
  ?               help
  q, Esc, Ctrl-C  quit

Examples:
  The proxy of this machine, with who watches:
    kubectl fanout top --address unix:/run/kube-fanout/admin.sock
  All of a DaemonSet:
    kubectl fanout top --pods app.kubernetes.io/name=kube-fanout -n kube-fanout
  For a script:
    kubectl fanout top --times 1

With --times, where there is no terminal, and with TERM=dumb it prints text. NO_COLOR is
honoured. A proxy that dies is said not to answer, and is shown again when it is back.

Exit codes: 0 told to end, 2 no proxy answers at first, 64 wrong usage.";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  Why is this controller late?
    kubectl fanout explain --address unix:/run/kube-fanout/admin.sock --agent my-controller
  What passes through although it is a read of pods?
    kubectl fanout explain --token-file token --resource pods

Who reads what is shown on a unix socket, and elsewhere to whom upstream allows it: a user who may get the paths
/debug/watches and /debug/recent (nonResourceURLs).

Exit codes: 0 told, 2 nothing can be said, 64 wrong usage.";

const DIFF_EXAMPLES: &str = "\
Examples:
  What the proxy on this machine holds of pods, against the kubeconfig's server:
    kubectl fanout diff pods --kubeconfig ~/.kube/config
  A central proxy, for programs:
    kubectl fanout diff deployments.apps --proxy https://fanout:8443 --ca fanout.crt -o json

It lists from the proxy's memory, and then from upstream's storage at the very version of that.

Exit codes: 0 the same, 1 different, 2 nothing can be said, 64 wrong usage.";

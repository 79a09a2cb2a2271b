//! The schema of the configuration file: its keys, their types, bounds and descriptions.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fields::{BoundedDuration, BoundedNumber, address_or_off, one_or_list, one_or_list_schema};
use super::{defaults, document};
use crate::auth::{AccessDecider, AuthMode, TokenIdentification};
use crate::net::Http2Codec;
use crate::serve::{ReadConsistency, SensitiveKind, WatchCompression};

/// A bounded period for permissions: the minimum protects upstream from constant reviews, the maximum limits how long a
/// revoked permission can stay in use.
type PermissionCheckPeriod = BoundedDuration<10, 3_600_000>;

/// The configuration file. The doc comment of each field is its description in docs/CONFIG.md and `config schema`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct Configuration {
    /// Version of this file's format; if absent, the current one
    #[schemars(extend("x-example" = "kube-fanout.io/v1alpha1"))]
    pub(super) api_version: Option<ConfigApiVersion>,
    /// Kind of this file
    #[schemars(extend("x-example" = "Configuration"))]
    pub(super) kind: Option<ConfigKind>,
    /// The apiserver, or the proxy tier above this one
    pub(super) upstream: UpstreamSection,
    /// Client listeners. Only the proxy's user and root can connect to a unix socket
    #[schemars(
        schema_with = "one_or_list_schema",
        extend("x-type" = "address or list", "x-bounds" = "local with `auth: none`")
    )]
    #[serde(deserialize_with = "one_or_list")]
    pub(super) listen: Vec<String>,
    /// Admin listener: [live page](OPERATING.md), `/metrics`, health, `/debug/*`. Pages that show callers need
    /// [permission](SECURITY.md)
    #[schemars(extend("x-type" = "address or `off`", "x-bounds" = "local"))]
    #[serde(deserialize_with = "address_or_off")]
    pub(super) admin: String,
    /// Listener for `/healthz`, `/livez` and `/readyz` only; accepts every Host header
    #[schemars(extend("x-type" = "`IP:PORT` or `off`"))]
    #[serde(deserialize_with = "address_or_off")]
    pub(super) healthz_bind_address: String,
    /// Listener for `/metrics` only. Without `metrics.auth` it has neither TLS nor authentication
    #[schemars(extend("x-type" = "`IP:PORT` or `off`"))]
    #[serde(deserialize_with = "address_or_off")]
    pub(super) metrics_bind_address: String,
    /// Certificate of the TCP listeners
    pub(super) tls: TlsSection,
    /// `none`: every caller acts as the proxy's identity; local addresses only. `delegated`: the apiserver
    /// [authenticates callers and authorizes reads](#delegated); other addresses need TLS
    #[schemars(with = "String", extend("enum" = ["none", "delegated"]))]
    pub(super) auth: AuthMode,
    /// Accepted Host names besides `localhost` and loopback addresses: of TCP listeners with `auth: none`, and of the
    /// admin and metrics listeners
    #[schemars(extend("x-type" = "names"))]
    pub(super) allowed_hosts: Vec<String>,
    /// Origins of web pages that may use TCP listeners with `auth: none` or with a client certificate, and the admin
    /// and metrics listeners
    #[schemars(extend("x-type" = "origins", "x-bounds" = "`scheme://host[:port]`"))]
    pub(super) allowed_origins: Vec<String>,
    /// Forward `exec`, `attach`, `portforward` and `proxy` from TCP listeners with `auth: none`. Unix sockets always do
    pub(super) exec_on_loopback: bool,
    /// Reads without resourceVersion: from the cache, proven current (`strict`) or not (`bounded`)
    #[schemars(with = "String", extend("enum" = ["strict", "bounded"]))]
    pub(super) consistency: ReadConsistency,
    /// How reads are answered
    pub(super) reads: ReadsSection,
    /// Feeds that start with the process and never become idle; `/readyz` first waits for their initial lists
    #[schemars(extend("x-type" = "resources"))]
    pub(super) preload: Vec<String>,
    /// How long a `preload` feed may lack its upstream stream before [`/readyz`](OPERATING.md#health-and-readiness)
    /// returns 503; `0s`: unlimited
    pub(super) ready_stale_max: BoundedDuration,
    /// [Node](#on-a-node) that this proxy serves
    #[schemars(extend(
        "x-example" = "n7",
        "x-type" = "name",
        "x-bounds" = "with `auth: none` on unix sockets only"
    ))]
    pub(super) node: Option<String>,
    /// Maximum time from [SIGTERM to exit](OPERATING.md#stop-and-drain)
    pub(super) drain: BoundedDuration,
    /// Let a [successor](OPERATING.md#hand-over-the-port) listen too, except on `admin` (`SO_REUSEPORT`)
    pub(super) reuse_port: bool,
    /// Authentication and authorization with `auth: delegated`
    pub(super) delegated: DelegatedSection,
    /// Who may read `metricsBindAddress`
    pub(super) metrics: MetricsSection,
    /// Event history of each feed, from which watches resume
    pub(super) window: WindowSection,
    /// Which resources are cached, and for how long
    pub(super) feeds: FeedsSection,
    /// Limits on concurrent work; a request above a limit gets 429
    pub(super) limits: LimitsSection,
    /// HTTP/2 on all listeners
    pub(super) http2: Http2Section,
    /// Audit log of requests that the proxy answers
    #[serde(default)]
    pub(super) audit: AuditConfigSection,
    /// Log lines of the process
    pub(super) log: LogSection,
}

/// Implements `Default` for sections with the values of the file of defaults.
macro_rules! default_from_file {
    ($($name:ident: $section:ty),*) => {$(
        impl Default for $section {
            fn default() -> Self {
                Configuration::default().$name
            }
        }
    )*};
}

default_from_file! {
    delegated: DelegatedSection,
    metrics: MetricsSection,
    window: WindowSection,
    feeds: FeedsSection,
    limits: LimitsSection,
    log: LogSection
}

impl Default for Configuration {
    fn default() -> Self {
        let read = document::parse_yaml(defaults()).map(serde_json::from_value);
        read.expect("the file of defaults is YAML").expect("the file of defaults has every key")
    }
}

/// How reads are answered.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct ReadsSection {
    /// Callers whose forbidden lists and watches across namespaces are filtered
    pub(super) filter: ReadsFilterSection,
    /// Watches to compress for clients that accept gzip; `watchLists`: as upstream, from 1.37. With `never`, proxies
    /// get no differences
    #[schemars(with = "String", extend("enum" = ["watchLists", "all", "never"]))]
    pub(super) compress_watches: WatchCompression,
    /// Clients that receive objects from the cache without `metadata.managedFields`
    pub(super) drop: ReadsDropSection,
}

/// Clients that do not read the fields that are left out.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct ReadsDropSection {
    /// Prefixes of user agents that receive [objects without managedFields](GUIDES.md#objects-without-managedfields)
    #[schemars(extend("x-type" = "prefixes"))]
    pub(super) user_agents: Vec<String>,
    /// The same for groups
    #[schemars(extend("x-type" = "names", "x-bounds" = "with `auth: delegated`"))]
    pub(super) groups: Vec<String>,
    /// The same for users
    #[schemars(extend("x-type" = "names", "x-bounds" = "with `auth: delegated`"))]
    pub(super) users: Vec<String>,
    /// The same for addresses of `listen`
    #[schemars(extend("x-type" = "addresses"))]
    pub(super) listeners: Vec<String>,
}

/// Callers with filtered reads.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct ReadsFilterSection {
    /// Groups whose forbidden lists and watches show
    /// [what is permitted](GUIDES.md#lists-and-watches-of-permitted-namespaces). Not for controllers
    #[schemars(extend("x-type" = "names", "x-bounds" = "with `auth: delegated`"))]
    pub(super) groups: Vec<String>,
    /// The same for users
    #[schemars(extend("x-type" = "names", "x-bounds" = "with `auth: delegated`"))]
    pub(super) users: Vec<String>,
    /// The same for addresses of `listen`
    #[schemars(extend("x-type" = "addresses", "x-bounds" = "with `auth: delegated`"))]
    pub(super) listeners: Vec<String>,
}

/// The apiserver, or the proxy tier above this one.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct UpstreamSection {
    /// Kubeconfig without `proxy-url`, reloaded with the files that it names; a changed `server` needs a restart
    #[schemars(extend(
        "x-example" = "/etc/kube-fanout/kubeconfig",
        "x-default" = "in-cluster service account, else `~/.kube/config`"
    ))]
    pub(super) kubeconfig: Option<PathBuf>,
    /// [Servers](#several-servers) in order of preference, instead of the kubeconfig's `server`
    #[schemars(extend(
        "x-type" = "URLs",
        "x-bounds" = "`https://`, or `http://` to loopback; 8 at most"
    ))]
    pub(super) servers: Vec<String>,
}

/// The certificate of the TCP listeners.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct TlsSection {
    /// PEM chain for the TCP listeners; reloaded. Unix sockets never use TLS
    #[schemars(extend("x-example" = "/etc/kube-fanout/tls.crt", "x-bounds" = "with `tls.key`"))]
    pub(super) certificate: Option<PathBuf>,
    /// Private key, PEM
    #[schemars(extend("x-example" = "/etc/kube-fanout/tls.key", "x-bounds" = "with `tls.certificate`"))]
    pub(super) key: Option<PathBuf>,
    /// Generate a certificate at each start, for loopback, `allowedHosts` and the listeners
    #[schemars(extend("x-bounds" = "not with a certificate"))]
    pub(super) self_signed: bool,
    /// File to write that certificate to
    #[schemars(extend("x-example" = "/run/kube-fanout/ca.crt", "x-bounds" = "with `tls.selfSigned`"))]
    pub(super) self_signed_out: Option<PathBuf>,
}

/// Authentication and authorization of callers.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct DelegatedSection {
    /// CA of client certificates, PEM; reloaded. Common name is the user, organizations are the groups
    #[schemars(extend("x-example" = "/etc/kube-fanout/client-ca.crt", "x-bounds" = "with TLS"))]
    #[serde(rename = "clientCA")]
    pub(super) client_ca: Option<PathBuf>,
    /// Kubeconfig of an identity that may only impersonate, to forward requests of callers known by certificate.
    /// Without it they are refused, except the proxy's own identity. Not allowed with `node`
    #[schemars(extend("x-example" = "/etc/kube-fanout/impersonator.kubeconfig"))]
    pub(super) impersonator: Option<PathBuf>,
    /// CA of front proxies whose `X-Remote-User`, `-Uid`, `-Group` and `-Extra-*` headers are trusted
    #[schemars(extend(
        "x-example" = "/etc/kube-fanout/front-proxy-ca.crt",
        "x-bounds" = "must not share a CA with `clientCA`"
    ))]
    #[serde(rename = "frontProxyCA")]
    pub(super) front_proxy_ca: Option<PathBuf>,
    /// Allowed common names of front proxies; empty: any
    #[schemars(extend("x-type" = "names"))]
    pub(super) front_proxy_names: Vec<String>,
    /// Audiences that tokens must have; empty: the apiserver's own
    #[schemars(extend("x-type" = "list"))]
    pub(super) audiences: Vec<String>,
    /// `local`: the proxy [verifies tokens of service accounts](SECURITY.md#tokens-verified-by-the-proxy); `ask`: the
    /// apiserver reviews each
    #[schemars(with = "String", extend("enum" = ["ask", "local"]))]
    pub(super) identify: TokenIdentification,
    /// Serve requests without credentials from the cache, as `system:anonymous`; otherwise they are forwarded
    pub(super) anonymous: bool,
    /// `rbac` states that no authorizer before RBAC denies what RBAC allows: the proxy
    /// [allows it without asking](SECURITY.md#local-decisions)
    #[schemars(with = "String", extend("enum" = ["ask", "rbac"]))]
    pub(super) decide: AccessDecider,
    /// One in so many local decisions and verified tokens is compared with the apiserver's; 0: none. A difference returns
    /// to `ask`
    pub(super) compare_one_in: BoundedNumber<0, 1_000_000>,
    /// Cache TTL of token reviews; never beyond the token's expiry
    #[serde(rename = "tokenTTL")]
    pub(super) token_ttl: PermissionCheckPeriod,
    /// Cache TTL of allow decisions
    #[serde(rename = "allowedTTL")]
    pub(super) allowed_ttl: PermissionCheckPeriod,
    /// Cache TTL of deny decisions
    #[serde(rename = "deniedTTL")]
    pub(super) denied_ttl: PermissionCheckPeriod,
    /// Maximum interval between checks of an open watch's permission
    pub(super) recheck: PermissionCheckPeriod,
    /// The same for permissions from RBAC that the proxy watches; at least `recheck`
    pub(super) recheck_rbac: PermissionCheckPeriod,
    /// The same for permissions from the Node authorizer
    pub(super) recheck_nodes: PermissionCheckPeriod,
    /// The same for the token of an open watch; at least `recheck`
    pub(super) recheck_tokens: PermissionCheckPeriod,
    /// How long open watches continue while permissions cannot be checked, and local decisions while RBAC is not watched
    pub(super) outage_grace: PermissionCheckPeriod,
    /// New access reviews per second for one user; above it 429
    pub(super) accesses_per_second_per_user: BoundedNumber<1, 100_000>,
    /// Burst of new access reviews for one user
    pub(super) accesses_burst_per_user: BoundedNumber<1, 100_000>,
    /// New access reviews per second for all users; above it requests wait up to 2 s, then 429
    pub(super) accesses_per_second: BoundedNumber<1, 100_000>,
    /// Token reviews per second of unknown tokens, and as many of tokens valid within the last hour
    pub(super) reviews_per_second: BoundedNumber<1, 100_000>,
    /// Reviews per second of unknown tokens from one client address; above it 429
    pub(super) reviews_per_second_per_source: BoundedNumber<1, 100_000>,
    /// Burst of reviews of unknown tokens from one client address
    pub(super) reviews_burst_per_source: BoundedNumber<1, 100_000>,
    /// Reviews of each kind per second for open watches; half for one user
    pub(super) lease_reviews_per_second: BoundedNumber<1, 100_000>,
    /// Namespaces of open [filtered](GUIDES.md#lists-and-watches-of-permitted-namespaces) watches rechecked per second;
    /// they may span four times as many, above it 429
    pub(super) namespaces_per_second: BoundedNumber<1, 100_000>,
    /// The same for one user (name and UID)
    pub(super) namespaces_per_second_per_user: BoundedNumber<1, 100_000>,
}

/// Who may read `metricsBindAddress`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct MetricsSection {
    /// `none`: anyone who can connect. `delegated`: scrapers need a token or certificate, and `get` on `/metrics`
    #[schemars(with = "String", extend("enum" = ["none", "delegated"], "x-bounds" = "`none`, `delegated` (needs TLS)"))]
    pub(super) auth: AuthMode,
    /// Certificate of that listener
    pub(super) tls: MetricsTlsSection,
}

/// Certificate of `metricsBindAddress`.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct MetricsTlsSection {
    /// PEM chain for `metricsBindAddress`; reloaded
    #[schemars(extend(
        "x-example" = "/etc/kube-fanout/metrics.crt",
        "x-default" = "`tls.certificate`, if `metrics.auth` is `delegated`",
        "x-bounds" = "with `metrics.tls.key`"
    ))]
    pub(super) certificate: Option<PathBuf>,
    /// Private key, PEM
    #[schemars(extend("x-example" = "/etc/kube-fanout/metrics.key", "x-bounds" = "with `metrics.tls.certificate`"))]
    pub(super) key: Option<PathBuf>,
    /// Generate a certificate at each start, which scrapers cannot verify
    #[schemars(extend("x-bounds" = "not with a certificate"))]
    pub(super) self_signed: bool,
}

/// How much history each feed keeps.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct WindowSection {
    /// Bytes of events per feed; at most 3/16 of `feeds.memoryMebibytes`
    pub(super) mebibytes: BoundedNumber<1, 1_048_576>,
    /// Events per feed
    pub(super) events: BoundedNumber<1, 10_000_000>,
    /// Age of the oldest event
    pub(super) age: BoundedDuration,
}

/// Which resources are cached, and for how long.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct FeedsSection {
    /// Resources to cache, such as `pods` or `deployments.apps`; others are forwarded. Empty: everything that can be
    /// watched
    #[schemars(extend("x-type" = "resources"))]
    pub(super) resources: Vec<String>,
    /// Sensitive kinds to cache. By default Secrets are forwarded with `auth: delegated` and on a node, ConfigMaps on a
    /// node
    #[schemars(extend("x-type" = "words", "x-bounds" = "`secrets`, `configmaps`"))]
    pub(super) sensitive: Vec<SensitiveKind>,
    /// [Memory](#memory) of all feeds. Requests for a resource that does not fit are forwarded
    #[schemars(extend("x-default" = "half of available memory, 16 to 8192"))]
    pub(super) memory_mebibytes: Option<BoundedNumber<1, 16_777_216>>,
    /// Stop a feed that had no reader for this time
    pub(super) idle: BoundedDuration,
    /// Mean interval between [comparisons with upstream](#self-checks); `0s`: never
    pub(super) self_check: BoundedDuration,
    /// How long a request waits for a feed's initial list before it is forwarded
    pub(super) sync_wait: BoundedDuration,
    /// Snapshots per feed for clients that page through a LIST
    pub(super) held_snapshots: BoundedNumber<1, 100_000>,
    /// How long such a snapshot is kept; later pages are forwarded
    pub(super) held_snapshot_age: BoundedDuration,
}

/// Limits on concurrent work.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct LimitsSection {
    /// Connections per listener; at most three quarters of `ulimit -Hn`
    pub(super) connections: BoundedNumber<1, 1_000_000>,
    /// Age at which a connection is closed, ± 10 %; open requests continue. `0s`: never
    pub(super) connection_age: BoundedDuration,
    /// Duration of a watch without `timeoutSeconds`, up to twice this
    pub(super) min_request_timeout: BoundedDuration<1_000, 86_400_000>,
    /// Watches served from the cache, plus one for every 2 KiB of a watch's selectors
    pub(super) watches: BoundedNumber<1, 10_000_000>,
    /// Watches of one user
    pub(super) watches_per_caller: BoundedNumber<1, 10_000_000>,
    /// Bytes of responses being sent: LISTs, GETs above 64 KiB, shared upstream responses; half for one user
    #[schemars(extend("x-default" = "an eighth of available memory, 16 to 1024"))]
    pub(super) list_mebibytes: Option<BoundedNumber<1, 1_048_576>>,
    /// Forwarded requests that are not streams, discovery fetches, reviews for proxies below
    pub(super) forwards: BoundedNumber<1, 1_000_000>,
    /// Forwarded requests of one user
    pub(super) forwards_per_caller: BoundedNumber<1, 1_000_000>,
    /// Forwarded watches, logs, tunnels and `proxy` requests
    pub(super) streams: BoundedNumber<1, 1_000_000>,
    /// Forwarded streams of one user
    pub(super) streams_per_caller: BoundedNumber<1, 1_000_000>,
    /// Forwarded reads whose feed did not sync in time
    pub(super) unready_forwards: BoundedNumber<0, 1_000_000>,
    /// Forwarded requests without credentials (`auth: delegated`)
    pub(super) anonymous_forwards: BoundedNumber<0, 1_000_000>,
}

/// Audit log of requests that the proxy answers.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct AuditConfigSection {
    /// Log file; `-` is standard output. After a rotation it is created again with mode 0600
    #[schemars(extend("x-example" = "/var/log/kube-fanout/audit.log", "x-type" = "path or `-`"))]
    pub(super) path: Option<String>,
}

/// HTTP/2 on all listeners.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct Http2Section {
    /// HTTP/2 implementation. `hyper` is a fallback with [fewer limits](SECURITY.md#http2-by-hyper)
    #[schemars(with = "String", extend("enum" = ["own", "hyper"]))]
    pub(super) codec: Http2Codec,
}

/// Log lines of the process.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(default, deny_unknown_fields)]
pub(super) struct LogSection {
    /// `off`, `error`, `warn`, `info`, `debug`, `trace`, or a list such as `info,kube_fanout::reflect=debug`
    #[schemars(extend("x-type" = "filter"))]
    pub(super) level: String,
    /// Format of log lines
    pub(super) format: LogFormat,
}

/// The format version of the file.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) enum ConfigApiVersion {
    #[serde(rename = "kube-fanout.io/v1alpha1")]
    V1Alpha1,
}

/// The kind of the file.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) enum ConfigKind {
    Configuration,
}

/// Values of `log.format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum LogFormat {
    Text,
    Json,
}

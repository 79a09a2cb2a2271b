use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fields::{Number, OneOrList, Period, address_or_off, one_or_list};
use super::words::{ApiVersion, AuthWord, ConsistencyWord, Kind, LogFormat, SensitiveWord};
use crate::{auth, cache, net, reflect, serve};

/// A period about rights has bounds: a shorter one would ask upstream without end, and a longer one would keep a right
/// alive for longer than anybody remembers.
type RightsPeriod = Period<10, 3_600_000>;

/// What can be said in the file. The documentation of each field is what docs/CONFIG.md and `config schema` say.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub(super) struct Configuration {
    /// The version of this file's form; without it the only one there is
    #[schemars(extend(
        "x-type" = "word",
        "x-bounds" = "`kube-fanout.io/v1alpha1`",
        "x-example" = "kube-fanout.io/v1alpha1"
    ))]
    pub(super) api_version: Option<ApiVersion>,
    /// What this file is
    #[schemars(extend("x-type" = "word", "x-bounds" = "`Configuration`", "x-example" = "Configuration"))]
    pub(super) kind: Option<Kind>,
    /// The apiserver, or what stands before it
    pub(super) upstream: UpstreamSection,
    /// Where clients connect. HTTP/1.1 and HTTP/2 on each; unix sockets are made with mode 0600, and are for the
    /// proxy's own user and root only
    #[schemars(
        with = "OneOrList",
        extend("x-type" = "address, or list of addresses", "x-bounds" = "local with `auth: none`")
    )]
    #[serde(deserialize_with = "one_or_list")]
    pub(super) listen: Vec<String>,
    /// The [live page](OPERATING.md#the-live-page), `/metrics`, `/livez`, `/readyz`, `/debug/feeds`, `/debug/cost`,
    /// `/debug/config`; `/debug/watches` and `/debug/recent` for those who may see
    /// [who reads what](SECURITY.md#who-sees-who-reads-what)
    #[schemars(extend("x-type" = "address or `off`", "x-bounds" = "local"))]
    #[serde(deserialize_with = "address_or_off")]
    pub(super) admin: String,
    /// `/healthz`, `/livez` and `/readyz` for a kubelet or a balancer: `ok`, or what is not ready and why. May be bound
    /// to all interfaces, because nothing else is shown there. Takes every Host
    #[schemars(extend("x-type" = "`IP:PORT` or `off`"))]
    #[serde(deserialize_with = "address_or_off")]
    pub(super) healthz_bind_address: String,
    /// `/metrics` for a Prometheus elsewhere, the same that the admin address shows. Unless `metrics.auth` says
    /// otherwise, without TLS and without asking who reads: see
    /// [SECURITY.md](SECURITY.md#metrics-and-health-for-other-machines). Rendered once a second at most
    #[schemars(extend("x-type" = "`IP:PORT` or `off`"))]
    #[serde(deserialize_with = "address_or_off")]
    pub(super) metrics_bind_address: String,
    /// The certificate of the TCP listeners
    pub(super) tls: TlsSection,
    /// `none`: every caller is the proxy itself, as with `kubectl proxy`. Refused on addresses that other machines
    /// can reach. `delegated`: upstream is asked who a caller is and what it may read; see [delegated](#delegated).
    /// Without TLS refused on addresses that other machines can reach
    #[schemars(extend("x-type" = "word", "x-bounds" = "`none`, `delegated`"))]
    pub(super) auth: AuthWord,
    /// With `auth: none`: hosts that TCP listeners answer to besides `localhost` and the loopback addresses,
    /// without a port; keeps web pages from reaching a local port by a name of theirs. The addresses of the admin
    /// pages and of metrics answer to them too, whatever `auth` is, and to every numeric address
    #[schemars(extend("x-type" = "list of names"))]
    pub(super) allowed_hosts: Vec<String>,
    /// Web pages that may send requests to TCP listeners with `auth: none`, with the client certificate of their
    /// user (`auth: delegated`), and to the addresses of the admin pages and of metrics. Compared whole, without
    /// patterns. Requests of all other pages are refused, unless they are for the page's own origin: see
    /// [SECURITY.md](SECURITY.md#ports-without-authentication)
    #[schemars(extend("x-type" = "list of origins", "x-bounds" = "`scheme://host` or `scheme://host:port`"))]
    pub(super) allowed_origins: Vec<String>,
    /// With `auth: none`: whether TCP listeners pass on what reaches into pods, services and nodes, which is
    /// `exec`, `attach`, `portforward` and `proxy` of whatever resource. Unix sockets always do
    pub(super) exec_on_loopback: bool,
    /// What a read without a resourceVersion is answered with. `strict`: only with proof that the cache has every
    /// write that was complete when the request came. `bounded`: with what a live feed has, without proof
    #[schemars(extend("x-type" = "word", "x-bounds" = "`strict`, `bounded`"))]
    pub(super) consistency: ConsistencyWord,
    /// Feeds started with the process, and again if they end; never idle. `/readyz` waits until each has
    /// been complete once. Built-in resources in protobuf, the others in JSON
    #[schemars(extend("x-type" = "list of resources"))]
    pub(super) preload: Vec<String>,
    /// How long a feed of `preload` may be without its stream before `/readyz` answers 503, until it has one again.
    /// `0s`: for ever. Whatever else is held does not count: see [Readiness](#readiness)
    pub(super) ready_stale_max: Period,
    /// For a proxy on a node, with that node's identity or one like it: see [On a node](#on-a-node)
    #[schemars(extend(
        "x-example" = "n7",
        "x-type" = "name",
        "x-bounds" = "a DNS subdomain; with `auth: none` on unix sockets only"
    ))]
    pub(super) node: Option<String>,
    /// From SIGTERM to the end, at most: see [Stopping](#stopping)
    pub(super) drain: Period,
    /// All TCP addresses are bound with `SO_REUSEPORT`, so that a successor can listen beside
    /// this process: see [Giving the port over](#giving-the-port-over)
    pub(super) reuse_port: bool,
    /// How callers are known, and with whose rights their requests go on, with `auth: delegated`
    pub(super) delegated: DelegatedSection,
    /// Who may read metrics at `metricsBindAddress`
    pub(super) metrics: MetricsSection,
    /// How much history each feed keeps for watches to resume in
    pub(super) window: WindowSection,
    /// What is held, and for how long
    pub(super) feeds: FeedsSection,
    /// Beyond a limit a request is refused at once with 429
    pub(super) limits: LimitsSection,
    /// A record of what is answered here
    pub(super) audit: AuditSection,
    /// What the process says of itself
    pub(super) log: LogSection,
}

/// The apiserver, or what stands before it.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub(super) struct UpstreamSection {
    /// Client certificates, tokens, token files and exec plugins; refused when it turns TLS verification off, or
    /// names an `http://` server that is not a loopback address. Read again when it changes, and so are the
    /// certificates and keys that it names; another `server` takes a restart.
    /// Plugins have the limit of open files that the proxy was started with
    #[schemars(extend(
        "x-example" = "/etc/kube-fanout/kubeconfig",
        "x-default" = "the pod's service account; outside of a cluster ~/.kube/config"
    ))]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Servers of one cluster, in the order of preference, in place of the `server` that the kubeconfig names; the same
    /// credentials, authorities and `tls-server-name` are for each of them. One is used at a time: see [Several
    /// servers](#several-servers). Empty: the kubeconfig's
    #[schemars(extend(
        "x-type" = "list of URLs",
        "x-bounds" = "`https://`, or `http://` to a loopback address; 8 at most"
    ))]
    pub(super) servers: Vec<String>,
}

/// The certificate of the TCP listeners.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub(super) struct TlsSection {
    /// PEM chain for the TCP listeners; new connections are shown what it holds now. A unix socket never speaks TLS
    #[schemars(extend("x-example" = "/etc/kube-fanout/tls.crt", "x-bounds" = "with `tls.key`"))]
    pub(super) certificate: Option<PathBuf>,
    /// Its key, PEM
    #[schemars(extend("x-example" = "/etc/kube-fanout/tls.key", "x-bounds" = "with `tls.certificate`"))]
    pub(super) key: Option<PathBuf>,
    /// A certificate of our own for `localhost`, the loopback addresses, `allowedHosts` and the listeners'
    /// addresses
    #[schemars(extend("x-bounds" = "not with the two above"))]
    pub(super) self_signed: bool,
    /// Where it is written
    #[schemars(extend("x-example" = "/run/kube-fanout/ca.crt", "x-bounds" = "with `tls.selfSigned`"))]
    pub(super) self_signed_out: Option<PathBuf>,
}

/// How callers are known, and with whose rights their requests go on.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub(super) struct DelegatedSection {
    /// Authorities whose client certificates are taken: common name and organizations are user and groups. PEM;
    /// read again when it changes
    #[schemars(extend("x-example" = "/etc/kube-fanout/client-ca.crt", "x-bounds" = "with TLS"))]
    #[serde(rename = "clientCA")]
    pub(super) client_ca: Option<PathBuf>,
    /// A kubeconfig whose identity may impersonate and nothing else. Requests of certificate holders that are
    /// passed through go with it; without it they are refused, unless the certificate is the proxy's own identity.
    /// Tokens are passed on as they are. It could act as anybody, so with `node` the proxy does not start
    #[schemars(extend("x-example" = "/etc/kube-fanout/impersonator.kubeconfig"))]
    pub(super) impersonator: Option<PathBuf>,
    /// Authorities of proxies in front whose `X-Remote-User`, `-Uid`, `-Group` and `-Extra-*` are believed
    #[schemars(extend(
        "x-example" = "/etc/kube-fanout/front-proxy-ca.crt",
        "x-bounds" = "not an authority of clients, also when either file changes"
    ))]
    #[serde(rename = "frontProxyCA")]
    pub(super) front_proxy_ca: Option<PathBuf>,
    /// Common names of those proxies; empty: any
    #[schemars(extend("x-type" = "list of names"))]
    pub(super) front_proxy_names: Vec<String>,
    /// What tokens must be meant for; empty: whatever the apiserver itself takes
    #[schemars(extend("x-type" = "list"))]
    pub(super) audiences: Vec<String>,
    /// Whether requests without a credential may be answered from the cache, as `system:anonymous`. Otherwise they
    /// are passed through without one
    pub(super) anonymous: bool,
    /// How long an answer about a token is remembered, at most until the token ends
    #[serde(rename = "tokenTTL")]
    pub(super) token_ttl: RightsPeriod,
    /// How long a yes of the authorizer is
    #[serde(rename = "allowedTTL")]
    pub(super) allowed_ttl: RightsPeriod,
    /// How long a no is. That of the Node authorizer, if no pod of the node needs the object, is not remembered
    #[serde(rename = "deniedTTL")]
    pub(super) denied_ttl: RightsPeriod,
    /// How often the right behind an open watch is asked about again, or up to a fifth sooner, whatever is known of
    /// changes
    pub(super) recheck: RightsPeriod,
    /// The same of a right that RBAC gives, as the authorizer says, while changes of RBAC are seen. A shorter one is as
    /// long as `recheck`
    pub(super) recheck_rbac: RightsPeriod,
    /// The same of a right of a node, which the Node authorizer gives, whatever is known of changes
    pub(super) recheck_nodes: RightsPeriod,
    /// The same of whose a token is, if that is to be asked about more rarely. A shorter one is as long as `recheck`
    pub(super) recheck_tokens: RightsPeriod,
    /// How long open watches go on while their rights cannot be checked
    pub(super) outage_grace: RightsPeriod,
    /// Different accesses of one user that upstream is asked about; beyond it 429
    pub(super) accesses_per_second_per_user: Number<1, 100_000>,
    /// How many different accesses of one user at once
    pub(super) accesses_burst_per_user: Number<1, 100_000>,
    /// Different accesses of all requests together that upstream is asked about; requests beyond that wait for two
    /// seconds at most, then 429
    pub(super) accesses_per_second: Number<1, 100_000>,
    /// Unknown tokens that upstream is asked about; as many again of tokens that were somebody's within the last
    /// hour
    pub(super) reviews_per_second: Number<1, 100_000>,
    /// Unknown tokens of one client address; beyond it 429
    pub(super) reviews_per_second_per_source: Number<1, 100_000>,
    /// How many unknown tokens of one client address at once
    pub(super) reviews_burst_per_source: Number<1, 100_000>,
    /// Questions about tokens, and as many about accesses, by which the rights behind open watches are asked about
    /// again; half as many of one user's. Where a change of RBAC touches more open decisions than can be asked
    /// about in four seconds, the others follow at this pace
    pub(super) lease_reviews_per_second: Number<1, 100_000>,
    /// Namespaces of open [readable](GUIDES.md) watches that are asked about again. Such watches together stand
    /// on four times as many at most; beyond that they are refused with 429
    pub(super) namespaces_per_second: Number<1, 100_000>,
    /// The same of one user (name and UID): by default its open readable watches stand on 2,000 namespaces together
    pub(super) namespaces_per_second_per_user: Number<1, 100_000>,
}

/// Who may read metrics on the address for other machines.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub(super) struct MetricsSection {
    /// `none`: whoever reaches `metricsBindAddress`. `delegated`: upstream is asked who scrapes (TokenReview) and
    /// whether it may `get` the non-resource URL `/metrics` (SubjectAccessReview); see [metrics](#metrics)
    #[schemars(extend("x-type" = "word", "x-bounds" = "`none`, `delegated`, which takes TLS"))]
    #[expect(clippy::doc_markdown, reason = "kinds of objects, which the table writes as words")]
    pub(super) auth: AuthWord,
    /// The certificate of that address
    pub(super) tls: MetricsTlsSection,
}

/// The certificate of the address that metrics are read at.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub(super) struct MetricsTlsSection {
    /// PEM chain for `metricsBindAddress`; new connections are shown what it holds now
    #[schemars(extend(
        "x-example" = "/etc/kube-fanout/metrics.crt",
        "x-default" = "with `metrics.auth: delegated` that of `tls`",
        "x-bounds" = "with `metrics.tls.key`"
    ))]
    pub(super) certificate: Option<PathBuf>,
    /// Its key, PEM
    #[schemars(extend("x-example" = "/etc/kube-fanout/metrics.key", "x-bounds" = "with `metrics.tls.certificate`"))]
    pub(super) key: Option<PathBuf>,
    /// A certificate of our own for `localhost`, the loopback addresses, `allowedHosts` and the address, which nobody
    /// can verify
    #[schemars(extend("x-bounds" = "not with the two above"))]
    pub(super) self_signed: bool,
}

/// How much history each feed keeps.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub(super) struct WindowSection {
    /// Bytes of event frames, per feed; a quarter of `feeds.memoryMebibytes` at most
    pub(super) mebibytes: Number<1, 1_048_576>,
    /// Events, per feed; the default is the apiserver's own largest history
    pub(super) events: Number<1, 10_000_000>,
    /// Age of the oldest event
    pub(super) age: Period,
}

/// What is held, and for how long.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
#[expect(clippy::doc_markdown, reason = "kinds of objects, which the table writes as words")]
pub(super) struct FeedsSection {
    /// The only resources that are held: `pods`, `deployments.apps`, `widgets.v1.example.com`. Others pass through;
    /// what the proxy itself reads, CustomResourceDefinitions and APIServices, it holds all the same. Empty:
    /// everything that can be watched
    #[schemars(extend("x-type" = "list of resources"))]
    pub(super) resources: Vec<String>,
    /// Sensitive kinds that are held all the same. Without it Secrets pass through where callers are told apart and
    /// on a node, and ConfigMaps on a node; with `auth: none` elsewhere nothing is sensitive, as the caller is the
    /// proxy itself
    #[schemars(extend("x-type" = "list of words", "x-bounds" = "`secrets`, `configmaps`"))]
    pub(super) sensitive: Vec<SensitiveWord>,
    /// The memory of all feeds together, with what the allocator takes for it: see [Memory](#memory). A resource
    /// that does not fit passes through
    #[schemars(extend("x-default" = "half of the memory that there is, 16 to 8192"))]
    pub(super) memory_mebibytes: Option<Number<1, 16_777_216>>,
    /// A feed that nobody has read for so long is stopped, and its memory given back. Looked at every five seconds
    pub(super) idle: Period,
    /// How often a feed that somebody reads, and that has changed, is compared with upstream, give or take
    /// half of that. `0s`: never. See [Self-checks](#self-checks)
    pub(super) self_check: Period,
    /// How long a request waits for a feed that is being filled before it passes through
    pub(super) sync_wait: Period,
    /// Snapshots held per feed for clients that are paging through a LIST; one costs about what has changed since
    pub(super) held_snapshots: Number<1, 100_000>,
    /// How long after its first page; upstream answers later ones, and says when they are too late
    pub(super) held_snapshot_age: Period,
}

/// How much may be under way at a time.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub(super) struct LimitsSection {
    /// Connections, per listener; no more than three quarters of the descriptors that the process may have (the
    /// hard limit, `ulimit -Hn`: the soft one is raised to it at start, which is logged)
    pub(super) connections: Number<1, 1_000_000>,
    /// Age at which a connection is ended gracefully, give or take a tenth: GOAWAY or `Connection: close`, and what
    /// runs on it goes on. `0s`: never
    pub(super) connection_age: Period,
    /// How long a watch lasts whose client does not say it, up to twice: upstream's `--min-request-timeout`
    pub(super) min_request_timeout: Period<1_000, 86_400_000>,
    /// Watches served from the cache; one whose selectors hold more than 2 KiB counts as another one for every 2
    /// KiB (selectors of 16 KiB: some ten to two hundred)
    pub(super) watches: Number<1, 10_000_000>,
    /// Watches of one user
    pub(super) watches_per_caller: Number<1, 10_000_000>,
    /// What answers that are on their way out may hold together: LISTs from memory, of which each is charged its
    /// length, a quarter MiB at most; GETs from memory above 64 KiB, and upstream's answers that identical requests
    /// share, of which each is charged all of it. One user has half of it. It also limits how many requests may wait
    #[schemars(extend("x-default" = "an eighth of the memory that there is, 16 to 1024"))]
    pub(super) list_mebibytes: Option<Number<1, 1_048_576>>,
    /// Passed-through requests that are no stream: each is over within a minute or two, whether or not its client
    /// reads and writes. What upstream is asked for proxies below (reviews, discovery) counts too
    pub(super) forwards: Number<1, 1_000_000>,
    /// Passed-through requests of one user
    pub(super) forwards_per_caller: Number<1, 1_000_000>,
    /// Passed-through watches, logs, tunnels and what is behind `proxy`; each has an upstream connection of its own
    pub(super) streams: Number<1, 1_000_000>,
    /// Passed-through streams of one user
    pub(super) streams_per_caller: Number<1, 1_000_000>,
    /// Reads that pass through because their feed was not filled in time: a cold proxy must not become a thousand
    /// watches
    pub(super) unready_forwards: Number<0, 1_000_000>,
    /// Requests without a credential that are passed through; each has an upstream connection of its own (`auth:
    /// delegated`)
    pub(super) anonymous_forwards: Number<0, 1_000_000>,
}

/// A record of what is answered here.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub(super) struct AuditSection {
    /// Appended to; `-` is standard output. A file that was renamed or removed, as by a rotation, is made again
    /// with mode 0600
    #[schemars(extend("x-example" = "/var/log/kube-fanout/audit.log", "x-type" = "path or `-`"))]
    pub(super) path: Option<String>,
}

/// What the process says of itself.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(deny_unknown_fields)]
pub(super) struct LogSection {
    /// `off`, `error`, `warn`, `info`, `debug`, `trace`, or a list such as `info,kube_fanout::reflect=debug`
    #[schemars(extend("x-type" = "filter"))]
    pub(super) level: String,
    /// How a log line looks
    #[schemars(extend("x-type" = "word", "x-bounds" = "`text`, `json`"))]
    pub(super) format: LogFormat,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            api_version: None,
            kind: None,
            upstream: UpstreamSection::default(),
            listen: vec![super::DEFAULT_LISTEN.to_owned()],
            admin: super::DEFAULT_ADMIN.to_owned(),
            healthz_bind_address: "off".to_owned(),
            metrics_bind_address: "off".to_owned(),
            tls: TlsSection::default(),
            auth: AuthWord::None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            exec_on_loopback: serve::ServeConfig::default().exec_on_loopback,
            consistency: ConsistencyWord::Strict,
            preload: Vec::new(),
            ready_stale_max: Period(super::DEFAULT_READY_STALE_MAX),
            node: None,
            drain: Period(super::DEFAULT_DRAIN),
            reuse_port: false,
            delegated: DelegatedSection::default(),
            metrics: MetricsSection::default(),
            window: WindowSection::default(),
            feeds: FeedsSection::default(),
            limits: LimitsSection::default(),
            audit: AuditSection::default(),
            log: LogSection::default(),
        }
    }
}

impl Default for DelegatedSection {
    fn default() -> Self {
        let auth = auth::AuthConfig::default();
        let number = |number: u32| Number::new(number as usize);
        Self {
            client_ca: None,
            impersonator: None,
            front_proxy_ca: None,
            front_proxy_names: Vec::new(),
            audiences: auth.audiences,
            anonymous: auth.anonymous,
            token_ttl: Period(auth.token_ttl),
            allowed_ttl: Period(auth.allowed_ttl),
            denied_ttl: Period(auth.denied_ttl),
            recheck: Period(auth.recheck),
            recheck_rbac: Period(auth.recheck_rbac),
            recheck_nodes: Period(auth.recheck_nodes),
            recheck_tokens: Period(auth.recheck_tokens),
            outage_grace: Period(auth.outage_grace),
            accesses_per_second_per_user: number(auth.accesses_per_user),
            accesses_burst_per_user: number(auth.accesses_burst_per_user),
            accesses_per_second: number(auth.accesses),
            reviews_per_second: number(auth.reviews),
            reviews_per_second_per_source: number(auth.reviews_per_source),
            reviews_burst_per_source: number(auth.reviews_burst_per_source),
            lease_reviews_per_second: number(auth.lease_reviews),
            namespaces_per_second: number(auth.namespaces),
            namespaces_per_second_per_user: number(auth.namespaces_per_user),
        }
    }
}

impl Default for MetricsSection {
    fn default() -> Self {
        Self { auth: AuthWord::None, tls: MetricsTlsSection::default() }
    }
}

impl Default for WindowSection {
    fn default() -> Self {
        let cache = cache::CacheConfig::default();
        Self {
            mebibytes: Number::new(cache.window_bytes_max >> 20),
            events: Number::new(cache.window_events_max),
            age: Period(cache.window_age_max),
        }
    }
}

impl Default for FeedsSection {
    fn default() -> Self {
        let (cache, reflect) = (cache::CacheConfig::default(), reflect::ReflectConfig::default());
        Self {
            resources: Vec::new(),
            sensitive: Vec::new(),
            memory_mebibytes: None,
            idle: Period(reflect.idle_max),
            self_check: Period(reflect.self_check.unwrap_or_default()),
            sync_wait: Period(serve::ServeConfig::default().sync_wait_max),
            held_snapshots: Number::new(cache.held_snapshots_max),
            held_snapshot_age: Period(cache.held_snapshot_age_max),
        }
    }
}

impl Default for LimitsSection {
    fn default() -> Self {
        let (connections, limits) = (net::ConnectionLimits::default(), serve::AdmissionLimits::default());
        Self {
            connections: Number::new(connections.connections_max),
            connection_age: Period(connections.connection_age_max),
            min_request_timeout: Period(serve::ServeConfig::default().watch_min),
            watches: Number::new(limits.watches_max),
            watches_per_caller: Number::new(limits.watches_per_caller_max),
            list_mebibytes: None,
            forwards: Number::new(limits.forwards_max),
            forwards_per_caller: Number::new(limits.forwards_per_caller_max),
            streams: Number::new(limits.streams_max),
            streams_per_caller: Number::new(limits.streams_per_caller_max),
            unready_forwards: Number::new(limits.unready_forwards_max),
            anonymous_forwards: Number::new(limits.anonymous_forwards_max),
        }
    }
}

//! The server at the other end of a connection, and the build that it reports.

use std::fmt;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::BUILD;

/// A Kubernetes release: its major and minor version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubernetesRelease {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for KubernetesRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The build that a server reports in `/version`. Servers that report the same build produce the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerBuild {
    /// The release that the server emulates. It may be older than the server itself (`--emulated-version`).
    pub release: KubernetesRelease,
    /// The minor version of the server's own release. It determines the layout of objects in JSON, which depends on the
    /// Go types compiled into the server, not on the emulated release.
    pub minor: u32,
    /// All fields that may change encoded bytes: patches and distributions add fields, emulation and compatibility
    /// change defaults. The text is a `/version` document reduced to these fields.
    document: Box<str>,
}

/// The fields that are read from a `/version` document.
#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct VersionDocument {
    major: String,
    minor: String,
    emulation_major: String,
    emulation_minor: String,
    min_compatibility_major: String,
    min_compatibility_minor: String,
    git_version: String,
    git_commit: String,
}

impl ServerBuild {
    /// Returns the build of a server with the given `/version` document.
    #[cfg(test)]
    pub(crate) fn of(version: &str) -> Option<Self> {
        Self::parse(version.as_bytes())
    }

    /// Parses a `/version` document; returns `None` if it is invalid. Some distributions write a minor version as
    /// `31+`.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
        let document: VersionDocument = serde_json::from_slice(body).ok()?;
        let (major, minor) = number(&document.major).zip(number(&document.minor))?;
        let emulated = number(&document.emulation_major).zip(number(&document.emulation_minor));
        let behaves_as = emulated.unwrap_or((major, minor));
        let release = KubernetesRelease { major: behaves_as.0, minor: behaves_as.1 };
        Some(Self { release, minor, document: serde_json::to_string(&document).ok()?.into() })
    }

    /// Returns the build that encoded the bodies of a proxy's response, from its `Kube-Fanout-Build` header.
    pub(super) fn named_in(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers.get(BUILD)?.as_bytes())
    }

    /// Returns the value of the `Kube-Fanout-Build` header, for downstream proxies.
    pub fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.document).ok()
    }
}

/// The server at the other end of one connection. While the connection is open, the server and its release stay the
/// same, because a process cannot change its release.
#[derive(Debug, Clone)]
pub struct UpstreamServer {
    pub(super) peer: Arc<UpstreamServerInfo>,
    /// The number of streams on the connections to the server.
    pub(super) streams: Arc<AtomicU32>,
    /// The index of the server's address among upstream's servers.
    pub(super) endpoint: usize,
    /// Whether the server can receive a request while it responds to another.
    pub(super) multiplexes: bool,
}

/// The facts about a server, kept with the connection. For a server behind a proxy they are kept with the response.
#[derive(Debug, Default)]
pub(super) struct UpstreamServerInfo {
    reported: Mutex<ServerBuildState>,
    /// A lock that allows one request for the build at a time.
    request_lock: Arc<tokio::sync::Mutex<()>>,
    /// A reference to a value that is dropped with the connection.
    connection: Weak<()>,
    is_behind_a_proxy: bool,
}

#[derive(Debug, Clone, Default)]
enum ServerBuildState {
    #[default]
    Pending,
    /// The server failed to respond: since when, how often, and the last time.
    Failed { since: Instant, times: u32, last: Instant },
    /// The server reports this build. `certain` is set if that was learned on this very connection, which is not passed
    /// on to another server with each request.
    Build { build: Arc<ServerBuild>, certain: bool },
    /// The server does not report its build.
    NotReported,
}

/// How long a server may fail to report its build before the build is not requested again. A server that has just
/// started denies requests until its caches are filled.
const FAILING_MAX: Duration = Duration::from_secs(20);
/// The minimum time between two requests, shared by all callers; doubled with each.
const RETRY_AFTER: Duration = Duration::from_millis(250);

impl ServerBuildState {
    /// Returns what a response that reports `build`, or no build, shows.
    fn reported(build: Option<ServerBuild>, certain: bool) -> Self {
        build.map_or(Self::NotReported, |build| Self::Build { build: Arc::new(build), certain })
    }
}

impl UpstreamServerInfo {
    /// Creates a server behind a proxy, which encoded the bodies in the proxy's cache.
    pub(super) fn behind_a_proxy(build: ServerBuild) -> Self {
        let reported = Mutex::new(ServerBuildState::reported(Some(build), true));
        Self { reported, is_behind_a_proxy: true, ..Self::default() }
    }

    /// Creates the unknown server at the other end of a connection, which drops `connection` when it closes.
    pub(super) fn on(connection: &Arc<()>) -> Self {
        Self { connection: Arc::downgrade(connection), ..Self::default() }
    }
}

impl UpstreamServer {
    /// Returns the build that the server reported, if it did.
    pub fn build(&self) -> Option<Arc<ServerBuild>> {
        match &*self.peer.reported.lock() {
            ServerBuildState::Build { build, .. } => Some(build.clone()),
            _ => None,
        }
    }

    /// Whether the server is behind a proxy, which reports its build with every response.
    pub fn is_behind_a_proxy(&self) -> bool {
        self.peer.is_behind_a_proxy
    }

    /// Whether two servers are at the other end of the same connection.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.peer, &other.peer)
    }

    /// Returns a copy of the current facts about the server, which later findings do not change.
    #[must_use]
    pub fn frozen(&self) -> Self {
        let reported = Mutex::new(self.peer.reported.lock().clone());
        Self { peer: Arc::new(UpstreamServerInfo { reported, ..UpstreamServerInfo::default() }), ..self.clone() }
    }

    /// Whether no request is needed to learn more about the server.
    pub fn is_known(&self) -> bool {
        matches!(*self.peer.reported.lock(), ServerBuildState::Build { .. } | ServerBuildState::NotReported)
    }

    /// Whether the server's facts were learned on this very connection. A server with HTTP/1.1 cannot receive a request
    /// while it streams, and is often behind a load balancer. Its facts come from another server at the same address.
    pub fn is_certain(&self) -> bool {
        matches!(*self.peer.reported.lock(), ServerBuildState::Build { certain: true, .. })
    }

    /// Whether the server produces the same bytes as `other`; `None` while that is unknown.
    pub fn encodes_like(&self, other: &Self) -> Option<bool> {
        if self.is_same(other) {
            return Some(true);
        }
        // Takes one lock after the other, because a comparison in the opposite order would otherwise deadlock.
        let first = self.peer.reported.lock().clone();
        let second = other.peer.reported.lock().clone();
        match (first, second) {
            (ServerBuildState::Build { build: first, .. }, ServerBuildState::Build { build: second, .. }) => {
                Some(first == second)
            }
            (ServerBuildState::NotReported, ServerBuildState::NotReported) => Some(true),
            (ServerBuildState::Pending | ServerBuildState::Failed { .. }, _)
            | (_, ServerBuildState::Pending | ServerBuildState::Failed { .. }) => None,
            (ServerBuildState::NotReported, _) | (_, ServerBuildState::NotReported) => Some(false),
        }
    }

    /// Records that the servers at the same address now report another build.
    pub fn assume_build(&self, build: &ServerBuild) {
        *self.peer.reported.lock() = ServerBuildState::Build { build: Arc::new(build.clone()), certain: false };
    }

    /// Whether a request showed that the server does not report its build.
    pub fn reports_no_build(&self) -> bool {
        matches!(*self.peer.reported.lock(), ServerBuildState::NotReported)
    }

    /// Records that the server failed to respond to a request for its build.
    pub fn failed(&self) {
        let (mut reported, now) = (self.peer.reported.lock(), Instant::now());
        *reported = match *reported {
            ServerBuildState::Pending => ServerBuildState::Failed { since: now, times: 1, last: now },
            ServerBuildState::Failed { since, .. } if now.duration_since(since) >= FAILING_MAX => {
                ServerBuildState::NotReported
            }
            ServerBuildState::Failed { since, times, .. } => {
                ServerBuildState::Failed { since, times: times + 1, last: now }
            }
            ServerBuildState::Build { .. } | ServerBuildState::NotReported => return,
        };
    }

    /// Whether the server failed to report its build recently.
    pub(super) fn is_backing_off(&self) -> bool {
        match *self.peer.reported.lock() {
            ServerBuildState::Failed { times, last, .. } => {
                last.elapsed() < RETRY_AFTER.saturating_mul(1 << times.min(5))
            }
            _ => false,
        }
    }

    pub(super) async fn lock_requests(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.peer.request_lock.clone().lock_owned().await
    }

    /// Records the response to a request about this server, which `by` sent.
    pub(super) fn record_response(&self, by: &Self, build: Option<ServerBuild>) {
        let reported = ServerBuildState::reported(build, by.multiplexes);
        *by.peer.reported.lock() = reported.clone();
        if self.is_same(by) {
            return;
        }
        // There may be two connections for a moment, both to the same server.
        let is_connected = self.peer.connection.strong_count() > 0;
        let known = is_connected || !self.multiplexes;
        *self.peer.reported.lock() = match reported {
            ServerBuildState::Build { build, .. } if known => ServerBuildState::Build { build, certain: false },
            // The connection is closed, so the server at its other end can no longer be identified.
            _ => ServerBuildState::NotReported,
        };
    }

    /// Creates a server that reports `build`, or no build.
    #[cfg(test)]
    pub(crate) fn with_build(build: Option<ServerBuild>) -> Self {
        let reported = Mutex::new(ServerBuildState::reported(build, true));
        Self::of(UpstreamServerInfo { reported, ..UpstreamServerInfo::default() }, true)
    }

    /// Creates a server whose build is unknown.
    #[cfg(test)]
    pub(crate) fn with_unknown_build() -> Self {
        Self::of(UpstreamServerInfo::default(), true)
    }

    #[cfg(test)]
    fn of(peer: UpstreamServerInfo, multiplexes: bool) -> Self {
        Self { peer: Arc::new(peer), streams: Arc::default(), endpoint: 0, multiplexes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulated_release_sets_behavior_and_binary_minor_sets_json() {
        for (body, expected) in [
            (r#"{"major": "1", "minor": "36"}"#, Some((1, 36, 36))),
            (r#"{"major": "1", "minor": "31+", "gitVersion": "v1.31.0-eks"}"#, Some((1, 31, 31))),
            (r#"{"major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "35"}"#, Some((1, 35, 36))),
            (r#"{"major": "1", "minor": "36", "emulationMajor": "", "emulationMinor": ""}"#, Some((1, 36, 36))),
            (r#"{"major": "", "minor": ""}"#, None),
            (r#"{"major":"1","minor":""}"#, None),
            ("{}", None),
        ] {
            let build = ServerBuild::parse(body.as_bytes());
            let found = build.map(|build| (build.release.major, build.release.minor, build.minor));
            assert_eq!(found, expected, "{body}");
        }
        assert!(KubernetesRelease { major: 1, minor: 36 } > KubernetesRelease { major: 1, minor: 9 });
        assert!(KubernetesRelease { major: 2, minor: 0 } > KubernetesRelease { major: 1, minor: 36 });
    }

    #[test]
    fn builds_differ_by_every_field_that_affects_encoding() {
        let build = |more: &str| ServerBuild::parse(format!(r#"{{"major":"1","minor":"36"{more}}}"#).as_bytes());
        let all = [
            "",
            r#","gitVersion":"v1.36.1""#,
            r#","gitVersion":"v1.36.2""#,
            r#","gitVersion":"v1.36.1","gitCommit":"a""#,
            r#","gitVersion":"v1.36.1","emulationMajor":"1","emulationMinor":"35""#,
            r#","gitVersion":"v1.36.1","minCompatibilityMajor":"1","minCompatibilityMinor":"35""#,
        ];
        for one in all {
            for other in all {
                assert_eq!(build(one) == build(other), one == other, "{one} {other}");
            }
        }
        assert_eq!(build(r#","goVersion":"go1.26""#), build(r#","platform":"linux/amd64""#), "the same everywhere");
    }

    #[test]
    fn build_header_round_trips() {
        let body = r#"{"major":"1","minor":"31+","gitVersion":"v1.31.0-eks \"é\"","emulationMajor":"1",
                       "emulationMinor":"30","goVersion":"go1.26"}"#;
        let build = ServerBuild::parse(body.as_bytes()).expect("a build");
        let headers = HeaderMap::from_iter([(BUILD, build.header().expect("it is text"))]);
        assert_eq!(ServerBuild::named_in(&headers), Some(build));
        for other in ["", "{}", "v1.36"] {
            let headers = HeaderMap::from_iter([(BUILD, HeaderValue::from_static(other))]);
            assert_eq!(ServerBuild::named_in(&headers), None, "{other}");
        }
    }

    fn build(text: &str) -> ServerBuild {
        ServerBuild::parse(format!(r#"{{"major": "1", "minor": "36", "gitVersion": "{text}"}}"#).as_bytes())
            .expect("a build")
    }

    #[test]
    fn servers_are_compared_by_reported_build() {
        let [a, b] = ["v1.36.1", "v1.36.2"].map(|text| UpstreamServer::with_build(Some(build(text))));
        let (silent, unknown) = (UpstreamServer::with_build(None), UpstreamServer::with_unknown_build());
        assert_eq!(a.encodes_like(&UpstreamServer::with_build(Some(build("v1.36.1")))), Some(true));
        assert_eq!(a.encodes_like(&b), Some(false));
        assert_eq!(silent.encodes_like(&UpstreamServer::with_build(None)), Some(true));
        assert_eq!((a.encodes_like(&silent), silent.encodes_like(&a)), (Some(false), Some(false)));
        assert_eq!((a.encodes_like(&unknown), unknown.encodes_like(&silent)), (None, None));
        assert_eq!(unknown.encodes_like(&unknown.clone()), Some(true), "whatever it is");
    }

    /// Feeds on several threads compare the same two servers in both orders.
    #[test]
    fn concurrent_server_comparison_does_not_deadlock() {
        let [a, b] = ["v1.36.1", "v1.36.2"].map(|text| UpstreamServer::with_build(Some(build(text))));
        let compare = |one: &UpstreamServer, other: &UpstreamServer| {
            (0..100_000).for_each(|_| assert_eq!(one.encodes_like(other), Some(false)));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| compare(&a, &b));
            scope.spawn(|| compare(&b, &a));
        });
    }

    #[test]
    fn response_on_other_connection_identifies_only_that_server() {
        let by = UpstreamServer::with_unknown_build();
        let (connection, gone) = (Arc::new(()), UpstreamServer::with_unknown_build());
        let alive = UpstreamServer::of(UpstreamServerInfo::on(&connection), true);
        alive.record_response(&by, Some(build("v1.36.1")));
        assert_eq!((by.is_certain(), alive.encodes_like(&by), alive.is_certain()), (true, Some(true), false));
        gone.record_response(&by, Some(build("v1.36.1")));
        assert_eq!((gone.encodes_like(&by), gone.reports_no_build()), (Some(false), true), "its build is unknown");
        // Without multiplexing there is no better way to identify a server.
        let single = || UpstreamServer::of(UpstreamServerInfo::default(), false);
        let (requests, other) = (single(), single());
        requests.record_response(&other, Some(build("v1.36.1")));
        assert_eq!((requests.encodes_like(&by), requests.is_certain()), (Some(true), false));
        assert!(!other.is_certain(), "the next stream may come by it, and from another server");
    }

    #[tokio::test(start_paused = true)]
    async fn version_requests_to_silent_server_back_off_then_stop() {
        let (server, began) = (UpstreamServer::with_unknown_build(), Instant::now());
        let mut requests = 0;
        while !server.is_known() {
            if !server.is_backing_off() {
                server.failed();
                requests += 1;
            }
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        assert!((FAILING_MAX..2 * FAILING_MAX).contains(&began.elapsed()), "{:?}", began.elapsed());
        assert!((4..10).contains(&requests), "{requests} requests, however many feeds need it");
        assert!(server.reports_no_build());
    }
}

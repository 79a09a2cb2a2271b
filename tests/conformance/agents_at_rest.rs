//! What agents that only watch cost the apiserver: reviews while they start, and while nothing happens. `make
//! agents-at-rest` measures 600 agents, and extrapolates to the agents of 2,000 and 5,000 nodes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::agents::{Agent, Mode};
use crate::bed::{self, Ended, Event, Plane, Proxy, log_line, number};

/// Clusters, by nodes and agents of each.
const CLUSTERS: [(u32, u32); 2] = [(2_000, 5), (5_000, 10)];
/// The intervals of rechecks by default, in seconds: of tokens, and of permissions that RBAC grants.
const RECHECK: u64 = 60;
const RECHECK_RBAC: u64 = 600;
/// How many agents connect at the same time.
const AT_ONCE: usize = 64;

/// From so many agents on, the counts are large enough for an error in percent.
const SURE: usize = 100;
const ERROR_MAX: f64 = 20.0;

/// Requests of the proxy that the apiserver has received.
#[derive(Debug, Clone, Copy, Default)]
struct Reviews {
    tokens: i64,
    access: i64,
    /// Those of `access` that compare a decision of the proxy.
    compared: i64,
}

/// What a number of agents cost.
struct Measured {
    count: usize,
    start: Reviews,
    rest: Reviews,
    /// How long they were at rest, in seconds at the default intervals.
    seconds: f64,
}

/// The parameters.
struct Length {
    agents: usize,
    /// How much shorter the intervals of rechecks are than by default.
    speed: u64,
    /// How long the largest number of agents is at rest, with the default intervals if it covers some of them.
    rest: Duration,
}

type Open = Vec<JoinHandle<(Vec<Event>, Ended)>>;

impl Reviews {
    /// Reads the apiserver's own counters, and the proxy's for what only it knows.
    async fn read(bed: &Plane, proxy: &Proxy) -> Self {
        let (there, here) = (bed.metrics().await, proxy.metrics().await);
        let of = |resource| there.sum("apiserver_request_total", &[("verb", "POST"), ("resource", resource)]);
        let compared = here.sum("kube_fanout_upstream_requests_total", &[("cause", "decision_check")]);
        Self { tokens: of("tokenreviews"), access: of("subjectaccessreviews"), compared }
    }

    fn since(self, before: Self) -> Self {
        let (tokens, access) = (self.tokens - before.tokens, self.access - before.access);
        Self { tokens, access, compared: self.compared - before.compared }
    }

    /// Reviews because the proxy does not know the answer.
    fn needed(self) -> i64 {
        self.tokens + self.access - self.compared
    }
}

impl Measured {
    fn per_second(&self) -> f64 {
        f64::from(i32::try_from(self.rest.needed()).expect("a small number")) / self.seconds
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_agents_cause_no_reviews_at_rest() {
    let length = Length {
        agents: usize::try_from(number("AGENTS", 40)).expect("a small number"),
        speed: number("AGENTS_SPEED", 60),
        rest: Duration::from_secs(number("AGENTS_SECONDS", 10)),
    };
    let Some(bed) = bed::audited("agents-at-rest").await else { return };
    let namespace = bed.namespace("agents").await;
    let began = Instant::now();
    let agents = Agent::create(&bed, &namespace, length.agents).await;
    log_line(&format!("{} agents created in {:.1?}", agents.len(), began.elapsed()));
    for mode in [Mode::Local, Mode::Ask] {
        let mut measured = Vec::new();
        for count in [length.agents / 4, length.agents / 2, length.agents] {
            let one = measure(&bed, mode, &agents[..count], &length).await;
            log_line(&format!(
                "{mode:?}: {count} agents: start {:?}; {:.0} s at rest {:?}, {:.3} reviews a second",
                one.start,
                one.seconds,
                one.rest,
                one.per_second()
            ));
            if mode == Mode::Local {
                assert_eq!(one.rest.needed(), 0, "{count} agents: {:?}", one.rest);
            }
            measured.push(one);
        }
        extrapolate(mode, &measured);
    }
}

async fn measure(bed: &Plane, mode: Mode, agents: &[Agent], length: &Length) -> Measured {
    let is_long =
        mode == Mode::Local && agents.len() == length.agents && length.rest >= Duration::from_secs(2 * RECHECK);
    let speed = if is_long { 1 } else { length.speed };
    let intervals = format!(
        ", recheck: {}ms, recheckTokens: {0}ms, recheckRbac: {}ms",
        RECHECK * 1000 / speed,
        RECHECK_RBAC * 1000 / speed
    );
    let entries = bed.audit().len();
    let proxy = mode.plan(bed, &intervals).start(bed).await;
    let before = Reviews::read(bed, &proxy).await;
    let began = Instant::now();
    let open = open(&proxy, agents).await;
    let start = Reviews::read(bed, &proxy).await.since(before);
    log_line(&format!("{mode:?}: {} watches open after {:.1?}", open.len(), began.elapsed()));
    // Every permission and every token has been checked once before the checks are counted.
    sleep(Duration::from_secs(if mode == Mode::Local { RECHECK } else { RECHECK_RBAC } / speed)).await;
    if mode == Mode::Local {
        is_read_once(&bed.audit()[entries..], agents.len() == length.agents);
    }
    let (before, cpu, sent) = (Reviews::read(bed, &proxy).await, proxy.cpu_seconds(), sent(&proxy).await);
    let began = Instant::now();
    let rest = match mode {
        Mode::Local if is_long => length.rest,
        Mode::Local => Duration::from_secs(3 * RECHECK / speed),
        Mode::Ask => Duration::from_secs(RECHECK_RBAC / speed),
    };
    while began.elapsed() < rest {
        sleep(rest.saturating_sub(began.elapsed()).min(Duration::from_secs(30))).await;
        let so_far = Reviews::read(bed, &proxy).await.since(before);
        log_line(&format!("{mode:?}: {} agents at rest for {:.0?}: {so_far:?}", agents.len(), began.elapsed()));
    }
    let rest = Reviews::read(bed, &proxy).await.since(before);
    let elapsed = began.elapsed().as_secs_f64();
    let more =
        self::sent(&proxy).await.into_iter().map(|(cause, count)| (count - sent.get(&cause).unwrap_or(&0), cause));
    let more: Vec<_> = more.filter(|(count, _)| *count > 0).collect();
    let seconds = elapsed * f64::from(u32::try_from(speed).expect("a small number"));
    let metrics = proxy.metrics().await;
    log_line(&format!(
        "{mode:?}: {} agents: {:.1} ms CPU a second, {} MiB; requests upstream at rest {more:?}; since the start: tokens verified {:?}, decisions {:?}",
        agents.len(),
        (proxy.cpu_seconds() - cpu) * 1000.0 / elapsed,
        proxy.resident_bytes() >> 20,
        metrics.series("kube_fanout_auth_tokens_verified_total", &[]).collect::<Vec<_>>(),
        metrics.series("kube_fanout_auth_local_decisions_total", &[]).collect::<Vec<_>>(),
    ));
    assert!(open.iter().all(|watch| !watch.is_finished()), "a watch has ended");
    assert_eq!(metrics.sum("kube_fanout_auth_leases", &[]), i64::try_from(open.len()).expect("a small number"));
    for watch in open {
        watch.abort();
    }
    proxy.assert_sound();
    Measured { count: agents.len(), start, rest, seconds }
}

/// The requests that the proxy has sent upstream, by cause.
async fn sent(proxy: &Proxy) -> BTreeMap<String, i64> {
    let metrics = proxy.metrics().await;
    metrics.series("kube_fanout_upstream_requests_total", &[]).map(|(cause, count)| (cause.to_owned(), count)).collect()
}

/// Opens the watch of each agent, all on own connections, and reads them.
async fn open(proxy: &Proxy, agents: &[Agent]) -> Open {
    let open = agents.iter().map(|agent| async move { proxy.client_of(&agent.identity).watch(agent.watch()).await });
    let open = stream::iter(open).buffer_unordered(AT_ONCE);
    open.map(|mut watch| tokio::spawn(async move { watch.rest().await })).collect().await
}

/// Checks that the proxy has read keys, rules and the objects that tokens are bound to once each, by the apiserver's
/// audit log since before the proxy's start. Agents read pods and nodes too, so these may have another feed. Proofs and
/// comparisons of feeds read few objects.
fn is_read_once(entries: &[Value], is_printed: bool) {
    let mut counts: BTreeMap<(String, String, &str), u32> = BTreeMap::new();
    let own =
        entries.iter().filter(|entry| entry["user"]["username"] == "proxy" && entry["stage"] == "RequestReceived");
    for entry in own {
        let [verb, uri] = ["verb", "requestURI"].map(|field| entry[field].as_str().expect("text"));
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let part = if query.contains("limit=20&") || query.contains("fieldSelector=") { "few" } else { "all" };
        *counts.entry((path.to_owned(), verb.to_owned(), part)).or_default() += 1;
    }
    for ((path, verb, part), count) in &counts {
        if is_printed {
            log_line(&format!("since the proxy's start: {count:4} × {verb:6} {part} of {path}"));
        }
        let once =
            ["/.well-known/openid-configuration", "/openid/v1/jwks", "/api/v1/serviceaccounts", "/api/v1/secrets"];
        let feeds = match path.as_str() {
            "/api/v1/pods" | "/api/v1/nodes" => 2,
            path if once.contains(&path) || path.starts_with("/apis/rbac.authorization.k8s.io/v1/") => 1,
            _ => continue,
        };
        assert!(*part == "few" || *count <= feeds, "{count} × {verb} {path}");
    }
    for read in ["/openid/v1/jwks", "/api/v1/serviceaccounts", "/apis/rbac.authorization.k8s.io/v1/clusterroles"] {
        assert!(counts.keys().any(|(path, ..)| path == read), "{read}: {counts:?}");
    }
}

/// Fits a line to what was measured, and prints it for whole clusters with the error that it has for the largest
/// number, if only the smaller ones are known.
fn extrapolate(mode: Mode, measured: &[Measured]) {
    let points: Vec<_> = measured.iter().map(|one| (as_f64(one.count), one.per_second())).collect();
    let (base, slope) = line(&points);
    let residual = points.iter().map(|(x, y)| (base + slope * x - y).abs()).fold(0.0, f64::max);
    let (early, last) = (line(&points[..points.len() - 1]), points[points.len() - 1]);
    let expected = early.0 + early.1 * last.0;
    let error = if last.1 == 0.0 { expected } else { (expected - last.1) / last.1 * 100.0 };
    log_line(&format!(
        "{mode:?}: {base:.3} + {slope:.5} × agents reviews a second at rest; largest residual {residual:.3}; the smaller \
         two numbers predict {expected:.3} for the largest, {error:.1}{} off",
        if last.1 == 0.0 { "" } else { " %" }
    ));
    let is_sure = measured.iter().all(|one| one.count < SURE) || error.abs() < ERROR_MAX;
    assert!(is_sure, "the run is void: the servers did not keep up with the rechecks (AGENTS_SPEED)");
    for (nodes, each) in CLUSTERS {
        let agents = f64::from(nodes * each);
        log_line(&format!(
            "{mode:?}: {nodes} nodes × {each} agents: {:.1} ± {:.1} reviews a second at rest",
            base + slope * agents,
            residual * agents / last.0
        ));
    }
}

/// The line with the least squares: its value at 0, and its slope.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let count = as_f64(points.len());
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let above: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let below: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    (y - above / below * x, above / below)
}

fn as_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).expect("a small number"))
}

//! The CPU of opening a watch and of a cached GET, by who identifies the callers and decides: the proxy, the apiserver
//! for the proxy, and the apiserver for its own clients. `make auth-costs` measures a release build.

use futures_util::{StreamExt, stream};

use crate::agents::{Agent, Mode};
use crate::bed::{self, Http, Identity, Plane, Protocol, Proxy, Target, Watch, eventually, log_line, number};

/// The clients that ask at the same time.
const AT_ONCE: usize = 8;
const OPERATIONS: [&str; 3] = ["connect, open a watch", "open another watch", "GET from the cache"];
/// With these keys, the apiserver is asked for each request, as for clients that ask less often than every ten seconds.
const UNCACHED: &str = ", tokenTTL: 10ms, allowedTTL: 10ms, deniedTTL: 10ms";

/// A server to measure: the apiserver if there is no proxy.
struct Side {
    name: &'static str,
    proxy: Option<Proxy>,
}

/// CPU per operation in µs, and reviews per thousand operations.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    proxy: f64,
    apiserver: f64,
    reviews: f64,
}

impl Side {
    async fn all(bed: &Plane, agents: &[Agent]) -> Vec<Self> {
        let mut sides = vec![Self { name: "apiserver", proxy: None }];
        for (name, mode, more) in
            [("ask", Mode::Ask, ""), ("ask, not cached", Mode::Ask, UNCACHED), ("local", Mode::Local, "")]
        {
            let proxy = mode.plan(bed, more).start(bed).await;
            for agent in agents {
                let client = proxy.client_of(&agent.identity);
                let is_ready = async || {
                    let before = reviews(&proxy).await;
                    let is_cached = client.get(&agent.list()).await.is_cached();
                    (is_cached && (mode == Mode::Ask || reviews(&proxy).await == before)).then_some(())
                };
                eventually("resources are cached, keys and rules are known", is_ready).await;
            }
            sides.push(Self { name, proxy: Some(proxy) });
        }
        sides
    }

    fn target(&self, bed: &Plane) -> Target {
        self.proxy.as_ref().map_or_else(|| bed.target(), Proxy::target)
    }

    /// What the processes and the proxy's counters say so far.
    async fn so_far(&self, bed: &Plane) -> Cost {
        let Some(proxy) = &self.proxy else {
            return Cost { apiserver: bed.apiserver_cpu_seconds(), ..Cost::default() };
        };
        let count = reviews(proxy).await;
        Cost { proxy: proxy.cpu_seconds(), apiserver: bed.apiserver_cpu_seconds(), reviews: f64::from(count) }
    }
}

/// The reviews that the proxy has created.
async fn reviews(proxy: &Proxy) -> i32 {
    let metrics = proxy.metrics().await;
    let of = |cause| metrics.sum("kube_fanout_upstream_requests_total", &[("cause", cause)]);
    let all: i64 = ["token_review", "access_review", "lease_review"].map(of).iter().sum();
    i32::try_from(all).expect("a small number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_decisions_cost_no_more_than_cached_reviews() {
    let tokens = usize::try_from(number("AUTH_TOKENS", 20)).expect("a small number");
    let each = usize::try_from(number("AUTH_EACH", 5)).expect("a small number");
    let Some(bed) = bed::own("auth-costs").await else { return };
    let (direct, namespace) = (bed.direct(), bed.namespace("agents").await);
    let agents = Agent::create(&bed, &namespace, tokens).await;
    let sides = Side::all(&bed, &agents[..crate::agents::PER_NODE]).await;
    let mut costs = Vec::new();
    for round in 0..2 {
        for side in &sides {
            // Tokens that no server has seen.
            let fresh = stream::iter(&agents).map(|agent| agent.another_token(&direct)).buffered(AT_ONCE);
            let fresh: Vec<Identity> = fresh.collect().await;
            let callers: Vec<_> = agents.iter().zip(fresh).collect();
            let of_side = measure(&bed, side, &callers, each).await;
            for (operation, cost) in OPERATIONS.iter().zip(of_side) {
                log_line(&format!("round {round}, {:16} {operation:22} {}", side.name, cost.text()));
            }
            costs.push((side.name, of_side));
        }
    }
    compare(&sides, &costs);
    for side in &sides {
        side.proxy.iter().for_each(Proxy::assert_sound);
    }
}

/// Measures each operation.
async fn measure(bed: &Plane, side: &Side, callers: &[(&Agent, Identity)], each: usize) -> [Cost; 3] {
    let target = side.target(bed);
    let clients: Vec<_> =
        callers.iter().map(|(agent, identity)| (*agent, Http::new(target.by(identity), Protocol::H2))).collect();
    let mut costs = [Cost::default(); 3];
    for (at, cost) in costs.iter_mut().enumerate() {
        let times = if at == 0 { 1 } else { each };
        let before = side.so_far(bed).await;
        let all = stream::iter(&clients).for_each_concurrent(AT_ONCE, async |(agent, client)| {
            for _ in 0..times {
                if at == 2 {
                    assert_eq!(client.get(&agent.get()).await.status, 200, "{}", agent.get());
                } else {
                    open(client, agent).await;
                }
            }
        });
        all.await;
        let (now, count) = (side.so_far(bed).await, clients.len() * times);
        let count = f64::from(u32::try_from(count).expect("a small number"));
        *cost = Cost {
            proxy: (now.proxy - before.proxy) * 1e6 / count,
            apiserver: (now.apiserver - before.apiserver) * 1e6 / count,
            reviews: (now.reviews - before.reviews) * 1e3 / count,
        };
    }
    costs
}

/// Opens a watch, reads its first event, and closes it.
async fn open(client: &Http, agent: &Agent) {
    let mut watch: Watch = client.watch(agent.watch()).await;
    assert_eq!(watch.event().await.expect("an event").kind, "ADDED");
}

impl Cost {
    fn text(&self) -> String {
        let Self { proxy, apiserver, reviews } = self;
        format!("CPU per operation: proxy {proxy:7.1} µs, apiserver {apiserver:7.1} µs; reviews per 1000: {reviews:.0}")
    }
}

/// Prints the mean of the rounds. With `AUTH_PERCENT`, local decisions may cost that much of cached reviews, and no more
/// than the apiserver needs itself; they need no reviews in any case.
fn compare(sides: &[Side], costs: &[(&str, [Cost; 3])]) {
    let mean = |name: &str, at: usize| {
        let of: Vec<_> = costs.iter().filter(|(side, _)| *side == name).map(|(_, cost)| cost[at]).collect();
        let count = f64::from(u32::try_from(of.len()).expect("rounds"));
        let sum = |part: fn(&Cost) -> f64| of.iter().map(part).sum::<f64>() / count;
        Cost { proxy: sum(|c| c.proxy), apiserver: sum(|c| c.apiserver), reviews: sum(|c| c.reviews) }
    };
    let (bound, mut wrong) = (number("AUTH_PERCENT", 0), Vec::new());
    for (at, operation) in OPERATIONS.iter().enumerate() {
        for side in sides {
            log_line(&format!("mean, {:16} {operation:22} {}", side.name, mean(side.name, at).text()));
        }
        let [local, ask, apiserver] = ["local", "ask", "apiserver"].map(|name| mean(name, at));
        let ratio = |other: f64| local.proxy / other * 100.0;
        let (of_ask, of_apiserver) = (ratio(ask.proxy), ratio(apiserver.apiserver));
        log_line(&format!(
            "{operation}: local decisions take {of_ask:.0} % of ask, {of_apiserver:.0} % of the apiserver"
        ));
        if local.reviews > 0.0 {
            wrong.push(format!("{operation}: {:.1} reviews per 1000 with local decisions", local.reviews));
        }
        if bound > 0 && (of_ask > f64::from(u32::try_from(bound).expect("small")) || of_apiserver > 100.0) {
            wrong.push(format!("{operation}: {of_ask:.0} % of ask, {of_apiserver:.0} % of the apiserver"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

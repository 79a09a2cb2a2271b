//! A permission for one name or one namespace grants nothing for its neighbours. This is the counterpart of etcd's
//! GHSA-xg4h-6gfc-h4m8, where a user with read permission for one key could watch every key after it.
//!
//! Callers with permissions for one name, for one namespace and for one name in one namespace request objects with
//! similar names. Names and namespaces are prefixes, successors and look-alikes of each other. The test searches every
//! answer for the markers of objects that the caller may not see, and compares it with the apiserver's answer to the
//! same caller. Each request is sent once (`differential/verdict.rs`). `make neighbouring QUESTIONS=20000` sends more
//! than `make test`.

mod drawn;
mod scene;

use std::collections::BTreeMap;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use serde_json::json;

use crate::bed::{self, Frame, Plan, RequestSpec, Seed, TOO_LARGE, Watch, log_line};
use crate::differential::compare::Compared;
use crate::differential::probe::Probe;
use crate::differential::verdict::Counts;
use drawn::Draws;
use scene::{CALLERS, Caller, MAPS, NAMES, NAMESPACES, Scene, mark, path};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const AT_ONCE: usize = 48;
/// At least one request in this many must be answered from the cache. Normally it is one in five, because most are
/// refused.
const CACHED_ONE_IN: u64 = 8;
const SHOWN_MAX: usize = 10;

/// A request, and its results.
struct Exchange<'a> {
    caller: &'a Caller,
    probe: Probe,
    compared: Compared,
    /// Markers that the caller should not have received.
    seen: Vec<String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permission_for_one_name_never_exposes_similar_names() {
    let count = bed::number("NEIGHBOURING_QUESTIONS", 1_500);
    let Some(bed) = bed::quiet("neighbouring").await else { return };
    let seed = Seed::new("NEIGHBOURING_SEED", |seed| format!("make neighbouring SEED={seed} QUESTIONS={count}"));
    let plan = Plan::delegated(&bed);
    let scene = Scene::set(bed, plan).await;
    let tokens = tokens(&scene).await;
    let mut draws = Draws::new(seed.first(), tokens, scene.versions);
    let requests = (0..count).map(|_| {
        let caller = draws.caller(&scene.callers);
        (caller, draws.probe(caller))
    });
    let requests: Vec<_> = requests.collect();
    let exchanges = stream::iter(requests)
        .map(|(caller, probe)| exchange(caller, probe, scene.versions.1))
        .buffer_unordered(AT_ONCE);
    let exchanges: Vec<_> = exchanges.collect().await;
    let (mut counts, mut statuses) = (Counts::default(), BTreeMap::<u16, usize>::new());
    for exchange in &exchanges {
        counts.count(&exchange.compared, exchange.compared.verdict);
        *statuses.entry(exchange.compared.actual.status).or_default() += 1;
    }
    let cached = |exchange: &&Exchange<'_>| exchange.compared.cached && exchange.compared.actual.status == 200;
    let watches = exchanges.iter().filter(cached).filter(|exchange| exchange.compared.watch).count();
    log_line(&format!("{counts}, statuses {statuses:?}; {watches} watches from the cache"));
    let reports: Vec<_> =
        counts.complaints(CACHED_ONE_IN).into_iter().chain(exchanges.iter().filter_map(Exchange::report)).collect();
    let first_ones: Vec<_> = reports.iter().take(SHOWN_MAX).cloned().collect();
    assert!(reports.is_empty(), "{} reports:\n{}", reports.len(), first_ones.join("\n\n"));
    assert!(watches >= usize::try_from(count / 40).expect("a small number"), "{watches} watches from the cache");
    for caller in scene.callers.iter().filter(|caller| caller.asks_cache) {
        let own = exchanges.iter().filter(cached).filter(|exchange| exchange.caller.name == caller.name).count();
        assert!(own > 0, "nothing from the cache for {}", caller.name);
    }
}

async fn exchange(caller: &Caller, probe: Probe, settled: u64) -> Exchange<'_> {
    let compared = caller.servers.compare(&probe, settled).await;
    let seen = caller.not_for(&compared.bytes);
    Exchange { caller, probe, compared, seen }
}

impl Exchange<'_> {
    fn report(&self) -> Option<String> {
        let Self { caller, probe, compared, seen } = self;
        if seen.is_empty() && !compared.differs() {
            return None;
        }
        let what = if seen.is_empty() { "another answer".to_owned() } else { format!("A NEIGHBOUR: {seen:?}") };
        let [direct, through] = [&caller.servers.direct, &caller.servers.through].map(|at| probe.curl(&at.target));
        Some(format!("{what}, to {}\n{direct}\n{through}{}", caller.name, compared.explain()))
    }
}

/// Continue tokens of all callers, from both servers and for every collection, and some that no server issued.
async fn tokens(scene: &Scene) -> Vec<String> {
    let mut tokens = Vec::new();
    let admin = [&scene.pair.direct, &scene.pair.through];
    let callers = scene.callers.iter().map(|caller| &caller.http);
    let paths: Vec<_> = NAMESPACES.iter().map(|namespace| path(MAPS, Some(namespace))).collect();
    let paths: Vec<_> = paths.into_iter().chain([path(MAPS, None), path("nodes", None)]).collect();
    for http in callers.chain(admin) {
        for path in &paths {
            for limit in [1, 3] {
                let answer = http.get(&format!("{path}?limit={limit}")).await;
                if answer.status == 200 {
                    tokens.extend(answer.value()["metadata"]["continue"].as_str().map(str::to_owned));
                }
            }
        }
    }
    tokens.retain(|token| !token.is_empty());
    assert!(tokens.len() > 10, "{} tokens", tokens.len());
    tokens.extend(drawn::forged(scene.versions.1));
    tokens
}

/// Live events while everything changes: no byte of a neighbour's object, and all events of the caller's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_of_one_name_receives_no_event_of_similar_names() {
    let Some(bed) = bed::own("neighbouring-live").await else { return };
    let plan = Plan::delegated(&bed);
    let scene = Scene::set(bed, plan).await;
    let mut watches = Vec::new();
    for caller in scene.callers.iter().filter(|caller| caller.asks_cache) {
        for (request, needs) in caller.live(scene.versions.1) {
            watches.push(async move {
                // If a watch's state could not be proven in time, the watch is opened again.
                bed::eventually("a watch delivers its object twice", async || {
                    watch_twice(caller, &request, &needs).await
                })
                .await;
            });
        }
    }
    let count = watches.len();
    let churn = async {
        for round in 0_u32.. {
            let turn = (round % 4).to_string();
            for namespace in NAMESPACES {
                for name in NAMES {
                    let object = format!("{}/{name}", path(MAPS, Some(namespace)));
                    scene.pair.direct.patch(&object, json!({"metadata": {"labels": {"turn": turn}}})).await;
                }
            }
            let gone = path(MAPS, Some("n1-x"));
            scene.pair.direct.delete(&format!("{gone}/aa")).await;
            scene.pair.direct.create(&gone, scene::object(MAPS, "n1-x", "aa")).await;
        }
    };
    tokio::select! {
        () = async { drop(join_all(watches).await) } => {}
        () = churn => unreachable!("it continues"),
    }
    log_line(&format!("{count} watches among neighbours that change"));
}

/// Watches until this marker has arrived twice, in the state or in changes. `None` if the state was not available in
/// time.
async fn watch_twice(caller: &Caller, request: &RequestSpec, needs: &str) -> Option<()> {
    let what = format!("{}: {} {:?}", caller.name, request.path, request.headers);
    let response = caller.http.send(request.clone()).await;
    let served = response.headers().get("kube-fanout-served").is_some_and(|by| by == "cache");
    assert_eq!((response.status().as_u16(), served), (200, true), "{what}");
    let (mut watch, mut bytes) = (Watch::new(response), Vec::new());
    loop {
        let Some(Frame::Json(frame) | Frame::Protobuf(frame)) = watch.frame().await else {
            panic!("{what} ended after {}", String::from_utf8_lossy(&bytes));
        };
        bytes.extend_from_slice(&frame);
        let seen = caller.not_for(&bytes);
        assert!(seen.is_empty(), "{what}: {seen:?}");
        let text = String::from_utf8_lossy(&bytes);
        if text.contains(TOO_LARGE) {
            return None;
        }
        if text.matches(needs).count() > 1 {
            return Some(());
        }
    }
}

/// The readable part of a collection is the objects of the permitted namespaces, however similar the names are.
#[tokio::test]
async fn readable_list_contains_only_permitted_namespaces() {
    let Some(bed) = bed::own("neighbouring-readable").await else { return };
    let users = CALLERS.map(|(name, _)| name).join(", ");
    let plan = Plan::delegated(&bed).config(&format!("reads: {{filter: {{users: [{users}]}}}}"));
    let scene = Scene::set(bed, plan).await;
    let queries =
        ["", "fieldSelector=metadata.name%3Da", "limit=1", "labelSelector=l+in+(a,aa)", "watch=1&timeoutSeconds=1"];
    let accepts = ["application/json", "application/vnd.kubernetes.protobuf", drawn::METADATA, TABLE];
    let requests = scene.callers.iter().flat_map(|caller| queries.map(|query| (caller, query)));
    let requests = requests.flat_map(|(caller, query)| accepts.map(|accept| (caller, query, accept)));
    let cached = join_all(requests.map(async |(caller, query, accept)| {
        let request = RequestSpec::get(&format!("{}?{query}", path(MAPS, None))).accept(accept);
        let answer = caller.http.list_now(request).await;
        let seen = caller.not_for(&answer.body);
        assert!(seen.is_empty(), "{}: {query} {accept}: {seen:?}", caller.name);
        assert!(!answer.text().contains("remainingItemCount"), "{}: {query} {accept}", caller.name);
        (answer.is_cached() || accept == TABLE) && !caller.own_marks(&answer.body).is_empty()
    }));
    let cached = cached.await.into_iter().filter(|is_cached| *is_cached).count();
    assert!(cached > 10, "{cached} answers with something to see");
    assert_eq!(mark(MAPS, "n1", "a"), "mark(configmaps/n1/a)");
}

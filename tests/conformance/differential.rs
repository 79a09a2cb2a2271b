//! The same requests to both servers: drawn from a grammar, with a seed, at a version that nobody changes.
//!
//! Compared are the status, Content-Type, Retry-After and the body; what two answers may differ in is in
//! `bed/normal.rs`. `DIFFERENTIAL_REQUESTS=5000 DIFFERENTIAL_SEED=7` runs more, or others.

mod grammar;

use futures_util::StreamExt;
use futures_util::stream;
use serde_json::json;

use crate::bed::{self, Answer, Ask, Pair, normal, say, version_of};
use crate::custom;
use grammar::{Grammar, Reading, World};

/// Requests under way at a time; many of them wait for seconds on purpose.
const AT_ONCE: usize = 16;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// Objects, one after the other, with feeds that saw them come: versions to ask for.
async fn world(pair: &Pair) -> World {
    let pods = format!("/api/v1/namespaces/{}/pods", pair.namespace);
    let services = format!("/api/v1/namespaces/{}/services", pair.namespace);
    let everywhere = ["/api/v1/namespaces", "/api/v1/nodes", "/apis/apps/v1/deployments"].map(str::to_owned);
    for collection in [pods.clone(), services.clone(), pair.path("")].iter().chain(&everywhere) {
        for form in ["application/json", "application/vnd.kubernetes.protobuf"] {
            pair.same(Ask::get(&format!("{collection}?resourceVersion=0")).accept(form)).await;
        }
    }
    let (kind, defined) = custom::define(pair).await;
    let mut versions = vec![defined, pair.maps().await];
    versions.push(version_of(&pair.direct.create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await));
    for (name, node) in [("p1", "n1"), ("p2", "n1"), ("p3", "n2")] {
        let spec = json!({"nodeName": node, "containers": [{"name": "c", "image": "i"}]});
        let pod = json!({"metadata": {"name": name, "labels": {"app": name, "tier": "x"}}, "spec": spec});
        versions.push(version_of(&pair.direct.create(&pods, pod).await));
    }
    let service = json!({"metadata": {"name": "s"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}});
    versions.push(version_of(&pair.direct.create(&services, service).await));
    let relabel = |app: &str| json!({"metadata": {"labels": {"app": app}}});
    versions.push(version_of(&pair.direct.patch(&pair.path("/cm-a"), relabel("y")).await));
    versions.push(version_of(&pair.direct.patch(&format!("{pods}/p2"), relabel("y")).await));
    pair.direct.delete(&format!("{pods}/p3")).await;
    pair.direct.delete(&pair.path("/cm-b")).await;
    versions.push(pair.create_map(&pair.namespace, "cm-c").await);
    let last = *versions.last().expect("some");
    for collection in [&pods, &services] {
        for http in [&pair.direct, &pair.through] {
            for form in ["application/json", "application/vnd.kubernetes.protobuf"] {
                let path = format!("{collection}?resourceVersion={last}");
                assert_eq!(http.ask(Ask::get(&path).accept(form)).await.status, 200);
            }
        }
    }
    World { namespace: pair.namespace.clone(), next: pair.next.clone(), group: kind.group, versions }
}

/// What is compared of an answer.
fn of(reading: &Reading, answer: &Answer) -> (u16, String, String, Vec<String>) {
    let streams = reading.watch && answer.status == 200;
    let body = if streams { normal::events(answer) } else { vec![normal::body(answer, reading.exact)] };
    (answer.status.as_u16(), answer.content_type().to_owned(), answer.header("retry-after").to_owned(), body)
}

struct Compared {
    reading: Reading,
    cached: bool,
    status: u16,
    difference: Option<String>,
}

async fn compare(pair: &Pair, reading: Reading) -> Compared {
    let (direct, through) =
        futures_util::join!(pair.direct.ask(reading.ask.clone()), pair.through.ask(reading.ask.clone()));
    let (expected, told) = (of(&reading, &direct), of(&reading, &through));
    let accept = reading.ask.headers.get("accept").map(|value| value.to_str().unwrap_or_default().to_owned());
    let difference = (told != expected).then(|| {
        let shown =
            |what: &(u16, String, String, Vec<String>)| format!("{what:?}").chars().take(1500).collect::<String>();
        format!("{} {accept:?}\n  apiserver {}\n  proxy     {}", reading.ask.path, shown(&expected), shown(&told))
    });
    Compared { cached: through.is_cached(), status: direct.status.as_u16(), reading, difference }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_drawn_from_the_grammar_are_answered_alike() {
    let Some(bed) = bed::alone().await else { return };
    let pair = Pair::on(bed).await;
    let (count, seed) = (number("DIFFERENTIAL_REQUESTS", 600), number("DIFFERENTIAL_SEED", 1));
    let mut grammar = Grammar::new(world(&pair).await, seed);
    let readings: Vec<_> = (0..count).map(|_| grammar.draw()).collect();
    let compared: Vec<_> =
        stream::iter(readings).map(|reading| compare(&pair, reading)).buffer_unordered(AT_ONCE).collect().await;
    let cached = compared.iter().filter(|one| one.cached).count();
    let watches = compared.iter().filter(|one| one.reading.watch).count();
    let mut statuses = std::collections::BTreeMap::<u16, u32>::new();
    compared.iter().for_each(|one| *statuses.entry(one.status).or_default() += 1);
    let differences: Vec<_> = compared.iter().filter_map(|one| one.difference.as_deref()).collect();
    say(&format!(
        "seed {seed}: {count} requests, {watches} of them watches, {cached} answered from the cache; statuses \
         {statuses:?}; {} differences",
        differences.len()
    ));
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

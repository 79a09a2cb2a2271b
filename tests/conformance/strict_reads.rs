//! How long LISTs without a version take where few ask: a client lists every watchable resource in turn, directly and
//! through a proxy that asks the apiserver for each caller's rights. Each LIST costs the apiserver one question, as it
//! does directly. `make strict-reads` also checks how long they take, for which it needs a release build.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::bed::{self, Http, Pair, Plan, Times, log_line, number};

/// A resource that the proxy may not read.
const FORWARDED: &str = "/api/v1/secrets";
/// The p50 of the proxy may be this much above the tolerated multiple of the apiserver's, and its p99 is tolerated twice
/// as large a multiple.
const MORE: Duration = Duration::from_micros(300);

async fn timed(http: &Http, path: &str) -> (Duration, bool) {
    let began = Instant::now();
    let answer = http.get(path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    (began.elapsed(), answer.is_cached())
}

#[tokio::test]
async fn strict_lists_of_quiet_resources_cost_one_upstream_request() {
    let Some(bed) = bed::own("strict-reads").await else { return };
    let pair = Pair::with(Plan::delegated(&bed), bed).await;
    let (rounds, percent_max) =
        (number("STRICT_ROUNDS", 3), u32::try_from(number("STRICT_PERCENT", 0)).expect("small"));
    let watchable = pair.direct.watchable().await.into_iter().map(|(_, _, path)| path);
    let paths: Vec<_> = watchable.filter(|path| path != FORWARDED).collect();
    let proofs = async || pair.proxy.metrics().await.sum("kube_fanout_upstream_requests_total", &[("cause", "proof")]);
    for path in &paths {
        assert!(timed(&pair.through, path).await.1, "{path} is not from the cache");
    }
    let (before, mut direct, mut through, mut cached) = (proofs().await, Vec::new(), Vec::new(), 0);
    for round in 0..rounds {
        // The cluster's version goes on, and that of most resources does not.
        let object = json!({"metadata": {"name": format!("round-{round}")}});
        pair.direct.create(&format!("/api/v1/namespaces/{}/configmaps", pair.namespace), object).await;
        for path in &paths {
            direct.push(timed(&pair.direct, path).await.0);
            let (took, is_cached) = timed(&pair.through, path).await;
            through.push(took);
            cached += i64::from(is_cached);
        }
    }
    let (lists, proofs) = (i64::try_from(through.len()).expect("few"), proofs().await - before);
    let (direct, through) = (Times::of(direct), Times::of(through));
    log_line(&format!(
        "{} resources in turn, {rounds} times: directly {direct}, through the proxy {through}; {proofs} proofs of {lists} \
         LISTs, {cached} from the cache",
        paths.len()
    ));
    // A resource that changes while it is listed, like leases, may take a second question.
    assert!(cached == lists && proofs <= lists + lists / 10, "{proofs} proofs, {cached} of {lists} from the cache");
    let is_slow =
        |percent: usize, times: u32| through.at(percent) > direct.at(percent) * percent_max * times / 100 + MORE;
    assert!(percent_max == 0 || !is_slow(50, 1) && !is_slow(99, 2), "slower than {percent_max} %");
    pair.proxy.assert_sound();
}

//! Cost of a leaf's read to its zone, which depends on the zone's response time.

use std::time::Instant;

use serde_json::json;

use crate::direct::{FRESH_MAX, eventually};
use crate::tree::tree;

const PAGE: &str = "/api/v1/pods?limit=5";
/// Number of reads that each need a proof and cost no more than one request.
const READS: usize = 6;
/// Maximum number of attempts for these.
const READS_MAX: usize = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaf_read_costs_zone_one_request() {
    let up = demo::upstream().pods(700).seed(82).run().await;
    let (_zone, leaves) = tree(&up, 1).await;
    let leaf = &leaves[0];
    eventually("the leaf has pods", || async { leaf.get(PAGE).await.is_cached() }).await;
    // If the zone stalls, it responds too late to some reads. The leaf sends more requests for them, or forwards them.
    let mut costs: Vec<u64> = Vec::new();
    while costs.iter().filter(|cost| **cost == 1).count() < READS {
        assert!(costs.len() < READS_MAX, "a position each, and hardly ever more: {costs:?}");
        let (before, started) = (leaf.proofs().await, Instant::now());
        up.put("nodes", json!({"metadata": {"name": format!("other-{}", costs.len())}}));
        let list = leaf.get(PAGE).await;
        assert!(list.is_cached() || started.elapsed() >= FRESH_MAX, "{}", list.text());
        let cost = if list.is_cached() { leaf.proofs().await - before } else { u64::MAX };
        costs.push(cost);
    }
}

//! A feed is compared with the apiserver's storage repeatedly under many writes, and never differs (F8).

use serde_json::{Value, json};

use crate::bed::{self, Authority, Plan, Plane, Proxy, RequestSpec, log_line, number, within};

const OFTEN: &str = "feeds: {selfCheck: 300ms}";
/// The number of comparisons of each feed.
const ROUNDS: i64 = 25;

async fn checks(proxy: &Proxy, resource: &str, outcome: &str) -> i64 {
    let labels = [("resource", resource), ("outcome", outcome)];
    proxy.metrics().await.sum("kube_fanout_self_checks_total", &labels)
}

/// Prints the results of the comparisons. Panics if one differed. The number of skipped ones depends on the machine.
async fn assert_same(proxy: &Proxy, resource: &str, rounds: i64) {
    let [same, different, skipped] = ["same", "different", "skipped"].map(|outcome| checks(proxy, resource, outcome));
    let (same, different, skipped) = (same.await, different.await, skipped.await);
    let sent = proxy.feed_requests("self_check").await;
    log_line(&format!(
        "{resource}: {same} comparisons, {different} differ, {skipped} skipped; {sent} questions in all"
    ));
    assert_eq!(different, 0, "{resource}: {}", proxy.log());
    assert!(same >= rounds, "{resource}: {same} and {skipped} skipped: {}", proxy.log());
}

#[tokio::test]
async fn self_check_finds_no_difference_under_churn() {
    let Some(bed) = bed::alone().await else { return };
    bed.load().await;
    let proxy = Plan::tls().config(OFTEN).start(&bed).await;
    let namespace = bed.namespace("self-checks").await;
    let client = proxy.client();
    let resources = ["configmaps.v1", "pods.v1", "leases.v1.coordination.k8s.io", "events.v1"];
    let paths = ["/api/v1/configmaps", "/api/v1/pods", "/apis/coordination.k8s.io/v1/leases", "/api/v1/events"];
    let mut watches = Vec::new();
    for path in paths {
        watches.push(client.watch(RequestSpec::get(&format!("{path}?watch=1&resourceVersion=0"))).await);
    }
    let churns = ["configmaps", "pods"].map(|resource| {
        let churn = ["--namespace", &namespace, "--resource", resource, "--ops", "100000000", "--workers", "2"];
        bed.drive("churn").args(churn).args(["--rate", "60", "--timeout", "1h"]).start()
    });
    let direct = bed.direct();
    for n in 0..10_000 {
        let meta = json!({"name": format!("e{n}"), "namespace": namespace});
        let about = json!({"kind": "Pod", "namespace": namespace, "name": "p"});
        direct
            .create(
                &format!("/api/v1/namespaces/{namespace}/events"),
                json!({"metadata": meta, "involvedObject": about, "reason": "R", "message": "m", "type": "Normal"}),
            )
            .await;
        let lease = json!({"metadata": {"name": format!("l{n}"), "namespace": namespace}, "spec": {}});
        direct.create(&format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"), lease).await;
        let mut least = i64::MAX;
        for resource in resources {
            least = least.min(checks(&proxy, resource, "same").await);
        }
        if least >= ROUNDS {
            break;
        }
    }
    drop(churns);
    for resource in resources {
        assert_same(&proxy, resource, ROUNDS).await;
    }
    drop(watches);
    proxy.assert_sound();
}

fn pod(name: &str, node: &str) -> Value {
    let containers = json!([{"name": "c", "image": "i"}]);
    json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": containers}})
}

async fn node_with_pods(bed: &Plane) -> String {
    let (direct, namespace) = (bed.direct(), bed.namespace("self-checks").await);
    for node in ["n1", "n2"] {
        direct.create("/api/v1/nodes", json!({"metadata": {"name": node}})).await;
    }
    namespace
}

/// A node's feed is compared with what the apiserver finds by its index, without a read of the whole storage.
#[tokio::test]
async fn self_check_finds_no_difference_in_pods_of_a_node() {
    let Some(bed) = bed::alone().await else { return };
    let namespace = node_with_pods(&bed).await;
    let proxy = Plan::node(&bed).config(&format!("node: n1\n{OFTEN}")).start(&bed).await;
    let through = proxy.client_of(&Authority::of(&bed).issue("system:node:n1", &["system:nodes"]));
    let direct = bed.direct();
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let watch = through
        .watch(RequestSpec::get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&watch=1&resourceVersion=0"))
        .await;
    let mut n = 0;
    let compared = async {
        while checks(&proxy, "pods.v1", "same").await < ROUNDS {
            for node in ["n1", "n2"] {
                direct.create(&pods, pod(&format!("{node}-{n}"), node)).await;
            }
            if n >= 5 {
                direct.delete(&format!("{pods}/n1-{}", n - 5)).await;
            }
            n += 1;
        }
    };
    within("comparisons", compared).await;
    assert_same(&proxy, "pods.v1", ROUNDS).await;
    drop(watch);
}

/// The apiserver's load for one comparison: a page of metadata, a count of objects, and three objects.
#[tokio::test]
async fn self_check_cost_does_not_grow_with_object_count() {
    let Some(bed) = bed::quiet("self-checks-cost").await else { return };
    let (objects, namespace) = (number("SELF_CHECKED", 600), bed.namespace("cost").await);
    let load = bed.drive("load").args(["--namespace", &namespace, "--resource", "configmaps", "--workers", "4"]);
    load.args(["--pods", &objects.to_string(), "--size", "500"]).start().finish().await;
    let proxy = Plan::tls().config(OFTEN).start(&bed).await;
    let watch = proxy.client().watch(RequestSpec::get("/api/v1/configmaps?watch=1&resourceVersion=0")).await;
    let (map, direct) = (format!("/api/v1/namespaces/{namespace}/configmaps/changing"), bed.direct());
    direct.create(map.trim_end_matches("/changing"), json!({"metadata": {"name": "changing"}})).await;
    let rounds = i64::try_from(objects / 500 + 3).expect("few");
    let compared = async {
        let mut n = 0;
        while checks(&proxy, "configmaps.v1", "same").await < rounds {
            n += 1;
            direct.patch(&map, json!({"data": {"k": n.to_string()}})).await;
        }
    };
    within("comparisons", compared).await;
    let metrics = proxy.metrics().await;
    let cost = |name: &str| metrics.sum(name, &[("cause", "self_check")]);
    let (requests, bytes) =
        (cost("kube_fanout_upstream_requests_total"), cost("kube_fanout_upstream_body_bytes_total"));
    let of =
        |outcome| metrics.sum("kube_fanout_self_checks_total", &[("resource", "configmaps.v1"), ("outcome", outcome)]);
    // A skipped comparison has sent requests too.
    let done = of("same") + of("skipped");
    log_line(&format!(
        "{objects} configmaps: {done} comparisons, {requests} requests and {bytes} bytes; {} and {} each",
        requests as f64 / done as f64,
        bytes / done
    ));
    // One more comparison may be in progress.
    assert!(requests <= 5 * (done + 1), "{requests}");
    assert!(bytes <= (500 << 10) * (done + 1), "{bytes} bytes");
    assert_same(&proxy, "configmaps.v1", rounds).await;
    drop(watch);
}

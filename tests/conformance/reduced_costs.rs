//! The bytes of reads and the memory of client-go informers, with and without `metadata.managedFields`: upstream's
//! exemplar pods, and nodes as kubelets write them. `REDUCED_PODS=2000 cargo test --test conformance --
//! informers_need_less_memory --nocapture` prints a table.

use futures_util::future::join;
use http::Method;
use http::header::ACCEPT_ENCODING;
use serde_json::{Value, json};

use crate::bed::exemplar::{exemplar_pod, named, node};
use crate::bed::{self, Frame, Http, Plan, RequestSpec, gunzip, log_line, number};
use crate::reduced::{DROP, JSON, PROTOBUF};

async fn put_status(direct: &Http, path: &str, manager: &str, object: &Value) -> Value {
    let request = RequestSpec::get(&format!("{path}/status?fieldManager={manager}"));
    let updated = direct.fetch(request.with(Method::PUT, JSON, object.to_string())).await;
    assert_eq!(updated.status, 200, "{}", updated.text());
    updated.value()
}

/// Creates objects with their status.
pub async fn create(direct: &Http, path: &str, (what, count): (&str, usize), object: &Value) {
    for number in 0..count {
        let name = format!("{what}-{number}");
        let object = named(object.clone(), &name);
        let mut created = direct.create(path, object.clone()).await;
        created["status"] = object["status"].clone();
        if let Some(managed) = object["metadata"].get("managedFields") {
            created["metadata"]["managedFields"] = managed.clone();
        }
        put_status(direct, &format!("{path}/{name}"), "kubelet", &created).await;
    }
}

const CHANGES: usize = 10;

/// Changes a condition of some objects, as a kubelet does. Then another manager applies what some objects have.
async fn change(direct: &Http, path: &str, what: &str) {
    for number in 0..CHANGES {
        let path = format!("{path}/{what}-{number}");
        let mut object = direct.json(&path).await;
        object["status"]["conditions"][0]["message"] = json!("changed");
        let changed = put_status(direct, &path, "kubelet", &object).await;
        let labels = changed["metadata"]["labels"].clone();
        let same = json!({"apiVersion": "v1", "kind": changed["kind"], "metadata": {"labels": labels}});
        let request = RequestSpec::get(&format!("{path}?fieldManager=other&force=true"));
        let applied = direct.fetch(request.with(Method::PATCH, "application/apply-patch+yaml", same.to_string())).await;
        assert_eq!(applied.status, 200, "{}", applied.text());
    }
}

/// The informer is the same program each time: the configuration names its user agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn informers_need_less_memory_without_the_field() {
    let Some(bed) = bed::quiet("exemplar").await else { return };
    let Some(mut pod) = exemplar_pod(&bed) else { return log_line("SKIPPED: no exemplar pod in Go's module cache") };
    let count = usize::try_from(number("REDUCED_PODS", 500)).expect("a small number");
    let direct = bed.direct();
    let namespace = bed.namespace("exemplar").await;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    pod["metadata"]["namespace"] = json!(namespace);
    let drops = "reads: {drop: {userAgents: [kube-testbed-drive]}}\n";
    let [full, reduced] = [Plan::tls(), Plan::tls().config(drops)].map(|plan| plan.start(&bed));
    let (full, reduced) = join(full, reduced).await;
    let client = full.client();
    for (what, path, count, object) in [("pods", &*pods, count, pod), ("nodes", "/api/v1/nodes", count / 5, node(30))] {
        create(&direct, path, (what, count), &object).await;
        let version = direct.version(path).await;
        let has = async |version: u64| {
            client.until_ok("it has all", RequestSpec::get(&format!("{path}?resourceVersion={version}"))).await;
        };
        // The feed has the changes in its history.
        has(version).await;
        change(&direct, path, what).await;
        has(direct.version(path).await).await;
        for form in [JSON, PROTOBUF] {
            let mut bytes = Vec::new();
            for accept in [form.to_owned(), format!("{form}{DROP}")] {
                let request = RequestSpec::get(&format!("{path}?resourceVersion=0")).accept(&accept);
                let plain = client.fetch(request.clone()).await;
                assert!(plain.is_cached(), "{accept}");
                let compressed = client.fetch(request.header(ACCEPT_ENCODING, "gzip")).await;
                assert!(gunzip(&compressed.body) == plain.body, "{accept}");
                let watch = RequestSpec::get(&format!("{path}?watch=1&resourceVersion={version}")).accept(&accept);
                let (mut watch, mut events) = (client.watch(watch).await, 0);
                for _ in 0..if accept == form { 2 * CHANGES } else { CHANGES } {
                    let (Frame::Json(frame) | Frame::Protobuf(frame)) = watch.frame().await.expect("an event");
                    events += frame.len();
                }
                bytes.push([plain.body.len() / count, compressed.body.len() / count, events / CHANGES]);
            }
            let encoding = if form == JSON { "json" } else { "protobuf" };
            let mut heaps = Vec::new();
            for proxy in [&full, &reduced] {
                let args = ["--resource", what, "--encoding", encoding, "--for", "1ms"];
                let summary = bed.drive("informers").at(&proxy.target()).args(args).start().finish().await.summary();
                assert_eq!(summary["objects"], count, "{summary}");
                heaps.push(summary["heap_bytes"].as_u64().expect("the heap of the informer") >> 10);
            }
            let [before, after] = &bytes[..] else { panic!("two accepts") };
            log_line(&format!(
                "{count} {what} in {encoding}, before and after: an object of a list {} and {} bytes, compressed {} and \
                 {}; two events, of which one shows a change, {} and {} bytes; heap of an informer {} and {} KiB",
                before[0], after[0], before[1], after[1], before[2], after[2], heaps[0], heaps[1]
            ));
            assert!((0..3).all(|figure| after[figure] < before[figure]), "{bytes:?}");
            assert!(what == "nodes" || heaps[1] < heaps[0], "{heaps:?}");
        }
    }
    assert!(reduced.metrics().await.sum("kube_fanout_reduced_bytes_total", &[]) > 0);
}

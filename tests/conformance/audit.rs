//! Audit records: for requests that the proxy answers itself, it writes the records that the apiserver would write.

use std::fs;
use std::path::Path;

use http::HeaderName;
use serde_json::{Value, json};

use crate::bed::{self, Http, Plan, RequestSpec, eventually};

/// Everything at level Metadata, except the stage that has no response.
const POLICY: &str =
    "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";

/// The audit records of one request, without what differs between requests.
async fn records(log: &Path, id: &str, stages: usize) -> Vec<Value> {
    let mut found = eventually(&format!("the records of {id}"), async || {
        let text = fs::read_to_string(log).ok()?;
        let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let found: Vec<_> = records.filter(|record| record["auditID"] == id).collect();
        (found.len() >= stages).then_some(found)
    })
    .await;
    for record in &mut found {
        for name in ["auditID", "requestReceivedTimestamp", "stageTimestamp"] {
            let value = record[name].take();
            assert!(value.is_string(), "{name}: {value}");
        }
        // The apiserver's own latency, which it records from 500 ms on.
        if let Some(annotations) = record["annotations"].as_object_mut() {
            annotations.retain(|name, _| !name.starts_with("apiserver.latency.k8s.io/"));
        }
    }
    found
}

async fn fetch(client: &Http, path: &str, id: &str) -> bool {
    let request = RequestSpec::get(path).header(HeaderName::from_static("audit-id"), id);
    client.fetch(request.header(HeaderName::from_static("user-agent"), "conformance/1")).await.is_cached()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_records_of_cached_reads_match_the_apiserver() {
    let folder = bed::scratch_file("audit");
    fs::create_dir_all(&folder).expect("a directory");
    let (policy, theirs, ours) = (folder.join("policy.yaml"), folder.join("theirs.log"), folder.join("ours.log"));
    fs::write(&policy, POLICY).expect("a file");
    let flags = [format!("--audit-policy-file={}", policy.display()), format!("--audit-log-path={}", theirs.display())];
    let Some(plane) = bed::own_with("audit", &[&flags[0], &flags[1]]).await else { return };
    let namespace = plane.namespace("audited").await;
    let direct = plane.direct();
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    direct.create(&maps, json!({"metadata": {"name": "m"}})).await;
    let config = format!("auth: delegated\naudit: {{path: {}}}\n", ours.display());
    let proxy = Plan::plain().config(&config).start(&plane).await;
    let through = proxy.client();
    // A GET of one object does not start a feed.
    let filled = format!("{maps}?resourceVersion=0");
    eventually("the feed is filled", async || through.get(&filled).await.is_cached().then_some(())).await;
    let version = direct.version(&maps).await;
    for (number, (path, stages)) in [
        (maps.clone(), 1),
        (format!("{maps}/m?resourceVersion=0"), 1),
        (format!("{maps}/none?resourceVersion=0"), 1),
        (format!("{maps}?limit=1&labelSelector=a%20in%20(b)"), 1),
        (format!("{maps}?fieldSelector=metadata.name%3Dm"), 1),
        ("/apis/apps/v1/deployments".to_owned(), 1),
        (format!("{maps}?watch=1&timeoutSeconds=1&resourceVersion={version}"), 2),
    ]
    .into_iter()
    .enumerate()
    {
        // A request that is forwarded because no proof arrived in time leaves another record.
        let mut tries = 0;
        let id = eventually(&format!("{path} is answered from the cache"), async || {
            tries += 1;
            let id = format!("record-{number}-{tries}");
            fetch(&through, &path, &id).await.then_some(id)
        })
        .await;
        assert!(!fetch(&direct, &path, &format!("{id}-direct")).await);
        let theirs = records(&theirs, &format!("{id}-direct"), stages).await;
        assert_eq!(records(&ours, &id, stages).await, theirs, "{path}");
    }
    let _ = fs::remove_dir_all(&folder);
}

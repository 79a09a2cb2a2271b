//! Compares the estimate of `fanoutctl estimate` from a real audit log with the load that a proxy actually saves.

use std::path::Path;

use futures_util::future::join_all;
use http::{HeaderName, Method};
use serde_json::{Value, json};

use crate::bed::{self, Http, Plan, RequestSpec, eventually, kube_fanout, log_line};
use crate::blocks::{Shell, blocks, with};

const DIRECT: &str = "estimate-direct/1";
const THROUGH: &str = "estimate-through/1";

/// Sends a program's requests: its watches together, and the others one after the other. Returns their number.
async fn send_all(client: &Http, maps: &str, agent: &str, version: u64) -> usize {
    let get = |path: String| RequestSpec::get(&path);
    let mut requests = Vec::new();
    requests.extend((0..10).map(|_| get(format!("{maps}?limit=500&resourceVersion=0"))));
    requests.extend((0..5).map(|_| get(maps.to_owned())));
    requests.extend((0..2).map(|_| get(format!("{maps}/m?resourceVersion=0"))));
    requests.extend((0..3).map(|_| get(format!("{maps}/m"))));
    requests.extend((0..2).map(|_| get("/version".to_owned())));
    for n in 0..3 {
        let name = format!("{}-{n}", agent.split('/').next().unwrap_or_default());
        let object = json!({"metadata": {"name": name}}).to_string();
        requests.push(RequestSpec::get(maps).with(Method::POST, "application/json", object));
    }
    let watches =
        (0..4).map(|_| get(format!("{maps}?watch=1&timeoutSeconds=1&resourceVersion={version}"))).collect::<Vec<_>>();
    let count = requests.len() + watches.len();
    let send = async |request: RequestSpec| {
        let answer = client.fetch(request.header(HeaderName::from_static("user-agent"), agent)).await;
        assert!(answer.status.is_success(), "{}", answer.text());
    };
    join_all(watches.into_iter().map(&send)).await;
    for request in requests {
        send(request).await;
    }
    count
}

/// The sums over this program's rows of an estimate: requests from memory, and requests that upstream still answers.
fn estimated(log: &Path, agent: &str) -> (u64, u64) {
    let output = kube_fanout("estimate").args(["--json", "--audit-log"]).arg(log).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = found["rows"].as_array().expect("rows").iter().filter(|row| row["agent"] == agent);
    let number = |row: &Value, key: &str| row[key].as_u64().expect("a number");
    rows.fold((0, 0), |(memory, rest), row| {
        let from_memory = ["lists", "watches", "gets"].map(|key| number(row, key)).iter().sum::<u64>();
        (memory + from_memory, rest + number(row, "rest"))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn estimate_from_audit_log_matches_measured_savings() {
    let Some(bed) = bed::audited("estimate").await else { return };
    let direct = bed.direct();
    let namespace = bed.namespace("estimated").await;
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    direct.create(&maps, json!({"metadata": {"name": "m"}})).await;
    let version = direct.version(&maps).await;
    let log = bed.kubeconfig().parent().expect("a folder").join("audit.log");
    let answered = |agent: &str| {
        let is_of = |record: &&Value| record["userAgent"] == agent && record["stage"] == "ResponseComplete";
        bed.audit().iter().filter(is_of).count()
    };

    let sent = send_all(&direct, &maps, DIRECT, version).await;
    eventually("all is in the log", async || (answered(DIRECT) == sent).then_some(())).await;
    let (memory, rest) = estimated(&log, DIRECT);
    let [block] = blocks("docs/FORMS.md", "estimate_from_audit_log_matches_measured_savings");
    let log = log.display().to_string();
    let shell = Shell::in_checkout(bed.file("reader"));
    let estimate = shell.run(&with(&block, &[("/var/log/kubernetes/audit.log", &log)]));
    assert!(estimate.contains(DIRECT) && estimate.contains("upstream, after:"), "{estimate}");
    assert_eq!(memory + rest, sent as u64);

    let proxy = Plan::plain().start(&bed).await;
    let through = proxy.client();
    let filled = format!("{maps}?resourceVersion=0");
    eventually("the feed is filled", async || through.get(&filled).await.is_cached().then_some(())).await;
    assert_eq!(send_all(&through, &maps, THROUGH, version).await, sent);
    eventually("the rest is in the log", async || (answered(THROUGH) >= usize::try_from(rest).ok()?).then_some(()))
        .await;
    // A list is forwarded if its proof takes longer than 3 s, and a watch if reading the history back outlasts it.
    let metrics = proxy.metrics().await;
    let late: i64 = ["no_proof", "too_old"]
        .map(|late| metrics.sum("kube_fanout_forwarded_total", &[("reason", late)]))
        .iter()
        .sum();
    let passed = rest + u64::try_from(late).expect("a count");
    eventually("all forwarded requests are in the log", async || (answered(THROUGH) as u64 >= passed).then_some(()))
        .await;
    assert_eq!(answered(THROUGH) as u64, passed, "the others were answered from memory");
    log_line(&format!("of {sent} requests {memory} were estimated to vanish, and {} did", sent as u64 - rest));
    assert_eq!((memory, rest), (23, 6));
    proxy.assert_sound();
}

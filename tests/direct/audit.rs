//! The audit log of a running process, and the core files that it must not write.

use std::fs;
use std::time::{Duration, Instant};

use demo::{self, RunningDemoApiserver};
use http::Method;
use kube_fanout::auth::AuthMode;
use kube_fanout::serve::AuditDestination;
use serde_json::Value;

use crate::direct::{self, Dir, Ended, PODS, Protocol, eventually};
use crate::process::Process;

/// The whole records of a log, of which the last line may be half written.
fn records(text: &str) -> Vec<Value> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn stages(records: &[Value], id: &str) -> Vec<String> {
    let of = records.iter().filter(|record| record["auditID"] == id);
    of.map(|record| format!("{} {}", record["stage"].as_str().expect("a stage"), record["responseStatus"]["code"]))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_log_records_served_requests_with_response_audit_id() {
    let up = demo::upstream().pods(5).run().await;
    // If the machine stalls until the drain ends, watches are cut. Then the test retries with a longer drain.
    for drain in [3, 30, 90] {
        if all_is_recorded(&up, drain).await {
            return;
        }
    }
    panic!("each drain was over before all had ended");
}

/// Returns `false` if the drain ended before all watches did.
async fn all_is_recorded(up: &RunningDemoApiserver, drain: u64) -> bool {
    let dir = Dir::new();
    let (log, config) = (dir.join("audit.log"), dir.file("config.yaml", &format!("drain: {drain}s\n")));
    let arguments = ["--config", config.to_str().expect("a path"), "--audit-log", log.to_str().expect("a path")];
    let process = Process::serve(&dir, &up.url(), &arguments).await;
    let client = process.client();
    let list = direct::proven(&client, || PODS.to_owned()).await;
    assert!(list.is_cached());
    let named = client
        .request(Method::GET, "/api/v1/namespaces/default/pods/none?resourceVersion=0")
        .header("audit-id", "mine")
        .send()
        .await;
    assert_eq!((named.status, named.is_cached(), named.header("audit-id")), (404, true, Some("mine")));
    let passed = client.get("/healthz").await;
    let mut watches = Vec::new();
    for protocol in Protocol::ALL {
        watches.push(client.watch(PODS).from(list.rv()).over(protocol).await);
    }
    let read = || records(&fs::read_to_string(&log).expect("a log"));
    let begun = |records: &[Value]| records.iter().filter(|record| record["stage"] == "ResponseStarted").count();
    eventually("all watches are recorded", || async { begun(&read()) == Protocol::ALL.len() }).await;
    let began = Instant::now();
    process.signal("TERM");
    let mut ends = Vec::new();
    for watch in &watches {
        ends.push(watch.ended().await);
    }
    assert_eq!(process.ended().await.code, Some(0));
    if began.elapsed().as_secs() >= drain {
        return false;
    }
    assert!(ends.iter().all(|end| *end == Ended::Clean), "{ends:?}");
    let records = read();
    let id = |answer: &crate::direct::Answer| answer.header("audit-id").unwrap_or("none").to_owned();
    assert_eq!(stages(&records, &id(&list)), ["ResponseComplete 200"]);
    assert_eq!(stages(&records, "mine"), ["ResponseComplete 404"]);
    assert_eq!(stages(&records, &id(&passed)), [""; 0]);
    let mut codes: Vec<_> = records
        .iter()
        .filter(|record| record["verb"] == "watch" && record["stage"] == "ResponseComplete")
        .filter_map(|record| record["responseStatus"]["code"].as_u64())
        .collect();
    codes.sort_unstable();
    assert_eq!(codes, [101, 200, 200], "every watch that began is over: {records:#?}");
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_exits_with_78_if_audit_log_cannot_be_opened() {
    let output = crate::process::run(&["serve", "--kubeconfig", "/dev/null", "--audit-log", "/nowhere/audit.log"]);
    assert_eq!(output.code, Some(78), "{}", output.stderr);
}

/// Memory holds tokens and Secrets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_dumps_are_disabled_without_allow_core_dumps() {
    let up = demo::upstream().run().await;
    let dir = Dir::new();
    for (flags, is_private) in [(&[][..], true), (&["--allow-core-dumps"], false)] {
        let process = Process::serve(&dir, &up.url(), flags).await;
        let limits = fs::read_to_string(format!("/proc/{}/limits", process.id())).expect("limits");
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
        let fields: Vec<_> = core.split_whitespace().collect();
        assert_eq!(fields.get(5) == Some(&"0"), is_private || core_is_off(), "{core}");
    }
}

/// If this test itself may not write core files, the second case shows nothing.
fn core_is_off() -> bool {
    let limits = fs::read_to_string("/proc/self/limits").expect("limits");
    limits.lines().any(|line| line.starts_with("Max core file size") && line.split_whitespace().nth(5) == Some("0"))
}

/// A filtered read is recorded as allowed for another reason than upstream's, and a refusal as what it is.
#[tokio::test]
async fn audit_log_records_decision_of_filtered_reads() {
    let up = demo::upstream().pods(0).run().await;
    up.create_pod("a", "p");
    up.reviews().give("t", "ada");
    up.reviews().allow("ada", "a");
    let dir = Dir::new();
    let log = dir.join("audit.log");
    let app = direct::app(&up).with(|config| {
        config.auth = AuthMode::Delegated;
        config.audit = Some(AuditDestination::File(log.clone()));
        config.serve.filter.users = vec!["ada".to_owned()];
        config.delegated.auth.denied_ttl = Duration::from_secs(600);
    });
    let app = app.run().await;
    let ada = app.bearing("t");
    let table = async |id: &str| {
        let table = ada.request(Method::GET, PODS).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
        table.header("audit-id", id).send().await
    };
    direct::eventually("the list is cached", || async { table("table").await.status == 200 }).await;
    up.reviews().refuse(Some(500));
    up.create_pod("b", "p");
    assert_eq!(table("unanswered").await.status, 503);
    up.reviews().refuse(None);
    for namespace in 0..2_000 {
        up.create_pod(&format!("many{namespace}"), "p");
    }
    let refused = |protocol: Option<Protocol>| {
        let (ada, id) = (&ada, format!("refused{protocol:?}"));
        async move {
            let path = if protocol.is_some() { format!("{PODS}?watch=1") } else { PODS.to_owned() };
            let ada = protocol.map_or_else(|| ada.clone(), |protocol| ada.over(protocol));
            let answer = ada.request(Method::GET, &path).header("audit-id", &id).send().await;
            assert!(answer.status == 403 && answer.text().contains("more than 2000 namespaces"), "{}", answer.text());
            assert_eq!(answer.header("kube-fanout-refused-by"), Some("proxy"));
            id
        }
    };
    direct::eventually("all pods are cached", || async { ada.get(PODS).await.status == 403 }).await;
    let mut expected = vec![("table".to_owned(), "allow kube-fanout: reads.filter"), ("unanswered".to_owned(), "null")];
    for protocol in [None, Some(Protocol::Http1), Some(Protocol::Http2)] {
        expected.push((refused(protocol).await, "forbid the collection spans more than 2000 namespaces"));
    }
    let shown =
        |id: &str| {
            let records = records(&fs::read_to_string(&log).expect("a log"));
            let record = records.into_iter().rfind(|record| record["auditID"] == id)?;
            let of = |name: &str| record["annotations"][format!("authorization.k8s.io/{name}")].clone();
            Some(of("decision").as_str().map_or("null".to_owned(), |decision| {
                format!("{decision} {}", of("reason").as_str().unwrap_or_default())
            }))
        };
    for (id, expected) in expected {
        direct::eventually("a record", || async { shown(&id).is_some() }).await;
        let shown = shown(&id).expect("a record");
        assert!(shown.starts_with(expected), "{id}: {shown}");
    }
}

//! kube-rs, the Python client and the JavaScript client, through the proxy and without it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::pin::pin;
use std::process::Command;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::{Api, Client, Config};
use kube_runtime::watcher::{self, Event, InitialListStrategy};
use serde_json::{Value, json};

use crate::bed::{
    self, Plan, Plane, Process, Proxy, RequestSpec, Target, eventually, log_line, repository, version_of, within,
};

/// The events that a kube-rs watcher reports, from its first list to a version.
#[derive(Debug, Default, PartialEq)]
struct WatcherEvents {
    initial: Vec<(String, u64)>,
    changes: Vec<(String, u64, bool)>,
    state: BTreeMap<String, u64>,
}

/// Returns a client that accepts gzip if `is_compressed`, as programs with kube-rs's feature `gzip` do.
pub fn kube_rs(target: &Target, namespace: &str, is_compressed: bool) -> Api<ConfigMap> {
    let mut config = Config::new(target.url.parse().expect("a URL"));
    config.disable_compression = !is_compressed;
    config.auth_info.token = Some(target.identity.token.clone().into());
    config.root_cert = target.ca.as_ref().map(|path| {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        CertificateDer::pem_file_iter(path)
            .expect("a PEM file")
            .map(|der| der.expect("a certificate").to_vec())
            .collect()
    });
    Api::namespaced(Client::try_from(config).expect("a client"), namespace)
}

fn of(map: &ConfigMap) -> (String, u64) {
    let metadata = &map.metadata;
    let version = metadata.resource_version.as_ref().and_then(|version| version.parse().ok());
    (metadata.name.clone().expect("a name"), version.expect("a version"))
}

/// Follows until it has reached the version that `until` contains. Notifies `listed` when the first list is complete.
async fn follow(
    api: Api<ConfigMap>,
    strategy: InitialListStrategy,
    listed: tokio::sync::oneshot::Sender<()>,
    mut until: tokio::sync::watch::Receiver<u64>,
) -> WatcherEvents {
    let config = watcher::Config { initial_list_strategy: strategy, ..watcher::Config::default() };
    let mut events = pin!(watcher::watcher(api, config));
    let (mut received, mut listed, mut reached) = (WatcherEvents::default(), Some(listed), 0);
    loop {
        let event = tokio::select! {
            event = within("an event of a kube-rs watcher", events.next()) => event,
            _ = until.changed() => None,
        };
        match event {
            Some(Ok(Event::Init)) | None => {}
            Some(Ok(Event::InitApply(map))) => received.initial.push(of(&map)),
            Some(Ok(Event::InitDone)) => {
                received.state.extend(received.initial.iter().cloned());
                listed.take().expect("one list, not another").send(()).expect("the test waits for the list");
            }
            Some(Ok(Event::Apply(map))) => {
                let (name, version) = of(&map);
                received.state.insert(name.clone(), version);
                received.changes.push((name, version, true));
                reached = version;
            }
            Some(Ok(Event::Delete(map))) => {
                let (name, version) = of(&map);
                received.state.remove(&name);
                received.changes.push((name, version, false));
                reached = version;
            }
            Some(Err(error)) if is_early(&error) => {}
            Some(Err(error)) => panic!("kube-rs: {error}"),
        }
        if *until.borrow() > 0 && reached >= *until.borrow() {
            return received;
        }
    }
}

/// Whether the state was not available in time. kube-rs then starts again.
pub fn is_early(error: &watcher::Error) -> bool {
    format!("{error:?}").contains("Too large resource version")
}

async fn churn(plane: &Plane, namespace: &str, ops: &str, seed: &str) -> u64 {
    let run = plane.drive("churn").args(["--resource", "configmaps", "--namespace", namespace, "--ops", ops]);
    let done = run.args(["--seed", seed, "--objects", "30"]).start().finish().await;
    *done.versions().last().expect("it wrote")
}

/// The object in the last event of every watch: it is created last, all selectors match it, and its key is the last.
const END: &str = "zzz";

/// Creates that object, and returns when both servers have it.
async fn ends(plane: &Plane, proxy: &Proxy, namespace: &str) {
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let end = json!({"metadata": {"name": END, "labels": {"color": "red"}}});
    let version = version_of(&plane.direct().create(&maps, end).await);
    for http in [plane.direct(), proxy.client()] {
        http.until_ok("it has all", RequestSpec::get(&format!("{maps}?resourceVersion={version}"))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kube_rs_watchers_receive_the_same_events_as_direct() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::plain().start(&bed).await;
    let namespace = bed.namespace("kube-rs").await;
    churn(&bed, &namespace, "60", "1").await;
    let (until, untils) = tokio::sync::watch::channel(0);
    let mut running = Vec::new();
    for strategy in [InitialListStrategy::ListWatch, InitialListStrategy::StreamingList] {
        let mut pair = Vec::new();
        for target in [bed.target(), proxy.target()] {
            let (listed, when_listed) = tokio::sync::oneshot::channel();
            let following = follow(kube_rs(&target, &namespace, false), strategy.clone(), listed, untils.clone());
            pair.push(tokio::spawn(following));
            within("a kube-rs watcher lists", when_listed).await.expect("it lists");
        }
        running.push((strategy, pair));
    }
    until.send(churn(&bed, &namespace, "200", "2").await).expect("watchers watch");
    for (strategy, pair) in running {
        let [direct, through] = pair.try_into().expect("two");
        let (direct, through) = (direct.await.expect("no panic"), through.await.expect("no panic"));
        assert_eq!(through, direct, "{strategy:?}");
        let (initial, changes) = (through.initial.len(), through.changes.len());
        log_line(&format!("kube-rs, {strategy:?}: {initial} initial objects and {changes} changes as direct"));
    }
    assert!(proxy.metrics().await.sum("kube_fanout_served_total", &[("verb", "watch")]) >= 2);
}

#[tokio::test]
async fn python_client_reads_the_same_as_direct() {
    let Some(bed) = bed::shared().await else { return };
    let python = repository().join("target/venv/bin/python");
    if !python.exists() {
        return bed::skip("no Python client (tests/run.sh makes target/venv)");
    }
    let proxy = Plan::tls().start(&bed).await;
    let namespace = bed.namespace("python").await;
    // The proxy's history begins with the first list.
    proxy.client().json("/api/v1/configmaps?resourceVersion=0").await;
    let since = churn(&bed, &namespace, "40", "1").await.to_string();
    churn(&bed, &namespace, "40", "2").await;
    ends(&bed, &proxy, &namespace).await;
    let read = async |target: Target| -> Value {
        let mut command = Command::new(&python);
        command.arg(repository().join("tests/python/reads.py"));
        command.args(["--server", &target.url, "--token", &target.identity.token]);
        command.args(["--namespace", &namespace, "--since", &since, "--last", END]);
        command.arg("--ca").arg(target.ca.expect("TLS"));
        let run = tokio::task::spawn_blocking(move || command.output().expect("Python runs"));
        let output = run.await.expect("no panic");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let (direct, through) = tokio::join!(read(bed.target()), read(proxy.target()));
    let (Value::Object(direct), Value::Object(through)) = (direct, through) else { panic!("two documents") };
    for (what, expected) in &direct {
        assert_eq!(&through[what], expected, "Python: {what}");
    }
    let length = |what: &str| direct[what].as_array().map_or(0, Vec::len);
    let (listed, watched, pages) = (length("list"), length("watch since"), length("pages"));
    log_line(&format!(
        "Python: {} readings alike; {listed} objects, {pages} pages, {watched} events since",
        direct.len()
    ));
    log_line(&format!("forwarded: {:?}", proxy.forwarded().await));
}

/// Starts `tests/node/reads.js`, which writes `ready` when its informer has listed, and ends with a JSON document.
fn javascript(bed: &Plane, target: &Target, namespace: &str, since: &str) -> (Process, PathBuf, PathBuf) {
    let (out, log) = (bed.file("node.out"), bed.file("node.log"));
    // When node reads the script from stdin, it resolves packages from its working directory.
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec node --input-type=module - \"$@\" <\"$0\""])
        .arg(repository().join("tests/node/reads.js"));
    command.args([
        "--server",
        &target.url,
        "--token",
        &target.identity.token,
        "--namespace",
        namespace,
        "--since",
        since,
        "--end",
        END,
    ]);
    command.arg("--ca").arg(target.ca.as_ref().expect("TLS")).current_dir(repository().join("target/node"));
    let file = |path: &PathBuf| File::create(path).expect("a file");
    command.stdout(file(&out)).stderr(file(&log));
    (Process::start("node", &mut command), out, log)
}

#[tokio::test]
async fn javascript_client_and_informer_read_the_same_as_direct() {
    let Some(bed) = bed::shared().await else { return };
    if !repository().join("target/node/node_modules").exists() {
        return bed::skip("no JavaScript client (tests/run.sh makes target/node)");
    }
    let proxy = Plan::tls().start(&bed).await;
    let namespace = bed.namespace("javascript").await;
    // The proxy's history begins with the first list.
    proxy.client().json("/api/v1/configmaps?resourceVersion=0").await;
    let since = churn(&bed, &namespace, "40", "1").await.to_string();
    churn(&bed, &namespace, "40", "2").await;
    ends(&bed, &proxy, &namespace).await;
    let mut running = [bed.target(), proxy.target()].map(|target| javascript(&bed, &target, &namespace, &since));
    let read = |path: &PathBuf| std::fs::read_to_string(path).expect("a file");
    for (process, out, log) in &mut running {
        eventually("the JavaScript client's informer has listed", async || {
            assert!(process.ended().is_none(), "{}", read(log));
            read(out).starts_with("ready").then_some(())
        })
        .await;
    }
    churn(&bed, &namespace, "60", "3").await;
    let last = json!({"metadata": {"name": "last"}});
    bed.direct().create(&format!("/api/v1/namespaces/{namespace}/configmaps"), last).await;
    let mut documents = Vec::new();
    for (process, out, log) in running {
        assert!(process.wait(bed::PATIENCE).await.success(), "{}", read(&log));
        let printed = read(&out);
        let document: Value = serde_json::from_str(printed.lines().nth(1).expect("a document")).expect("JSON");
        documents.push(document.as_object().expect("an object").clone());
    }
    let [direct, through] = documents.try_into().expect("two");
    for (what, expected) in &direct {
        assert_eq!(&through[what], expected, "JavaScript: {what}");
    }
    let length = |value: &Value| value.as_array().map_or(0, Vec::len);
    let (listed, since, informer_events) = (&direct["list"], &direct["watch since"], &direct["informer"]["told"]);
    log_line(&format!(
        "JavaScript: {} readings alike; {} objects, {} events since; its informer received {}",
        direct.len(),
        length(listed),
        length(since),
        length(informer_events)
    ));
    log_line(&format!("forwarded: {:?}", proxy.forwarded().await));
}

//! One identity that asks for everything, as fast as it is answered.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Answers, Field, attack, put, ratio_max, scheduled, seconds};
use crate::bed::{self, Ask, Authority, Http, Identity, Process, Protocol, Target, write_kubeconfig};

/// How long a bench may take besides: it opens its watches, and ends.
const PATIENCE: Duration = Duration::from_secs(180);

/// How many connections it has, each with a request under way; fewer where nothing is judged.
fn connections() -> usize {
    if ratio_max() > 0.0 { 32 } else { 8 }
}

/// What it asks for, each on all of its connections.
fn storms(field: &Field) -> Vec<(&'static str, Vec<String>)> {
    let (pods, pod) = (&field.pods, &field.pod);
    let object = format!("{pod}?resourceVersion=0");
    let page = format!("{pods}?resourceVersion=0&limit=50");
    let list = format!("{pods}?resourceVersion=0");
    let watch = format!("{pods}?watch=true&resourceVersion=0&timeoutSeconds=1");
    // No two of them are alike, so that none shares the answer of another.
    let passed = "/api/v1/namespaces/default?storm=".to_owned();
    vec![
        ("objects", vec![object.clone()]),
        ("lists", vec![list.clone()]),
        ("watches", vec![watch.clone()]),
        ("what passes through", vec![passed.clone()]),
        ("everything", vec![object, page, list, watch, passed]),
    ]
}

/// Has what this thread does wait for all others on the machine: a storm comes from elsewhere, and what it takes of the
/// processor is not the proxy's doing.
fn come_last() {
    // Where nothing is judged, other tests leave nothing to whoever comes behind them all.
    let came =
        if ratio_max() > 0.0 { scheduled("chrt", &["--idle", "--pid", "0"]) } else { scheduled("renice", &["19"]) };
    came.expect("anybody may come last");
}

/// The storm, on a thread of its own, until it is over.
fn storm(target: &Target, paths: &[String], over: &AtomicBool, answers: &Answers) {
    come_last();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let clients: Vec<_> = (0..connections()).map(|_| Http::new(target.clone(), Protocol::H2)).collect();
        let clients = &clients;
        let blow = |who: usize, at: usize, answers: Answers| async move {
            let path = &paths[(who + at) % paths.len()];
            let number = if path.ends_with('=') { format!("{who}-{at}") } else { String::new() };
            put(&clients[who], Ask::get(&format!("{path}{number}")), &answers).await;
        };
        attack(connections(), over, answers, blow).await;
    });
}

/// What a bench does, which asks for more than a client of these tests.
fn benches(field: &Field) -> Vec<(&'static str, Vec<String>)> {
    let storm = |of: &str, path: &str| {
        let few = ["--connections", "64", "--in-flight", "4", "--objects", "1", "--path", path, "--storm", of];
        few.map(str::to_owned).to_vec()
    };
    vec![
        ("objects by a bench", storm("get", &format!("{}?resourceVersion=0", field.pod))),
        ("what passes through by a bench", storm("get", "/api/v1/namespaces/default?storm={i}")),
        ("events by a bench", ["--watches", "1000", "--rate", "40"].map(str::to_owned).to_vec()),
    ]
}

/// A bench with these credentials, until it is over by itself, which is later than the healthy one.
async fn bench(field: &Field, mallory: &Identity, arguments: Vec<String>) -> Answers {
    let (bed, target) = (&field.bed, field.proxy.target());
    let (kubeconfig, figures) = (bed.file("storm.kubeconfig"), bed.file("storm.json"));
    let certificate = mallory.certificate.as_ref().expect("it shows one");
    let user = json!({"client-certificate": certificate, "client-key": certificate});
    write_kubeconfig(&kubeconfig, bed.url(), &bed.ca(), &user);
    let mut command = bed::kube_fanout("bench");
    command.args(["--target", &target.url, "--ca"]).arg(target.ca.as_ref().expect("it speaks TLS"));
    command.arg("--kubeconfig").arg(&kubeconfig).args(["--write", bed.url(), "--warmup", "0", "--seconds"]);
    command.arg((seconds().as_secs() + 1).to_string()).args(arguments).arg("--json").arg(&figures);
    let create = |end: &str| fs::File::create(bed.file(end)).expect("a file");
    command.stdout(create("storm.out")).stderr(create("storm.err"));
    // Processes have the priority of who starts them.
    let begun = thread::spawn(move || {
        come_last();
        Process::start("kube-fanout bench", &mut command)
    });
    let ended = begun.join().expect("it began").wait(seconds() + PATIENCE).await;
    let said = || fs::read_to_string(bed.file("storm.err")).unwrap_or_default();
    assert!(ended.success(), "the bench: {}", said());
    let figures: Value = serde_json::from_slice(&fs::read(&figures).expect("figures")).expect("JSON");
    let (answers, figures) = (Answers::default(), &figures["outcomes"][0]["figures"]);
    for figure in ["requests_per_s", "deliveries_per_s"] {
        if let Some(count) = figures[figure].as_f64().filter(|count| *count > 0.0) {
            answers.put(format!("{count:.0} {figure}"));
        }
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn one_identity_at_full_storm_costs_others_little() {
    let Some(field) = Field::lay("").await else { return };
    let mallory = Authority::of(&field.bed).issue("mallory", &["system:masters"]);
    for (what, paths) in storms(&field) {
        let target = field.proxy.target().by(&mallory);
        let attack = async move |over: Arc<AtomicBool>| {
            let answers = Answers::default();
            let counted = answers.clone();
            let storming = thread::spawn(move || storm(&target, &paths, &over, &counted));
            tokio::task::spawn_blocking(|| storming.join()).await.expect("joined").expect("it goes on");
            answers
        };
        field.besiege(&format!("a storm of {what}"), None, attack).await;
    }
    for (what, arguments) in benches(&field) {
        field.besiege(&format!("a storm of {what}"), None, |_| bench(&field, &mallory, arguments)).await;
    }
}

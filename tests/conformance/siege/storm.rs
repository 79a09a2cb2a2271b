//! One identity that sends all kinds of requests as fast as it receives answers.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use serde_json::json;

use super::bench::Bench;
use super::{Answers, Field, attack, put, ratio_max, scheduled, seconds};
use crate::bed::{Authority, Http, Plane, Protocol, RequestSpec, Target, write_kubeconfig};

/// The number of its connections, each with a request in progress. There are fewer if figures are not compared.
fn connections() -> usize {
    if ratio_max() > 0.0 { 32 } else { 8 }
}

/// The requests of each storm, which all of its connections send.
fn storms(field: &Field) -> Vec<(&'static str, Vec<String>)> {
    let (pods, pod) = (&field.pods, &field.pod);
    let object = format!("{pod}?resourceVersion=0");
    let page = format!("{pods}?resourceVersion=0&limit=50");
    let list = format!("{pods}?resourceVersion=0");
    let watch = format!("{pods}?watch=true&resourceVersion=0&timeoutSeconds=1");
    // The paths are distinct, so that no request shares another one's answer.
    let passed = "/api/v1/namespaces/default?storm=".to_owned();
    vec![
        ("objects", vec![object.clone()]),
        ("lists", vec![list.clone()]),
        ("watches", vec![watch.clone()]),
        ("what passes through", vec![passed.clone()]),
        ("everything", vec![object, page, list, watch, passed]),
    ]
}

/// Gives this thread the lowest priority, because in production a storm comes from other machines, and its CPU time is
/// not the proxy's.
fn come_last() {
    // If figures are not compared, other tests run in parallel, and would starve a thread with idle priority.
    let came =
        if ratio_max() > 0.0 { scheduled("chrt", &["--idle", "--pid", "0"]) } else { scheduled("renice", &["19"]) };
    came.expect("anybody may come last");
}

/// Runs the storm in its own thread until the attack is over.
fn storm(target: &Target, paths: &[String], over: &AtomicBool, answers: &Answers) {
    come_last();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let clients: Vec<_> = (0..connections()).map(|_| Http::new(target.clone(), Protocol::H2)).collect();
        let clients = &clients;
        let blow = |who: usize, at: usize, answers: Answers| async move {
            let path = &paths[(who + at) % paths.len()];
            let number = if path.ends_with('=') { format!("{who}-{at}") } else { String::new() };
            put(&clients[who], RequestSpec::get(&format!("{path}{number}")), &answers).await;
        };
        attack(connections(), over, answers, blow).await;
    });
}

/// Arguments of a bench, which sends more than a client of these tests.
const MANY_GETS: [&str; 9] = ["--storm", "get", "--connections", "64", "--in-flight", "4", "--objects", "1", "--path"];
const MANY_EVENTS: [&str; 4] = ["--watches", "1000", "--rate", "40"];

/// Runs a bench of this caller, which ends after the healthy client does.
async fn bench(field: &Field, kubeconfig: &Path, load: &[&str]) -> Answers {
    let load = [&["--warmup", "0"], load].concat();
    let (plane, proxy): (&Plane, _) = (&field.bed, &field.proxy);
    let begin = || {
        // A process inherits the priority of the thread that starts it.
        come_last();
        Bench::start(plane, proxy, kubeconfig, seconds().as_secs() + 1, &load)
    };
    let begun = thread::scope(|scope| scope.spawn(begin).join()).expect("it began");
    let (answers, figures) = (Answers::default(), begun.finish().await);
    for figure in ["requests_per_s", "deliveries_per_s"] {
        if let Some(count) = figures[figure].as_f64().filter(|count| *count > 0.0) {
            answers.put(format!("{count:.0} {figure}"));
        }
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn request_storm_of_one_identity_does_not_delay_others() {
    let Some(field) = Field::lay("").await else { return };
    let mallory = Authority::of(&field.bed).issue("mallory", &["system:masters"]);
    for (what, paths) in storms(&field) {
        let target = field.proxy.target().by(&mallory);
        let attack = async move |over: Arc<AtomicBool>| {
            let answers = Answers::default();
            let counted = answers.clone();
            let storming = thread::spawn(move || storm(&target, &paths, &over, &counted));
            tokio::task::spawn_blocking(|| storming.join()).await.expect("joined").expect("it continues");
            answers
        };
        field.besiege(&format!("a storm of {what}"), None, attack).await;
    }
    let (kubeconfig, certificate) = (field.bed.file("mallory.kubeconfig"), mallory.certificate.as_ref());
    let user = json!({"client-certificate": certificate, "client-key": certificate});
    write_kubeconfig(&kubeconfig, field.bed.url(), &field.bed.ca(), &user);
    let object = format!("{}?resourceVersion=0", field.pod);
    let gets = |path| [&MANY_GETS[..], &[path]].concat();
    for (what, load) in [
        ("objects", gets(&*object)),
        ("what passes through", gets("/api/v1/namespaces/default?storm={i}")),
        ("events", MANY_EVENTS.to_vec()),
    ] {
        field.besiege(&format!("a storm of {what} by a bench"), None, |_| bench(&field, &kubeconfig, &load)).await;
    }
}

//! One identity that asks for everything, as fast as it is answered.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use super::{Answers, Field, attack, put, ratio_max};
use crate::bed::{Ask, Authority, Http, Protocol, Target};

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
    let thread = fs::read_link("/proc/thread-self").expect("Linux");
    let id = thread.file_name().and_then(|id| id.to_str()).expect("a number");
    let renice = Command::new("renice").args(["-n", "19", "-p", id]).output().expect("renice");
    assert!(renice.status.success(), "{renice:?}");
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
}

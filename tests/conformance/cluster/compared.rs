//! Comparison of runs of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Write as _, stderr};
use std::time::Duration;

use super::Layout;
use super::errors::{Logs, Phase};
use super::scenario::{RENEWED, Step};
use crate::bed::{Plane, Times};

/// The limit for the total time of all steps through proxies, relative to the direct run. It also applies to each step,
/// with a slack.
const RATIO: f64 = 1.2;
/// The slack of a step, independent of its length: after a failure, a node controller retries after five seconds.
const SLACK: Duration = Duration::from_secs(5);
/// The slack of a step in which a server is killed: the downtime varies, and each client has a random backoff.
const SLACK_KILLED: Duration = Duration::from_secs(10);

/// The longest period between lease renewals of a kubelet: ten seconds plus at most a twenty-fifth.
const RENEWED_EVERY: Duration = Duration::from_millis(10_400);

/// Errors that occur in some runs by chance: a part of all their lines, and the reason.
const BY_CHANCE: [(&str, &str); 10] = [
    ("is not as new as written version", "a controller reads before its informer has received its last write"),
    ("nformer cache is out of date", "the same, as other controllers say it"),
    ("the object has been modified", "two controllers write the same object, and one of them does it again"),
    ("error getting node", "a kubelet reads its node before its informer has received the registration"),
    ("trying to set owner ref to the node lease", "a kubelet makes its lease before it has registered its node"),
    (
        "no relationship found between node",
        "a kubelet hears of its pod before the Node authorizer in the apiserver does",
    ),
    (
        "because it is being terminated",
        "a controller replaces what goes with its namespace until its own object is gone",
    ),
    ("PLEG is not healthy", "a kubelet that has just started looks at its containers later than it should"),
    (
        "container runtime status check may not have completed",
        "a kubelet that has just started does not know its container runtime yet",
    ),
    ("Handler timeout", "a client disconnected before the response, as any client may"),
];
/// An error through proxies may occur this many times as often as directly, plus a slack.
const OFTEN_RATIO: usize = 3;
const OFTEN_SLACK: usize = 20;

/// A run of the scenario.
pub struct Run {
    pub layout: Layout,
    pub steps: Vec<Step>,
    pub logs: Logs,
    pub requests: Requests,
}

/// Requests that reached the apiserver, except those of the test and of the apiserver itself.
#[derive(Default)]
pub struct Requests {
    /// By verb, with reviews as a separate one.
    by_verb: BTreeMap<String, usize>,
    /// By verb, resource or reviewed access, and sender.
    by_sender: BTreeMap<String, usize>,
}

impl Run {
    /// Combines several runs of a layout: the median time of each step, and the sums of log findings and requests.
    pub fn in_all(runs: Vec<Self>) -> Self {
        let steps: Vec<_> = runs.iter().map(|run| run.steps.clone()).collect();
        let mut runs = runs.into_iter();
        let mut all = runs.next().expect("at least one");
        for run in runs {
            all.logs.add(run.logs);
            all.requests.add(run.requests);
        }
        for (at, step) in all.steps.iter_mut().enumerate() {
            step.took = Times::of(steps.iter().map(|steps| steps[at].took).collect()).at(50);
        }
        all
    }
}

impl Requests {
    fn add(&mut self, other: Self) {
        for (verb, times) in other.by_verb {
            *self.by_verb.entry(verb).or_default() += times;
        }
        for (what, times) in other.by_sender {
            *self.by_sender.entry(what).or_default() += times;
        }
    }

    pub fn of(plane: &Plane) -> Self {
        let mut requests = Self::default();
        for entry in plane.audit() {
            let text = |pointer: &str| entry.pointer(pointer).and_then(|text| text.as_str()).unwrap_or_default();
            let agent = text("/userAgent");
            let of_the_bed = ["admin", "system:apiserver"].contains(&text("/user/username"));
            // The request body, which has the reviewed access, is only in the last stage.
            let stage = if text("/objectRef/resource") == "subjectaccessreviews" {
                "ResponseComplete"
            } else {
                "RequestReceived"
            };
            if text("/stage") != stage || of_the_bed {
                continue;
            }
            let sender = agent.split('/').next().unwrap_or_default();
            let attribute = |field: &str| text(&format!("/requestObject/spec/resourceAttributes/{field}"));
            let resource = text("/objectRef/resource");
            let resource = if resource.is_empty() { "no resource" } else { resource };
            let verb = if resource.ends_with("reviews") { "review" } else { text("/verb") };
            *requests.by_verb.entry(verb.to_owned()).or_default() += 1;
            let what = match attribute("verb") {
                "" => format!("{verb} {resource}"),
                asks => {
                    let one = if attribute("name").is_empty() { "all" } else { "one" };
                    let whose = text("/requestObject/spec/user").trim_end_matches(|c: char| c.is_ascii_digit());
                    format!("review {asks} {one} {} of {whose}", attribute("resource"))
                }
            };
            *requests.by_sender.entry(format!("{what} by {sender}")).or_default() += 1;
        }
        requests
    }
}

fn title(layout: Layout) -> &'static str {
    match layout {
        Layout::Direct => "direct",
        Layout::Proxies => "proxies",
        Layout::Tree => "tree",
    }
}

/// A line of a table in Markdown.
fn row(first: &str, rest: impl Iterator<Item = String>) {
    let _ = writeln!(stderr().lock(), "| {first} | {} |", rest.collect::<Vec<_>>().join(" | "));
}

pub fn print(runs: &[Run]) {
    let head = |what: &str| {
        let _ = writeln!(stderr().lock());
        row(what, runs.iter().map(|run| title(run.layout).to_owned()));
        row("---", runs.iter().map(|_| "---:".to_owned()));
    };
    head("step, seconds");
    for (at, step) in runs[0].steps.iter().enumerate() {
        row(step.name, runs.iter().map(|run| format!("{:.1}", run.steps[at].took.as_secs_f64())));
    }
    row("all", runs.iter().map(|run| format!("{:.1}", whole(run).as_secs_f64())));
    head("requests at the apiserver");
    let verbs: BTreeSet<_> = runs.iter().flat_map(|run| run.requests.by_verb.keys()).collect();
    for verb in verbs {
        row(verb, runs.iter().map(|run| run.requests.by_verb.get(verb).unwrap_or(&0).to_string()));
    }
    row("all", runs.iter().map(|run| run.requests.by_verb.values().sum::<usize>().to_string()));
    head("error lines");
    let classes: BTreeSet<_> = runs.iter().flat_map(|run| run.logs.seen.keys()).collect();
    for class in classes {
        let when = if class.phase == Phase::Killed { ", while something was killed" } else { "" };
        let name = format!("{}{when}: {}", class.component, class.what);
        row(&name, runs.iter().map(|run| run.logs.seen.get(class).unwrap_or(&0).to_string()));
    }
    if std::env::var_os("CLUSTER_REQUESTS").is_some() {
        print_requests(runs);
    }
}

/// Prints the requests by sender, to help find the cause of a number.
fn print_requests(runs: &[Run]) {
    let all: BTreeSet<_> = runs.iter().flat_map(|run| run.requests.by_sender.keys()).collect();
    for key in all {
        row(key, runs.iter().map(|run| run.requests.by_sender.get(key).unwrap_or(&0).to_string()));
    }
}

/// The total time of all steps.
fn whole(run: &Run) -> Duration {
    run.steps.iter().map(|step| step.took).sum()
}

/// The total time of all steps that do work. The excluded step waits for the rest of the lease period.
fn work(run: &Run) -> Duration {
    run.steps.iter().filter(|step| step.name != RENEWED).map(|step| step.took).sum()
}

/// The problems of a run through proxies that the direct run does not have.
pub fn judge(direct: &Run, other: &Run) -> Vec<String> {
    let name = title(other.layout);
    let late = direct.steps.iter().zip(&other.steps).filter_map(|(direct, other)| {
        let compared = direct.took.mul_f64(RATIO) + if direct.killed { SLACK_KILLED } else { SLACK };
        let most = if direct.name == RENEWED { RENEWED_EVERY + SLACK } else { compared };
        (other.took > most).then(|| format!("{name}: {}: {:.1?}, directly {:.1?}", other.name, other.took, direct.took))
    });
    let (most, took) = (work(direct).mul_f64(RATIO), work(other));
    let whole_late = (took > most).then(|| format!("{name}: everything: {took:.1?}, at most {most:.1?}"));
    let errors = other.logs.seen.iter().filter_map(|(class, times)| {
        let by_chance =
            BY_CHANCE.iter().any(|(part, _)| class.what.contains(part) || other.logs.examples[class].contains(part));
        let directly = direct.logs.seen.get(class).copied().unwrap_or_default();
        let most = if directly == 0 && !by_chance { 0 } else { OFTEN_RATIO * directly + OFTEN_SLACK };
        let example = &other.logs.examples[class];
        (*times > most).then(|| format!("{name}: an error, {times} times, directly {directly}: {example}"))
    });
    late.chain(whole_late).chain(errors).collect()
}

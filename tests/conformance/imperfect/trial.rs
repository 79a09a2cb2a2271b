//! Clients, writers and judges of `fanoutctl verify` on one server.

use std::path::PathBuf;
use std::time::Duration;

use probe::ProgressLine;
use tokio_util::sync::CancellationToken;
use verify::{Counts, EtcdOrder, FaultRecord, Promise, Requirements, VerifyOrder};

use crate::bed::{Plane, Target, say};
use crate::faults;

/// A run of `verify`.
pub struct Trial {
    /// The server that is judged.
    pub subject: Target,
    /// The URL of another way to the storage, by which half of the writers write.
    pub direct: String,
    pub resource: &'static str,
    pub duration: Duration,
    pub seed: u64,
}

/// What a run has left.
pub struct Recorded {
    path: PathBuf,
    notes: Vec<String>,
}

/// A verdict.
pub struct Found {
    /// In words.
    pub text: String,
    pub broken: Vec<Promise>,
    /// What there was too little of.
    pub lacks: Vec<String>,
}

/// How late a change may be while nothing is broken. The second apiserver may lag by a third of that.
const ON_TIME: Duration = Duration::from_secs(8);

/// What must have been judged, or the run says nothing.
const JUDGED: [Promise; 12] = [
    Promise::Ordered,
    Promise::Unique,
    Promise::Reliable,
    Promise::Resumable,
    Promise::Filtered,
    Promise::Typed,
    Promise::InitialEvents,
    Promise::ListSnapshot,
    Promise::Continuity,
    Promise::NotOlderThan,
    Promise::Consistent,
    Promise::Monotone,
];

impl Trial {
    pub async fn run(&self, plane: &Plane) -> Recorded {
        let out = plane.file("imperfect");
        let order = VerifyOrder {
            etcd: Some(EtcdOrder { url: plane.etcd_url(), ..EtcdOrder::default() }),
            direct: Some(self.direct.clone()),
            clients: 12,
            rate: 12.0,
            duration: self.duration,
            seed: self.seed,
            patience: ON_TIME,
            ..faults::order(plane, &self.subject, self.resource, &out)
        };
        let ran = verify::run(&order, &ProgressLine::silent(), &CancellationToken::new()).await;
        let notes = ran.unwrap_or_else(|error| panic!("{}: {error}", self.resource)).notes;
        Recorded { path: out.join("records.jsonl"), notes }
    }
}

impl Recorded {
    /// Fails unless every promise was kept that upstream lets be kept. Returns how much was judged, and what there was
    /// too little of.
    pub fn judge(&self, faults: &[FaultRecord], broken_upstream: &[Promise]) -> (String, Vec<String>) {
        // At the end writers change each of their 40 objects once more: there were ten writes before that.
        let least = Counts { events: 100, writes: 50, resumes: 5, faults: 1, ..Counts::default() };
        let Found { text, broken, lacks } = self.found(faults, &Requirements { least, judged: JUDGED.into() });
        let kept = broken.iter().all(|promise| broken_upstream.contains(promise));
        assert!(kept, "{}\n{text}\n{:?}", self.path.display(), self.notes);
        if !lacks.is_empty() {
            say(&format!("{}\n{text}\n{:?}", self.path.display(), self.notes));
        }
        (figures(&text), lacks)
    }

    pub fn found(&self, faults: &[FaultRecord], requirements: &Requirements) -> Found {
        let (verdict, text) = faults::verdict(&self.path, faults, requirements);
        let broken = verdict.judged.iter().filter(|judged| judged.broken > 0).map(|judged| judged.promise);
        Found { text, broken: broken.collect(), lacks: verdict.lacks }
    }
}

/// The lines of a verdict that say how much there was, and what was broken.
pub fn figures(text: &str) -> String {
    let lines = text.lines().filter(|line| line.contains(" events, ") || line.contains("BROKEN"));
    lines.map(str::trim).collect::<Vec<_>>().join("; ")
}

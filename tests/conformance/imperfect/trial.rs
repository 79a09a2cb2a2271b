//! Clients, writers and checkers of `fanoutctl verify` on one server.

use std::path::PathBuf;
use std::time::Duration;

use probe::ProgressLine;
use tokio_util::sync::CancellationToken;
use verify::{ApiserverGuarantee, EtcdOptions, FaultRecord, RunCounts, VerdictRequirements, VerifyOptions};

use crate::bed::{Plane, Target, log_line};
use crate::faults;

/// A run of `verify`.
pub struct Trial {
    /// The tested server.
    pub subject: Target,
    /// The URL of another path to the storage, which half of the writers use.
    pub direct: String,
    pub resource: &'static str,
    pub duration: Duration,
    pub seed: u64,
}

/// The record of a run.
pub struct Recorded {
    path: PathBuf,
    notes: Vec<String>,
}

/// A verdict.
pub struct Found {
    /// The verdict as text.
    pub text: String,
    pub broken: Vec<ApiserverGuarantee>,
    /// The counts that were too low.
    pub lacks: Vec<String>,
}

/// The longest delay of a change while nothing is broken. The second apiserver may lag by a third of it.
const ON_TIME: Duration = Duration::from_secs(8);

/// The promises that must have been checked, because otherwise the run is inconclusive.
const JUDGED: [ApiserverGuarantee; 12] = [
    ApiserverGuarantee::Ordered,
    ApiserverGuarantee::Unique,
    ApiserverGuarantee::Reliable,
    ApiserverGuarantee::Resumable,
    ApiserverGuarantee::Filtered,
    ApiserverGuarantee::Typed,
    ApiserverGuarantee::InitialEvents,
    ApiserverGuarantee::ListSnapshot,
    ApiserverGuarantee::Continuity,
    ApiserverGuarantee::NotOlderThan,
    ApiserverGuarantee::Consistent,
    ApiserverGuarantee::Monotone,
];

impl Trial {
    pub async fn run(&self, plane: &Plane) -> Recorded {
        let out = plane.file("imperfect");
        let order = VerifyOptions {
            etcd: Some(EtcdOptions { url: plane.etcd_url(), ..EtcdOptions::default() }),
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
    /// Panics unless every promise was kept, except those that upstream itself breaks. Returns the figures, and the
    /// counts that were too low.
    pub fn judge(&self, faults: &[FaultRecord], broken_upstream: &[ApiserverGuarantee]) -> (String, Vec<String>) {
        // At the end, writers change each of their 40 objects once, so ten writes came before that.
        let least = RunCounts { events: 100, writes: 50, resumes: 5, faults: 1, ..RunCounts::default() };
        let Found { text, broken, lacks } = self.found(faults, &VerdictRequirements { least, judged: JUDGED.into() });
        let kept = broken.iter().all(|promise| broken_upstream.contains(promise));
        assert!(kept, "{}\n{text}\n{:?}", self.path.display(), self.notes);
        if !lacks.is_empty() {
            log_line(&format!("{}\n{text}\n{:?}", self.path.display(), self.notes));
        }
        (figures(&text), lacks)
    }

    pub fn found(&self, faults: &[FaultRecord], requirements: &VerdictRequirements) -> Found {
        let (verdict, text) = faults::verdict(&self.path, faults, requirements);
        let broken = verdict.judged.iter().filter(|judged| judged.broken > 0).map(|judged| judged.promise);
        Found { text, broken: broken.collect(), lacks: verdict.lacks }
    }
}

/// The lines of a verdict with the amounts and the broken promises.
pub fn figures(text: &str) -> String {
    let lines = text.lines().filter(|line| line.contains(" events, ") || line.contains("BROKEN"));
    lines.map(str::trim).collect::<Vec<_>>().join("; ")
}

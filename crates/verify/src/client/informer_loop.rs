use super::backoff;
use super::behaviour::{ClientBehaviour, ClientRole, WatchDuration};
use super::query::QueryString;
use super::reading::{ClientWatchStart, EndedWatch, ReadOutcome, RecordingClient};
use crate::record::{OperationId, RequestServerRole};
use crate::run_context::between;

use std::time::Duration;

/// The maximum number of pages of one list that are fetched.
const PAGES_MAX: usize = 1000;

/// A client's position: a version, and the operation that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClientPosition {
    version: u64,
    reported_by: OperationId,
}

struct InformerLoop<'a> {
    reads: RecordingClient<'a>,
    rng: fastrand::Rng,
    place: Option<ClientPosition>,
    failures: u32,
    /// The servers that refused to resume at the client's position.
    refused_by: Vec<RequestServerRole>,
    /// Whether the server does not support watch-lists.
    lists_instead: bool,
}

/// Lists or streams the state, watches, and resumes, until the client must leave.
pub(super) async fn run(reads: RecordingClient<'_>, rng: fastrand::Rng) {
    let mut following =
        InformerLoop { reads, rng, place: None, failures: 0, refused_by: Vec::new(), lists_instead: false };
    let scene = following.reads.scene;
    while !scene.leave.is_cancelled() {
        let wait = following.step().await;
        if !wait.is_zero() && !scene.pause(wait).await {
            return;
        }
    }
}

impl InformerLoop<'_> {
    /// Runs one list or one watch; returns the pause before the next.
    async fn step(&mut self) -> Duration {
        let ClientBehaviour { role, .. } = self.reads.behaviour;
        match (self.place, role) {
            (Some(place), _) => {
                let from = ClientWatchStart::Version(place.version);
                self.watch(from, Some(place.reported_by)).await
            }
            (None, ClientRole::Streamer) if !self.lists_instead => {
                let version = self.version_to_begin_with();
                self.watch(ClientWatchStart::Initial(version), None).await
            }
            (None, ClientRole::Legacy) => {
                let zero = self.rng.bool();
                self.watch(ClientWatchStart::Anything { zero }, None).await
            }
            (None, _) => self.list().await,
        }
    }

    /// Returns the version for a watch-list: none, 0, or one that was seen.
    fn version_to_begin_with(&mut self) -> Option<u64> {
        match self.rng.u8(..4) {
            0 | 1 => None,
            2 => Some(0),
            _ => Some(self.reads.scene.world.latest()),
        }
    }

    async fn watch(&mut self, from: ClientWatchStart, resumes: Option<OperationId>) -> Duration {
        let (informers, pace) = (self.reads.scene.informers, self.reads.scene.pace);
        let length = if informers {
            WatchDuration::of_informer(&mut self.rng)
        } else {
            WatchDuration::draw(&mut self.rng, pace)
        };
        match self.reads.watch(from, resumes, length).await {
            ReadOutcome::With(op, over) => self.watched(op, &over),
            ReadOutcome::Refused { code: 410, .. } => {
                self.expired();
                self.failed(0)
            }
            ReadOutcome::Refused { code: 400 | 422, .. } if matches!(from, ClientWatchStart::Initial(_)) => {
                self.lists_instead = true;
                self.reads.scene.notes.add("the server refuses watch-lists; clients list instead");
                Duration::ZERO
            }
            ReadOutcome::Refused { retry_after, .. } => self.failed_here(retry_after),
            ReadOutcome::Broken => self.failed_here(0),
        }
    }

    fn watched(&mut self, op: OperationId, over: &EndedWatch) -> Duration {
        self.place = over.place.map(|version| ClientPosition { version, reported_by: op });
        if over.is_expired {
            self.expired();
            return self.failed(0);
        }
        // A restarted informer lists again.
        if self.rng.u8(..12) == 0 && !self.reads.scene.informers {
            self.place = None;
        }
        self.refused_by.clear();
        if over.is_short {
            return self.failed_here(0);
        }
        self.failures = 0;
        self.reads.go_to_some(&mut self.rng, |_| true);
        // Most clients resume at once; some are disconnected for a while.
        match self.rng.u8(..4) {
            0 => between(&mut self.rng, Duration::ZERO, Duration::from_secs(2)),
            _ => Duration::ZERO,
        }
    }

    /// Handles a server's refusal to resume at the client's position. Another server may accept the position. The
    /// client relists once all servers have refused.
    fn expired(&mut self) {
        self.refused_by.push(self.reads.behaviour.server);
        let refused_by = std::mem::take(&mut self.refused_by);
        if self.place.is_some() && self.reads.go_to_some(&mut self.rng, |server| !refused_by.contains(&server)) {
            self.refused_by = refused_by;
        } else {
            self.place = None;
        }
    }

    /// Handles a failure of the current server, which other servers may not have.
    fn failed_here(&mut self, retry_after: u64) -> Duration {
        let (here, refused_by) = (self.reads.behaviour.server, std::mem::take(&mut self.refused_by));
        self.reads.go_to_some(&mut self.rng, |server| server != here && !refused_by.contains(&server));
        self.refused_by = refused_by;
        self.failed(retry_after)
    }

    fn failed(&mut self, retry_after: u64) -> Duration {
        self.failures += 1;
        backoff(&mut self.rng, self.failures, retry_after)
    }

    /// Lists in one of the supported ways, with or without pages.
    async fn list(&mut self) -> Duration {
        let scene = self.reads.scene;
        let behaviour = self.reads.behaviour.clone();
        let ClientBehaviour { labels, fields, .. } = &behaviour;
        let selects = QueryString::default()
            .with_some("labelSelector", labels.as_deref())
            .with_some("fieldSelector", fields.as_deref());
        let limit = behaviour.limit(fields.as_deref(), 7, &mut self.rng);
        let first = match self.rng.u8(..4) {
            0 | 1 => selects.clone().with("resourceVersion", "0"),
            2 => selects.clone(),
            _ => selects.clone().with("resourceVersion", &scene.world.latest().to_string()),
        };
        let mut query = first.with_some("limit", limit.as_deref());
        let mut page_of = None;
        for _ in 0..PAGES_MAX {
            let (op, read) = match self.reads.list(&query, page_of).await {
                ReadOutcome::With(op, read) => (op, read),
                ReadOutcome::Refused { retry_after, .. } => return self.failed_here(retry_after),
                ReadOutcome::Broken => return self.failed_here(0),
            };
            let Some(token) = read.token else {
                self.failures = 0;
                self.place = read.version.map(|version| ClientPosition { version, reported_by: op });
                return Duration::ZERO;
            };
            query = selects.clone().with_some("limit", limit.as_deref()).with("continue", &token);
            page_of = Some(op);
            if scene.leave.is_cancelled() {
                break;
            }
        }
        Duration::ZERO
    }
}

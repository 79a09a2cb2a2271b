use std::time::Duration;

use super::backoff;
use super::behaviour::{ClientRole, WatchDuration};
use super::query::QueryString;
use super::reading::{ClientWatchStart, ReadOutcome, RecordingClient};
use crate::record::OperationId;
use crate::run_context::between;

/// The pause between two requests of one client.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(400));
/// A version this far ahead is not reached within the three seconds that a server waits.
const FAR: u64 = 1_000_000;
/// A number of versions that is soon reached.
const NEAR: u64 = 30;
/// The maximum number of pages of one list that are fetched.
const PAGES_MAX: usize = 20;

struct ClientReadLoop<'a> {
    reads: RecordingClient<'a>,
    rng: fastrand::Rng,
    failures: u32,
}

/// Sends lists, gets or odd watches until the client must leave.
pub(super) async fn run(reads: RecordingClient<'_>, rng: fastrand::Rng) {
    let mut asking = ClientReadLoop { reads, rng, failures: 0 };
    let scene = asking.reads.scene;
    while !scene.leave.is_cancelled() {
        asking.reads.go_to_some(&mut asking.rng, |_| true);
        let refused = match asking.reads.behaviour.role {
            ClientRole::Lister => asking.list().await,
            ClientRole::Prober => asking.probe().await,
            _ => asking.get().await,
        };
        let wait = match refused {
            None => {
                asking.failures = 0;
                between(&mut asking.rng, PAUSE.0, PAUSE.1)
            }
            Some(retry_after) => {
                asking.failures += 1;
                backoff(&mut asking.rng, asking.failures, retry_after)
            }
        };
        if !scene.pause(wait).await {
            return;
        }
    }
}

/// Returns the server's Retry-After; `None` if the server responded, including with 404.
fn refused<T>(answered: &ReadOutcome<T>) -> Option<u64> {
    match answered {
        ReadOutcome::With(..) | ReadOutcome::Refused { code: 404 | 410 | 504, .. } => None,
        ReadOutcome::Refused { retry_after, .. } => Some(*retry_after),
        ReadOutcome::Broken => Some(0),
    }
}

impl ClientReadLoop<'_> {
    /// Adds a resourceVersion to a query as a reader may send it, and how the server must match it.
    fn version(&mut self, query: QueryString) -> QueryString {
        let world = &self.reads.scene.world;
        let not_older = |query: QueryString, version: u64| {
            query.with("resourceVersion", &version.to_string()).with("resourceVersionMatch", "NotOlderThan")
        };
        match self.rng.u8(..20) {
            0..=5 => query,
            6..=9 => query.with("resourceVersion", "0"),
            10..=11 => query.with("resourceVersion", &world.latest().to_string()),
            12..=13 => not_older(query, world.recent(&mut self.rng)),
            14 => not_older(query, world.latest() + self.rng.u64(1..=NEAR)),
            15 => not_older(query, world.latest() + FAR),
            _ => {
                let version = world.recent(&mut self.rng).max(1);
                query.with("resourceVersion", &version.to_string()).with("resourceVersionMatch", "Exact")
            }
        }
    }

    async fn list(&mut self) -> Option<u64> {
        let behaviour = self.reads.behaviour.clone();
        // Lists alternate between selected and unselected, because a list client is not limited to one query.
        let (labels, fields) = if self.rng.bool() { (&behaviour.labels, &behaviour.fields) } else { (&None, &None) };
        let selects = QueryString::default()
            .with_some("labelSelector", labels.as_deref())
            .with_some("fieldSelector", fields.as_deref());
        let limit = behaviour.limit(fields.as_deref(), 9, &mut self.rng);
        let mut query = self.version(selects.clone()).with_some("limit", limit.as_deref());
        let mut page_of: Option<OperationId> = None;
        for _ in 0..PAGES_MAX {
            let answered = self.reads.list(&query, page_of).await;
            let ReadOutcome::With(op, read) = answered else { return refused(&answered) };
            let Some(token) = read.token.filter(|_| !self.reads.scene.leave.is_cancelled()) else { break };
            query = selects.clone().with_some("limit", limit.as_deref()).with("continue", &token);
            page_of = Some(op);
            // Some clients pause between two pages, while the state changes.
            if self.rng.u8(..3) == 0 {
                let pause = between(&mut self.rng, Duration::ZERO, PAUSE.1);
                self.reads.scene.pause(pause).await;
            }
        }
        None
    }

    async fn get(&mut self) -> Option<u64> {
        let world = &self.reads.scene.world;
        // Some requests name an object that never existed.
        let (namespace, name) = world.object(self.rng.usize(..=world.objects));
        let path = world.path(namespace, &name);
        let query = match self.rng.u8(..10) {
            0..=4 => QueryString::default(),
            5..=7 => QueryString::default().with("resourceVersion", "0"),
            _ => QueryString::default().with("resourceVersion", &world.latest().to_string()),
        };
        refused(&self.reads.get(&path, &query).await)
    }

    async fn probe(&mut self) -> Option<u64> {
        let world = &self.reads.scene.world;
        let version = match self.rng.u8(..8) {
            0 | 4 => 1,
            1..=2 => world.latest() + self.rng.u64(1..=NEAR),
            3 => world.latest(),
            _ => world.recent(&mut self.rng),
        };
        let cut = between(&mut self.rng, Duration::from_millis(300), Duration::from_secs(4)) * self.reads.scene.pace;
        let length = WatchDuration { cut: Some(cut), timeout_seconds: None };
        refused(&self.reads.watch(ClientWatchStart::Version(version.max(1)), None, length).await)
    }
}

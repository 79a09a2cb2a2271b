use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hdrhistogram::Histogram;
use http::Method;
use memchr::memmem;
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::BenchError;
use super::objects::WorkloadObjects;
use super::option_values::{WriteMethod, WriteRate};
use super::plan::BenchPlan;
use super::tally::histogram;
use base::{BackgroundTasks, now_ns};
use kubeapi::WRITE_TIME;
use probe::{TargetServer, UnaryClient, WatchProtocol};

/// The number of writers per connection, below a server's limit of streams.
const WRITERS_PER_CONNECTION: usize = 50;
/// The tolerance of a write's start. Up to this delay, the timer is the cause, and latency is measured from the actual
/// start. Beyond it, latency is measured from the scheduled time (coordinated omission).
const TIMER_NS: u64 = 2_000_000;
/// The pause after a failed write.
const BREATH: Duration = Duration::from_millis(50);

/// A pool of writers that change objects at a rate, or as fast as possible, until they are stopped.
pub(super) struct WriterPool {
    objects: WorkloadObjects,
    rate: WriteRate,
    with: WriteMethod,
    writers: usize,
    callers: Vec<UnaryClient>,
    /// The number of accepted writes of each object.
    accepted: Box<[AtomicU64]>,
    /// The number of the next write in the schedule, and the beginning of the schedule.
    ticket: AtomicU64,
    began_ns: AtomicU64,
    record: Mutex<WriterReport>,
    stop: CancellationToken,
}

/// The results of the benchmark's writers.
#[derive(Clone, Debug)]
pub(super) struct WriterReport {
    pub(super) failed: u64,
    pub(super) last_failure: Option<String>,
    /// The time from sending a write to its response.
    pub(super) took: Histogram<u64>,
    /// The delay from the scheduled time of a write to its actual start.
    pub(super) lag: Histogram<u64>,
}

impl WriterPool {
    pub(super) fn new(
        plan: &BenchPlan,
        objects: &WorkloadObjects,
        target: &TargetServer,
        tasks: &BackgroundTasks,
    ) -> Arc<Self> {
        let writers = plan.writers.min(objects.count);
        let callers = (0..writers.div_ceil(WRITERS_PER_CONNECTION))
            .map(|_| UnaryClient::new(target, WatchProtocol::H2, tasks))
            .collect();
        let record = WriterReport { failed: 0, last_failure: None, took: histogram(), lag: histogram() };
        Arc::new(Self {
            objects: objects.clone(),
            rate: plan.rate,
            with: plan.write_with,
            writers,
            callers,
            accepted: (0..objects.count).map(|_| AtomicU64::new(0)).collect(),
            ticket: AtomicU64::new(0),
            began_ns: AtomicU64::new(0),
            record: Mutex::new(record),
            stop: CancellationToken::new(),
        })
    }

    /// Starts the writers, which run until [`stop`](Self::stop).
    pub(super) fn start(self: &Arc<Self>, tasks: &BackgroundTasks) {
        if self.rate == WriteRate::PerSecond(0.0) {
            return;
        }
        self.began_ns.store(now_ns(), Ordering::Relaxed);
        for n in 0..self.writers {
            let writing = self.clone();
            tasks.spawn("bench writer", async move { writing.write(n).await });
        }
    }

    /// Stops the writers. Writes in flight are completed, so that the set of written objects is known.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    pub(super) fn accepted(&self) -> Vec<u64> {
        self.accepted.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    pub(super) fn record(&self) -> WriterReport {
        self.record.lock().clone()
    }

    /// Clears the results so far, but not the counts of writes.
    pub(super) fn reset_record(&self) {
        let mut record = self.record.lock();
        record.took.reset();
        record.lag.reset();
    }

    /// Writes one writer's share of the objects in turn. Because an object has only one writer, its versions are in
    /// order.
    async fn write(&self, writer: usize) {
        let caller = &self.callers[writer % self.callers.len()];
        let mut bodies = WriteBodies::new(self.with);
        for n in (writer..self.objects.count).step_by(self.writers).cycle() {
            let Some(meant_ns) = self.next().await else { return };
            if let Err(error) = self.write_one(caller, &mut bodies, n, meant_ns).await {
                {
                    let mut record = self.record.lock();
                    record.failed += 1;
                    record.last_failure = Some(error.to_string());
                }
                sleep(BREATH).await;
            }
        }
    }

    async fn write_one(
        &self,
        caller: &UnaryClient,
        bodies: &mut WriteBodies,
        n: usize,
        meant_ns: u64,
    ) -> Result<(), BenchError> {
        let path = self.objects.path(n);
        let template = bodies.of(caller, &path, n).await?;
        let sent_ns = now_ns();
        let lag_ns = sent_ns.saturating_sub(meant_ns);
        let written_ns = if lag_ns < TIMER_NS { sent_ns } else { meant_ns };
        let body = template.at(written_ns);
        let reply = match self.with {
            WriteMethod::Patch => caller.send(Method::PATCH, &path, "application/merge-patch+json", body).await,
            WriteMethod::Put => caller.send(Method::PUT, &path, "application/json", body).await,
        };
        reply.map_err(|error| BenchError::write(&error))?.success(&path).map_err(BenchError::Prepare)?;
        self.accepted[n].fetch_add(1, Ordering::Relaxed);
        let mut record = self.record.lock();
        record.took.saturating_record((now_ns() - sent_ns) / 1000);
        record.lag.saturating_record(lag_ns / 1000);
        Ok(())
    }

    /// Waits for the next scheduled write and returns its scheduled time; `None` at the end.
    async fn next(&self) -> Option<u64> {
        if self.stop.is_cancelled() {
            return None;
        }
        let rate = match self.rate {
            WriteRate::Max => return Some(now_ns()),
            WriteRate::PerSecond(rate) => rate,
        };
        let ticket = self.ticket.fetch_add(1, Ordering::Relaxed);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a run is shorter than centuries")]
        let offset_ns = (ticket as f64 * 1e9 / rate) as u64;
        let meant_ns = self.began_ns.load(Ordering::Relaxed) + offset_ns;
        let early_ns = meant_ns.saturating_sub(now_ns());
        if early_ns > 0 {
            tokio::select! {
                () = sleep(Duration::from_nanos(early_ns)) => {}
                () = self.stop.cancelled() => return None,
            }
        }
        Some(meant_ns)
    }
}

/// The request bodies for writing objects: bytes with a placeholder for the time.
struct WriteBodies {
    with: WriteMethod,
    patch: TimestampedBodyTemplate,
    /// The objects for PUTs, each read once.
    whole: HashMap<usize, TimestampedBodyTemplate>,
}

#[derive(Clone)]
struct TimestampedBodyTemplate {
    before: Bytes,
    after: Bytes,
}

impl TimestampedBodyTemplate {
    fn at(&self, written_ns: u64) -> Bytes {
        let digits = written_ns.to_string();
        [&self.before[..], digits.as_bytes(), &self.after[..]].concat().into()
    }

    /// Converts an object from the server into a template. Its resourceVersion is removed, so that a PUT succeeds at
    /// any version.
    fn of(body: &[u8]) -> Result<Self, BenchError> {
        let broken = || BenchError::Prepare("an object without the annotation of the time".to_owned());
        let mut object: serde_json::Value = serde_json::from_slice(body).map_err(|_| broken())?;
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.remove("resourceVersion");
            meta.remove("managedFields");
        }
        let text = object.to_string();
        let key = format!("\"{WRITE_TIME}\":\"");
        let at = memmem::find(text.as_bytes(), key.as_bytes()).ok_or_else(broken)? + key.len();
        let end = at + text[at..].find('"').ok_or_else(broken)?;
        Ok(Self { before: text.as_bytes()[..at].to_vec().into(), after: text.as_bytes()[end..].to_vec().into() })
    }
}

impl WriteBodies {
    fn new(with: WriteMethod) -> Self {
        let before = format!(r#"{{"metadata":{{"annotations":{{"{WRITE_TIME}":""#).into();
        let patch = TimestampedBodyTemplate { before, after: Bytes::from_static(br#""}}}"#) };
        Self { with, patch, whole: HashMap::new() }
    }

    async fn of(&mut self, caller: &UnaryClient, path: &str, n: usize) -> Result<TimestampedBodyTemplate, BenchError> {
        if self.with == WriteMethod::Patch {
            return Ok(self.patch.clone());
        }
        if let Some(known) = self.whole.get(&n) {
            return Ok(known.clone());
        }
        let reply = caller.get(path, "application/json").await.map_err(|error| BenchError::write(&error))?;
        let template = TimestampedBodyTemplate::of(&reply.success(path).map_err(BenchError::Prepare)?.body)?;
        self.whole.insert(n, template.clone());
        Ok(template)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn put_body_sets_write_time_and_drops_resource_version() {
        let body =
            br#"{"metadata":{"resourceVersion":"7","annotations":{"kube-fanout.io/written-at-ns":"0","b":"c"}}}"#;
        let text = String::from_utf8(TimestampedBodyTemplate::of(body).unwrap().at(42).to_vec()).unwrap();
        assert!(text.contains(r#""kube-fanout.io/written-at-ns":"42""#) && text.contains(r#""b":"c""#), "{text}");
        assert!(!text.contains("resourceVersion"));
        assert!(TimestampedBodyTemplate::of(b"{}").is_err());
        let patch = WriteBodies::new(WriteMethod::Patch).patch.at(7);
        assert_eq!(&patch[..], br#"{"metadata":{"annotations":{"kube-fanout.io/written-at-ns":"7"}}}"#);
    }
}

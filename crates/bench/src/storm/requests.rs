use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::super::BenchError;
use super::super::bench_run::{BenchRun, mib, since};
use super::super::objects::WorkloadObjects;
use super::super::option_values::RequestStormKind;
use super::super::outcome::{BenchFigures, BenchRunOutcome, curve, ms, quantile_ms};
use super::super::plan::{BenchPlan, ResolvedWatchGroup};
use super::super::process::own_cpu;
use super::super::tally::histogram;
use base::BackgroundTasks;
use probe::{
    self, EstablishedConnection, FlowControlWindows, HttpRequestSender, ProbeRequestError, RequestSpec, TargetServer,
    WatchProtocol,
};

/// The number of bytes that are kept of responses that are only counted.
const KEPT_BYTES: usize = 0;

/// The state that all senders share.
struct RequestStormState {
    target: TargetServer,
    protocol: WatchProtocol,
    windows: FlowControlWindows,
    objects: WorkloadObjects,
    kind: ResolvedWatchGroup,
    accept: &'static str,
    /// The number of requests still to be sent; `u64::MAX` if only time limits them.
    left: AtomicU64,
    number: AtomicU64,
    record: Mutex<RequestStormStats>,
}

struct RequestStormStats {
    took: hdrhistogram::Histogram<u64>,
    bytes: u64,
    refused: u64,
    broken: u64,
    complaint: Option<String>,
}

impl RequestStormState {
    fn new(plan: &BenchPlan, target: &TargetServer, objects: &WorkloadObjects) -> Arc<Self> {
        let kind = plan.kinds().swap_remove(0);
        let accept =
            if plan.storm == Some(RequestStormKind::List) { kind.encoding.of_list() } else { "application/json" };
        Arc::new(Self {
            target: target.clone(),
            protocol: plan.protocol,
            windows: plan.windows(),
            objects: objects.clone(),
            kind,
            accept,
            left: AtomicU64::new(if plan.requests == 0 { u64::MAX } else { plan.requests as u64 }),
            number: AtomicU64::new(0),
            record: Mutex::new(RequestStormStats {
                took: histogram(),
                bytes: 0,
                refused: 0,
                broken: 0,
                complaint: None,
            }),
        })
    }

    /// Opens connections one after another, each with `in_flight` concurrent requests, until all are sent or the task
    /// ends.
    async fn connections(self: Arc<Self>, in_flight: usize) {
        while self.left.load(Ordering::Relaxed) > 0 {
            self.connection(in_flight).await;
            if self.left.load(Ordering::Relaxed) > 0 {
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Runs one connection until all requests are sent or it ends.
    async fn connection(&self, in_flight: usize) {
        match probe::open(&self.target, self.protocol, self.windows).await {
            Ok(EstablishedConnection { sender, mut driver, .. }) => {
                let callers = (0..in_flight).map(|_| self.call(&sender));
                let calling = futures_util::future::join_all(callers);
                tokio::select! {
                    biased;
                    () = &mut driver => self.broke("a connection ended"),
                    _ = calling => {}
                }
            }
            Err(error) => self.broke(&error.to_string()),
        }
    }

    /// Sends requests one after another until none is left or the connection ends.
    async fn call(&self, sender: &HttpRequestSender) {
        while self.take_one() {
            let began = Instant::now();
            match self.one(sender).await {
                Ok((status, bytes)) => {
                    let mut record = self.record.lock();
                    if status.is_success() {
                        let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                        record.took.saturating_record(us);
                        record.bytes += bytes;
                    } else {
                        record.refused += 1;
                        record.complaint.get_or_insert_with(|| format!("a request was refused: {status}"));
                    }
                }
                Err(error) => {
                    self.broke(&error.to_string());
                    if sender.is_closed() {
                        return;
                    }
                }
            }
        }
    }

    async fn one(&self, sender: &HttpRequestSender) -> Result<(http::StatusCode, u64), ProbeRequestError> {
        let number = usize::try_from(self.number.fetch_add(1, Ordering::Relaxed)).unwrap_or(0);
        let path = self.objects.question(&self.kind, number);
        let mut answer = sender.get(&self.target, &RequestSpec::get(&path, self.accept)).await?;
        let (_, bytes) = answer.body.read(KEPT_BYTES).await?;
        Ok((answer.status, bytes))
    }

    fn take_one(&self) -> bool {
        let less = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn broke(&self, why: &str) {
        let mut record = self.record.lock();
        record.broken += 1;
        record.complaint.get_or_insert_with(|| why.to_owned());
    }

    fn answered(&self) -> u64 {
        self.record.lock().took.len()
    }
}

/// Runs a storm: a number of LISTs, or GETs for a time.
pub(in super::super) async fn run(session: &BenchRun<'_>, outcome: &mut BenchRunOutcome) -> Result<(), BenchError> {
    let plan = session.plan;
    let calls = RequestStormState::new(plan, session.target, session.objects);
    // The server's work for its first reader must not count as the cost of a request.
    let first = RequestStormState::new(&BenchPlan { requests: 1, ..plan.clone() }, session.target, session.objects);
    first.connection(1).await;
    let complaint = first.record.lock().complaint.clone();
    if first.answered() == 0 {
        return Err(BenchError::Target(complaint.unwrap_or_else(|| "no answer".to_owned())));
    }
    let connections = plan.connection_count();
    session.progress.phase(format!("{connections} connections with {} requests each", plan.in_flight));
    let (began, cpu, own) = (Instant::now(), session.costs.cpu().await, own_cpu());
    let tasks = BackgroundTasks::new();
    for _ in 0..connections {
        tasks.spawn("bench requests", calls.clone().connections(plan.in_flight));
    }
    wait(session, &calls).await;
    let seconds = began.elapsed().as_secs_f64();
    let (spent, own) = (since(session.costs.cpu().await, cpu), own_cpu().saturating_sub(own));
    tasks.join().await;
    put(&mut outcome.figures, &calls.record.lock(), seconds, spent);
    outcome.figures.put("connections", connections as f64);
    outcome.figures.put("generator_cores", own.as_secs_f64() / seconds);
    {
        let record = calls.record.lock();
        outcome.percentiles = curve(&record.took);
        outcome.notes.extend(record.complaint.clone().map(|why| format!("the first thing that went wrong: {why}")));
    }
    outcome.figures.put_some("memory_mib", session.costs.sample().await.resident_bytes.map(mib));
    Ok(())
}

fn put(figures: &mut BenchFigures, record: &RequestStormStats, seconds: f64, spent: Option<Duration>) {
    let answered = record.took.len() as f64;
    figures.put("requests", answered);
    figures.put("requests_per_s", answered / seconds);
    figures.put_some("request_p50_ms", quantile_ms(&record.took, 0.5));
    figures.put_some("request_p99_ms", quantile_ms(&record.took, 0.99));
    figures.put_some("request_max_ms", (answered > 0.0).then(|| ms(record.took.max())));
    figures.put("request_bytes", record.bytes as f64 / answered);
    figures.put_some("cpu_ms_per_request", spent.map(|cpu| cpu.as_secs_f64() * 1e3 / answered));
    figures.put_some("cpu_cores", spent.map(|cpu| cpu.as_secs_f64() / seconds));
    figures.put("bytes_per_s", record.bytes as f64 / seconds);
    figures.put("refused", record.refused as f64);
    figures.put("broken", record.broken as f64);
}

/// Waits until every request has a response, or the time is up.
async fn wait(session: &BenchRun<'_>, calls: &RequestStormState) {
    let plan = session.plan;
    let needed = if plan.requests == 0 { u64::MAX } else { plan.requests as u64 };
    let longest = if plan.requests == 0 { plan.seconds } else { plan.patience };
    let deadline = Instant::now() + Duration::from_secs_f64(longest);
    let settled = || {
        let record = calls.record.lock();
        record.took.len() + record.refused + record.broken
    };
    while settled() < needed && Instant::now() < deadline && !session.stop.is_cancelled() {
        session.pause(Duration::from_millis(5)).await;
        session.progress.tick(|| format!("{} answered", calls.answered()));
    }
}

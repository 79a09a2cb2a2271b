use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::BenchError;
use super::fleet::WatchFleet;
use super::frame_classifier::FrameClassifier;
use super::objects::{WorkloadObjects, WriteCounts, with};
use super::option_values::{RequestStormKind, WriteRate};
use super::outcome::{BenchFigures, BenchRunOutcome, curve, ms, quantile_ms};
use super::plan::BenchPlan;
use super::process::{ServerUsageSample, ServerUsageSource, cores, own_cpu};
use super::tally::WatchCounts;
use super::writer::WriterPool;
use base::BackgroundTasks;
use probe::{ProgressLine, TargetServer, UnaryClient};

/// The interval between lines of progress.
const TICK: Duration = Duration::from_millis(200);
/// The pause between opening everything and measuring, so that the server is idle.
const SETTLE: Duration = Duration::from_secs(1);
/// The share of its available CPU above which the generator itself was the bottleneck.
const BUSY: f64 = 0.9;
/// The lag above which writes were not sent at the configured rate.
const LATE_MS: f64 = 100.0;

/// One run of one plan against one server.
pub(super) struct BenchRun<'a> {
    pub(super) plan: &'a BenchPlan,
    pub(super) objects: &'a WorkloadObjects,
    pub(super) target: &'a TargetServer,
    pub(super) write: &'a TargetServer,
    pub(super) costs: &'a ServerUsageSource,
    pub(super) progress: &'a ProgressLine,
    pub(super) stop: &'a CancellationToken,
    pub(super) tasks: &'a BackgroundTasks,
}

/// The state of all counters at one moment.
pub(super) struct BenchCounterSnapshot {
    at: Instant,
    counts: WatchCounts,
    own_cpu: Duration,
    server_cpu: Option<Duration>,
    writes: u64,
}

impl BenchRun<'_> {
    fn patience(&self) -> Duration {
        Duration::from_secs_f64(self.plan.patience)
    }

    pub(super) fn window(&self) -> Duration {
        Duration::from_secs_f64(self.plan.seconds)
    }

    /// Opens the watches of the plan, and measures them while objects are written.
    ///
    /// # Errors
    /// If nothing could be measured.
    pub(super) async fn watches(&self, outcome: &mut BenchRunOutcome) -> Result<(), BenchError> {
        let version = self.prime().await?;
        let before = self.costs.sample().await;
        let fleet = WatchFleet::start_at(self.plan, self.target, Some(version));
        let ran = self.with_fleet(&fleet, &before, outcome).await;
        if let Some(complaint) = fleet.complaint() {
            outcome.notes.push(format!("first error: {complaint}"));
        }
        outcome.cipher = fleet.cipher();
        fleet.stop().await;
        ran
    }

    async fn with_fleet(
        &self,
        fleet: &WatchFleet,
        before: &ServerUsageSample,
        outcome: &mut BenchRunOutcome,
    ) -> Result<(), BenchError> {
        let (watches, connections) = (self.plan.watch_count(), self.plan.connection_count());
        self.progress.phase(format!("{connections} connections to {}", self.target.url()));
        if !self.or_stopped(fleet.connected(self.patience())).await.unwrap_or(true) {
            return Err(BenchError::Open(self.why(fleet, "some connections are not open")));
        }
        self.progress.phase(format!("{watches} watches on {connections} connections"));
        let (cpu, began) = (self.costs.cpu().await, Instant::now());
        fleet.set_out();
        let Some(synced) = self.or_stopped(fleet.synced(self.patience())).await else { return Ok(()) };
        if synced.is_none() {
            let counts = fleet.counts();
            let what = format!("{} of {watches} watches are synced", counts.synced);
            return Err(BenchError::Open(self.why(fleet, &what)));
        }
        let joining = since(self.costs.cpu().await, cpu);
        let figures = &mut outcome.figures;
        figures.put("watches", watches as f64);
        figures.put("connections", connections as f64);
        figures.put("opening_s", began.elapsed().as_secs_f64());
        figures
            .put_some("opening_cpu_ms_per_watch", joining.map(|cpu| cpu.as_secs_f64() * 1e3 / watches.max(1) as f64));
        if self.plan.storm == Some(RequestStormKind::Join) {
            figures.put_some("cpu_ms_per_informer", joining.map(|cpu| cpu.as_secs_f64() * 1e3 / watches.max(1) as f64));
            put_synced(figures, fleet);
            let counts = fleet.counts();
            figures.put("request_bytes", counts.bytes as f64 / watches.max(1) as f64);
            if self.plan.gzip {
                figures.put("compressed", counts.compressed as f64);
                figures.put("request_plain_bytes", counts.plain_bytes as f64 / watches.max(1) as f64);
            }
            return Ok(());
        }
        self.pause(SETTLE).await;
        put_memory(figures, before, &self.costs.sample().await, watches);
        self.measure(fleet, outcome).await;
        Ok(())
    }

    /// Reads everything once, so that the server's work for its first reader is not counted as the cost of a watch.
    /// Returns the version to begin at.
    async fn prime(&self) -> Result<u64, BenchError> {
        let caller = UnaryClient::new(self.target, self.plan.protocol, self.tasks);
        let mut version = None;
        for kind in self.plan.kinds() {
            let path = kind.path.replace("{i}", "0");
            let list = with(&path, "resourceVersion=0");
            caller.get(&list, kind.encoding.of_list()).await.map_err(|error| BenchError::Target(error.to_string()))?;
            let reply = caller.get(&with(&path, "limit=1"), "application/json").await;
            let reply = reply.map_err(|error| BenchError::Target(error.to_string()))?;
            let reply = reply.success(&path).map_err(BenchError::Target)?;
            version = version.max(FrameClassifier::new(false).list_version(&reply.body));
        }
        version.ok_or_else(|| BenchError::Target("the LIST has no resourceVersion".to_owned()))
    }

    /// Runs the writers, the warm-up, the window and the wait for the last deliveries.
    async fn measure(&self, fleet: &WatchFleet, outcome: &mut BenchRunOutcome) {
        // This set holds only the writers, because their shared connections never end.
        let (plan, tasks) = (self.plan, BackgroundTasks::new());
        let writing = WriterPool::new(plan, self.objects, self.write, self.tasks);
        writing.start(&tasks);
        self.progress.phase("warm-up");
        self.pause(Duration::from_secs_f64(plan.warmup)).await;
        writing.reset_record();
        let first = self.moment(fleet, &writing).await;
        fleet.open_window();
        self.progress.phase("measuring");
        if plan.storm == Some(RequestStormKind::Resume) {
            fleet.cut();
        }
        self.watch_over(fleet, first.at + self.window()).await;
        fleet.close_window();
        let last = self.moment(fleet, &writing).await;
        let record = writing.record();
        writing.stop();
        self.progress.phase("waiting for the last deliveries");
        tasks.finish(self.patience()).await;
        let written = WriteCounts::new(self.objects, writing.accepted());
        let _ = self.or_stopped(self.drained(fleet, &written)).await;
        let figures = &mut outcome.figures;
        if plan.storm == Some(RequestStormKind::Resume) {
            put_synced(figures, fleet);
            let spent = since(last.server_cpu, first.server_cpu).map(|cpu| cpu.as_secs_f64() * 1e3);
            figures.put_some("cpu_ms_per_informer", spent.map(|ms| ms / plan.watch_count().max(1) as f64));
        }
        put_window(figures, &first, &last);
        if plan.gzip {
            figures.put("compressed", last.counts.compressed as f64);
        }
        if plan.gzip && plan.gzip_raw == 0 {
            put_gzip(figures, &first.counts, &last.counts);
        }
        put_faults(figures, fleet, &written);
        let latency = fleet.latency();
        for (name, quantile) in
            [("latency_p50_ms", 0.5), ("latency_p90_ms", 0.9), ("latency_p99_ms", 0.99), ("latency_p999_ms", 0.999)]
        {
            figures.put_some(name, quantile_ms(&latency, quantile));
        }
        figures.put_some("latency_max_ms", (!latency.is_empty()).then(|| ms(latency.max())));
        figures.put("writes_failed", record.failed as f64);
        figures.put_some("write_p50_ms", quantile_ms(&record.took, 0.5));
        figures.put_some("write_p99_ms", quantile_ms(&record.took, 0.99));
        if matches!(plan.rate, WriteRate::PerSecond(_)) {
            figures.put_some("schedule_lag_p99_ms", quantile_ms(&record.lag, 0.99));
        }
        outcome.percentiles = curve(&latency);
        if let Some(why) = record.last_failure {
            outcome.notes.push(format!("a write failed: {why}"));
        }
        outcome.notes.extend(bottleneck(&first, &last, outcome.figures.of("schedule_lag_p99_ms")));
    }

    /// Shows progress until `end`, or until the user stops the run.
    async fn watch_over(&self, fleet: &WatchFleet, end: Instant) {
        let mut last = (Instant::now(), fleet.counts());
        while Instant::now() < end && !self.stop.is_cancelled() {
            self.pause(TICK.min(end.saturating_duration_since(Instant::now()))).await;
            self.progress.tick(|| {
                let (now, counts) = (Instant::now(), fleet.counts());
                let seconds = now.duration_since(last.0).as_secs_f64();
                let rate = (counts.deliveries - last.1.deliveries) as f64 / seconds;
                last = (now, counts);
                let left = end.saturating_duration_since(now).as_secs();
                format!("{} watches, {rate:.0} deliveries/s, {left} s left", counts.open())
            });
        }
    }

    /// Waits until every watch has received its events, at most for the configured patience.
    async fn drained(&self, fleet: &WatchFleet, written: &WriteCounts<'_>) {
        let deadline = Instant::now() + self.patience();
        while balance(fleet, written).0 > 0 && Instant::now() < deadline {
            sleep(TICK / 4).await;
        }
    }

    pub(super) async fn pause(&self, time: Duration) {
        let _ = self.or_stopped(sleep(time)).await;
    }

    /// Returns the result of `work`; `None` if the user stopped the run first.
    async fn or_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.stop.cancelled() => None,
        }
    }

    async fn moment(&self, fleet: &WatchFleet, writing: &WriterPool) -> BenchCounterSnapshot {
        BenchCounterSnapshot {
            at: Instant::now(),
            counts: fleet.counts(),
            own_cpu: own_cpu(),
            server_cpu: self.costs.cpu().await,
            writes: writing.accepted().iter().sum(),
        }
    }

    fn why(&self, fleet: &WatchFleet, what: &str) -> String {
        let seconds = self.plan.patience;
        let complaint = fleet.complaint().map(|why| format!(": {why}")).unwrap_or_default();
        format!("{what} after {seconds} s{complaint}")
    }
}

/// Returns why the figures may describe the generator instead of the server.
fn bottleneck(first: &BenchCounterSnapshot, last: &BenchCounterSnapshot, lag_ms: Option<f64>) -> Vec<String> {
    let seconds = last.at.duration_since(first.at).as_secs_f64();
    let own = last.own_cpu.saturating_sub(first.own_cpu).as_secs_f64() / seconds;
    let server = since(last.server_cpu, first.server_cpu).map_or(0.0, |cpu| cpu.as_secs_f64() / seconds);
    let mut notes = Vec::new();
    let left = cores() - server;
    if own > BUSY * left {
        notes.push(format!(
            "WARNING: the load generator was a bottleneck: it used {own:.2} of {left:.2} available cores"
        ));
    }
    if let Some(lag) = lag_ms.filter(|lag| *lag > LATE_MS) {
        notes.push(format!("WARNING: writes were late (p99 {lag:.0} ms): the rate was not reached"));
    }
    notes
}

/// Returns the difference of two readings of the CPU time.
pub(super) fn since(now: Option<Duration>, then: Option<Duration>) -> Option<Duration> {
    Some(now?.saturating_sub(then?))
}

pub(super) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn put_memory(figures: &mut BenchFigures, before: &ServerUsageSample, after: &ServerUsageSample, watches: usize) {
    figures.put_some("memory_mib", after.resident_bytes.map(mib));
    figures.put_some("memory_pss_mib", after.proportional_bytes.map(mib));
    if let (Some(before), Some(after)) = (before.resident_bytes, after.resident_bytes) {
        figures.put("memory_kib_per_watch", (after as f64 - before as f64) / 1024.0 / watches.max(1) as f64);
    }
}

fn put_synced(figures: &mut BenchFigures, fleet: &WatchFleet) {
    let synced = fleet.time_to_sync();
    figures.put_some("synced_p50_ms", quantile_ms(&synced, 0.5));
    figures.put_some("synced_p99_ms", quantile_ms(&synced, 0.99));
    figures.put_some("synced_max_ms", (!synced.is_empty()).then(|| ms(synced.max())));
}

fn put_window(figures: &mut BenchFigures, first: &BenchCounterSnapshot, last: &BenchCounterSnapshot) {
    let seconds = last.at.duration_since(first.at).as_secs_f64();
    let deliveries = (last.counts.deliveries - first.counts.deliveries) as f64;
    let writes = (last.writes - first.writes) as f64;
    let per = |cpu: f64, n: f64| (n > 0.0).then(|| cpu * 1e6 / n);
    figures.put("writes_per_s", writes / seconds);
    figures.put("deliveries_per_s", deliveries / seconds);
    figures.put("bytes_per_s", (last.counts.bytes - first.counts.bytes) as f64 / seconds);
    figures.put("bytes_per_delivery", (last.counts.bytes - first.counts.bytes) as f64 / deliveries);
    if let Some(cpu) = since(last.server_cpu, first.server_cpu).map(|cpu| cpu.as_secs_f64()) {
        figures.put_some("cpu_us_per_delivery", per(cpu, deliveries));
        figures.put_some("cpu_us_per_write", per(cpu, writes));
        figures.put("cpu_cores", cpu / seconds);
    }
    let own = last.own_cpu.saturating_sub(first.own_cpu).as_secs_f64();
    figures.put("generator_cores", own / seconds);
    figures.put_some("generator_us_per_delivery", per(own, deliveries));
}

fn put_gzip(figures: &mut BenchFigures, first: &WatchCounts, last: &WatchCounts) {
    let deliveries = (last.deliveries - first.deliveries) as f64;
    figures.put("plain_bytes_per_delivery", (last.plain_bytes - first.plain_bytes) as f64 / deliveries);
    figures.put("inflate_us_per_delivery", (last.inflate_ns - first.inflate_ns) as f64 / 1e3 / deliveries);
}

fn put_faults(figures: &mut BenchFigures, fleet: &WatchFleet, written: &WriteCounts<'_>) {
    let ((missed, unexpected), counts) = (balance(fleet, written), fleet.counts());
    figures.put("bookmarks", counts.bookmarks as f64);
    figures.put("missed", missed as f64);
    figures.put("repeated", fleet.repeated() as f64);
    figures.put("unexpected", unexpected as f64);
    figures.put("resumed", counts.resumed as f64);
    figures.put("relisted", counts.relisted as f64);
    figures.put("refused", counts.refused as f64);
    figures.put("broken", counts.broken as f64);
}

/// Counts only this process's writes, because other clients may write too.
fn balance(fleet: &WatchFleet, written: &WriteCounts<'_>) -> (u64, u64) {
    fleet.balance(|kind, nth| written.expected(kind, nth), |seen| &seen.ours)
}

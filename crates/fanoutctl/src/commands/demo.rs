//! The `demo` command: runs an embedded upstream with changing pods, the proxy, and watch clients in one process.

use std::io::Write;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{BoxFuture, LocalBoxFuture};
use hdrhistogram::Histogram;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use bench::{BenchPlan, TargetCredentials, TargetError, WatchCounts, WatchFleet};
use demo::{DemoFigures, DemoOptions, DemoSummary, DemoView, RunningDemoApiserver, upstream};
use kube_fanout::app::{BoundApp, StartError, TaskPanicError};
use kube_fanout::config::ServeSettings;
use kube_fanout::upstream::CredentialSource;

/// The reason that the demo cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error("cannot start the demo upstream: {0}")]
    Upstream(std::io::Error),
    #[error(transparent)]
    Proxy(#[from] StartError),
    #[error("cannot start the watches: {0}")]
    Fleet(TargetError),
    #[error("cannot write to standard output: {0}")]
    Output(std::io::Error),
    #[error("the proxy stopped: {0}")]
    Lost(TaskPanicError),
}

/// The longest wait for the watches' initial objects. After it, the view starts without them.
const SYNC_MAX: Duration = Duration::from_secs(60);
const REDRAW: Duration = Duration::from_secs(1);
/// The longest wait for the last events. Those that arrive later count as missed.
const CATCH_UP_MAX: Duration = Duration::from_secs(5);
/// Watches per HTTP/2 connection: the number of concurrent streams that an apiserver allows.
const WATCHES_PER_CONNECTION: usize = 100;
const PODS: &str = "pods";

/// A running demo: its upstream, its watches, and the counts at the start of the view.
struct RunningDemo<'a> {
    up: &'a RunningDemoApiserver,
    fleet: WatchFleet,
    options: DemoOptions,
    started: Instant,
    /// Whether every watch had its initial objects at `started`.
    is_whole: bool,
    /// The counts at the time `started`. They are subtracted, so that the initial objects are not shown as events.
    first_events: u64,
    joined: WatchCounts,
}

/// Runs the demo until its time is up or `shutdown` completes, and prints a summary.
///
/// # Errors
/// See [`DemoError`].
///
/// # Panics
/// If the demo upstream's address is not a URL, or the proxy has no address although a listener is configured.
#[inline(never)]
pub fn run(options: DemoOptions, shutdown: BoxFuture<'static, ()>) -> LocalBoxFuture<'static, Result<(), DemoError>> {
    Box::pin(run_until(options, shutdown))
}

async fn run_until(options: DemoOptions, shutdown: BoxFuture<'_, ()>) -> Result<(), DemoError> {
    let up = upstream().pods(options.pods as usize).rate(options.rate).try_run().await.map_err(DemoError::Upstream)?;
    let uri = up.url().parse().expect("the demo upstream's address is a URL");
    let config = ServeSettings {
        drain: Duration::from_secs(2),
        ..ServeSettings::for_upstream(CredentialSource::Anonymous(uri))
    };
    let bound = BoundApp::bind(config).await?;
    let address = bound.addresses().into_iter().next().expect("one listener was requested");
    let admin = bound.admin_address().unwrap_or_default();
    let stop = CancellationToken::new();
    let proxy = bound.run(stop.clone().cancelled_owned(), std::future::pending());
    let show = async {
        let result = show(&up, options, &address, &admin, shutdown).await;
        stop.cancel();
        result
    };
    let (result, served) = tokio::join!(show, proxy);
    // After the proxy, which would report a lost upstream.
    up.stop().await;
    result.and(served.map_err(DemoError::Lost))
}

async fn show(
    up: &RunningDemoApiserver,
    options: DemoOptions,
    address: &str,
    admin: &str,
    shutdown: impl Future<Output = ()>,
) -> Result<(), DemoError> {
    introduce(options, address, admin).map_err(DemoError::Output)?;
    let fleet = fleet(options, address).await.map_err(DemoError::Fleet)?;
    let mut shutdown = pin!(shutdown);
    let is_whole = tokio::select! {
        synced = fleet.synced(SYNC_MAX) => {
            if synced.is_none() {
                let complaint = fleet.complaint();
                tracing::warn!(waited = ?SYNC_MAX, reason = complaint, "some watches have not synced yet");
            }
            synced.is_some()
        }
        () = &mut shutdown => false,
    };
    let (started, first_events, joined) = (Instant::now(), up.events(PODS), fleet.counts());
    let scene = RunningDemo { up, fleet, options, started, is_whole, first_events, joined };
    let mut view = DemoView::open();
    let summary = scene.play(&mut view, shutdown).await;
    scene.fleet.stop().await;
    view.close(&summary).map_err(DemoError::Output)
}

/// Starts watches as informers do, with the initial objects in the stream (`sendInitialEvents`).
async fn fleet(options: DemoOptions, address: &str) -> Result<WatchFleet, TargetError> {
    let watches = options.watches as usize;
    let connections = watches.div_ceil(WATCHES_PER_CONNECTION);
    let plan = BenchPlan { watches, connections, watch_list: true, ..BenchPlan::default() };
    let fleet = WatchFleet::start(&plan, &TargetCredentials::default().target(address).await?);
    fleet.set_out();
    Ok(fleet)
}

fn introduce(options: DemoOptions, address: &str, admin: &str) -> std::io::Result<()> {
    let DemoOptions { pods, rate, watches, seconds: _ } = options;
    let mut out = std::io::stdout().lock();
    writeln!(out, "Demo cluster: {pods} pods, {rate} changes per second, {watches} watches of all pods.")?;
    writeln!(out, "Use the proxy:  kubectl --server={address} get pods --all-namespaces --watch")?;
    writeln!(out, "Metrics:        curl {admin}/metrics")?;
    out.flush()
}

impl RunningDemo<'_> {
    /// Changes pods and redraws the view once a second until the time is up or `shutdown` completes. Returns the
    /// summary.
    async fn play(&self, view: &mut DemoView, shutdown: impl Future<Output = ()> + Unpin) -> DemoSummary {
        self.fleet.open_window();
        let churning = self.up.churning();
        self.redraw(view, shutdown).await;
        let elapsed = self.started.elapsed();
        churning.stop().await;
        let events = self.events();
        // The last events may not have reached the watches yet.
        let caught_up = |_: &WatchCounts| self.fleet.missed(events) == 0;
        let _ = self.is_whole && self.fleet.until(CATCH_UP_MAX, caught_up).await;
        self.summary(elapsed, events)
    }

    async fn redraw(&self, view: &mut DemoView, mut shutdown: impl Future<Output = ()> + Unpin) {
        let end = self.options.seconds.map(|seconds| self.started + Duration::from_secs(seconds));
        let mut ticks = interval(REDRAW);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut last = self.fleet.latency();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = &mut shutdown => return,
            }
            let all = self.fleet.latency();
            let mut recent = all.clone();
            recent.subtract(&last).expect("an earlier reading of the same counts");
            last = all;
            view.update(self.snapshot(end, &recent));
            if end.is_some_and(|end| Instant::now() >= end) {
                return;
            }
        }
    }

    fn snapshot(&self, end: Option<Instant>, recent: &Histogram<u64>) -> DemoFigures {
        let counts = self.fleet.counts();
        DemoFigures {
            elapsed: self.started.elapsed(),
            remaining: end.map(|end| end.saturating_duration_since(Instant::now())),
            upstream_watches: self.upstream_watches(),
            upstream_events: self.events(),
            downstream_watches: counts.open(),
            deliveries: counts.deliveries - self.joined.deliveries,
            errors: errors(&counts),
            latency_p50: quantile(recent, 0.5),
            latency_p99: quantile(recent, 0.99),
        }
    }

    fn summary(&self, elapsed: Duration, events: u64) -> DemoSummary {
        let (counts, latency) = (self.fleet.counts(), self.fleet.latency());
        DemoSummary {
            elapsed,
            pods: u64::from(self.options.pods),
            upstream_watches: self.upstream_watches(),
            upstream_events: events,
            downstream_watches: counts.open(),
            deliveries: counts.deliveries - self.joined.deliveries,
            missed: self.is_whole.then(|| self.fleet.missed(events)),
            repeated: self.fleet.repeated(),
            relisted: counts.relisted,
            errors: errors(&counts),
            first_error: self.fleet.complaint(),
            latency_p50: quantile(&latency, 0.5),
            latency_p99: quantile(&latency, 0.99),
        }
    }

    fn upstream_watches(&self) -> u64 {
        self.up.counts().watches_open.of(PODS)
    }

    /// Returns the number of pod events since `started`.
    fn events(&self) -> u64 {
        self.up.events(PODS) - self.first_events
    }
}

fn errors(counts: &WatchCounts) -> u64 {
    counts.refused + counts.broken
}

fn quantile(latency: &Histogram<u64>, quantile: f64) -> Duration {
    Duration::from_micros(latency.value_at_quantile(quantile))
}

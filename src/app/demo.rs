//! The `demo` command: an embedded upstream whose pods churn, the proxy in front of it, and watchers behind, in one
//! process.

use std::io::Write;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::{Bound, StartError};
use crate::config::Serve;
use crate::demo::{Latencies, Running, RunningFleet, Snapshot, Summary, View, fleet, upstream};
use crate::upstream::Source;

pub use crate::demo::Options;

/// Why the demo cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error("the demo upstream: {0}")]
    Upstream(std::io::Error),
    #[error(transparent)]
    Proxy(#[from] StartError),
    #[error("the watchers: {0}")]
    Fleet(std::io::Error),
    #[error("standard output: {0}")]
    Output(std::io::Error),
}

/// How long the watchers may take to get their initial objects before the view starts without them.
const SYNC_MAX: Duration = Duration::from_secs(60);
const REDRAW: Duration = Duration::from_secs(1);

/// What is looked at while the demo runs.
struct Scene {
    up: Running,
    fleet: RunningFleet,
    options: Options,
    started: Instant,
    /// What had happened by then: joining is not part of the show.
    first_revision: u64,
    first_deliveries: u64,
    joined: Latencies,
}

/// Runs the demo until its time is up or `shutdown` completes, and sums up.
///
/// # Errors
/// See [`DemoError`].
///
/// # Panics
/// If the demo upstream's own address is no URL, or the proxy that was told to listen does not.
pub async fn run(options: Options, shutdown: impl Future<Output = ()>) -> Result<(), DemoError> {
    let up = upstream().pods(options.pods as usize).rate(options.rate).try_run().await.map_err(DemoError::Upstream)?;
    let uri = up.url().parse().expect("the demo upstream's address is a URL");
    let config = Serve { drain: Duration::from_secs(2), ..Serve::in_front_of(Source::Anonymous(uri)) };
    let bound = Bound::bind(config).await?;
    let address = bound.addresses().into_iter().next().expect("one listener was asked for");
    let admin = bound.admin_address().unwrap_or_default();
    let stop = CancellationToken::new();
    let proxy = bound.run(stop.clone().cancelled_owned());
    let show = async {
        let shown = show(up, options, &address, &admin, shutdown).await;
        stop.cancel();
        shown
    };
    let (shown, ()) = tokio::join!(show, proxy);
    shown
}

async fn show(
    up: Running,
    options: Options,
    address: &str,
    admin: &str,
    shutdown: impl Future<Output = ()>,
) -> Result<(), DemoError> {
    introduce(options, address, admin).map_err(DemoError::Output)?;
    let fleet = fleet(address, options.watches as usize).start().map_err(DemoError::Fleet)?;
    let mut shutdown = pin!(shutdown);
    tokio::select! {
        synced = fleet.synced(SYNC_MAX) => if !synced {
            tracing::warn!(?SYNC_MAX, "not every watch has its initial objects yet");
        },
        () = &mut shutdown => {}
    }
    let scene = Scene {
        started: Instant::now(),
        first_revision: up.revision(),
        first_deliveries: fleet.counts().deliveries,
        joined: fleet.latencies(),
        up,
        fleet,
        options,
    };
    let mut view = View::open();
    scene.play(&mut view, shutdown).await;
    let summary = scene.summary();
    scene.fleet.stop().await;
    scene.up.stop().await;
    view.close(&summary).map_err(DemoError::Output)
}

fn introduce(options: Options, address: &str, admin: &str) -> std::io::Result<()> {
    let Options { pods, rate, watches, seconds: _ } = options;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "A demo cluster of {pods} pods that change {rate} times a second, and {watches} watches of all of them."
    )?;
    writeln!(out, "Look at it through the proxy:  kubectl --server={address} get pods --all-namespaces --watch")?;
    writeln!(out, "Its metrics:                   curl {admin}/metrics")?;
    out.flush()
}

impl Scene {
    /// Redraws once a second until the time is up or somebody stops it.
    async fn play(&self, view: &mut View, mut shutdown: impl Future<Output = ()> + Unpin) {
        let end = self.options.seconds.map(|seconds| self.started + Duration::from_secs(seconds));
        let mut ticks = interval(REDRAW);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut last = self.joined.clone();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = &mut shutdown => return,
            }
            let latencies = self.fleet.latencies();
            view.update(self.snapshot(end, &latencies.since(&last)));
            last = latencies;
            if end.is_some_and(|end| Instant::now() >= end) {
                return;
            }
        }
    }

    fn snapshot(&self, end: Option<Instant>, recent: &Latencies) -> Snapshot {
        let counts = self.fleet.counts();
        Snapshot {
            elapsed: self.started.elapsed(),
            remaining: end.map(|end| end.saturating_duration_since(Instant::now())),
            upstream_watches: self.up.counts().watches_open.of("pods"),
            upstream_events: self.up.revision() - self.first_revision,
            downstream_watches: counts.watches_open,
            deliveries: counts.deliveries - self.first_deliveries,
            errors: counts.errors,
            latency_p50: recent.quantile(0.5),
            latency_p99: recent.quantile(0.99),
        }
    }

    fn summary(&self) -> Summary {
        let counts = self.fleet.counts();
        let latencies = self.fleet.latencies().since(&self.joined);
        Summary {
            elapsed: self.started.elapsed(),
            pods: u64::from(self.options.pods),
            upstream_watches: self.up.counts().watches_open.of("pods"),
            upstream_events: self.up.revision() - self.first_revision,
            downstream_watches: counts.watches_open,
            deliveries: counts.deliveries - self.first_deliveries,
            errors: counts.errors,
            latency_p50: latencies.quantile(0.5),
            latency_p99: latencies.quantile(0.99),
        }
    }
}

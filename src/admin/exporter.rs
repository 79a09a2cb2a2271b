use std::sync::OnceLock;

use metrics::{describe_gauge, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use super::per_thread::{PerThreadMetrics, PerThreadMetricsRecorder};
use super::{AdminPages, process, series};

/// Renders all metrics of the process.
#[derive(Clone)]
pub struct MetricsExporter {
    handle: PrometheusHandle,
    per_thread: PerThreadMetrics,
}

/// The counters that are incremented at each delivery.
const PER_THREAD_COUNTERS: [&str; 3] =
    ["kube_fanout_watch_events_total", "kube_fanout_watch_bytes_total", "kube_fanout_watch_gzip_bytes_total"];

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit, if the build sets it, as deploy/image.sh does.
const REVISION: &str = match option_env!("KUBE_FANOUT_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

/// Returns the process's exporter. The first call installs its recorder, and `describe` registers the help texts. A
/// process that serves no metrics must not call this; without a recorder, nothing is recorded or kept.
///
/// # Errors
/// Another recorder is already installed.
pub fn exporter(describe: fn()) -> Result<MetricsExporter, String> {
    static EXPORTER: OnceLock<Result<MetricsExporter, String>> = OnceLock::new();
    let exporter = EXPORTER.get_or_init(|| {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let recorder = PerThreadMetricsRecorder::new(recorder, &PER_THREAD_COUNTERS);
        let per_thread = recorder.per_thread();
        metrics::set_global_recorder(recorder).map_err(|error| error.to_string())?;
        describe();
        describe_gauge!("kube_fanout_build_info", "1; the labels say what runs");
        gauge!("kube_fanout_build_info", "version" => VERSION, "revision" => REVISION).set(1.0);
        Ok(MetricsExporter { handle, per_thread })
    });
    exporter.clone()
}

impl MetricsExporter {
    /// Renders the recorded metrics, followed by those of the feeds, the upstream costs and the process, in Prometheus'
    /// text format.
    pub(super) fn render(&self, pages: &AdminPages) -> String {
        self.per_thread.publish_counters();
        let mut text = self.handle.render();
        self.per_thread.write(&mut text);
        series::write(&pages.feeds, &mut text);
        series::write_costs(&(pages.costs)(), &mut text);
        process::write(&pages.heartbeat, pages.ready.is_ready(), &mut text);
        text
    }
}

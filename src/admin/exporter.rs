use std::sync::OnceLock;

use metrics::{describe_gauge, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::cost::{self, CostRow};
use super::{process, series};
use crate::feeds::Feeds;

/// Renders every metric of the process.
#[derive(Clone)]
pub struct Exporter {
    handle: PrometheusHandle,
}

/// The buckets of all durations, in seconds: from 0.1 ms, which a delivery takes on an idle machine, to 10 s.
const DELAY_BUCKETS: [f64; 12] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0];

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit, where whoever builds says which: deploy/image.sh does.
const REVISION: &str = match option_env!("KUBE_FANOUT_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

/// Returns the process's exporter. The first call installs its recorder, and `describe` gives the metrics their help
/// texts. A process that shows no metrics must not call this: without a recorder nothing is recorded or held.
///
/// # Errors
/// If another recorder is installed, or the buckets are refused.
pub fn exporter(describe: fn()) -> Result<Exporter, String> {
    static HANDLE: OnceLock<Result<PrometheusHandle, String>> = OnceLock::new();
    let handle = HANDLE.get_or_init(|| {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &DELAY_BUCKETS)
            .map_err(|error| error.to_string())?
            .build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|error| error.to_string())?;
        describe();
        describe_gauge!("kube_fanout_build_info", "1; the labels say what runs");
        gauge!("kube_fanout_build_info", "version" => VERSION, "revision" => REVISION).set(1.0);
        Ok(handle)
    });
    handle.clone().map(|handle| Exporter { handle })
}

impl Exporter {
    /// Renders what was recorded, and then what is read from the feeds, the costs and of the process, in Prometheus'
    /// text format.
    pub(super) fn render(&self, feeds: &Feeds, costs: &[CostRow]) -> String {
        let mut text = self.handle.render();
        series::write(feeds, &mut text);
        cost::write(costs, &mut text);
        process::write(&mut text);
        text
    }

    /// Folds the samples of histograms, which hold each sample until then. Must be called regularly.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

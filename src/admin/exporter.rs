use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use metrics::{Label, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use parking_lot::Mutex;

use crate::cache::{FeedKey, Feeds, Mode, Reason, State};
use crate::wire::Representation;

/// Renders every metric of the process.
#[derive(Clone)]
pub struct Exporter {
    handle: PrometheusHandle,
    /// Feeds whose gauges were set, and representations whose modes were, so that those of one that ended are set to
    /// zero.
    shown: Arc<Mutex<BTreeMap<FeedKey, Vec<Representation>>>>,
}

/// Seconds: from a tenth of a millisecond, what a delivery takes on an idle machine, to ten seconds.
const DELAY_BUCKETS: [f64; 12] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0];
const STATES: [&str; 4] = ["syncing", "live", "stale", "ended"];

/// The process's exporter; the recorder behind it is installed at the first call, and `describe` tells it what the
/// metrics mean.
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
        Ok(handle)
    });
    handle.clone().map(|handle| Exporter { handle, shown: Arc::default() })
}

impl Exporter {
    /// Prometheus text.
    pub fn render(&self) -> String {
        self.handle.render()
    }

    /// Folds what histograms have gathered; to be called now and then.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// Sets the gauges that are read off the feeds.
    pub(super) fn observe(&self, feeds: &Feeds) {
        let running = feeds.all();
        let mut shown = self.shown.lock();
        let before = std::mem::take(&mut *shown);
        for feed in running {
            let key = &feed.spec.key;
            let stats = feed.reader.stats();
            let state = feed.reader.state();
            let stale = match state {
                State::Stale { since } => since.elapsed().as_secs_f64(),
                _ => 0.0,
            };
            set_state(key, Some(state));
            set(key, "kube_fanout_feed_stale_seconds", stale);
            set(key, "kube_fanout_feed_objects", stats.objects as f64);
            set(key, "kube_fanout_feed_object_bytes", stats.object_bytes as f64);
            set(key, "kube_fanout_feed_resource_version", stats.progress.0 as f64);
            set(key, "kube_fanout_ring_events", stats.events as f64);
            set(key, "kube_fanout_ring_bytes", stats.event_bytes as f64);
            set(key, "kube_fanout_ring_span_seconds", stats.span_seconds);
            set(key, "kube_fanout_lanes", stats.lanes as f64);
            set(key, "kube_fanout_derived_bytes", stats.derived_bytes as f64);
            let modes = feed.renderings.all();
            modes.iter().for_each(|(representation, mode)| set_mode(key, *representation, Some(mode)));
            shown.insert(key.clone(), modes.into_iter().map(|(representation, _)| representation).collect());
        }
        for (key, representations) in before {
            let now = shown.get(&key);
            if now.is_none() {
                set_state(&key, None);
            }
            let over = |representation: &Representation| now.is_none_or(|now| !now.contains(representation));
            representations.iter().filter(|it| over(it)).for_each(|gone| set_mode(&key, *gone, None));
        }
    }
}

fn labels(key: &FeedKey) -> Vec<Label> {
    key.labels().into_iter().map(|(name, value)| Label::new(name, value)).collect()
}

fn set(key: &FeedKey, name: &'static str, value: f64) {
    gauge!(name, labels(key)).set(value);
}

/// 1 for the mode that a representation is in, if it is in any; a refused one says why.
fn set_mode(key: &FeedKey, representation: Representation, mode: Option<&Mode>) {
    let current = mode.map(|mode| match mode {
        Mode::Wanted => "wanted",
        Mode::Derived(_) => "derived",
        Mode::Refused(reason) => reason.as_str(),
    });
    let modes = ["wanted", "derived"].into_iter().chain(Reason::ALL.map(Reason::as_str));
    for mode in modes {
        let mut labels = labels(key);
        labels.push(Label::new("representation", representation.as_str()));
        labels.push(Label::new("mode", mode));
        gauge!("kube_fanout_representation_mode", labels).set(if Some(mode) == current { 1.0 } else { 0.0 });
    }
}

fn set_state(key: &FeedKey, state: Option<State>) {
    let current = match state {
        Some(State::Syncing) => "syncing",
        Some(State::Live) => "live",
        Some(State::Stale { .. }) => "stale",
        Some(State::Ended(_)) | None => "ended",
    };
    for state in STATES {
        let mut labels = labels(key);
        labels.push(Label::new("state", state));
        gauge!("kube_fanout_feed_state", labels).set(if state == current { 1.0 } else { 0.0 });
    }
}

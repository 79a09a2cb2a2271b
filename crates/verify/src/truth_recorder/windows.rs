use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::GroundTruthRecorder;
use crate::record::{HistoryRecord, HistoryWindowRecord};
use base::now_ns;

/// The polling interval of the window.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// Records which history the server may have forgotten: changes older than its window and, from the start, changes
/// before the run.
pub(crate) async fn keep_windows(learnt: Arc<GroundTruthRecorder>, window: Duration) {
    let mut past = RecentVersions::default();
    forgets(&learnt, learnt.to(), 0);
    loop {
        if let Some(version) = past.at(Instant::now(), learnt.to(), window) {
            forgets(&learnt, version, now_ns());
        }
        sleep(TICK).await;
    }
}

/// Records that from a moment on, the server may have forgotten changes at or below a version.
pub(crate) fn forgets(learnt: &GroundTruthRecorder, version: u64, at_ns: u64) {
    let resource = learnt.resource.clone();
    learnt.scene.recorder.put(&HistoryRecord::Window(HistoryWindowRecord { resource, version, at_ns, server: None }));
}

/// The newest versions, by the time at which they were seen.
#[derive(Debug, Default)]
struct RecentVersions(VecDeque<(Instant, u64)>);

impl RecentVersions {
    /// Adds the newest version. If entries have left the window, returns the newest of them.
    fn at(&mut self, now: Instant, newest: u64, window: Duration) -> Option<u64> {
        self.0.push_back((now, newest));
        let mut left = None;
        while self.0.front().is_some_and(|(at, _)| now.duration_since(*at) > window) {
            left = self.0.pop_front();
        }
        left.map(|(_, version)| version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_older_than_window_counts_as_expired() {
        let (mut past, start, window) = (RecentVersions::default(), Instant::now(), Duration::from_secs(10));
        let sampled: Vec<_> = (0..13).map(|s| past.at(start + Duration::from_secs(s), 100 + s, window)).collect();
        assert!(sampled[..11].iter().all(Option::is_none), "{sampled:?}");
        assert_eq!(sampled[11..], [Some(100), Some(101)]);
    }
}

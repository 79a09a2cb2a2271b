use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::{Mutex, mpsc, oneshot};

use super::body_encoder_tracker::BodyEncoderTracker;
use super::reflector_findings::ReflectorFinding;
use crate::cache::FeedState;
use crate::feeds::Feed;
use crate::upstream::UpstreamClient;
use crate::wire::ObjectReader;

/// What the reflector of a feed and the tasks beside it share: the connection to upstream, and the feed. Clones share
/// all parts.
#[derive(Clone)]
pub(super) struct FeedTaskContext {
    pub(super) client: UpstreamClient,
    pub(super) feed: Arc<Feed>,
    pub(super) reader: Arc<ObjectReader>,
    /// Whether upstream is known not to support streamed lists; shared by all feeds of one upstream.
    pub(super) lists_only: Arc<AtomicBool>,
    /// Whether the feed's requests ask for plain bodies and whole events, because a compressed body or a difference
    /// could not be read. The first item of a stream that is plain for this reason ends it.
    pub(super) wants_plain: Arc<AtomicBool>,
    /// Whether upstream is a proxy, according to the last watch. A proxy's feed may advance only on request.
    pub(super) behind_a_proxy: Arc<AtomicBool>,
    pub(super) body_encoders: Arc<BodyEncoderTracker>,
    /// Serializes the lists of all feeds that replace bodies of another release.
    pub(super) refresh_lock: Arc<Mutex<()>>,
    /// Sends findings to the reflector.
    pub(super) findings: mpsc::Sender<ReflectorFinding>,
}

impl FeedTaskContext {
    /// Completes when the feed has a stream.
    pub(super) async fn wait_live(&self) {
        // The sender lives as long as the feed.
        let _ = self.feed.reader.watch_state().wait_for(|state| *state == FeedState::Live).await;
    }

    /// Sends a finding to the reflector, and returns its answer; `None` if it does not act on the finding.
    pub(super) async fn hand_over<T>(&self, finding: impl FnOnce(oneshot::Sender<T>) -> ReflectorFinding) -> Option<T> {
        let (done, is_done) = oneshot::channel();
        self.findings.send(finding(done)).await.ok()?;
        is_done.await.ok()
    }

    /// Reports to the reflector that an upstream response contradicts what the feed had in this history.
    pub(super) fn report_mismatch(&self, history: u64) {
        // If the channel is full, a message is pending already; one suffices.
        let _ = self.findings.try_send(ReflectorFinding::HistoryMismatch { history });
    }
}

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::reviews::{ReviewTopic, Reviews};
use crate::upstream::Error;
use base::{Backoff, BackoffBounds, ReadinessGuard, Ready};
use tokio::sync::watch;

/// Whether the proxy may create reviews of one topic, as of the last answered review.
#[derive(Debug)]
pub(super) struct ReviewRight {
    pub(super) topic: ReviewTopic,
    state: watch::Sender<RightState>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RightState {
    /// No review has been answered yet.
    Unproven,
    Held,
    /// Upstream refused a review with this code, which is 401 or 403.
    Refused(u16),
}

/// The pauses between two checks of a missing right. They are short, because no request can be authorized until the
/// right is back.
const RECHECK: BackoffBounds = BackoffBounds { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

impl ReviewRight {
    pub(super) fn new(topic: ReviewTopic) -> Self {
        Self { topic, state: watch::Sender::new(RightState::Unproven) }
    }

    /// Records the answer to a review. An error that is not about the right changes nothing.
    pub(super) fn note<T>(&self, answer: &Result<T, Error>) {
        match answer {
            Ok(_) => self.set(RightState::Held),
            Err(error) => {
                if let Some(code @ (401 | 403)) = error.code() {
                    self.set(RightState::Refused(code));
                }
            }
        }
    }

    fn set(&self, state: RightState) {
        self.state.send_if_modified(|known| std::mem::replace(known, state) != state);
    }

    /// Keeps `ready` from being ready until the right is proven, and again whenever upstream refuses a review.
    ///
    /// A missing right is checked with backoff, and no check is sent while it is held. The guard is registered at once;
    /// the future never returns.
    pub(super) fn keep_ready(
        self: Arc<Self>,
        reviews: Arc<dyn Reviews>,
        ready: Ready,
    ) -> impl Future<Output = ()> + Send + 'static {
        let guard = self.not_ready(&ready);
        async move { self.follow(&*reviews, &ready, guard).await }
    }

    async fn follow(self: &Arc<Self>, reviews: &dyn Reviews, ready: &Ready, guard: ReadinessGuard) {
        let resource = self.topic.resource;
        let mut state = self.state.subscribe();
        let mut backoff = Backoff::new(RECHECK);
        let mut guard = Some(guard);
        let mut was_asked = false;
        loop {
            let now = *state.borrow_and_update();
            if now == RightState::Held {
                if guard.take().is_some() {
                    tracing::info!(resource, "the proxy is allowed to create reviews");
                }
                backoff.succeeded(Instant::now());
                if state.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let lost = guard.is_none();
            guard.get_or_insert_with(|| self.not_ready(ready));
            if was_asked || lost {
                if let RightState::Refused(code) = now {
                    tracing::warn!(resource, code, "not ready: the proxy's account may not create reviews");
                }
                let pause = backoff.failed(Instant::now());
                tokio::select! {
                    biased;
                    // `self` owns the sender, so waiting cannot fail.
                    _ = state.wait_for(|state| *state == RightState::Held) => continue,
                    () = sleep(pause) => {}
                }
            }
            was_asked = true;
            self.ask(reviews).await;
        }
    }

    /// Checks whether the right is held.
    async fn ask(&self, reviews: &dyn Reviews) {
        match reviews.own_right(self.topic).await {
            Ok(true) => self.set(RightState::Held),
            Ok(false) => self.set(RightState::Refused(403)),
            Err(error) if error.code() == Some(401) => self.set(RightState::Refused(401)),
            // A cluster may forbid every account to check its own rights. Then only the next review can prove the
            // right, and a process that is not ready receives no request.
            Err(error) if error.code() == Some(403) => {
                tracing::warn!(%error, "cannot check the permission to create reviews; assuming it is granted");
                self.set(RightState::Held);
            }
            Err(error) => tracing::debug!(%error, "cannot check the proxy's own permissions"),
        }
    }

    fn not_ready(self: &Arc<Self>, ready: &Ready) -> ReadinessGuard {
        let right = self.clone();
        ready.register(self.topic.resource).because(move || Some(right.reason()))
    }

    fn reason(&self) -> String {
        match *self.state.borrow() {
            RightState::Unproven => "the permission to create them is not checked yet".to_owned(),
            RightState::Held => "being checked".to_owned(),
            RightState::Refused(401) => "upstream rejects the proxy's credentials (401)".to_owned(),
            RightState::Refused(code) => {
                let ReviewTopic { group, resource, .. } = self.topic;
                format!("upstream rejects them ({code}): grant the proxy's account create on {resource}.{group}")
            }
        }
    }
}

#[cfg(test)]
mod tests;

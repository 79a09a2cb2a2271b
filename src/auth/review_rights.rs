use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::reviews::{ReviewTopic, Reviews};
use crate::upstream::Error;
use base::{Backoff, BackoffBounds, ReadinessGuard, Ready};
use tokio::sync::watch;

/// Whether the proxy's account may create reviews of one topic, according to the last answered review.
#[derive(Debug)]
pub(super) struct ReviewRight {
    state: watch::Sender<RightState>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RightState {
    /// No review has been answered yet, so the permission is unknown.
    Unproven,
    Held,
    /// Upstream refused a review with this status code, 401 or 403.
    Refused(u16),
}

/// The pauses between two checks of a missing permission. They are short, because no request can be authorized until
/// the permission is granted.
const RECHECK: BackoffBounds = BackoffBounds { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

impl ReviewRight {
    pub(super) fn new() -> Self {
        Self { state: watch::Sender::new(RightState::Unproven) }
    }

    /// Records the answer to a review. An error that does not concern the permission changes nothing.
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
        if *self.state.borrow() != state {
            self.state.send_replace(state);
        }
    }

    /// Keeps `ready` from being ready until the permission is proven, and again whenever upstream refuses a review.
    ///
    /// A missing permission is checked with backoff, and no check is sent while it is held. The guard is registered at
    /// once; the future never returns.
    pub(super) fn keep_ready(
        self: Arc<Self>,
        topic: ReviewTopic,
        reviews: Arc<dyn Reviews>,
        ready: Ready,
    ) -> impl Future<Output = ()> + Send + 'static {
        let guard = self.not_ready(topic, &ready);
        self.follow(topic, reviews, ready, guard)
    }

    async fn follow(
        self: Arc<Self>,
        topic: ReviewTopic,
        reviews: Arc<dyn Reviews>,
        ready: Ready,
        guard: ReadinessGuard,
    ) {
        let mut state = self.state.subscribe();
        let mut backoff = Backoff::new(RECHECK);
        let mut guard = Some(guard);
        let mut was_asked = false;
        loop {
            let now = *state.borrow_and_update();
            if now == RightState::Held {
                if guard.take().is_some() {
                    tracing::info!(resource = topic.resource(), "the proxy's account may create reviews");
                }
                backoff.succeeded(Instant::now());
                if state.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let lost = guard.is_none();
            guard.get_or_insert_with(|| self.not_ready(topic, &ready));
            if was_asked || lost {
                if let RightState::Refused(code) = now {
                    tracing::warn!(
                        resource = topic.resource(),
                        code,
                        "proxy not ready: reviews are refused (401: check its credentials; 403: grant create in RBAC)"
                    );
                }
                let pause = backoff.failed(Instant::now());
                tokio::select! {
                    biased;
                    () = is_held(&mut state) => continue,
                    () = sleep(pause) => {}
                }
            }
            was_asked = true;
            self.ask(topic, &*reviews).await;
        }
    }

    /// Checks whether the proxy may create reviews of the topic.
    async fn ask(&self, topic: ReviewTopic, reviews: &dyn Reviews) {
        match reviews.own_right(topic).await {
            Ok(true) => self.set(RightState::Held),
            Ok(false) => self.set(RightState::Refused(403)),
            Err(error) if error.code() == Some(401) => self.set(RightState::Refused(401)),
            // A cluster may forbid every account to check its own rights. Then only the next review can prove the
            // right, and a process that is not ready receives no request.
            Err(error) if error.code() == Some(403) => {
                let resource = topic.resource();
                tracing::warn!(
                    resource, %error,
                    "cannot check the permission to create reviews; assuming it is granted"
                );
                self.set(RightState::Held);
            }
            Err(error) => {
                tracing::debug!(resource = topic.resource(), %error, "cannot check the permission to create reviews");
            }
        }
    }

    fn not_ready(self: &Arc<Self>, topic: ReviewTopic, ready: &Ready) -> ReadinessGuard {
        let right = self.clone();
        ready.register(topic.resource()).because(move || Some(right.reason(topic)))
    }

    fn reason(&self, topic: ReviewTopic) -> String {
        match *self.state.borrow() {
            RightState::Unproven => "the permission to create them is not checked yet".to_owned(),
            RightState::Held => "being checked".to_owned(),
            RightState::Refused(401) => "upstream rejects the proxy's credentials (401)".to_owned(),
            RightState::Refused(code) => {
                let (group, resource) = (topic.group(), topic.resource());
                format!("upstream rejects them ({code}): grant the proxy's account create on {resource}.{group}")
            }
        }
    }
}

async fn is_held(state: &mut watch::Receiver<RightState>) {
    // The waiting task owns the sender, so this cannot fail.
    drop(state.wait_for(|state| *state == RightState::Held).await);
}

#[cfg(test)]
mod tests;

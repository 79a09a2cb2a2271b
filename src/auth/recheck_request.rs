use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The policy changes for which a lease must be reviewed. One review covers all of them until it is sent.
#[derive(Debug, Default)]
pub(super) struct RecheckRequests {
    pending: Mutex<Option<RecheckRequest>>,
    added: Notify,
}

/// A policy change that may affect a lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecheckRequest {
    /// The time at which the change was received. A decision of an earlier review is not accepted.
    pub(super) since: Instant,
    /// The time at which the review is sent.
    pub(super) begins_at: Instant,
    /// The time until which the permission was certain.
    pub(super) certain_until: Instant,
    /// Whether the access was allowed by rules that have changed.
    pub(super) lost_rule: bool,
    /// Whether a review that all leases need can wait until `begins_at`, because the rules may be known again by then.
    pub(super) is_deferred: bool,
}

impl RecheckRequest {
    /// Returns the request for a change that was received at `now`, and whose review is sent at once.
    pub(super) fn at(now: Instant) -> Self {
        Self { since: now, begins_at: now, certain_until: now, lost_rule: false, is_deferred: false }
    }
}

impl RecheckRequests {
    pub(super) fn add(&self, request: RecheckRequest) {
        let mut pending = self.pending.lock();
        let before = pending.unwrap_or(request);
        *pending = Some(RecheckRequest {
            since: before.since.max(request.since),
            begins_at: before.begins_at.min(request.begins_at),
            certain_until: before.certain_until.min(request.certain_until),
            lost_rule: before.lost_rule || request.lost_rule,
            is_deferred: before.is_deferred && request.is_deferred,
        });
        drop(pending);
        self.added.notify_one();
    }

    /// Accepts no decision from before `since` if a deferred review is pending. Returns whether one is.
    pub(super) fn defer(&self, since: Instant) -> bool {
        let mut pending = self.pending.lock();
        let deferred = pending.as_mut().filter(|pending| pending.is_deferred);
        deferred.map(|pending| pending.since = pending.since.max(since)).is_some()
    }

    /// Sends the pending review at once, if there is one.
    pub(super) fn expedite(&self) {
        if let Some(pending) = &mut *self.pending.lock() {
            pending.begins_at = Instant::now();
            self.added.notify_one();
        }
    }

    /// Completes when a policy change requires a review.
    pub(super) async fn due(&self) -> RecheckRequest {
        loop {
            let Some(begins_at) = self.pending.lock().map(|request| request.begins_at) else {
                self.added.notified().await;
                continue;
            };
            tokio::select! {
                biased;
                () = sleep_until(begins_at) => {}
                () = self.added.notified() => continue,
            }
            if let Some(request) = self.pending.lock().take() {
                return request;
            }
        }
    }
}

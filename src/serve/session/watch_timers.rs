use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::auth::GrantStatus;
use crate::base::{DrainWatch, Draining};

/// All that a watch waits for besides events. A watch has thousands of events for each of these.
pub(super) struct WatchTimers {
    drain: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Until the watch is over, also one that is no request's any more (WebSocket).
    _held: Draining,
    /// Of a permission that can end.
    revocation: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    timer: Pin<Box<Sleep>>,
}

/// What was first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fired {
    /// The moment has come that it was set to.
    Time,
    /// It is this watch's turn to leave a proxy that goes away.
    Drained,
    /// The permission is over.
    Revoked,
}

impl WatchTimers {
    pub(super) fn new(drain: &DrainWatch, grant: &GrantStatus, at: Instant) -> Self {
        Self {
            drain: Box::pin(drain.my_slot()),
            _held: drain.hold(),
            revocation: grant.over().map(|over| Box::pin(over.cancelled_owned())),
            timer: Box::pin(sleep_until(at)),
        }
    }

    /// The moment that it waits for now.
    pub(super) fn set_to(&mut self, at: Instant) {
        self.timer.as_mut().reset(at);
    }
}

impl Future for WatchTimers {
    type Output = Fired;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Fired> {
        if self.revocation.as_mut().is_some_and(|over| over.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(Fired::Revoked);
        }
        if self.drain.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Fired::Drained);
        }
        self.timer.as_mut().poll(cx).map(|()| Fired::Time)
    }
}

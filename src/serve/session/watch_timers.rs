use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::auth::GrantStatus;
use crate::base::{DrainWatch, Draining};

/// Everything that a watch waits for besides events. A watch has thousands of events for each of these.
pub(super) struct WatchTimers {
    drain: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Held until the watch is over, also for a watch that is no request's any more (WebSocket).
    _held: Draining,
    /// The end of the permission, if it can end.
    revocation: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    timer: Pin<Box<Sleep>>,
}

/// What fired first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fired {
    /// The time that was set has come.
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

    /// Sets the time that it waits for.
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

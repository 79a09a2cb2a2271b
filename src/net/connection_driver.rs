use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http2::{ConnectionWakeTarget, HttpService, WakeSet};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::UpgradedFuture;

/// The protocol and all running requests of a connection, polled as one task.
pub(super) trait ConnectionDriver {
    /// Polls the parts that were woken, without losing a wakeup. Ready when the connection is over.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>>;

    /// Asks the client to send no more requests, in HTTP/2 with GOAWAY. Running requests continue, and so do those that
    /// the client sent before it received this.
    fn begin_goaway(&mut self);

    fn wake_set(&self) -> &Arc<WakeSet>;
}

impl<I: AsyncRead + AsyncWrite + Unpin, S: HttpService> ConnectionDriver for http2::Http2Connection<I, S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.poll(cx).map_err(Into::into)
    }

    fn begin_goaway(&mut self) {
        self.begin_goaway();
    }

    fn wake_set(&self) -> &Arc<WakeSet> {
        self.wake_set()
    }
}

/// The protocol to which a connection has switched.
pub(super) struct UpgradedConnection {
    upgraded: UpgradedFuture,
    wake_set: Arc<WakeSet>,
    waker: Waker,
}

impl UpgradedConnection {
    pub(super) fn new(upgraded: UpgradedFuture) -> Self {
        let wake_set = WakeSet::shared();
        Self { upgraded, waker: wake_set.waker(ConnectionWakeTarget::Codec), wake_set }
    }
}

impl ConnectionDriver for UpgradedConnection {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.wake_set.poll_codec(cx, &self.waker, |cx| self.upgraded.as_mut().poll(cx).map(Ok))
    }

    /// The protocol is unknown, so its end cannot be announced.
    fn begin_goaway(&mut self) {}

    fn wake_set(&self) -> &Arc<WakeSet> {
        &self.wake_set
    }
}

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

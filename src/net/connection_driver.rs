use std::sync::Arc;
use std::task::{Context, Poll};

use http2::{HttpService, WakeSet};
use tokio::io::{AsyncRead, AsyncWrite};

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

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

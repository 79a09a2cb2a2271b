use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http2::{ConnectionWakeTarget, HttpService, WakeSet};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection_scheduler::ScheduledConnection;

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

/// The result of waiting for a connection and another future: the one that completed first.
pub(super) enum FirstCompletedFuture<O> {
    /// The connection ended, with this result.
    Ended(Result<(), BoxError>),
    Other(O),
}

/// Runs a connection until it is over or `aside` completes.
///
/// The connection is polled when it has its caller's turn. `aside` is polled whenever it was woken, without a turn.
pub(super) async fn until<O>(
    conversation: &mut impl ConnectionDriver,
    turns: &mut ScheduledConnection,
    mut aside: Pin<&mut impl Future<Output = O>>,
) -> FirstCompletedFuture<O> {
    let wake_set = conversation.wake_set().clone();
    let waker = wake_set.waker(ConnectionWakeTarget::Aside);
    // `aside` may not have registered a waker yet, so it is polled at once.
    wake_set.put(ConnectionWakeTarget::Aside);
    poll_fn(|cx| {
        match turns.poll_turn(cx) {
            Poll::Ready(turn) => {
                wake_set.limit_turn(turn.ends());
                let polled = conversation.poll(cx);
                drop(turn);
                if let Poll::Ready(ended) = polled {
                    return Poll::Ready(FirstCompletedFuture::Ended(ended));
                }
            }
            // The wake-up consumed the registered waker, and `aside` may be woken next, so the waker is registered
            // again.
            Poll::Pending => wake_set.wait(cx),
        }
        if !wake_set.take(ConnectionWakeTarget::Aside) {
            return Poll::Pending;
        }
        aside.as_mut().poll(&mut Context::from_waker(&waker)).map(FirstCompletedFuture::Other)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::task::Waker;
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;
    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;
    use crate::net::DownstreamConnection;
    use crate::net::connection_scheduler::ConnectionScheduler;
    use crate::net::idle_connections::ConnectionSource;

    /// A connection on which no data arrives.
    struct Silence(Arc<WakeSet>);

    impl ConnectionDriver for Silence {
        fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            self.0.poll_codec(cx, Waker::noop(), |_| Poll::Pending)
        }

        fn begin_goaway(&mut self) {}

        fn wake_set(&self) -> &Arc<WakeSet> {
            &self.0
        }
    }

    #[tokio::test(start_paused = true)]
    async fn side_future_completes_while_connection_waits_for_turn() {
        let (all, connection) = (ConnectionScheduler::shared(), DownstreamConnection::default());
        connection.authenticated(Some(1));
        let of = |connection: &DownstreamConnection| all.of(connection, ConnectionSource::Unix);
        let _other = of(&DownstreamConnection::default());
        let (mut first, mut turns) = (of(&connection), of(&connection));
        let cx = Context::from_waker(Waker::noop());
        let turn = first.poll_turn(&cx);
        assert!(turn.is_ready() && advance(Duration::from_secs(1)).now_or_never().is_none());
        drop(turn);
        assert!(first.poll_turn(&cx).is_pending(), "its turn never comes, and that of the other neither");
        let mut silence = Silence(WakeSet::shared());
        let (wake_set, (leave, left)) = (silence.0.clone(), oneshot::channel::<()>());
        let talking = tokio::spawn(async move {
            let aside = until(&mut silence, &mut turns, Box::pin(left).as_mut()).await;
            matches!(aside, FirstCompletedFuture::Other(Ok(())))
        });
        for _ in 0..3 {
            yield_now().await;
            wake_set.waker(ConnectionWakeTarget::Codec).wake();
        }
        yield_now().await;
        leave.send(()).expect("it is listened to");
        assert!(talking.await.expect("no panic"));
    }
}

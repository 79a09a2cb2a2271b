use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};

use super::feed::{Feed, Place};
use super::gathered::Gathered;

/// The watches of a connection.
struct Watches {
    feed: Arc<Feed>,
    /// The position that all streams have reached.
    seen: Place,
    streams: Vec<(SendStream<Bytes>, Place)>,
}

/// Capacity that a stream reserves at a time, in bytes.
const ROOM_BYTES: usize = 64 << 10;

/// Serves a connection and its streams in one task.
pub(super) async fn connection<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(io: I, feed: Arc<Feed>) {
    let io = Gathered::new(io);
    let mut shaking = Box::pin(Builder::new().max_concurrent_streams(250).handshake(io.clone()));
    let shaken = poll_fn(|cx| {
        let shaken = shaking.as_mut().poll(cx);
        let _ = io.poll_out(cx);
        shaken
    });
    let Ok(mut connection) = shaken.await else { return };
    let mut watches = Watches { seen: Place::behind(&feed), feed, streams: Vec::new() };
    poll_fn(|cx| {
        let ended = watches.poll(&mut connection, cx);
        let _ = io.poll_out(cx);
        ended
    })
    .await;
}

impl Watches {
    fn poll<I>(&mut self, connection: &mut Connection<Gathered<I>, Bytes>, cx: &mut Context<'_>) -> Poll<()>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            let end = self.feed.end();
            self.send(cx);
            match connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    self.begin(&request, respond);
                    continue;
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {}
            }
            self.seen.advance_to(end);
            if self.seen.poll_news(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn begin(&mut self, request: &Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        let is_watch = request.uri().query().is_some_and(super::is_watch);
        let Ok(mut stream) = respond.send_response(Response::new(()), false) else { return };
        if is_watch {
            stream.reserve_capacity(ROOM_BYTES);
            self.streams.push((stream, Place::behind(&self.feed)));
        } else {
            let _ = stream.send_data(super::list(&self.feed).into(), true);
        }
    }

    fn send(&mut self, cx: &mut Context<'_>) {
        self.streams.retain_mut(|(stream, place)| {
            loop {
                if stream.poll_reset(cx).is_ready() {
                    return false;
                }
                if stream.capacity() == 0 && !matches!(stream.poll_capacity(cx), Poll::Ready(Some(Ok(1..)))) {
                    return true;
                }
                match place.take() {
                    Poll::Pending => return true,
                    Poll::Ready(None) => return false,
                    Poll::Ready(Some(frames)) => {
                        if stream.send_data(frames, false).is_err() {
                            return false;
                        }
                        stream.reserve_capacity(ROOM_BYTES);
                    }
                }
            }
        });
    }
}

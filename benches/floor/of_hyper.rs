use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};

use super::feed::{Feed, Place};

/// The body of a response.
enum Answer {
    List(Option<Bytes>),
    Watch(Place),
}

/// Serves a connection as hyper does by default: one task for it, and one for each of its streams.
pub(super) async fn connection<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(io: I, feed: Arc<Feed>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let body = match request.uri().query() {
            Some(query) if super::is_watch(query) => Answer::Watch(Place::behind(&feed)),
            _ => Answer::List(Some(super::list(&feed).into())),
        };
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    });
    // The client has disconnected.
    let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(io), service).await;
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = match self.get_mut() {
            Self::List(bytes) => Poll::Ready(bytes.take()),
            Self::Watch(place) => place.poll_next(cx),
        };
        bytes.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};

use crate::net::ParkableBody;
use crate::serve::limits::{BodyError, BoundedBody, CompleteBody, ConcurrencyPermit, SlowReaderReaper};
use crate::upstream::ResponseBody;
use base::AbortSignal;

/// The body of a response of any kind.
#[derive(Debug)]
pub struct ReplyBody(Kind);

#[derive(Debug)]
enum Kind {
    /// The body is complete and in one piece.
    Full(Option<Bytes>),
    Watch(Box<dyn WatchFrames>),
    /// Another body of the proxy itself.
    Own(UnsyncBoxBody<Bytes, BodyError>),
    /// A body from upstream.
    Forwarded(UnsyncBoxBody<Bytes, BodyError>),
}

/// The frames of a watch as the body of a response.
pub(crate) trait WatchFrames: std::fmt::Debug + Send {
    /// Returns the next chunk of frames, or `None` after the last one.
    fn poll_chunk(&mut self, cx: &Context<'_>) -> Poll<Option<Bytes>>;

    /// Returns whether no frames will come until the waker of the last poll is woken.
    fn is_parked(&self) -> bool;
}

impl ReplyBody {
    pub(crate) fn full(bytes: Bytes) -> Self {
        Self(Kind::Full(Some(bytes)))
    }

    /// Returns the body for HEAD. It is empty for every response of the proxy itself, because HTTP/2's codec does not
    /// drop it.
    pub(crate) fn of_head(self) -> Self {
        if let Kind::Forwarded(_) = self.0 { self } else { Self::empty() }
    }

    pub(crate) fn empty() -> Self {
        Self(Kind::Full(None))
    }

    pub(crate) fn watch(stream: impl WatchFrames + 'static) -> Self {
        Self(Kind::Watch(Box::new(stream)))
    }

    /// Creates the body of a response of the proxy itself: a LIST, or an object in pieces.
    pub(crate) fn own(body: impl Body<Data = Bytes, Error = BodyError> + Send + 'static) -> Self {
        Self(Kind::Own(body.boxed_unsync()))
    }

    /// Creates a complete body with a deadline. Its permits are released when the client has read it or the deadline
    /// passes.
    pub(crate) fn whole(whole: CompleteBody, slow_readers: &SlowReaderReaper, cut: AbortSignal) -> Self {
        Self::own(BoundedBody::new(whole, slow_readers, cut))
    }

    /// Creates the body of a response from upstream. It has a deadline, whose `cut` resets the response, or may last
    /// forever. The permit is released when the body is dropped.
    pub(crate) fn forwarded(
        body: ResponseBody,
        place: Arc<ConcurrencyPermit>,
        deadline: Option<(&SlowReaderReaper, AbortSignal)>,
    ) -> Self {
        let body = body.map_err(move |error| {
            let _held_by_the_body = &place;
            BodyError::from(error)
        });
        Self(Kind::Forwarded(match deadline {
            Some((slow_readers, cut)) => BoundedBody::new(body, slow_readers, cut).boxed_unsync(),
            None => body.boxed_unsync(),
        }))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.get_mut().0 {
            Kind::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Watch(watch) => watch.poll_chunk(cx).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Own(body) | Kind::Forwarded(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Full(bytes) => bytes.is_none(),
            Kind::Watch(_) => false,
            Kind::Own(body) | Kind::Forwarded(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Kind::Watch(_) => SizeHint::default(),
            Kind::Own(body) | Kind::Forwarded(body) => body.size_hint(),
        }
    }
}

impl ParkableBody for ReplyBody {
    fn is_parked(&self) -> bool {
        matches!(&self.0, Kind::Watch(watch) if watch.is_parked())
    }
}

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use hyper::body::{Body, Frame, SizeHint};

use crate::listing::ListBody;
use crate::net::IdleAwareBody;
use crate::serve::limits::{
    BodyError, BufferedResponseBody, ConcurrencyPermit, DeadlineBody, SlowReaderReaper, TimedSnapshotPin,
};
use crate::upstream::UpstreamResponseBody;
use base::AbortSignal;

/// The body of a response of any kind.
#[derive(Debug)]
pub struct ResponseBody(ResponseBodyKind);

#[derive(Debug)]
enum ResponseBodyKind {
    /// The body is complete and in one piece.
    Full(Option<Bytes>),
    Watch(Box<dyn WatchFrameSource>),
    List(Box<ListReply>),
    /// A complete body in pieces.
    Whole(UnsyncBoxBody<Bytes, BodyError>),
    /// A body from upstream.
    Forwarded(UnsyncBoxBody<Bytes, BodyError>),
}

/// A LIST that is encoded as the client reads it. The pin on its snapshot enforces the deadline.
#[derive(Debug)]
struct ListReply {
    list: ListBody,
    _permit: ConcurrencyPermit,
    _pin: TimedSnapshotPin,
}

/// The frames of a watch as the body of a response.
pub(crate) trait WatchFrameSource: std::fmt::Debug + Send {
    /// Returns the next chunk of frames, or `None` after the last one.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>>;

    /// Returns whether no frames will come until the waker of the last poll is woken.
    fn is_parked(&self) -> bool;
}

impl ResponseBody {
    pub(crate) fn full(bytes: Bytes) -> Self {
        Self(ResponseBodyKind::Full(Some(bytes)))
    }

    /// Returns the body for HEAD. It is empty for every response of the proxy itself, because HTTP/2's codec does not
    /// drop it.
    pub(crate) fn without_body(self) -> Self {
        if let ResponseBodyKind::Forwarded(_) = self.0 { self } else { Self::empty() }
    }

    pub(crate) fn empty() -> Self {
        Self(ResponseBodyKind::Full(None))
    }

    pub(crate) fn watch(stream: impl WatchFrameSource + 'static) -> Self {
        Self(ResponseBodyKind::Watch(Box::new(stream)))
    }

    pub(crate) fn list(list: ListBody, permit: ConcurrencyPermit, pin: TimedSnapshotPin) -> Self {
        Self(ResponseBodyKind::List(Box::new(ListReply { list, _permit: permit, _pin: pin })))
    }

    /// Creates a complete body without permits.
    pub(crate) fn pieces(pieces: [Bytes; 3]) -> Self {
        Self(ResponseBodyKind::Whole(BufferedResponseBody::new(pieces, Vec::new()).boxed_unsync()))
    }

    /// Creates a complete body with a deadline. Its permits are released when the client has read it or the deadline
    /// passes.
    pub(crate) fn whole(whole: BufferedResponseBody, slow_readers: &SlowReaderReaper, abort: AbortSignal) -> Self {
        Self(ResponseBodyKind::Whole(DeadlineBody::new(whole, slow_readers, abort).boxed_unsync()))
    }

    /// Creates a body from frames that were read before, and the rest of the body that they were read from.
    pub(crate) fn after_frames(frames: Vec<Result<Frame<Bytes>, BodyError>>, rest: Self) -> Self {
        let frames = stream::iter(frames).chain(BodyStream::new(rest));
        Self(ResponseBodyKind::Forwarded(StreamBody::new(frames).boxed_unsync()))
    }

    /// Creates the body of a response from upstream. It has a deadline, whose `abort` resets the response, or may last
    /// forever. The permit is released when the body is dropped.
    pub(crate) fn forwarded(
        body: UpstreamResponseBody,
        permit: Arc<ConcurrencyPermit>,
        deadline: Option<(&SlowReaderReaper, AbortSignal)>,
    ) -> Self {
        let body = body.map_err(move |error| {
            let _owned_by_the_body = &permit;
            BodyError::from(error)
        });
        Self(ResponseBodyKind::Forwarded(match deadline {
            Some((slow_readers, abort)) => DeadlineBody::new(body, slow_readers, abort).boxed_unsync(),
            None => body.boxed_unsync(),
        }))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.get_mut().0 {
            ResponseBodyKind::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            ResponseBodyKind::Watch(watch) => {
                watch.poll_chunk(cx).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
            }
            ResponseBodyKind::List(reply) => {
                reply.list.poll_chunk(cx).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data).map_err(Into::into)))
            }
            ResponseBodyKind::Whole(body) | ResponseBodyKind::Forwarded(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            ResponseBodyKind::Full(bytes) => bytes.is_none(),
            ResponseBodyKind::Watch(_) => false,
            ResponseBodyKind::List(reply) => reply.list.is_over(),
            ResponseBodyKind::Whole(body) | ResponseBodyKind::Forwarded(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            ResponseBodyKind::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            ResponseBodyKind::Watch(_) | ResponseBodyKind::List(_) => SizeHint::default(),
            ResponseBodyKind::Whole(body) | ResponseBodyKind::Forwarded(body) => body.size_hint(),
        }
    }
}

impl IdleAwareBody for ResponseBody {
    fn is_parked(&self) -> bool {
        matches!(&self.0, ResponseBodyKind::Watch(watch) if watch.is_parked())
    }
}

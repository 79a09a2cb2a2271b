use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::net::ParkableBody;
use crate::serve::limits::{BodyError, BoundedBody, CompleteBody, ConcurrencyPermit, SlowReaderReaper, StreamedList};
use crate::upstream::ResponseBody;
use base::AbortSignal;

/// The body of a response of any kind.
#[derive(Debug)]
pub struct ReplyBody(Kind);

#[derive(Debug)]
enum Kind {
    /// The body is complete and in one piece.
    Full(Option<Bytes>),
    /// The body is a LIST that is encoded as the client reads it.
    List(Box<StreamedList>),
    /// The body is complete, shares its bytes and is sent in pieces.
    Pieces(Box<CompleteBody>),
    /// The body is complete, holds permits and has a deadline.
    Whole(Box<BoundedBody<CompleteBody>>),
    /// The body is a stream of watch events.
    Watch(Box<dyn WatchFrames>),
    /// The body is upstream's, with a deadline of one minute.
    Short(Box<BoundedBody<ForwardedBody>>),
    /// The body is upstream's, without a deadline.
    Stream(Box<ForwardedBody>),
}

/// The frames of a watch as the body of a response.
pub(crate) trait WatchFrames: std::fmt::Debug + Send {
    /// Returns the next chunk of frames, or `None` after the last one.
    fn poll_chunk(&mut self, cx: &Context<'_>) -> Poll<Option<Bytes>>;

    /// Returns whether no frames will come until the waker of the last poll is woken.
    fn is_parked(&self) -> bool;
}

/// A response body from upstream. Its permit is released when the body is dropped.
#[derive(Debug)]
struct ForwardedBody {
    body: ResponseBody,
    _place: Arc<ConcurrencyPermit>,
}

impl ReplyBody {
    pub(crate) fn full(bytes: Bytes) -> Self {
        Self(Kind::Full(Some(bytes)))
    }

    /// Returns the body for HEAD. It is empty for every response of the proxy itself, because HTTP/2's codec does not
    /// drop it.
    pub(crate) fn of_head(self) -> Self {
        match self.0 {
            Kind::Short(_) | Kind::Stream(_) => self,
            _ => Self::empty(),
        }
    }

    pub(crate) fn empty() -> Self {
        Self(Kind::Full(None))
    }

    pub(crate) fn list(list: StreamedList) -> Self {
        Self(Kind::List(Box::new(list)))
    }

    pub(crate) fn watch(stream: impl WatchFrames + 'static) -> Self {
        Self(Kind::Watch(Box::new(stream)))
    }

    /// Creates a body that shares its bytes and holds no permit.
    pub(crate) fn pieces(pieces: [Bytes; 3]) -> Self {
        Self(Kind::Pieces(Box::new(CompleteBody::new(pieces, Vec::new()))))
    }

    /// Creates a complete body with a deadline. Its permits are released when the client has read it or the deadline
    /// passes.
    pub(crate) fn whole(whole: CompleteBody, slow_readers: &SlowReaderReaper, cut: AbortSignal) -> Self {
        Self(Kind::Whole(Box::new(BoundedBody::new(whole, slow_readers, cut))))
    }

    /// Creates the body of a short response from upstream, with a deadline.
    pub(crate) fn short(
        body: ResponseBody,
        place: Arc<ConcurrencyPermit>,
        slow_readers: &SlowReaderReaper,
        cut: AbortSignal,
    ) -> Self {
        Self(Kind::Short(Box::new(BoundedBody::new(ForwardedBody { body, _place: place }, slow_readers, cut))))
    }

    /// Creates the body of a response from upstream that may last forever.
    pub(crate) fn stream(body: ResponseBody, place: Arc<ConcurrencyPermit>) -> Self {
        Self(Kind::Stream(Box::new(ForwardedBody { body, _place: place })))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.get_mut().0 {
            Kind::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::List(list) => Pin::new(list).poll_frame(cx),
            Kind::Pieces(whole) => Pin::new(whole).poll_frame(cx),
            Kind::Whole(whole) => Pin::new(whole).poll_frame(cx),
            Kind::Watch(watch) => watch.poll_chunk(cx).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Short(short) => Pin::new(short).poll_frame(cx),
            Kind::Stream(stream) => Pin::new(stream).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Full(bytes) => bytes.is_none(),
            Kind::Short(short) => short.is_end_stream(),
            Kind::Stream(stream) => stream.is_end_stream(),
            Kind::List(list) => list.is_end_stream(),
            Kind::Pieces(whole) => whole.is_end_stream(),
            Kind::Whole(whole) => whole.is_end_stream(),
            Kind::Watch(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Kind::Short(short) => short.size_hint(),
            Kind::Stream(stream) => stream.size_hint(),
            Kind::Pieces(whole) => whole.size_hint(),
            Kind::Whole(whole) => whole.size_hint(),
            Kind::List(_) | Kind::Watch(_) => SizeHint::default(),
        }
    }
}

impl ParkableBody for ReplyBody {
    fn is_parked(&self) -> bool {
        matches!(&self.0, Kind::Watch(watch) if watch.is_parked())
    }
}

impl Body for ForwardedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::audit::AuditRecord;
use super::body_error::BodyError;
use super::bounded_body::{BodyTimes, BoundedBody, List, Whole};
use super::concurrency::ConcurrencyPermit;
use super::session::WatchSession;
use super::watch::WatchBody;
use super::watch_transport::WatchTransport;
use crate::net::ParkableBody;
use crate::upstream::ResponseBody;
use crate::wire::Encoding;
use base::Cut;

/// The body of any answer.
#[derive(Debug)]
pub struct ReplyBody(Kind);

#[derive(Debug)]
enum Kind {
    /// Everything, in one piece.
    Full(Option<Bytes>),
    /// A LIST, written as the client takes it.
    List(Box<List>),
    /// A complete answer that shares its bytes, taken piece by piece.
    Pieces(Box<Whole>),
    /// A complete answer that has places, and must be taken in time.
    Whole(Box<BoundedBody<Whole>>),
    /// A watch.
    Watch(Box<WatchBody>),
    /// Upstream's body, to be taken within a minute.
    Short(Box<BoundedBody<Forwarded>>),
    /// Upstream's body, for as long as it lasts.
    Stream(Box<Forwarded>),
}

/// Upstream's body on its way to the client. Its place is given back with its end.
#[derive(Debug)]
struct Forwarded {
    body: ResponseBody,
    _place: Arc<ConcurrencyPermit>,
}

impl ReplyBody {
    pub(super) fn full(bytes: Bytes) -> Self {
        Self(Kind::Full(Some(bytes)))
    }

    /// The body for HEAD, which is empty for every answer of ours: HTTP/2's codec leaves that to us.
    pub(super) fn of_head(self) -> Self {
        match self.0 {
            Kind::Short(_) | Kind::Stream(_) => self,
            _ => Self::empty(),
        }
    }

    pub(super) fn empty() -> Self {
        Self(Kind::Full(None))
    }

    pub(super) fn list(list: List) -> Self {
        Self(Kind::List(Box::new(list)))
    }

    pub(super) fn watch(
        session: WatchSession,
        record: Option<Arc<AuditRecord>>,
        framing: (WatchTransport, Encoding),
    ) -> Self {
        Self(Kind::Watch(Box::new(WatchBody::new(session, record, framing))))
    }

    /// The body of an answer that shares its bytes and has no place.
    pub(super) fn pieces(pieces: [Bytes; 3]) -> Self {
        Self(Kind::Pieces(Box::new(Whole::new(pieces, Vec::new()))))
    }

    /// The body of a complete answer. Its places are held until it is taken, but no longer than bodies may take.
    pub(super) fn whole(whole: Whole, times: &BodyTimes, cut: Cut) -> Self {
        Self(Kind::Whole(Box::new(BoundedBody::new(whole, times, cut))))
    }

    /// The body of an answer that upstream gives at once and that is taken as soon.
    pub(super) fn short(body: ResponseBody, place: Arc<ConcurrencyPermit>, times: &BodyTimes, cut: Cut) -> Self {
        Self(Kind::Short(Box::new(BoundedBody::new(Forwarded { body, _place: place }, times, cut))))
    }

    /// The body of an answer that has no end of its own.
    pub(super) fn stream(body: ResponseBody, place: Arc<ConcurrencyPermit>) -> Self {
        Self(Kind::Stream(Box::new(Forwarded { body, _place: place })))
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

impl Body for Forwarded {
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

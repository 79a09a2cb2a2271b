use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::admission::Place;
use super::audit::Record;
use super::session::WatchSession;
use super::underway::Underway;
use super::watch::WatchBody;
use crate::upstream::ResponseBody;

/// The body of any answer.
#[derive(Debug)]
pub struct ReplyBody(Kind);

#[derive(Debug)]
enum Kind {
    /// All there is, in one piece.
    Full(Option<Bytes>),
    /// A LIST, written as the client takes it.
    List(Underway),
    /// A watch.
    Watch(Box<WatchBody>),
    /// Upstream's own; the place is given back with its end.
    Forwarded(Box<Forwarded>),
}

/// Upstream's body on its way down.
#[derive(Debug)]
struct Forwarded {
    body: ResponseBody,
    _place: Arc<Place>,
}

/// Why an answer broke off.
type BodyError = Box<dyn std::error::Error + Send + Sync>;

impl ReplyBody {
    pub(super) fn full(bytes: Bytes) -> Self {
        Self(Kind::Full(Some(bytes)))
    }

    /// Of an answer to HEAD, which has none, whatever it would have been: HTTP/2's codec leaves that to us.
    pub(super) fn of_head(self) -> Self {
        match self.0 {
            Kind::Forwarded(_) => self,
            _ => Self::empty(),
        }
    }

    pub(super) fn empty() -> Self {
        Self(Kind::Full(None))
    }

    pub(super) fn list(list: Underway) -> Self {
        Self(Kind::List(list))
    }

    pub(super) fn watch(session: WatchSession, record: Option<Arc<Record>>) -> Self {
        Self(Kind::Watch(Box::new(WatchBody::new(session, record))))
    }

    pub(super) fn forwarded(body: ResponseBody, place: Arc<Place>) -> Self {
        Self(Kind::Forwarded(Box::new(Forwarded { body, _place: place })))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.get_mut().0 {
            Kind::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::List(list) => {
                list.poll_chunk(cx).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data).map_err(Into::into)))
            }
            Kind::Watch(watch) => watch.poll_chunk(cx).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Forwarded(forwarded) => {
                Pin::new(&mut forwarded.body).poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Full(bytes) => bytes.is_none(),
            Kind::Forwarded(forwarded) => forwarded.body.is_end_stream(),
            Kind::List(list) => list.is_over(),
            Kind::Watch(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Kind::Forwarded(forwarded) => forwarded.body.size_hint(),
            Kind::List(_) | Kind::Watch(_) => SizeHint::default(),
        }
    }
}

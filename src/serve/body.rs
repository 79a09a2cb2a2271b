use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::admission::Place;
use super::list::ListBody;
use super::watch::WatchBody;
use crate::upstream::ResponseBody;

/// The body of any answer.
#[derive(Debug)]
pub enum ReplyBody {
    /// All there is, in one piece.
    Full(Option<Bytes>),
    /// A LIST, written as the client takes it.
    List(Box<ListBody>),
    /// A watch.
    Watch(Box<WatchBody>),
    /// Upstream's own; the place is given back with its end.
    Forwarded(Box<Forwarded>),
}

/// Upstream's body on its way down.
#[derive(Debug)]
pub struct Forwarded {
    pub(super) body: ResponseBody,
    pub(super) _place: Option<Place>,
}

/// Why an answer broke off.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

impl ReplyBody {
    pub(super) fn full(bytes: Bytes) -> Self {
        Self::Full(Some(bytes))
    }

    pub(super) fn empty() -> Self {
        Self::Full(None)
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::List(list) => Poll::Ready(list.next_chunk().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Watch(watch) => watch.poll_chunk(cx).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes)))),
            Self::Forwarded(forwarded) => {
                Pin::new(&mut forwarded.body).poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_none(),
            Self::Forwarded(forwarded) => forwarded.body.is_end_stream(),
            Self::List(_) | Self::Watch(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Forwarded(forwarded) => forwarded.body.size_hint(),
            Self::List(_) | Self::Watch(_) => SizeHint::default(),
        }
    }
}

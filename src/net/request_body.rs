use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// The body of a request, from one of the codecs.
#[derive(Debug)]
pub struct RequestBody(Kind);

#[derive(Debug)]
enum Kind {
    Own(http2::ReceivedBody),
    Hyper(Incoming),
}

/// The request ended before its body was complete, or the codec could not read it.
#[derive(Debug, thiserror::Error)]
pub enum RequestBodyError {
    #[error(transparent)]
    Own(#[from] http2::IncompleteBody),
    #[error(transparent)]
    Hyper(#[from] hyper::Error),
}

impl RequestBody {
    /// Creates an empty request body.
    pub fn empty() -> Self {
        http2::ReceivedBody::empty().into()
    }
}

impl From<http2::ReceivedBody> for RequestBody {
    fn from(body: http2::ReceivedBody) -> Self {
        Self(Kind::Own(body))
    }
}

impl From<Incoming> for RequestBody {
    fn from(body: Incoming) -> Self {
        Self(Kind::Hyper(body))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        match &mut self.get_mut().0 {
            Kind::Own(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Kind::Hyper(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Own(body) => body.is_end_stream(),
            Kind::Hyper(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Own(body) => body.size_hint(),
            Kind::Hyper(body) => body.size_hint(),
        }
    }
}

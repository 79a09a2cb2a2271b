use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{Empty, Full};

use super::received_body::ReceivedBody;
use base::AbortSignal;

/// The application's side of a connection: it answers the requests.
pub trait HttpService {
    type Body: IdleAwareBody + Unpin;
    type Answer: Future<Output = Response<Self::Body>> + Unpin;

    /// Begins to answer a request. Returns the future of the response, and the handle that aborts the stream.
    ///
    /// `None` refuses the request. The client may retry it elsewhere, because it was not processed (RFC 9113 §8.7).
    fn call(&mut self, request: Request<ReceivedBody>) -> Option<(Self::Answer, AbortSignal)>;

    /// Whether the next request must wait until all running ones have ended, because the connection has no known
    /// caller yet. This keeps a hundred guessed tokens in one write from causing a hundred reviews.
    fn is_caller_unknown(&self) -> bool;
}

/// A response body that can report that it has no more data for now.
pub trait IdleAwareBody: Body<Data = Bytes> {
    /// Whether the body has no more data until it wakes the waker of its last poll.
    ///
    /// A body may be parked right after it returned data. The caller then need not poll it again only to get `Pending`.
    fn is_parked(&self) -> bool {
        false
    }
}

impl IdleAwareBody for Full<Bytes> {}

impl IdleAwareBody for Empty<Bytes> {}

impl<E> IdleAwareBody for UnsyncBoxBody<Bytes, E> {}

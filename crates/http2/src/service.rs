use http::{Request, Response};

use super::parkable_body::ParkableBody;
use super::received_body::ReceivedBody;
use base::AbortSignal;

/// The application's side of a connection: it answers the requests.
pub trait Service {
    type Body: ParkableBody + Unpin;
    type Answer: Future<Output = Response<Self::Body>> + Unpin;

    /// Begins to answer a request. Returns the future of the response, and the handle that aborts the stream.
    ///
    /// `None` refuses the request. The client may retry it elsewhere, because it was not processed (RFC 9113 §8.7).
    fn call(&mut self, request: Request<ReceivedBody>) -> Option<(Self::Answer, AbortSignal)>;

    /// Whether the next request must wait until all running ones have ended, because the connection has no known
    /// caller yet. This keeps a hundred guessed tokens in one write from causing a hundred reviews.
    fn is_caller_unknown(&self) -> bool;
}

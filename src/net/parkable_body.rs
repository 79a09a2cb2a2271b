use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{Empty, Full};
use hyper::body::Body;

/// The body of an answer, which may know that it has nothing more to say for now.
pub trait ParkableBody: Body<Data = Bytes> {
    /// Whether there is nothing until the waker is woken that it was last polled with. Then whoever has polled it since
    /// that waker was last looked at need not do so again to learn that.
    fn is_parked(&self) -> bool {
        false
    }
}

impl ParkableBody for Full<Bytes> {}

impl ParkableBody for Empty<Bytes> {}

impl<E> ParkableBody for UnsyncBoxBody<Bytes, E> {}

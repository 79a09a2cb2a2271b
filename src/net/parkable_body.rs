use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{Empty, Full};
use hyper::body::Body;

/// The body of an answer, which may know that it has nothing more to say for now.
pub trait ParkableBody: Body<Data = Bytes> {
    /// Whether it has nothing more until it wakes the waker that it was last polled with. This may be so right after
    /// data, too: then it need not be polled once more only to say so.
    fn is_parked(&self) -> bool {
        false
    }
}

impl ParkableBody for Full<Bytes> {}

impl ParkableBody for Empty<Bytes> {}

impl<E> ParkableBody for UnsyncBoxBody<Bytes, E> {}

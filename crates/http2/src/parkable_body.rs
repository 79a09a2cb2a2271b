use bytes::Bytes;
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{Empty, Full};

/// A response body that can report that it has no more data for now.
pub trait ParkableBody: Body<Data = Bytes> {
    /// Whether the body has no more data until it wakes the waker of its last poll.
    ///
    /// A body may be parked right after it returned data. The caller then need not poll it again only to get `Pending`.
    fn is_parked(&self) -> bool {
        false
    }
}

impl ParkableBody for Full<Bytes> {}

impl ParkableBody for Empty<Bytes> {}

impl<E> ParkableBody for UnsyncBoxBody<Bytes, E> {}

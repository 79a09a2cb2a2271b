use std::task::Poll;

use bytes::{Bytes, BytesMut};

/// Joins small slices, so that they are sent together. Large ones are not copied.
#[derive(Debug, Default)]
pub(crate) struct SliceJoiner {
    /// The slice that did not fit with the previous ones.
    next: Option<Bytes>,
}

/// The maximum length of joined slices: that of a TLS record, and by default of an HTTP/2 frame.
const BYTES_MAX: usize = 16 << 10;

impl SliceJoiner {
    /// Returns the next chunk, assembled from the slices that `poll_slice` returns.
    pub(crate) fn poll<E>(
        &mut self,
        mut poll_slice: impl FnMut() -> Poll<Option<Result<Bytes, E>>>,
    ) -> Poll<Option<Result<Bytes, E>>> {
        let mut joined = BytesMut::new();
        loop {
            let slice = match self.next.take() {
                Some(slice) => slice,
                None => match poll_slice() {
                    Poll::Ready(Some(Ok(slice))) => slice,
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                    _ if !joined.is_empty() => return Poll::Ready(Some(Ok(joined.freeze()))),
                    over_or_pending => return over_or_pending,
                },
            };
            if joined.len() + slice.len() <= BYTES_MAX {
                joined.extend_from_slice(&slice);
            } else if joined.is_empty() {
                return Poll::Ready(Some(Ok(slice)));
            } else {
                self.next = Some(slice);
                return Poll::Ready(Some(Ok(joined.freeze())));
            }
        }
    }

    /// Returns whether no slice is left over.
    pub(crate) fn is_empty(&self) -> bool {
        self.next.is_none()
    }
}

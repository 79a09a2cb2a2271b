use std::task::Poll;

use bytes::{Bytes, BytesMut};

/// Small slices are sent together, and large ones are not copied.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    /// A slice that did not fit with those before it.
    next: Option<Bytes>,
}

/// Slices are joined up to here: as much as a TLS record has, and a frame of HTTP/2 by default.
const BYTES_MAX: usize = 16 << 10;

impl Joined {
    /// The next chunk of what `poll_slice` gives.
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

    /// Whether there is nothing left but what `poll_slice` gives.
    pub(crate) fn is_empty(&self) -> bool {
        self.next.is_none()
    }
}

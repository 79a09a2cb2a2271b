use std::sync::Arc;

use bytes::Bytes;
use futures_util::task::ArcWake as _;
use http::Response;
use slab::Slab;
use tokio::time::Instant;

use super::received_body::ReceivedBodyBuffer;
use super::wake_set::StreamWaker;
use super::windows::grow;
use base::{AbortSignal, MemoryCharge};

/// A request and its response. `F` is the future that creates the response, and `B` the response body.
pub(super) struct Http2Exchange<F, B> {
    pub(super) id: u32,
    pub(super) phase: ExchangePhase<F, B>,
    /// The rest of the last chunk taken from the response body.
    pub(super) chunk: Bytes,
    /// Whether the chunk is the last one of the body.
    pub(super) is_last: bool,
    /// The number of bytes that the client accepts on the stream. Negative after the client has reduced its initial
    /// window.
    pub(super) window: i64,
    /// The request body, until it is complete.
    pub(super) upload: Option<Box<RequestUpload>>,
    /// The waker that the stream is polled with.
    pub(super) waker: Arc<StreamWaker>,
    pub(super) abort: AbortSignal,
    /// The deadline of the stream, if its time is limited.
    pub(super) deadline: Option<Instant>,
    /// The number of times that the stream was polled, up to [`LASTING_POLLS`].
    pub(super) polls: u8,
    /// Whether the stream waits for room in the output, or for the connection's window.
    pub(super) is_waiting: bool,
}

pub(super) enum ExchangePhase<F, B> {
    Handling {
        future: F,
        /// The charge for the request's head, which is held until there is a response.
        head: MemoryCharge,
    },
    /// The response's head waits for room in the output.
    HeadReady {
        response: Box<Response<B>>,
        _head: MemoryCharge,
    },
    /// The stream is between two states while it is being changed.
    Transition,
    SendingBody(B),
}

/// The number of polls after which a stream counts as lasting. Other streams may end with the next write, so a write
/// and a TLS record of their own would be too much for them.
const LASTING_POLLS: u8 = 8;

/// The incoming body of a request.
pub(super) struct RequestUpload {
    pub(super) inbox: Arc<ReceivedBodyBuffer>,
    /// The number of bytes that the client may still send on the stream.
    pub(super) window: usize,
    /// The number of bytes that were read from the body and not yet returned to the client's window.
    pub(super) unacked: usize,
    /// Whether the request body is complete.
    pub(super) has_ended: bool,
    /// The charge for the trailers, if there are any.
    pub(super) trailers: Option<MemoryCharge>,
}

impl Drop for RequestUpload {
    /// Reports the end of the body to its reader, as broken off if it is incomplete.
    fn drop(&mut self) {
        self.inbox.abort();
    }
}

impl<F, B> Http2Exchange<F, B> {
    pub(super) fn count_poll(&mut self) {
        self.polls = (self.polls + 1).min(LASTING_POLLS);
    }

    pub(super) fn is_long_lived(&self) -> bool {
        self.polls == LASTING_POLLS
    }

    /// Changes the stream's window, and wakes the stream if the window was closed. Returns `None` if the window exceeds
    /// its maximum.
    pub(super) fn widen(&mut self, by: i64) -> Option<()> {
        let was_closed = self.window <= 0;
        grow(&mut self.window, by)?;
        if was_closed {
            self.wake();
        }
        Some(())
    }

    /// Schedules another poll of the stream.
    pub(super) fn wake(&self) {
        StreamWaker::wake_by_ref(&self.waker);
    }

    /// Whether the client may still send part of its request.
    pub(super) fn is_receiving(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| !upload.has_ended)
    }

    /// Returns the number of bytes of the request that the client may still send.
    pub(super) fn upload_window(&self) -> usize {
        self.upload.as_ref().filter(|upload| !upload.has_ended).map_or(0, |upload| upload.window)
    }
}

/// The streams of a connection, by key and by stream identifier.
pub(super) struct StreamTable<F, B> {
    by_key: Slab<Http2Exchange<F, B>>,
    /// The stream identifiers with their keys. They are sorted, because stream identifiers only increase.
    keys: Vec<(u32, usize)>,
}

impl<F, B> StreamTable<F, B> {
    pub(super) fn new() -> Self {
        Self { by_key: Slab::new(), keys: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Returns the key that the next stream gets.
    pub(super) fn next_key(&self) -> usize {
        self.by_key.vacant_key()
    }

    pub(super) fn put(&mut self, stream: Http2Exchange<F, B>) {
        let id = stream.id;
        self.keys.push((id, self.by_key.insert(stream)));
    }

    pub(super) fn key(&self, id: u32) -> Option<usize> {
        let index = self.keys.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(self.keys[index].1)
    }

    /// Returns the stream with the identifier `id`.
    pub(super) fn with_id(&mut self, id: u32) -> Option<&mut Http2Exchange<F, B>> {
        self.key(id).and_then(|key| self.by_key.get_mut(key))
    }

    pub(super) fn get_mut(&mut self, key: usize) -> Option<&mut Http2Exchange<F, B>> {
        self.by_key.get_mut(key)
    }

    pub(super) fn get(&self, key: usize) -> Option<&Http2Exchange<F, B>> {
        self.by_key.get(key)
    }

    /// Returns the keys of all streams.
    pub(super) fn keys(&self) -> Vec<usize> {
        self.keys.iter().map(|(_, key)| *key).collect()
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Http2Exchange<F, B>> {
        self.by_key.iter_mut().map(|(_, stream)| stream)
    }

    pub(super) fn remove(&mut self, key: usize) -> Option<Http2Exchange<F, B>> {
        let stream = self.by_key.try_remove(key)?;
        if let Ok(index) = self.keys.binary_search_by_key(&stream.id, |(id, _)| *id) {
            self.keys.remove(index);
        }
        Some(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is one for each watch.
    #[test]
    fn stream_state_size_is_bounded() {
        // The response future is boxed, and so are the large parts of the body.
        type Stream = Http2Exchange<Box<()>, [usize; 7]>;
        assert!(size_of::<Stream>() <= 160, "{} bytes", size_of::<Stream>());
    }
}

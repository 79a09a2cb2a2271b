//! The number of streams that a server allows on one HTTP/2 connection. The HTTP library does not expose it and queues
//! requests beyond it, which would wait forever behind watches. Therefore it is parsed from the received bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBuf, ReadBufCursor};

use tokio::sync::watch;

/// The last limit that the servers of one shard of a pool announced. Clones share the value.
#[derive(Debug, Clone)]
pub(super) struct AnnouncedStreamLimit(watch::Sender<u32>);

impl AnnouncedStreamLimit {
    pub(super) fn new(presumed: u32) -> Self {
        Self(watch::Sender::new(presumed))
    }

    pub(super) fn get(&self) -> u32 {
        *self.0.borrow()
    }

    /// Records an announced limit. One stream is always tried: a server that allows none at the moment may allow one
    /// later.
    fn set(&self, limit: u32) {
        self.0.send_replace(limit.max(1));
    }

    /// Completes when the limit turns out to be exceeded by a request with `before` streams before it.
    pub(super) async fn is_exceeded_by(&self, before: u32) {
        // The caller holds the sender, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|limit| *limit <= before).await;
    }
}

/// Parses the first frame of a server, which contains its settings (RFC 9113 §3.4).
#[derive(Debug)]
pub(super) struct FirstSettingsFrame {
    /// The received part of the server's first frame; `None` once it is complete, or is another frame.
    read: Option<Vec<u8>>,
    limit: AnnouncedStreamLimit,
}

const FRAME_HEAD: usize = 9;
const SETTINGS: u8 = 4;
const MAX_CONCURRENT_STREAMS: u16 = 3;
/// The default maximum frame size (RFC 9113 §4.2), in bytes.
const PAYLOAD_MAX: usize = 1 << 14;
/// The read size until the frame is complete, in bytes.
const PART: usize = 256;

impl FirstSettingsFrame {
    /// Creates a parser. If `is_h2` is false, nothing is parsed.
    pub(super) fn new(limit: AnnouncedStreamLimit, is_h2: bool) -> Self {
        Self { read: is_h2.then(Vec::new), limit }
    }

    /// Reads from `io`, and parses the bytes until the frame is complete.
    pub(super) fn poll_read<T: Read + Unpin>(
        &mut self,
        io: Pin<&mut T>,
        cx: &mut Context<'_>,
        mut to: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(read) = &mut self.read else { return io.poll_read(cx, to) };
        let mut part = [0; PART];
        let room = to.remaining().min(PART);
        let mut buffer = ReadBuf::new(&mut part[..room]);
        ready!(io.poll_read(cx, buffer.unfilled()))?;
        to.put_slice(buffer.filled());
        read.extend_from_slice(buffer.filled());
        if let Some(limit) = limit_in(read) {
            // A server that announces no limit allows any number.
            self.limit.set(limit.unwrap_or(u32::MAX));
            self.read = None;
        } else if read.len() > FRAME_HEAD + PAYLOAD_MAX {
            self.read = None;
        }
        Poll::Ready(Ok(()))
    }
}

/// Returns the stream limit in a server's first frame; the outer `None` means that the frame is incomplete.
#[expect(clippy::option_option, reason = "not yet, and not at all")]
fn limit_in(bytes: &[u8]) -> Option<Option<u32>> {
    let (head, payload) = bytes.split_at_checked(FRAME_HEAD)?;
    if head[3] != SETTINGS {
        return Some(None);
    }
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let settings = payload.get(..length)?.chunks_exact(6);
    let mut values = settings.filter(|one| u16::from_be_bytes([one[0], one[1]]) == MAX_CONCURRENT_STREAMS);
    // If the setting is repeated, the last value applies.
    Some(values.next_back().map(|one| u32::from_be_bytes([one[2], one[3], one[4], one[5]])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(announced: &[(u16, u32)]) -> Vec<u8> {
        let payload: Vec<u8> =
            announced.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        [&length[1..], &[SETTINGS, 0, 0, 0, 0, 0], &payload].concat()
    }

    #[test]
    fn stream_limit_is_last_value_in_first_settings_frame() {
        for (announced, limit) in [
            (vec![], None),
            (vec![(4, 7)], None),
            (vec![(3, 100)], Some(100)),
            (vec![(1, 4_096), (3, 0), (4, 7)], Some(0)),
            (vec![(3, 5), (3, 6)], Some(6)),
        ] {
            let frame = settings(&announced);
            assert_eq!(limit_in(&frame), Some(limit), "{announced:?}");
            let cut = (0..frame.len()).find(|length| limit_in(&frame[..*length]).is_some());
            assert_eq!(cut, None, "{announced:?}: not before it is whole");
            assert_eq!(limit_in(&[frame, vec![0; 40]].concat()), Some(limit), "{announced:?}: whatever follows");
        }
        assert_eq!(limit_in(b"HTTP/1.1 400 Bad Request"), Some(None), "no frame of that kind");
    }

    #[tokio::test]
    async fn only_streams_above_limit_are_notified() {
        let limit = AnnouncedStreamLimit::new(u32::MAX);
        let waiting = |before| {
            let limit = limit.clone();
            tokio::spawn(async move { limit.is_exceeded_by(before).await })
        };
        let [first, second, third] = [0, 1, 2].map(waiting);
        tokio::task::yield_now().await;
        limit.set(2);
        third.await.expect("no panic");
        assert!(!first.is_finished() && !second.is_finished());
        limit.set(0);
        second.await.expect("no panic");
        assert!(!first.is_finished(), "one is always tried");
        first.abort();
    }
}

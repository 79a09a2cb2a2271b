use std::cell::Cell;
use std::io::{self, IoSlice};
use std::mem::{replace, take};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::error::Http2ErrorCode;
use super::frame::{ACK, END_HEADERS, END_STREAM, HEAD_BYTES, HIGHEST, Http2FrameHeader, Http2FrameType};

/// The output of a connection. The frames of a turn are buffered and go out in a few large writes. Each write to a TLS
/// stream costs a record and a system call.
#[derive(Debug, Default)]
pub(super) struct FrameOutputBuffer {
    /// The complete frames that were not written yet. An idle connection keeps no buffer.
    buffer: Vec<u8>,
    /// The number of bytes of `buffer` that have been written.
    sent: usize,
    /// Whether the underlying stream may hold written data that is not flushed.
    is_unflushed: bool,
}

/// The maximum number of bytes of responses that are buffered: four full TLS records, which rustls takes at a time.
pub(super) const BUFFERED_BYTES_MAX: usize = 64 << 10;
/// The maximum number of bytes that wait for a client that does not read, including control frames.
const WAITING_BYTES_MAX: usize = 2 * BUFFERED_BYTES_MAX;
/// The size above which data is written directly. Smaller data is buffered, unless nothing else is sent.
pub(super) const COPIED_BYTES_MAX: usize = 8 << 10;
/// The number of data bytes of a frame that fills a TLS record.
const RECORD_DATA: usize = (16 << 10) - HEAD_BYTES;
/// The number of full frames in one write.
const RECORDS: usize = 4;
/// The number of data bytes in one write.
pub(super) const DIRECT_BYTES_MAX: usize = RECORDS * RECORD_DATA;

thread_local! {
    /// The buffer that all connections of a thread use in turn, so that it stays in the processor's cache.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl FrameOutputBuffer {
    /// Whether no more response data is accepted for now.
    pub(super) fn is_full(&self) -> bool {
        self.waiting() >= BUFFERED_BYTES_MAX
    }

    /// Whether so much output waits that reading must pause, because input may require replies.
    pub(super) fn is_over_limit(&self) -> bool {
        self.waiting() >= WAITING_BYTES_MAX
    }

    fn waiting(&self) -> usize {
        self.buffer.len() - self.sent
    }

    /// Returns the size of the connection's own buffer.
    #[cfg(test)]
    pub(super) fn buffer_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Appends a frame to the output.
    pub(super) fn put(&mut self, kind: Http2FrameType, flags: u8, stream: u32, payload: &[u8]) {
        if self.buffer.capacity() == 0 {
            self.buffer = SPARE.take();
            if self.buffer.capacity() == 0 {
                self.buffer.reserve_exact(WAITING_BYTES_MAX);
            }
        }
        self.buffer.extend_from_slice(&Http2FrameHeader::new(kind, flags, stream, payload.len()).bytes());
        self.buffer.extend_from_slice(payload);
    }

    /// Appends a header block, in as many frames as the client's limit requires.
    pub(super) fn put_block(&mut self, stream: u32, block: &[u8], ends: bool, frame_bytes_max: usize) {
        let (mut kind, mut flags, mut rest) = (Http2FrameType::Headers, if ends { END_STREAM } else { 0 }, block);
        while let Some((part, more)) = rest.split_at_checked(frame_bytes_max).filter(|(_, more)| !more.is_empty()) {
            self.put(kind, flags, stream, part);
            (kind, flags, rest) = (Http2FrameType::Continuation, 0, more);
        }
        self.put(kind, flags | END_HEADERS, stream, rest);
    }

    pub(super) fn put_reset(&mut self, stream: u32, reason: Http2ErrorCode) {
        self.put(Http2FrameType::Reset, 0, stream, &(reason as u32).to_be_bytes());
    }

    pub(super) fn put_goaway(&mut self, last: u32, reason: Http2ErrorCode) {
        let [last, reason] = [last, reason as u32].map(u32::to_be_bytes);
        self.put(Http2FrameType::GoAway, 0, 0, &[last, reason].concat());
    }

    pub(super) fn put_ping(&mut self, opaque: [u8; 8]) {
        self.put(Http2FrameType::Ping, 0, 0, &opaque);
    }

    pub(super) fn put_pong(&mut self, opaque: [u8; 8]) {
        self.put(Http2FrameType::Ping, ACK, 0, &opaque);
    }

    /// Returns window to the client: that of a stream, or of the connection for stream 0.
    pub(super) fn put_window(&mut self, stream: u32, bytes: usize) {
        let increment = u32::try_from(bytes).unwrap_or(HIGHEST).min(HIGHEST);
        self.put(Http2FrameType::WindowUpdate, 0, stream, &increment.to_be_bytes());
    }

    /// Writes data directly, without a copy before encryption.
    ///
    /// At most [`DIRECT_BYTES_MAX`] are written, in frames of one TLS record each. Buffered frames go out first. A
    /// frame that is written in part is buffered. `flags` are those of the last frame. Returns how much of the data was
    /// taken, which may be zero.
    pub(super) fn put_directly<I: AsyncWrite + Unpin>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
        (flags, stream, data): (u8, u32, &[u8]),
    ) -> io::Result<usize> {
        if data.is_empty() || self.poll_out(io, cx)?.is_pending() {
            return Ok(0);
        }
        let (flags, data) = match data.split_at_checked(DIRECT_BYTES_MAX) {
            Some((first, rest)) if !rest.is_empty() => (0, first),
            _ => (flags, data),
        };
        // Frames of equal size, because the last one might otherwise be a record of a few bytes.
        let size = data.len().div_ceil(data.len().div_ceil(RECORD_DATA));
        let count = data.len().div_ceil(size);
        let mut frames = [([0; HEAD_BYTES], &data[..0]); RECORDS];
        for (index, (frame, part)) in frames.iter_mut().zip(data.chunks(size)).enumerate() {
            let flags = if index + 1 == count { flags } else { 0 };
            *frame = (Http2FrameHeader::new(Http2FrameType::Data, flags, stream, part.len()).bytes(), part);
        }
        let mut slices = [IoSlice::new(&[]); 2 * RECORDS];
        for (pair, (head, part)) in slices.chunks_exact_mut(2).zip(&frames) {
            (pair[0], pair[1]) = (IoSlice::new(head), IoSlice::new(part));
        }
        let Poll::Ready(mut written) = Pin::new(io).poll_write_vectored(cx, &slices[..2 * count])? else {
            return Ok(0);
        };
        self.is_unflushed = true;
        let mut taken = 0;
        for (head, part) in &frames[..count] {
            if written == 0 {
                break;
            }
            if written < HEAD_BYTES + part.len() {
                self.buffer.extend_from_slice(&head[written.min(HEAD_BYTES)..]);
                self.buffer.extend_from_slice(&part[written.saturating_sub(HEAD_BYTES)..]);
            }
            written = written.saturating_sub(HEAD_BYTES + part.len());
            taken += part.len();
        }
        Ok(taken)
    }

    /// Writes the buffered frames, as far as the underlying stream accepts them.
    pub(super) fn poll_out<I: AsyncWrite + Unpin>(&mut self, io: &mut I, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.waiting() > 0 {
            let written = ready!(Pin::new(&mut *io).poll_write(cx, &self.buffer[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
            self.is_unflushed = true;
        }
        self.buffer.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Ends a turn: writes and flushes all frames, and keeps only those that the client does not accept yet.
    pub(super) fn poll_flush<I: AsyncWrite + Unpin>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let out = self.poll_out(io, cx);
        self.return_spare();
        ready!(out)?;
        if self.is_unflushed {
            ready!(Pin::new(io).poll_flush(cx))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Gives the thread's shared buffer back, and keeps unsent frames in a buffer of the connection's own.
    pub(super) fn return_spare(&mut self) {
        if self.buffer.capacity() < WAITING_BYTES_MAX {
            // This buffer held the rest that a client did not accept at once.
            if self.waiting() == 0 {
                (self.buffer, self.sent) = (Vec::new(), 0);
            }
            return;
        }
        let rest = self.buffer[take(&mut self.sent)..].to_vec();
        let mut spare = replace(&mut self.buffer, rest);
        spare.clear();
        SPARE.set(spare);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use futures_util::FutureExt as _;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    fn cx() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[tokio::test]
    async fn frames_are_sent_in_order_and_idle_output_frees_buffer() {
        let (mut near, mut far) = tokio::io::duplex(1 << 20);
        let mut output = FrameOutputBuffer::default();
        output.put_pong(*b"12345678");
        output.put_reset(3, Http2ErrorCode::Refused);
        assert_eq!(output.put_directly(&mut near, &mut cx(), (END_STREAM, 5, b"data")).expect("open"), 4);
        assert!(output.poll_flush(&mut near, &mut cx()).is_ready() && output.waiting() == 0);
        assert_eq!(output.buffer.capacity(), 0);
        let mut seen = vec![0; 17 + 13 + 13];
        far.read_exact(&mut seen).await.expect("open");
        assert_eq!(&seen[..17], b"\x00\x00\x08\x06\x01\x00\x00\x00\x0012345678");
        assert_eq!(seen[17..30], [0, 0, 4, 3, 0, 0, 0, 0, 3, 0, 0, 0, 7]);
        assert_eq!(&seen[30..], b"\x00\x00\x04\x00\x01\x00\x00\x00\x05data");
    }

    #[tokio::test]
    async fn output_buffers_only_bytes_the_socket_did_not_accept() {
        let (mut near, mut far) = tokio::io::duplex(10);
        let mut output = FrameOutputBuffer::default();
        assert_eq!(output.put_directly(&mut near, &mut cx(), (0, 1, b"abcd")).expect("open"), 4);
        assert_eq!(output.put_directly(&mut near, &mut cx(), (0, 1, b"later")).expect("open"), 0, "others come first");
        output.put(Http2FrameType::Data, 0, 1, &[b'x'; 200]);
        let sent = 13 + 9 + 200;
        let (mut seen, mut most) = (Vec::new(), 0);
        while seen.len() < sent {
            let _ = output.poll_flush(&mut near, &mut cx());
            most = most.max(output.buffer.capacity());
            let mut some = [0; 10];
            let count = far.read(&mut some).await.expect("open");
            seen.extend_from_slice(&some[..count]);
        }
        assert_eq!(&seen[9..13], b"abcd");
        assert_eq!(&seen[22..], [b'x'; 200]);
        assert!(most <= 300, "{most}");
        assert!(output.poll_flush(&mut near, &mut cx()).is_ready());
        assert_eq!(output.buffer.capacity(), 0, "no buffer is kept afterwards");
    }

    /// The bytes that the client receives equal those that were put, whatever the sizes of its reads, and each frame is
    /// one TLS record.
    #[tokio::test]
    async fn large_data_is_sent_as_one_frame_per_tls_record() {
        let sent: Vec<u8> = (0..=250).cycle().take(3 * RECORD_DATA + 100).collect();
        for room in [1 << 20, RECORD_DATA + HEAD_BYTES, 20_000, 5] {
            let (mut near, mut far) = tokio::io::duplex(room);
            let mut output = FrameOutputBuffer::default();
            let (mut seen, mut put) = (Vec::new(), 0);
            while put < sent.len() || output.waiting() > 0 {
                let rest = (END_STREAM, 7, &sent[put..]);
                let taken = output.put_directly(&mut near, &mut cx(), rest).expect("open");
                assert!(taken == 0 || output.waiting() <= HEAD_BYTES + RECORD_DATA, "at most one frame is buffered");
                put += taken;
                let _ = output.poll_flush(&mut near, &mut cx());
                // The in-memory pipe yields after a number of operations.
                tokio::task::yield_now().await;
                let mut some = vec![0; room.min(1 << 17)];
                if let Some(count) = far.read(&mut some).now_or_never() {
                    seen.extend_from_slice(&some[..count.expect("open")]);
                }
            }
            drop((near, output));
            far.read_to_end(&mut seen).await.expect("open");
            let (mut data, mut flags) = (Vec::new(), Vec::new());
            while let Some(head) = Http2FrameHeader::read(&seen) {
                assert!(head.length <= RECORD_DATA);
                flags.push(head.flags);
                data.extend_from_slice(&seen[HEAD_BYTES..HEAD_BYTES + head.length]);
                seen.drain(..HEAD_BYTES + head.length);
            }
            assert!(data == sent, "{room}");
            let last = flags.pop();
            assert!(last == Some(END_STREAM) && flags.iter().all(|flags| *flags == 0), "{room}");
        }
    }

    #[tokio::test]
    async fn end_stream_is_set_only_on_last_part_of_data() {
        let (mut near, mut far) = tokio::io::duplex(1 << 20);
        let mut output = FrameOutputBuffer::default();
        let data = vec![b'x'; DIRECT_BYTES_MAX + 1];
        let taken = output.put_directly(&mut near, &mut cx(), (END_STREAM, 1, &data)).expect("open");
        assert_eq!(taken, DIRECT_BYTES_MAX);
        drop(near);
        let mut seen = Vec::new();
        far.read_to_end(&mut seen).await.expect("open");
        assert_eq!(seen.len(), RECORDS << 14, "each fills a record");
        assert_eq!(Http2FrameHeader::read(&seen[3 << 14..]).expect("whole").flags, 0);
    }

    #[tokio::test]
    async fn output_reports_full_then_stuck_when_client_does_not_read() {
        let (mut near, _far) = tokio::io::duplex(10);
        let mut output = FrameOutputBuffer::default();
        output.put(Http2FrameType::Data, 0, 1, &vec![0; BUFFERED_BYTES_MAX + 10]);
        assert!(output.poll_flush(&mut near, &mut cx()).is_pending());
        assert!(output.is_full() && !output.is_over_limit());
        while !output.is_over_limit() {
            output.put_pong([0; 8]);
        }
        assert!(output.waiting() < WAITING_BYTES_MAX + 17);
    }

    #[test]
    fn large_header_block_is_split_into_continuation_frames() {
        let mut output = FrameOutputBuffer::default();
        output.put_block(1, &[7; 25], true, 10);
        let frames: Vec<_> = [(10, 1, END_STREAM), (10, 9, 0), (5, 9, END_HEADERS)].into();
        let mut at = 0;
        for (length, kind, flags) in frames {
            let head = Http2FrameHeader::read(&output.buffer[at..]).expect("whole");
            assert_eq!((head.length, head.kind as u8, head.flags), (length, kind, flags));
            at += HEAD_BYTES + length;
        }
        assert_eq!(at, output.buffer.len());
        let mut one = FrameOutputBuffer::default();
        one.put_block(1, &[7; 10], false, 10);
        assert_eq!(one.buffer.len(), 19);
    }
}

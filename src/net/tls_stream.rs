//! A TLS stream whose connection keeps little of what its client sends faster than it is read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http2::ConnectionHeadBudget;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server;

use super::filtered_stream::{FilteredStream, ReadFilter};

/// The server's side of TLS. It is boxed, because every future that it is moved through has room for it.
///
/// If a client's record is not read whole at once, only its plaintext is kept: the next one is not begun, and the
/// codec's buffer, which has grown for the record, shrinks again.
pub(super) type TlsStream<I> = FilteredStream<Box<server::TlsStream<TlsRecordReader<I>>>, BufferShrinker>;

/// A byte stream that carries TLS. A read that begins within a record ends with it.
pub(super) type TlsRecordReader<I> = FilteredStream<I, RecordBounds>;

/// Shrinks the codec's buffer after a record.
#[derive(Debug)]
pub(super) struct BufferShrinker;

/// The bounds of the records that are read, and the size of the client's handshake while it is unfinished.
#[derive(Debug)]
pub(super) struct RecordBounds {
    heads: Arc<ConnectionHeadBudget>,
    /// The number of bytes that were read for the handshake; `None` after it.
    handshake: Option<usize>,
    /// The head of the next TLS record, as far as it was read (RFC 8446 §5.1).
    head: [u8; HEAD_BYTES],
    head_read: usize,
    /// The number of bytes of the current TLS record that have not been read.
    left: usize,
}

const HEAD_BYTES: usize = 5;

/// The error of a handshake that does not fit into the budget for unfinished heads. A client without credentials can
/// send 64 KiB of it.
#[derive(Debug, thiserror::Error)]
#[error("the incomplete TLS handshakes of all connections are too large")]
struct HandshakeBudgetExceeded;

/// A stream that has nothing to read now.
struct NoDataReady;

impl<I> TlsStream<I> {
    pub(super) fn new(mut shaken: server::TlsStream<TlsRecordReader<I>>) -> Self {
        shaken.get_mut().0.filter.end_handshake();
        Self { io: Box::new(shaken), filter: BufferShrinker }
    }

    /// Whether the TLS stream is between two records: no record was read in part.
    #[cfg(test)]
    pub(super) fn is_between_records(&self) -> bool {
        let RecordBounds { head_read, left, .. } = self.io.get_ref().0.filter;
        (head_read, left) == (0, 0)
    }

    /// Returns the certificates that the client has sent.
    pub(super) fn certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.io.get_ref().1.peer_certificates()
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> ReadFilter<Box<server::TlsStream<I>>> for BufferShrinker {
    fn poll_read(
        &mut self,
        io: &mut Box<server::TlsStream<I>>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut *io).poll_read(cx, buf);
        let (_, session) = io.get_mut();
        if !session.wants_read() {
            // The codec looks at the size of its buffer when it is to read. There is nothing to read, which is no end.
            let _ = session.read_tls(&mut NoDataReady);
        }
        read
    }
}

impl io::Read for NoDataReady {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl<I> TlsRecordReader<I> {
    /// Creates the reader of a connection, which begins with a handshake. Its size counts against `heads`.
    pub(super) fn of(io: I, heads: Arc<ConnectionHeadBudget>) -> Self {
        Self { io, filter: RecordBounds { heads, handshake: Some(0), head: [0; HEAD_BYTES], head_read: 0, left: 0 } }
    }
}

impl RecordBounds {
    fn end_handshake(&mut self) {
        self.handshake = None;
        self.heads.hold_unfinished(0);
    }

    fn count_handshake(&mut self, read: usize) -> Result<(), HandshakeBudgetExceeded> {
        let Some(bytes) = &mut self.handshake else { return Ok(()) };
        *bytes += read;
        if self.heads.hold_unfinished(*bytes) { Ok(()) } else { Err(HandshakeBudgetExceeded) }
    }

    /// Tracks where the TLS records end that the bytes belong to.
    fn note(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let taken = self.left.min(bytes.len());
                self.left -= taken;
                bytes = &bytes[taken..];
                continue;
            }
            let taken = (HEAD_BYTES - self.head_read).min(bytes.len());
            self.head[self.head_read..self.head_read + taken].copy_from_slice(&bytes[..taken]);
            self.head_read += taken;
            bytes = &bytes[taken..];
            if self.head_read == HEAD_BYTES {
                self.head_read = 0;
                self.left = u16::from_be_bytes([self.head[3], self.head[4]]).into();
            }
        }
    }
}

impl<I: AsyncRead + Unpin> ReadFilter<I> for RecordBounds {
    fn poll_read(&mut self, io: &mut I, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = buf.remaining();
        let room = if self.left > 0 { room.min(self.left) } else { room };
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(room));
        ready!(Pin::new(io).poll_read(cx, &mut part))?;
        self.note(part.filled());
        let read = part.filled().len();
        buf.advance(read);
        Poll::Ready(self.count_handshake(read).map_err(io::Error::other))
    }
}

#[cfg(test)]
mod tests {
    use http2::RequestHeadBudget;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// A record with a payload of so many bytes.
    fn record(bytes: usize) -> Vec<u8> {
        let length = u16::try_from(bytes).expect("a record").to_be_bytes();
        [&[23, 3, 3, length[0], length[1]][..], &vec![b'x'; bytes]].concat()
    }

    fn reader(sent: &[u8]) -> TlsRecordReader<&[u8]> {
        TlsRecordReader::of(sent, Arc::<RequestHeadBudget>::default().connection())
    }

    #[tokio::test]
    async fn large_handshake_beyond_budget_fails() {
        let budget = Arc::<RequestHeadBudget>::default();
        let others = budget.connection();
        assert!(others.hold_unfinished((16 << 20) + (16 << 10)));
        let sent = vec![0; 96_000];
        let mut records = TlsRecordReader::of(&sent[..], budget.connection());
        let mut read = vec![0; 16 << 10];
        assert!(records.read_exact(&mut read).await.is_ok(), "a handshake that is not large");
        assert!(records.read_exact(&mut read).await.is_err());
        records.filter.end_handshake();
        assert!(records.read_exact(&mut read).await.is_ok(), "the handshake is over");
    }

    #[tokio::test]
    async fn small_read_ends_at_tls_record_boundary() {
        let sizes = [1_000, 0, 200, 9_000, 16_000, 3];
        let sent = sizes.map(record).concat();
        for (buffer, expected) in
            [(4_096, &[4_096, 4_096, 2_028, 4_096, 4_096, 4_096, 3_717, 8][..]), (30_000, &[26_233][..]), (8, &[])]
        {
            let (mut records, mut buffer, mut reads) = (reader(&sent), vec![0; buffer], Vec::new());
            let mut seen = Vec::new();
            loop {
                let read = records.read(&mut buffer).await.expect("open");
                if read == 0 {
                    break;
                }
                seen.extend_from_slice(&buffer[..read]);
                reads.push(read);
            }
            assert!(seen == sent && (records.filter.left, records.filter.head_read) == (0, 0));
            assert!(expected.is_empty() || reads == expected, "{reads:?}");
        }
    }
}

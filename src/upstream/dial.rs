//! Opens connections to upstream: over TCP, or within this process.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio::net::TcpStream;
use tower::Service;

use base::{DESCRIPTOR_TRIES, lacks_descriptor, want_descriptor};

/// An upstream within this process, without a socket, for tests and simulations with a virtual clock, which a kernel
/// does not follow.
#[derive(Clone)]
pub struct InMemoryUpstream {
    connect: Arc<dyn Fn() -> Option<DuplexStream> + Send + Sync>,
    /// Whether connections use HTTP/2, as with an apiserver.
    multiplexes: bool,
    /// The maximum number of idle connections of a pool.
    idle_max: usize,
}

impl InMemoryUpstream {
    /// Creates an upstream to which `connect` opens connections; if it returns `None`, the upstream is unreachable.
    pub fn new(connect: impl Fn() -> Option<DuplexStream> + Send + Sync + 'static, multiplexes: bool) -> Self {
        Self { connect: Arc::new(connect), multiplexes, idle_max: usize::MAX }
    }

    /// Returns the same upstream with a new connection for each request, so that no idle connection can be closed.
    #[cfg(test)]
    pub(super) fn without_idle(self) -> Self {
        Self { idle_max: 0, ..self }
    }

    pub(super) fn idle_max(&self) -> usize {
        self.idle_max
    }

    /// Returns the same upstream for a pool that does or does not multiplex requests with HTTP/2.
    pub(super) fn speaking(&self, multiplexes: bool) -> Self {
        Self { multiplexes: self.multiplexes && multiplexes, ..self.clone() }
    }
}

impl fmt::Debug for InMemoryUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryUpstream").field("multiplexes", &self.multiplexes).finish_non_exhaustive()
    }
}

impl PartialEq for InMemoryUpstream {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.connect, &other.connect)
    }
}

impl Eq for InMemoryUpstream {}

/// Opens the connections of one pool to upstream.
#[derive(Clone, Debug)]
pub(super) enum Dialer {
    Tcp(HttpConnector),
    Memory(InMemoryUpstream),
}

/// A connection to upstream, before TLS.
#[derive(Debug)]
pub(super) enum Dialled {
    Tcp(TokioIo<TcpStream>),
    Memory { io: TokioIo<DuplexStream>, multiplexes: bool },
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Service<Uri> for Dialer {
    type Response = Dialled;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<Dialled, Failure>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        match self {
            Self::Tcp(tcp) => tcp.poll_ready(cx).map_err(Into::into),
            Self::Memory(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        match self {
            Self::Tcp(tcp) => Box::pin(dial(tcp.clone(), uri)),
            Self::Memory(InMemoryUpstream { connect, multiplexes, .. }) => {
                let (io, multiplexes) = (connect(), *multiplexes);
                Box::pin(async move {
                    let io = TokioIo::new(io.ok_or(io::ErrorKind::ConnectionRefused).map_err(io::Error::from)?);
                    Ok(Dialled::Memory { io, multiplexes })
                })
            }
        }
    }
}

/// Opens a TCP connection. If the process is out of file descriptors, idle client connections are closed first.
async fn dial(mut tcp: HttpConnector, uri: Uri) -> Result<Dialled, Failure> {
    for _ in 0..DESCRIPTOR_TRIES {
        match tcp.call(uri.clone()).await {
            Err(error) if lacks_descriptor(&error) => want_descriptor().await,
            dialled => return Ok(Dialled::Tcp(dialled?)),
        }
    }
    Ok(Dialled::Tcp(tcp.call(uri).await?))
}

impl Connection for Dialled {
    fn connected(&self) -> Connected {
        match self {
            Self::Tcp(io) => io.connected(),
            Self::Memory { multiplexes: true, .. } => Connected::new().negotiated_h2(),
            Self::Memory { .. } => Connected::new(),
        }
    }
}

impl Read for Dialled {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_read(cx, buffer),
            Self::Memory { io, .. } => Pin::new(io).poll_read(cx, buffer),
        }
    }
}

impl Write for Dialled {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_write(cx, bytes),
            Self::Memory { io, .. } => Pin::new(io).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_flush(cx),
            Self::Memory { io, .. } => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_shutdown(cx),
            Self::Memory { io, .. } => Pin::new(io).poll_shutdown(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(io) => io.is_write_vectored(),
            Self::Memory { io, .. } => io.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(io) => Pin::new(io).poll_write_vectored(cx, slices),
            Self::Memory { io, .. } => Pin::new(io).poll_write_vectored(cx, slices),
        }
    }
}

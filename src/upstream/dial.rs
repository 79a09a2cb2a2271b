//! Opens connections to upstream: over TCP, or within this process.

use std::fmt;
use std::io;
use std::sync::Arc;

use http::Uri;
use hyper::rt::{Read, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tower::util::BoxCloneSyncService;
use tower::{Service as _, service_fn};

use base::{DESCRIPTOR_TRIES, is_out_of_descriptors, request_descriptor};

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

    pub(super) fn multiplexes(&self) -> bool {
        self.multiplexes
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
pub(super) type UpstreamDialer = BoxCloneSyncService<Uri, DialledConnection, BoxError>;

/// A connection to upstream, before TLS.
pub(super) type DialledConnection = Box<dyn RawConnection>;

pub(super) trait RawConnection: Read + Write + Unpin + Send {}

impl<T: Read + Write + Unpin + Send> RawConnection for T {}

impl Connection for DialledConnection {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Returns a dialer over TCP, or to an upstream within this process.
pub(super) fn dialer(tcp: HttpConnector, memory: Option<&InMemoryUpstream>) -> UpstreamDialer {
    let Some(InMemoryUpstream { connect, .. }) = memory.cloned() else {
        return BoxCloneSyncService::new(service_fn(move |uri| dial(tcp.clone(), uri)));
    };
    BoxCloneSyncService::new(service_fn(move |_| {
        let io = connect().ok_or(io::Error::from(io::ErrorKind::ConnectionRefused));
        async { Ok(Box::new(TokioIo::new(io?)) as DialledConnection) }
    }))
}

/// Opens a TCP connection. If the process is out of file descriptors, idle client connections are closed first.
async fn dial(mut tcp: HttpConnector, uri: Uri) -> Result<DialledConnection, BoxError> {
    for _ in 0..DESCRIPTOR_TRIES {
        match tcp.call(uri.clone()).await {
            Err(error) if is_out_of_descriptors(&error) => request_descriptor().await,
            dialled => return Ok(Box::new(dialled?)),
        }
    }
    Ok(Box::new(tcp.call(uri).await?))
}

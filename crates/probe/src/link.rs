//! Client connections to a server.
//!
//! Because the load generator must use little CPU, one task reads each connection, from the socket to the recognised
//! frame.

mod go_window_updater;
mod h1;
mod h2;
mod ws;

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

pub use self::h1::H1Sender;
pub use self::h2::H2Sender;
pub use self::ws::{WebSocketMessages, WebSocketSender};
use super::protocol::WatchProtocol;
use super::target::{RequestSpec, TargetServer};

/// The timeout of a connection attempt. It is long because a server is slow while it does thousands of handshakes.
const CONNECT: Duration = Duration::from_secs(60);
/// The timeout of a response head. It is long because a proxy may delay a watch while it fills its cache.
const ANSWER: Duration = Duration::from_secs(60);

/// The reason that a request has no response.
#[derive(Debug, thiserror::Error)]
pub enum ProbeRequestError {
    #[error("cannot connect to the server: {0}")]
    Connect(#[from] std::io::Error),
    #[error("no response from the server within {0:?}")]
    Late(Duration),
    #[error("HTTP/1.1 request failed: {0}")]
    H1(#[from] hyper::Error),
    #[error("HTTP/2 request failed: {0}")]
    H2(#[from] ::h2::Error),
    #[error("WebSocket watch failed: {0}")]
    Ws(String),
    #[error("cannot build the request: {0}")]
    Request(#[from] http::Error),
}

/// The number of unread bytes that a connection accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowControlWindows {
    pub stream: u32,
    pub connection: u32,
    /// The kernel's receive buffer in bytes; `None` leaves it to the kernel.
    pub socket: Option<u32>,
    /// Whether HTTP/2 windows are refreshed as Go's client does.
    pub as_go: bool,
}

trait AsyncSocket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> AsyncSocket for T {}

type BoxedSocket = Box<dyn AsyncSocket>;

/// An open connection. It makes progress only while its driver is polled.
pub struct EstablishedConnection {
    pub sender: HttpRequestSender,
    pub driver: ConnectionDriverFuture,
    /// The cipher suite, if the connection uses TLS.
    pub cipher: Option<&'static str>,
}

/// A future that completes when the connection has ended.
pub type ConnectionDriverFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The sending half of a connection. A clone shares the connection.
#[derive(Clone)]
pub enum HttpRequestSender {
    H1(H1Sender),
    H2(H2Sender),
    Ws(WebSocketSender),
}

/// A response whose body has not been read.
pub struct PendingResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: ResponseStream,
}

pub enum ResponseStream {
    H1(hyper::body::Incoming),
    H2(::h2::RecvStream),
    Ws(Box<WebSocketMessages>),
    /// The body of a response that refused the WebSocket.
    Refusal(Option<Bytes>),
}

/// Opens a connection, and completes the TLS handshake.
pub async fn open(
    target: &TargetServer,
    protocol: WatchProtocol,
    windows: FlowControlWindows,
) -> Result<EstablishedConnection, ProbeRequestError> {
    let opening = async {
        let alpn: &[u8] = if protocol == WatchProtocol::H2 { b"h2" } else { b"http/1.1" };
        let (io, cipher) = dial(target, alpn, windows).await?;
        let (sender, driver) = match protocol {
            WatchProtocol::H1 => h1::open(io).await?,
            WatchProtocol::H2 => h2::open(io, windows).await?,
            WatchProtocol::Ws => ws::open(io, target),
        };
        Ok(EstablishedConnection { sender, driver, cipher })
    };
    timeout(CONNECT, opening).await.map_err(|_| ProbeRequestError::Late(CONNECT))?
}

/// Opens a connection. Also returns the cipher suite, if the connection uses TLS.
async fn dial(
    target: &TargetServer,
    alpn: &[u8],
    windows: FlowControlWindows,
) -> Result<(BoxedSocket, Option<&'static str>), ProbeRequestError> {
    if let Some(connect) = target.memory() {
        let stream = connect().ok_or(std::io::ErrorKind::ConnectionRefused).map_err(std::io::Error::from)?;
        return Ok((Box::new(stream), None));
    }
    let addresses = lookup_host(target.authority()).await?;
    let stream = connect(addresses, windows)
        .await
        .unwrap_or_else(|| Err(std::io::Error::other(format!("{}: no address", target.authority()))))?;
    match target.tls(alpn) {
        None => Ok((Box::new(stream), None)),
        Some((config, name)) => {
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            let suite = stream.get_ref().1.negotiated_cipher_suite();
            Ok((Box::new(stream), suite.and_then(|suite| suite.suite().as_str())))
        }
    }
}

/// Connects to the first address that accepts a connection: `localhost` can be `::1` and `127.0.0.1`, and a server may
/// listen on one of them. Returns the error of the last address; `None` without an address.
async fn connect(
    addresses: impl Iterator<Item = SocketAddr>,
    windows: FlowControlWindows,
) -> Option<std::io::Result<TcpStream>> {
    let mut failed = None;
    for address in addresses {
        match connect_to(address, windows).await {
            Ok(stream) => return Some(Ok(stream)),
            Err(error) => failed = Some(Err(error)),
        }
    }
    failed
}

async fn connect_to(address: SocketAddr, windows: FlowControlWindows) -> std::io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(bytes) = windows.socket {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.set_nodelay(true)?;
    socket.connect(address).await
}

impl HttpRequestSender {
    /// Sends a request with a body; returns once the response head has arrived. The driver must be polled concurrently.
    pub async fn send(
        &self,
        target: &TargetServer,
        request: &RequestSpec<'_>,
        body: Bytes,
    ) -> Result<PendingResponse, ProbeRequestError> {
        let answered = async {
            match self {
                Self::H1(sender) => sender.send(target.request(request, false)?, body).await,
                Self::H2(sender) => sender.send(target.request(request, true)?, body).await,
                Self::Ws(sender) => sender.send(target.request(request, false)?).await,
            }
        };
        timeout(ANSWER, answered).await.map_err(|_| ProbeRequestError::Late(ANSWER))?
    }

    /// Sends a request without a body.
    pub async fn get(
        &self,
        target: &TargetServer,
        request: &RequestSpec<'_>,
    ) -> Result<PendingResponse, ProbeRequestError> {
        self.send(target, request, Bytes::new()).await
    }

    /// Whether the connection can no longer send requests.
    pub fn is_closed(&self) -> bool {
        match self {
            Self::H1(sender) => sender.is_closed(),
            // An HTTP/2 connection ends with its driver, so the sender does not track it.
            Self::H2(_) => false,
            Self::Ws(sender) => sender.is_used(),
        }
    }
}

impl ResponseStream {
    /// Returns the next bytes of the body; `None` at its end.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, ProbeRequestError>> {
        match self {
            Self::H1(body) => h1::chunk(body).await,
            Self::H2(body) => h2::chunk(body).await,
            Self::Ws(messages) => messages.next().await,
            Self::Refusal(text) => text.take().map(Ok),
        }
    }

    /// Whether each chunk of the stream is one complete frame.
    pub fn is_of_messages(&self) -> bool {
        matches!(self, Self::Ws(_))
    }

    /// Reads the whole body. Returns the first `bytes_max` bytes at most, and the length of the whole body.
    pub async fn read(&mut self, bytes_max: usize) -> Result<(Vec<u8>, u64), ProbeRequestError> {
        let (mut kept, mut bytes) = (Vec::new(), 0);
        while let Some(chunk) = self.chunk().await {
            let chunk = chunk?;
            bytes += chunk.len() as u64;
            let room = bytes_max.saturating_sub(kept.len()).min(chunk.len());
            kept.extend_from_slice(&chunk[..room]);
        }
        Ok((kept, bytes))
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn next_address_of_a_name_is_tried_if_one_refuses() {
        let windows = FlowControlWindows { stream: 1 << 20, connection: 4 << 20, socket: None, as_go: false };
        let open = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let open = open.local_addr().map(|address| (open, address)).expect("bound");
        let closed = "127.0.0.1:1".parse().expect("an address");
        let connected = connect([closed, open.1].into_iter(), windows).await.expect("there are addresses");
        assert_eq!(connected.expect("the second one accepts").peer_addr().expect("connected"), open.1);
        assert!(connect([closed].into_iter(), windows).await.is_some_and(|result| result.is_err()));
        assert!(connect(std::iter::empty(), windows).await.is_none());
    }
}

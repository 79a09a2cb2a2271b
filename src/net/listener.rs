use std::fmt;
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustix::process::geteuid;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::DuplexStream;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::either::Either;

use super::metrics::ConnectionFailure;
use super::{PeerAddress, system};

/// A listen address: `ADDR:PORT` or `unix:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address (expected IP:PORT (127.0.0.1:8001, [::1]:8001), localhost:PORT or unix:PATH)")]
pub struct ListenAddressError(String);

impl ListenAddress {
    /// Whether only this machine can reach the listening address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => is_loopback(address.ip()),
            Self::Unix(_) => true,
        }
    }
}

/// Whether an IP address is a loopback address, which only this machine can reach.
pub fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<Self, ListenAddressError> {
        let wrong = || ListenAddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Self::Unix(path.into())) };
        }
        let numeric = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => text.to_owned(),
        };
        numeric.parse().map(Self::Tcp).map_err(|_| wrong())
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A bound socket, or its in-memory replacement within this process.
#[derive(Debug)]
pub struct Listener {
    socket: BoundSocket,
    sharing: ListenAddressSharing,
}

#[derive(Debug)]
enum BoundSocket {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        path: PathBuf,
        /// Whether this process created the socket file and has not removed it.
        is_made: bool,
        /// The users that may connect. Other users are rejected, whatever the permissions of the socket file are.
        only_uids: Vec<u32>,
    },
    /// Receives in-memory connections from within this process.
    Memory {
        arrivals: Mutex<mpsc::Receiver<PendingInMemoryConnection>>,
        address: SocketAddr,
    },
}

/// The other processes that listen at the same address. They decide what happens to queued connections when this one
/// stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListenAddressSharing {
    Alone,
    /// The processes have the same user, and each has its own socket (`SO_REUSEPORT`).
    Peers,
    /// The processes have the same socket and queue: the parent, and every process that inherits the socket from it.
    Parent,
}

/// An accepted byte stream, from a socket or from within this process.
pub(super) type AcceptedStream = Either<Either<TcpStream, UnixStream>, DuplexStream>;

/// Connects to a [`Listener`] within this process, without a socket. Simulations use it, because the
/// kernel does not follow their clock.
#[derive(Debug, Clone)]
pub struct InMemoryConnector {
    arrivals: mpsc::Sender<PendingInMemoryConnection>,
    buffer_bytes: usize,
}

/// A connection that waits to be accepted.
pub(super) type PendingInMemoryConnection = (DuplexStream, PeerAddress);

/// The time between two TCP keepalive probes of a silent peer.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// The unsent bytes that the kernel accepts for one client (`TCP_NOTSENT_LOWAT`).
///
/// The kernel's default is about 600 KiB for a client that does not read. A thousand such clients exhaust the machine's
/// TCP memory, and then all its connections stall. Bytes that are sent but not acknowledged do not count, so distant
/// clients are not slower.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 128 << 10;
/// The length of the accept queue, as in Go's servers. The system may allow fewer.
///
/// If the queue is full, a client's SYN is dropped, and the client repeats it after one to three seconds.
const BACKLOG_MAX: i32 = 4096;
/// The maximum number of connections accepted from the queue of a listener that ends.
const QUEUED_MAX: usize = 2 * BACKLOG_MAX as usize;
/// The time that started TCP handshakes get to complete before the port is released: some round trips.
const HANDSHAKES_MAX: Duration = Duration::from_millis(200);
/// The pause after a connection that cannot be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);

/// The maximum number of in-memory connections that wait to be accepted.
const WAITING_MAX: usize = 1024;

const ROOT: u32 = 0;

impl Listener {
    /// Binds an address.
    ///
    /// A stale socket file of a dead process is replaced; one with a listening process is not. A unix socket accepts
    /// only this process's user and root.
    pub fn bind(address: &ListenAddress) -> io::Result<Self> {
        Self::bind_with(address, ListenAddressSharing::Alone)
    }

    /// Binds an address that other processes bind in the same way; each receives some of the connections. A unix socket
    /// cannot be shared in this way and is bound alone.
    pub fn bind_shared(address: &ListenAddress) -> io::Result<Self> {
        Self::bind_with(address, ListenAddressSharing::Peers)
    }

    fn bind_with(address: &ListenAddress, sharing: ListenAddressSharing) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => {
                Ok(Self::of_tcp(TcpListener::from_std(bind_tcp(*address, sharing)?)?, sharing))
            }
            ListenAddress::Unix(path) => Self::of_unix(bind_unix(path)?, path, ListenAddressSharing::Alone),
        }
    }

    /// Creates a listener with an address but without a socket. Only the returned connector can connect to it, by
    /// connections that buffer `buffer_bytes` in each direction.
    pub fn in_memory(address: SocketAddr, buffer_bytes: usize) -> (Self, InMemoryConnector) {
        let (sender, arrivals) = mpsc::channel(WAITING_MAX);
        let connector = InMemoryConnector { arrivals: sender, buffer_bytes };
        let socket = BoundSocket::Memory { arrivals: Mutex::new(arrivals), address };
        (Self { socket, sharing: ListenAddressSharing::Alone }, connector)
    }

    pub(super) fn of_tcp(listener: TcpListener, sharing: ListenAddressSharing) -> Self {
        Self { socket: BoundSocket::Tcp(listener), sharing }
    }

    pub(super) fn of_unix(listener: StdUnixListener, path: &Path, sharing: ListenAddressSharing) -> io::Result<Self> {
        let (listener, only_uids) = (UnixListener::from_std(listener)?, vec![geteuid().as_raw(), ROOT]);
        let (path, is_made) = (path.to_owned(), sharing != ListenAddressSharing::Parent);
        Ok(Self { socket: BoundSocket::Unix { listener, path, is_made, only_uids }, sharing })
    }

    /// Replaces the users that may connect. A TCP listener ignores this, because it cannot know the user.
    #[must_use]
    pub fn for_uids(mut self, uids: Vec<u32>) -> Self {
        if let BoundSocket::Unix { only_uids, .. } = &mut self.socket {
            *only_uids = uids;
        }
        self
    }

    /// Returns the bound address, with the port that the system chose.
    pub fn local_address(&self) -> io::Result<ListenAddress> {
        match &self.socket {
            BoundSocket::Tcp(listener) => listener.local_addr().map(ListenAddress::Tcp),
            BoundSocket::Unix { path, .. } => Ok(ListenAddress::Unix(path.clone())),
            BoundSocket::Memory { address, .. } => Ok(ListenAddress::Tcp(*address)),
        }
    }

    /// Returns the bound address as a URL, or as `unix:PATH`.
    pub fn url(&self, is_tls: bool) -> io::Result<String> {
        self.local_address().map(|address| match address {
            ListenAddress::Tcp(tcp) => format!("{}://{tcp}", if is_tls { "https" } else { "http" }),
            unix @ ListenAddress::Unix(_) => unix.to_string(),
        })
    }

    pub(super) async fn accept(&self) -> io::Result<(AcceptedStream, PeerAddress)> {
        match &self.socket {
            BoundSocket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                tcp(stream, peer)
            }
            BoundSocket::Unix { listener, only_uids, .. } => loop {
                let (stream, _) = listener.accept().await?;
                if let Some(accepted) = unix(stream, only_uids) {
                    return Ok(accepted);
                }
            },
            BoundSocket::Memory { arrivals, .. } => match arrivals.lock().await.recv().await {
                Some((stream, peer)) => Ok((Either::Right(stream), peer)),
                // All connectors are dropped, so no connection can arrive.
                None => pending().await,
            },
        }
    }

    /// Ends the listener without losing queued connections. They are passed to `take`, or stay for the processes that
    /// share the socket.
    pub(super) async fn end(mut self, mut take: impl FnMut((AcceptedStream, PeerAddress))) {
        match self.sharing {
            ListenAddressSharing::Parent => return,
            ListenAddressSharing::Alone => {}
            ListenAddressSharing::Peers => {
                let until = Instant::now() + HANDSHAKES_MAX;
                if let BoundSocket::Tcp(listener) = &self.socket
                    && let Err(error) = system::drop_new_connections(listener)
                {
                    tracing::debug!(
                        %error,
                        "cannot stop new connections; some may be refused while another process takes over the port"
                    );
                }
                // An error may be that of one connection, or pass when another one closes.
                while let Ok(accepted) = timeout_at(until, self.accept()).await {
                    match accepted {
                        Ok(accepted) => take(accepted),
                        Err(_) => sleep(ACCEPT_RETRY).await,
                    }
                }
            }
        }
        self.remove_path();
        for _ in 0..QUEUED_MAX {
            match self.accept_queued() {
                Ok(accepted) => accepted.into_iter().for_each(&mut take),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {}
            }
        }
    }

    /// Accepts a connection from the queue; `None` if its user may not connect.
    fn accept_queued(&self) -> io::Result<Option<(AcceptedStream, PeerAddress)>> {
        match &self.socket {
            BoundSocket::Tcp(listener) => {
                let (socket, peer) = SockRef::from(listener).accept()?;
                socket.set_nonblocking(true)?;
                let peer = peer.as_socket().ok_or(io::ErrorKind::InvalidData)?;
                tcp(TcpStream::from_std(socket.into())?, peer).map(Some)
            }
            BoundSocket::Unix { listener, only_uids, .. } => {
                let (socket, _) = SockRef::from(listener).accept()?;
                socket.set_nonblocking(true)?;
                Ok(unix(UnixStream::from_std(socket.into())?, only_uids))
            }
            BoundSocket::Memory { arrivals, .. } => {
                let mut arrivals = arrivals.try_lock().map_err(|_| io::ErrorKind::WouldBlock)?;
                let (stream, peer) = arrivals.try_recv().map_err(|_| io::ErrorKind::WouldBlock)?;
                Ok(Some((Either::Right(stream), peer)))
            }
        }
    }

    /// Removes the socket file, at most once, because another process may listen there afterwards.
    fn remove_path(&mut self) {
        if let BoundSocket::Unix { path, is_made, .. } = &mut self.socket
            && std::mem::take(is_made)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.remove_path();
    }
}

fn tcp(stream: TcpStream, peer: SocketAddr) -> io::Result<(AcceptedStream, PeerAddress)> {
    stream.set_nodelay(true)?;
    // Keepalive detects a peer that vanished without closing, even while nothing is sent.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    Ok((Either::Left(Either::Left(stream)), PeerAddress::Tcp(peer)))
}

fn unix(stream: UnixStream, only_uids: &[u32]) -> Option<(AcceptedStream, PeerAddress)> {
    let uid = stream.peer_cred().ok().map(|peer| peer.uid());
    if uid.is_some_and(|uid| only_uids.contains(&uid)) {
        return Some((Either::Left(Either::Right(stream)), PeerAddress::Unix { uid }));
    }
    ConnectionFailure::ForeignUid.count();
    tracing::debug!(uid, "connection rejected: uid not allowed on this socket");
    None
}

fn bind_tcp(address: SocketAddr, sharing: ListenAddressSharing) -> io::Result<StdTcpListener> {
    // On every system, child processes do not inherit the descriptor.
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    if sharing == ListenAddressSharing::Peers {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG_MAX)?;
    Ok(socket.into())
}

/// Binds a socket file with mode 0600, because every process that can open it acts with the proxy's identity.
///
/// The file is created under a temporary name and renamed, so that it never has other permissions at `path`.
fn bind_unix(path: &Path) -> io::Result<StdUnixListener> {
    remove_stale(path)?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let _ = std::fs::remove_file(&temporary);
    let listener = StdUnixListener::bind(&temporary)?;
    listener.set_nonblocking(true)?;
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&temporary, path)?;
    Ok(listener)
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the path exists and is not a socket; remove it or use another path",
        ));
    }
    if StdUnixStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens on this socket"));
    }
    std::fs::remove_file(path)
}

/// Moves a stream to the current runtime, which may differ from the listener's.
pub(super) fn move_here(stream: AcceptedStream) -> io::Result<AcceptedStream> {
    Ok(match stream {
        Either::Left(Either::Left(tcp)) => Either::Left(Either::Left(TcpStream::from_std(tcp.into_std()?)?)),
        Either::Left(Either::Right(unix)) => Either::Left(Either::Right(UnixStream::from_std(unix.into_std()?)?)),
        Either::Right(memory) => Either::Right(memory),
    })
}

impl InMemoryConnector {
    /// Opens an in-memory connection from an address; `None` if the listener is gone, or too many connections wait.
    pub fn connect(&self, from: SocketAddr) -> Option<DuplexStream> {
        let (near, far) = tokio::io::duplex(self.buffer_bytes);
        self.arrivals.try_send((far, PeerAddress::Tcp(from))).ok()?;
        Some(near)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn address_is_ip_and_port_or_unix_socket_path() {
        for (text, local) in [
            ("127.0.0.1:0", true),
            ("127.8.9.1:80", true),
            ("[::1]:80", true),
            ("[::ffff:127.0.0.1]:80", true),
            ("localhost:8001", true),
            ("unix:/run/x.sock", true),
            ("0.0.0.0:80", false),
            ("10.0.0.1:80", false),
            ("[::]:80", false),
        ] {
            let address: ListenAddress = text.parse().expect(text);
            assert_eq!(address.is_local(), local, "{text}");
        }
        for text in ["", "8001", "unix:", "example.com:80", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn in_memory_listener_drains_pending_connections_at_end() {
        let (address, from) = (([127, 0, 0, 1], 8001).into(), ([127, 0, 0, 1], 40_000).into());
        let (listener, connector) = Listener::in_memory(address, 1024);
        let mut near = connector.connect(from).expect("the listener is bound");
        let (mut far, peer) = listener.accept().await.expect("it waits");
        assert_eq!(peer, PeerAddress::Tcp(from));
        near.write_all(b"hello").await.expect("it is open");
        let mut read = [0; 5];
        far.read_exact(&mut read).await.expect("it was written");
        assert_eq!(&read, b"hello");
        let _waits = connector.connect(from).expect("the listener is bound");
        let mut taken = 0;
        listener.end(|_| taken += 1).await;
        assert_eq!(taken, 1);
        assert!(connector.connect(from).is_none());
    }
}

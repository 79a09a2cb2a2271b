use std::future::pending;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::process::geteuid;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, timeout_at};

use super::memory::{Arrival, MemoryConnector};
use super::metrics::ConnectionFailure;
use super::{Address, PeerAddress, system};

/// A bound socket, or what stands for one within this process.
#[derive(Debug)]
pub struct Listener {
    socket: Bound,
    beside: Beside,
}

#[derive(Debug)]
enum Bound {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        path: PathBuf,
        /// Whether we have made the socket file, and it is still there.
        is_made: bool,
        /// The users that may connect. Others are turned away whatever the file's permissions have become.
        only_uids: Vec<u32>,
    },
    /// Connections come from within this process.
    Memory {
        arrivals: Mutex<mpsc::Receiver<Arrival>>,
        address: SocketAddr,
    },
}

/// Who else listens at our address. This decides what happens to connections in the queue when we stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
    Nobody,
    /// Processes of the same user, on sockets of their own (`SO_REUSEPORT`).
    Peers,
    /// Processes that have the same socket, and so the same queue: our parent, and those that it gives the socket to.
    Parent,
}

/// An accepted byte stream.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Memory(DuplexStream),
}

/// The time between two probes of a silent peer.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// The bytes that the kernel takes from us for a client before they can be sent. By itself it takes some 600 KiB for
/// one that does not read, and a thousand of those exhaust the memory that a machine has for TCP: then all its
/// connections stall. What is sent and not yet acknowledged does not count, so that distant clients are not slower.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 128 << 10;
/// Connections that wait to be accepted, as in Go's servers: who comes when there are more is heard of a second later,
/// or three. The system may allow fewer.
const BACKLOG_MAX: i32 = 4096;
/// How many connections are still accepted from the queue of a listener that ends.
const QUEUED_MAX: usize = 2 * BACKLOG_MAX as usize;
/// How long connections that had begun have to complete when the port is given over: some round trips.
const HANDSHAKES_MAX: Duration = Duration::from_millis(200);

const ROOT: u32 = 0;

impl Listener {
    /// Binds an address. A socket file that a dead process left behind is replaced, one that answers is not. A unix
    /// socket is for our own user and for root.
    pub fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let listener = TcpListener::from_std(bind_tcp(*address, Beside::Nobody)?)?;
                Ok(Self::of_tcp(listener, Beside::Nobody))
            }
            Address::Unix(path) => Self::of_unix(bind_unix(path)?, path, Beside::Nobody),
        }
    }

    /// Binds an address beside other processes that do the same: each gets some of the connections. Unix sockets cannot
    /// be shared so.
    pub fn bind_beside_peers(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(tcp) => {
                let listener = TcpListener::from_std(bind_tcp_beside_peers(*tcp)?)?;
                Ok(Self::of_tcp(listener, Beside::Peers))
            }
            Address::Unix(_) => Self::bind(address),
        }
    }

    /// A listener on a socket that was bound before there was a runtime. It does not block.
    pub fn of_bound(socket: StdTcpListener) -> io::Result<Self> {
        Ok(Self::of_tcp(TcpListener::from_std(socket)?, Beside::Nobody))
    }

    /// The same on a socket file, which is for our own user and for root.
    pub fn of_bound_unix(socket: StdUnixListener, path: &Path) -> io::Result<Self> {
        Self::of_unix(socket, path, Beside::Nobody)
    }

    /// A listener that has an address and no socket: only the connector leads there, by connections that hold so many
    /// bytes in each direction.
    pub fn in_memory(address: SocketAddr, buffer_bytes: usize) -> (Self, MemoryConnector) {
        let (connector, arrivals) = MemoryConnector::new(buffer_bytes);
        let socket = Bound::Memory { arrivals: Mutex::new(arrivals), address };
        (Self { socket, beside: Beside::Nobody }, connector)
    }

    pub(super) fn of_tcp(listener: TcpListener, beside: Beside) -> Self {
        Self { socket: Bound::Tcp(listener), beside }
    }

    pub(super) fn of_unix(listener: StdUnixListener, path: &Path, beside: Beside) -> io::Result<Self> {
        let (listener, only_uids) = (UnixListener::from_std(listener)?, vec![geteuid().as_raw(), ROOT]);
        let (path, is_made) = (path.to_owned(), beside != Beside::Parent);
        Ok(Self { socket: Bound::Unix { listener, path, is_made, only_uids }, beside })
    }

    /// Lets these users connect instead. A TCP listener cannot know them.
    #[must_use]
    pub fn for_uids(mut self, uids: Vec<u32>) -> Self {
        if let Bound::Unix { only_uids, .. } = &mut self.socket {
            *only_uids = uids;
        }
        self
    }

    /// The address as bound, with the port the system chose.
    pub fn local_address(&self) -> io::Result<Address> {
        match &self.socket {
            Bound::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Bound::Unix { path, .. } => Ok(Address::Unix(path.clone())),
            Bound::Memory { address, .. } => Ok(Address::Tcp(*address)),
        }
    }

    pub(super) async fn accept(&self) -> io::Result<(Stream, PeerAddress)> {
        match &self.socket {
            Bound::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                tcp(stream, peer)
            }
            Bound::Unix { listener, only_uids, .. } => loop {
                let (stream, _) = listener.accept().await?;
                if let Some(accepted) = unix(stream, only_uids) {
                    return Ok(accepted);
                }
            },
            Bound::Memory { arrivals, .. } => match arrivals.lock().await.recv().await {
                Some((stream, peer)) => Ok((Stream::Memory(stream), peer)),
                // Nobody is left who could connect.
                None => pending().await,
            },
        }
    }

    /// Ends the listener without losing connections in its queue: they are handed to `take`, or left to whoever has the
    /// same socket.
    pub(super) async fn end(mut self, mut take: impl FnMut((Stream, PeerAddress))) {
        match self.beside {
            Beside::Parent => return,
            Beside::Nobody => {}
            Beside::Peers => {
                let until = Instant::now() + HANDSHAKES_MAX;
                if let Bound::Tcp(listener) = &self.socket
                    && let Err(error) = system::let_nobody_begin(listener)
                {
                    tracing::debug!(%error, "who connects at this moment may be refused");
                }
                while let Ok(Ok(accepted)) = timeout_at(until, self.accept()).await {
                    take(accepted);
                }
            }
        }
        self.remove_path();
        for _ in 0..QUEUED_MAX {
            match self.accept_queued() {
                Ok(accepted) => accepted.map(&mut take),
                Err(_) => break,
            };
        }
    }

    /// Accepts a connection from the queue; `None` if its user may not connect.
    fn accept_queued(&self) -> io::Result<Option<(Stream, PeerAddress)>> {
        match &self.socket {
            Bound::Tcp(listener) => {
                let (socket, peer) = SockRef::from(listener).accept()?;
                socket.set_nonblocking(true)?;
                let peer = peer.as_socket().ok_or(io::ErrorKind::InvalidData)?;
                tcp(TcpStream::from_std(socket.into())?, peer).map(Some)
            }
            Bound::Unix { listener, only_uids, .. } => {
                let (socket, _) = SockRef::from(listener).accept()?;
                socket.set_nonblocking(true)?;
                Ok(unix(UnixStream::from_std(socket.into())?, only_uids))
            }
            Bound::Memory { arrivals, .. } => {
                let mut arrivals = arrivals.try_lock().map_err(|_| io::ErrorKind::WouldBlock)?;
                let (stream, peer) = arrivals.try_recv().map_err(|_| io::ErrorKind::WouldBlock)?;
                Ok(Some((Stream::Memory(stream), peer)))
            }
        }
    }

    /// Removes the socket file, once: another process may listen there afterwards.
    fn remove_path(&mut self) {
        if let Bound::Unix { path, is_made, .. } = &mut self.socket
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

fn tcp(stream: TcpStream, peer: SocketAddr) -> io::Result<(Stream, PeerAddress)> {
    stream.set_nodelay(true)?;
    // A peer that is gone without a word is noticed, also while nothing is sent.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    Ok((Stream::Tcp(stream), PeerAddress::Tcp(peer)))
}

fn unix(stream: UnixStream, only_uids: &[u32]) -> Option<(Stream, PeerAddress)> {
    let uid = stream.peer_cred().ok().map(|peer| peer.uid());
    if uid.is_some_and(|uid| only_uids.contains(&uid)) {
        return Some((Stream::Unix(stream), PeerAddress::Unix { uid }));
    }
    ConnectionFailure::ForeignUid.count();
    tracing::debug!(uid, "turned away: the socket is not for this user");
    None
}

/// Binds a port that other processes of the same user may have bound in the same way, or may bind later.
pub fn bind_tcp_beside_peers(address: SocketAddr) -> io::Result<StdTcpListener> {
    bind_tcp(address, Beside::Peers)
}

fn bind_tcp(address: SocketAddr, beside: Beside) -> io::Result<StdTcpListener> {
    // The descriptor is not inherited by children, on every system.
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    if beside == Beside::Peers {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG_MAX)?;
    Ok(socket.into())
}

/// Binds a socket file that nobody but our user may open: whoever opens it acts with our identity. The file never has
/// other permissions, so it is made under another name first.
pub fn bind_unix(path: &Path) -> io::Result<StdUnixListener> {
    remove_stale(path)?;
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(fresh);
    let _ = std::fs::remove_file(&fresh);
    let listener = StdUnixListener::bind(&fresh)?;
    listener.set_nonblocking(true)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&fresh, path)?;
    Ok(listener)
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket"));
    }
    if StdUnixStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process is listening there"));
    }
    std::fs::remove_file(path)
}

impl Stream {
    /// The same stream on the current runtime, which need not be that of the listener.
    pub(super) fn settle(self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(TcpStream::from_std(stream.into_std()?)?),
            Self::Unix(stream) => Self::Unix(UnixStream::from_std(stream.into_std()?)?),
            Self::Memory(stream) => Self::Memory(stream),
        })
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Memory(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Memory(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = bufs {
            // An event is one TLS record, and the kernel takes one piece faster than a list of one.
            return self.poll_write(cx, only);
        }
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Memory(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Memory(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Memory(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::metrics::Failed;
use super::{Address, PeerAddress};

/// A bound socket.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Removed when the listener is dropped.
        path: PathBuf,
        /// Users that may connect; others are turned away whatever the file's permissions have become.
        only_uids: Vec<u32>,
    },
}

/// An accepted byte stream.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Between two probes of a silent peer.
const KEEPALIVE: Duration = Duration::from_secs(60);

const ROOT: u32 = 0;

impl Listener {
    /// Binds; a socket file that a dead process left behind is replaced, one that answers is not. A unix socket is for
    /// our own user and for root.
    pub async fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => Ok(Self::Tcp(TcpListener::bind(address).await?)),
            Address::Unix(path) => {
                let listener = UnixListener::from_std(bind_unix(path)?)?;
                Ok(Self::Unix { listener, path: path.clone(), only_uids: vec![own_uid()?, ROOT] })
            }
        }
    }

    /// The same for these users instead; a TCP listener cannot know them.
    #[must_use]
    pub fn for_uids(mut self, uids: Vec<u32>) -> Self {
        if let Self::Unix { only_uids, .. } = &mut self {
            *only_uids = uids;
        }
        self
    }

    /// The address as bound, with the port the system chose.
    pub fn local_address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Unix { path, .. } => Ok(Address::Unix(path.clone())),
        }
    }

    pub(super) async fn accept(&self) -> io::Result<(Stream, PeerAddress)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                // A peer that is gone without a word is noticed, also while nothing is sent.
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                Ok((Stream::Tcp(stream), PeerAddress::Tcp(peer)))
            }
            Self::Unix { listener, only_uids, .. } => loop {
                let (stream, _) = listener.accept().await?;
                let uid = stream.peer_cred().ok().map(|peer| peer.uid());
                if uid.is_some_and(|uid| only_uids.contains(&uid)) {
                    return Ok((Stream::Unix(stream), PeerAddress::Unix { uid }));
                }
                Failed::ForeignUid.count();
                tracing::debug!(uid, "turned away: the socket is not for this user");
            },
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix { path, .. } = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Binds a socket file that nobody but our user may open: whoever may acts with our identity. It is never there with
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

/// Whom the kernel takes us for when we connect to somebody.
fn own_uid() -> io::Result<u32> {
    let (one, _other) = UnixStream::pair()?;
    Ok(one.peer_cred()?.uid())
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

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
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
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

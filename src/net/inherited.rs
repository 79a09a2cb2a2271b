use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::PathBuf;

use listenfd::ListenFd;
use socket2::SockRef;
use tokio::net::TcpListener;

use super::listener::ListenAddressSharing;
use super::{ListenAddress, Listener, system};

/// Listening sockets that the parent process has passed on (`sd_listen_fds(3)`), or their in-memory replacements.
///
/// Connections that arrive while no process of this service runs wait in the queues of these sockets.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    sockets: Vec<(ListenAddress, InheritedSocket)>,
}

#[derive(Debug)]
enum InheritedSocket {
    Tcp(StdTcpListener),
    Unix(StdUnixListener, PathBuf),
    Memory(Listener),
}

impl InheritedSockets {
    /// Takes the sockets that `LISTEN_FDS` and `LISTEN_PID` describe.
    ///
    /// Removes both variables, so that child processes do not use them. No other thread may run yet.
    ///
    /// # Errors
    /// One of them is not a listening socket.
    pub fn from_environment() -> io::Result<Self> {
        let (mut given, mut inherited) = (ListenFd::from_env(), Self::default());
        for number in 0..given.len() {
            match given.take_unix_listener(number) {
                Ok(Some(listener)) => inherited.add_unix(listener)?,
                Ok(None) => {}
                // It is not a unix socket.
                Err(_) => given.take_tcp_listener(number)?.map_or(Ok(()), |listener| inherited.add_tcp(listener))?,
            }
        }
        Ok(inherited)
    }

    /// Adds a TCP socket that this process has bound.
    pub fn add_tcp(&mut self, listener: StdTcpListener) -> io::Result<()> {
        let address = ListenAddress::Tcp(listener.local_addr()?);
        check(&address, &SockRef::from(&listener))?;
        self.sockets.push((address, InheritedSocket::Tcp(listener)));
        Ok(())
    }

    pub fn add_unix(&mut self, listener: StdUnixListener) -> io::Result<()> {
        let named = listener.local_addr()?;
        let path = named
            .as_pathname()
            .ok_or_else(|| invalid("socket activation passed a unix socket without a path".to_owned()))?
            .to_owned();
        let address = ListenAddress::Unix(path.clone());
        check(&address, &SockRef::from(&listener))?;
        self.sockets.push((address, InheritedSocket::Unix(listener, path)));
        Ok(())
    }

    /// Adds an in-memory listener that replaces the TCP socket of an address.
    pub fn add_memory(&mut self, address: SocketAddr, listener: Listener) {
        self.sockets.push((ListenAddress::Tcp(address), InheritedSocket::Memory(listener)));
    }

    /// Returns the socket that is bound to `address`, if there is one, and removes it.
    pub fn take(&mut self, address: &ListenAddress) -> io::Result<Option<Listener>> {
        let Some(at) = self.sockets.iter().position(|(bound, _)| bound == address) else { return Ok(None) };
        let (_, socket) = self.sockets.swap_remove(at);
        let listener = match socket {
            InheritedSocket::Tcp(listener) => {
                Listener::of_tcp(TcpListener::from_std(listener)?, ListenAddressSharing::Parent)
            }
            InheritedSocket::Unix(listener, path) => Listener::of_unix(listener, &path, ListenAddressSharing::Parent)?,
            InheritedSocket::Memory(listener) => listener,
        };
        Ok(Some(listener))
    }

    /// Returns the address of a socket that has not been taken.
    pub fn left(&self) -> Option<&ListenAddress> {
        self.sockets.first().map(|(address, _)| address)
    }
}

fn check(address: &ListenAddress, socket: &SockRef<'_>) -> io::Result<()> {
    if !system::listens(socket)? {
        return Err(invalid(format!("the socket passed for {address} is not listening")));
    }
    socket.set_nonblocking(true)
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

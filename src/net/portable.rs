//! Replacements for socket functions that only Linux has.

use std::io;

use socket2::SockRef;
use tokio::net::TcpListener;

/// Does nothing. New connections may be refused while the port is released.
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it fails")]
pub(super) fn drop_new_connections(_: &TcpListener) -> io::Result<()> {
    Ok(())
}

/// Returns true, because this system cannot check. If the socket does not listen, accepting fails.
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it fails")]
pub(super) fn listens(_: &SockRef<'_>) -> io::Result<bool> {
    Ok(true)
}

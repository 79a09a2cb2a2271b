//! In place of what only Linux does with a socket.

use std::io;

use socket2::SockRef;
use tokio::net::TcpListener;

/// Nothing can be kept from beginning: whoever connects while the port is given over may be refused.
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it fails")]
pub(super) fn let_nobody_begin(_: &TcpListener) -> io::Result<()> {
    Ok(())
}

/// Nobody can be asked: accepting will tell.
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it fails")]
pub(super) fn listens(_: &SockRef<'_>) -> io::Result<bool> {
    Ok(true)
}

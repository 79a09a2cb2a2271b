//! Replacements for socket functions that only Linux has.

use std::io;

use socket2::SockRef;
use tokio::net::TcpListener;

/// Does nothing: whoever connects while the port is given over may be refused.
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it fails")]
pub(super) fn let_nobody_begin(_: &TcpListener) -> io::Result<()> {
    Ok(())
}

/// Says yes, for this cannot be asked: accepting will show.
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it fails")]
pub(super) fn listens(_: &SockRef<'_>) -> io::Result<bool> {
    Ok(true)
}

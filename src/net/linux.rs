//! Socket functions that only Linux has.

use std::io;

use socket2::{SockFilter, SockRef};
use tokio::net::TcpListener;

/// Drops packets that open a connection, as if they were lost.
///
/// Clients send them again a second later, and then they reach one of the peers, once this socket is closed. Without
/// this, the kernel would give some of the port's new connections to this socket until it is closed, and then reset
/// them.
pub(super) fn drop_new_connections(listener: &TcpListener) -> io::Result<()> {
    // A classic BPF program on the TCP header: `tcp[13] & (SYN | ACK) == SYN` is dropped.
    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const SKIP_UNLESS_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const FLAGS: u32 = 13;
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    SockRef::from(listener).attach_filter(&[
        SockFilter::new(LOAD_BYTE, 0, 0, FLAGS),
        SockFilter::new(AND, 0, 0, SYN | ACK),
        SockFilter::new(SKIP_UNLESS_EQUAL, 0, 1, SYN),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ])
}

/// Whether a socket is listening.
pub(super) fn listens(socket: &SockRef<'_>) -> io::Result<bool> {
    socket.is_listener()
}

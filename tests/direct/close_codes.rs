//! A WebSocket client that sends an invalid message receives the matching close code (R-DOWNSTREAM-10). Its frames are
//! written by hand.

use std::io;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::direct::{self, Client, Io, PODS, Protocol, within};

/// Flag of a masked payload.
const MASKED: u8 = 0x80;
const FINAL: u8 = 0x80;
const CONTINUED: u8 = 0;
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;

/// A client frame with a mask of zeros.
fn frame(head: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len();
    let lengths = match u8::try_from(length) {
        Ok(short @ ..126) => vec![MASKED | short],
        _ => [&[MASKED | 127][..], &(length as u64).to_be_bytes()].concat(),
    };
    [&[head][..], &lengths, &[0; 4], payload].concat()
}

/// A watch that has received nothing yet.
async fn watch(client: &Client, from: u64) -> Box<dyn Io> {
    let mut io = client.over(Protocol::Http1).connect().await.expect("a connection");
    let head = format!(
        "GET {PODS}?watch=true&resourceVersion={from} HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         origin: http://localhost\r\n\r\n"
    );
    io.write_all(head.as_bytes()).await.expect("a request is sent");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(within("a head", io.read_u8()).await.expect("an answer"));
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    io
}

/// How long the server reads after it has sent its close frame.
const READ_ON: Duration = Duration::from_secs(5);
/// Number of attempts on a machine that stalls.
const TRIES_MAX: usize = 20;

/// Sends this on a new watch, and returns all bytes until the connection ends without a reset. If the client stalls for
/// longer than the server reads on, it is reset. That shows nothing, so it retries.
async fn answered(client: &Client, from: u64, sent: &[u8]) -> io::Result<Vec<u8>> {
    for _ in 0..TRIES_MAX {
        let (mut reader, mut writer) = tokio::io::split(watch(client, from).await);
        let began = Instant::now();
        // The server may reply before the client has sent everything.
        let saying = async { drop(writer.write_all(sent).await) };
        let mut received = Vec::new();
        let (read, ()) = tokio::join!(within("the end", reader.read_to_end(&mut received)), saying);
        match read {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset && began.elapsed() >= READ_ON => {}
            read => return read.map(|_| received),
        }
    }
    panic!("the machine was too slow each time");
}

fn close(code: u16) -> Vec<u8> {
    [&[FINAL | CLOSE, 2][..], &code.to_be_bytes()].concat()
}

#[tokio::test]
async fn invalid_websocket_message_gets_matching_close_code() {
    let up = demo::upstream().pods(1).run().await;
    let app = direct::app(&up).run().await;
    let other = app.watch(PODS).from(up.revision()).over(Protocol::WebSocket).await;
    for (what, frames, code) in [
        ("unmasked", vec![FINAL | TEXT, 1, b'x'], 1002),
        ("a reserved bit", frame(FINAL | 0x40 | TEXT, b"x"), 1002),
        ("a ping in two pieces", [frame(PING, b"a"), frame(FINAL | CONTINUED, b"b")].concat(), 1002),
        ("a ping that is too long", frame(FINAL | PING, &[0; 126]), 1002),
        ("a control frame of no known kind", frame(FINAL | 0xb, &[]), 1002),
        ("a data frame of no known kind", frame(FINAL | 3, &[]), 1002),
        ("nothing to continue", frame(FINAL | CONTINUED, b"x"), 1002),
        ("two messages in one", [frame(TEXT, b"x"), frame(FINAL | TEXT, b"y")].concat(), 1002),
        ("text that is no UTF-8", frame(FINAL | TEXT, &[0xff]), 1007),
        ("half a letter at the end", [frame(TEXT, b"x"), frame(FINAL | CONTINUED, &[0xc3])].concat(), 1007),
        ("a mebibyte", frame(FINAL | TEXT, &vec![b'x'; 1 << 20]), 1009),
        (
            "a mebibyte in pieces",
            [frame(TEXT, b"x"), vec![frame(CONTINUED, &[b'x'; 1 << 10]); 1 << 10].concat()].concat(),
            1009,
        ),
    ] {
        let answered = answered(&app, up.revision(), &frames).await;
        assert_eq!(answered.map_err(|error| error.kind()), Ok(close(code)), "{what}");
    }
    let chatter = [
        ("pings", frame(FINAL | PING, &[]).repeat(100_000)),
        ("text", frame(FINAL | TEXT, &[]).repeat(100_000)),
        ("a message of empty pieces", [frame(TEXT, b"x"), frame(CONTINUED, &[]).repeat(100_000)].concat()),
    ];
    for (what, sent) in chatter {
        let answered = answered(&app, up.revision(), &sent).await;
        assert!(answered.as_ref().is_ok_and(|all| all.ends_with(&close(1008))), "{what}: {:?}", answered.err());
    }
    for (what, sent, reply) in [
        ("a close is answered", frame(FINAL | CLOSE, &1000_u16.to_be_bytes()), close(1000)),
        ("with its own code", frame(FINAL | CLOSE, &1001_u16.to_be_bytes()), close(1001)),
        ("or with none", frame(FINAL | CLOSE, &[]), vec![FINAL | CLOSE, 0]),
    ] {
        let answered = answered(&app, up.revision(), &sent).await;
        assert_eq!(answered.map_err(|error| error.kind()), Ok(reply), "{what}");
    }
    other.reached(up.create_pod("default", "seen")).await;
    assert!(other.is_open());
}

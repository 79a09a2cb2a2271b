//! A relay in front of etcd that delays only the events of its watches. An apiserver that uses it reads and writes
//! normally, but its watch cache is stale.
//!
//! The protocol is gRPC, with one HTTP/2 stream for each watch. The first message of a stream shows whether it is a
//! watch (`etcdserverpb.WatchRequest`). A client pings whenever it receives data; a server that has sent no data since
//! then treats the ping as abuse. The relay therefore answers pings itself, with the same delay as the events, because
//! the client measures the bandwidth-delay product with them.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::faults::framing::{Direction, Framing};

/// The delay of watch events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lag {
    /// A fixed delay.
    By(Duration),
    /// No events until this changes.
    Held,
}

pub struct LagRelay {
    pub port: u16,
    lag: watch::Sender<Lag>,
    accepting: AbortHandle,
}

/// Frame types (RFC 9113 §6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
/// The flag of a PING response.
const ACK: u8 = 1;
/// The maximum number of queued PING responses.
const PINGS_MAX: usize = 64;
/// The connection preface of a client (RFC 9113 §3.4).
const PREFACE: usize = 24;
/// The number of bytes before a gRPC message: the compression flag and the length.
const GRPC_HEADER: usize = 5;
/// The tag of the length-delimited field 1: `create_request` of a `WatchRequest`, and `key` inside it.
const FIRST_BYTES: u8 = 0x0a;
/// The maximum number of bytes per read.
const PART: usize = 16 << 10;

impl LagRelay {
    /// Starts a relay to etcd at this URL, at first without a lag.
    pub async fn start(etcd_url: &str) -> Self {
        let etcd = etcd_url.split_once("//").expect("a URL").1.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (lag, lags) = watch::channel(Lag::By(Duration::ZERO));
        let accept = async move {
            while let Ok((client, _)) = listener.accept().await {
                drop(tokio::spawn(relay(client, etcd.clone(), lags.clone())));
            }
        };
        Self { port, lag, accepting: tokio::spawn(accept).abort_handle() }
    }

    pub fn set(&self, lag: Lag) {
        self.lag.send_replace(lag);
    }
}

impl Drop for LagRelay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The streams of a connection that are watches.
type Watches = Arc<Mutex<HashSet<u32>>>;

async fn relay(client: TcpStream, etcd: String, lags: watch::Receiver<Lag>) -> io::Result<()> {
    let server = TcpStream::connect(etcd).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let (watches, (answer, answers)) = (Watches::default(), mpsc::channel(PINGS_MAX));
    // If one side ends, both connections are closed.
    tokio::select! {
        over = up(from_client, to_server, watches.clone(), answer) => over,
        over = (Down { watches, lags, answers, delayed: VecDeque::new(), to: to_client }).run(from_server) => over,
    }
}

/// The next complete HTTP/2 frame.
fn next_frame(framing: &mut Framing, pending: &mut Vec<u8>) -> Option<Vec<u8>> {
    let unit = framing.unit(pending)?;
    (unit.len <= pending.len()).then(|| pending.drain(..unit.len).collect())
}

fn stream_of(frame: &[u8]) -> u32 {
    frame.get(5..9).and_then(<[u8]>::first_chunk).map_or(0, |id| u32::from_be_bytes(*id) & (u32::MAX >> 1))
}

/// Whether a DATA frame starts with a watch request.
fn asks_for_watch(frame: &[u8]) -> bool {
    let message = frame.get(9 + GRPC_HEADER..).filter(|_| frame[3] == DATA);
    let Some((&FIRST_BYTES, rest)) = message.and_then(<[u8]>::split_first) else { return false };
    // After the length, whose last byte is below 128.
    let behind = rest.iter().position(|byte| byte & 0x80 == 0).map(|last| last + 1);
    behind.and_then(|at| rest.get(at)) == Some(&FIRST_BYTES)
}

async fn up(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    watches: Watches,
    answer: mpsc::Sender<Vec<u8>>,
) -> io::Result<()> {
    let mut framing = Framing::new(true, Direction::Up);
    let (mut pending, mut is_preface) = (Vec::new(), true);
    loop {
        pending.reserve(PART);
        if from.read_buf(&mut pending).await? == 0 {
            return to.shutdown().await;
        }
        // `Framing` consumes the preface without a check that it is complete.
        if is_preface && pending.len() < PREFACE {
            continue;
        }
        is_preface = false;
        while let Some(mut frame) = next_frame(&mut framing, &mut pending) {
            if frame[3] == PING && frame[4] & ACK == 0 {
                frame[4] |= ACK;
                // If the receiver is closed, the connection has ended.
                let _ = answer.send(frame).await;
                continue;
            }
            if asks_for_watch(&frame) {
                watches.lock().expect("not poisoned").insert(stream_of(&frame));
            }
            to.write_all(&frame).await?;
        }
    }
}

/// The direction from etcd, in which frames are delayed.
struct Down {
    watches: Watches,
    lags: watch::Receiver<Lag>,
    /// Responses to pings.
    answers: mpsc::Receiver<Vec<u8>>,
    /// Delayed frames, each with its time of arrival.
    delayed: VecDeque<(Instant, Vec<u8>)>,
    to: OwnedWriteHalf,
}

impl Down {
    async fn run(mut self, mut from: OwnedReadHalf) -> io::Result<()> {
        let (mut framing, mut pending) = (Framing::new(true, Direction::Down), Vec::new());
        let mut lags = self.lags.clone();
        loop {
            pending.reserve(PART);
            let due = self.due();
            tokio::select! {
                read = from.read_buf(&mut pending) => if read? == 0 {
                    return self.to.shutdown().await;
                },
                () = async { sleep_until(due.expect("a frame is delayed")).await }, if due.is_some() => {}
                Some(answer) = self.answers.recv() => self.delayed.push_back((Instant::now(), answer)),
                changed = lags.changed() => if changed.is_err() {
                    return Ok(());
                },
            }
            while let Some(frame) = next_frame(&mut framing, &mut pending) {
                self.take(frame).await?;
            }
            while self.due().is_some_and(|due| due <= Instant::now()) {
                let (_, frame) = self.delayed.pop_front().expect("something is due");
                self.to.write_all(&frame).await?;
            }
        }
    }

    /// The time at which the first delayed frame is due; `None` if unknown.
    fn due(&self) -> Option<Instant> {
        let (came, _) = self.delayed.front()?;
        match *self.lags.borrow() {
            Lag::By(time) => Some(*came + time),
            Lag::Held => None,
        }
    }

    async fn take(&mut self, frame: Vec<u8>) -> io::Result<()> {
        let stream = stream_of(&frame);
        let is_watch = self.watches.lock().expect("not poisoned").contains(&stream);
        if is_watch && frame[3] == DATA {
            self.delayed.push_back((Instant::now(), frame));
            return Ok(());
        }
        // The end of a stream must come after all its events.
        if is_watch && matches!(frame[3], HEADERS | RST_STREAM) {
            let (of_it, others): (VecDeque<_>, _) =
                std::mem::take(&mut self.delayed).into_iter().partition(|(_, frame)| stream_of(frame) == stream);
            self.delayed = others;
            for (_, of_stream) in of_it {
                self.to.write_all(&of_stream).await?;
            }
        }
        self.to.write_all(&frame).await
    }
}

#[test]
fn etcd_watch_request_is_distinguished_from_reads_and_writes() {
    let data = |message: &[u8]| [&[0, 0, 0, DATA, 0, 0, 0, 0, 1][..], &[0; GRPC_HEADER], message].concat();
    assert!(asks_for_watch(&data(&[FIRST_BYTES, 4, FIRST_BYTES, 2, b'/', b'a'])));
    assert!(asks_for_watch(&data(&[FIRST_BYTES, 0x84, 1, FIRST_BYTES, 2, b'/', b'a'])));
    assert!(!asks_for_watch(&data(&[FIRST_BYTES, 2, b'/', b'a'])), "a range");
    assert!(!asks_for_watch(&data(&[FIRST_BYTES, 6, 0x10, 1, 0x1a, 2, b'/', b'a'])), "a transaction");
    assert!(!asks_for_watch(&data(&[0x08, 1])), "a lease");
}

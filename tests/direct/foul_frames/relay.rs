//! A relay that reads the HTTP/2 frames passing through, and inserts others in the server's name.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::direct::Near;
use crate::http2::frames::{ACK, HEADERS, PING, PREFACE, SETTINGS, frame};

const FRAME_HEAD: usize = 9;
/// Frames per write.
const TOGETHER: u32 = 100;

/// Bytes to send once, a frame to repeat, by its number, and the maximum count. The stream is the one whose response
/// started last.
pub struct Flood {
    pub name: &'static str,
    pub first: fn(u32) -> Vec<u8>,
    pub again: fn(u32, u32) -> Vec<u8>,
    pub times: u32,
    /// Whether the relay reads frames from the proxy.
    pub is_reading: bool,
    pub sent: AtomicUsize,
    pub is_done: AtomicBool,
}

/// How a relay treats its connections.
#[derive(Clone)]
pub struct Manners {
    /// Sent after the server's own settings, so that these take effect.
    settings: Vec<(u16, u32)>,
    flood: Arc<watch::Sender<Option<Arc<Flood>>>>,
    /// How often the open connections have been cut.
    cuts: Arc<watch::Sender<u32>>,
    /// Number of HTTP/2 connections so far.
    pub connections: Arc<AtomicUsize>,
}

impl Manners {
    pub fn new(settings: &[(u16, u32)]) -> Self {
        let (flood, cuts) = (Arc::new(watch::Sender::new(None)), Arc::new(watch::Sender::new(0)));
        Self { settings: settings.to_vec(), flood, cuts, connections: Arc::default() }
    }

    /// Floods the open connections.
    pub fn flood(&self, flood: Arc<Flood>) {
        self.flood.send_replace(Some(flood));
    }

    /// Cuts the open connections.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    pub async fn relay(self, mut near: Near, mut far: TcpStream) {
        if near.get_ref().1.alpn_protocol() != Some(b"h2") {
            let _ = copy_bidirectional(&mut near, &mut far).await;
            return;
        }
        self.connections.fetch_add(1, Ordering::Relaxed);
        let (flood, mut cuts) = (self.flood.subscribe(), self.cuts.subscribe());
        let (near_read, near_write) = tokio::io::split(near);
        let (far_read, far_write) = far.into_split();
        let deaf = watch::Sender::new(false);
        let open = AtomicU32::new(1);
        // The end of either direction ends both, so that the proxy notices.
        tokio::select! {
            _ = up(near_read, far_write, deaf.subscribe()) => {}
            _ = self.down(far_read, near_write, flood, &deaf, &open) => {}
            _ = cuts.changed() => {}
        }
    }

    /// Frames of the server, with inserted frames among them.
    async fn down(
        &self,
        mut from: impl AsyncReadExt + Unpin,
        mut to: impl AsyncWriteExt + Unpin,
        mut flood: watch::Receiver<Option<Arc<Flood>>>,
        deaf: &watch::Sender<bool>,
        open: &AtomicU32,
    ) -> io::Result<()> {
        let (mut unread, mut part, mut is_first) = (Vec::new(), vec![0; 64 << 10], true);
        loop {
            while let Some(length) = whole(&unread) {
                let mut passed: Vec<u8> = unread.drain(..length).collect();
                if std::mem::take(&mut is_first) {
                    passed = self.amended(&passed);
                }
                if passed[3] == HEADERS {
                    open.store(u32::from_be_bytes(passed[5..9].try_into().expect("four bytes")), Ordering::Relaxed);
                }
                to.write_all(&passed).await?;
            }
            to.flush().await?;
            tokio::select! {
                read = from.read(&mut part) => match read? {
                    0 => return Ok(()),
                    read => unread.extend_from_slice(&part[..read]),
                },
                Ok(()) = flood.changed() => {
                    let ordered = flood.borrow_and_update().clone();
                    if let Some(flood) = ordered {
                        deaf.send_replace(!flood.is_reading);
                        let poured = pour(&mut to, &flood, open.load(Ordering::Relaxed)).await;
                        flood.is_done.store(true, Ordering::Relaxed);
                        poured?;
                    }
                }
            }
        }
    }

    fn amended(&self, first: &[u8]) -> Vec<u8> {
        assert_eq!((first[3], first[4] & ACK), (SETTINGS, 0), "a server begins with its settings");
        let more = self.settings.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat());
        frame(SETTINGS, 0, 0, &first[FRAME_HEAD..].iter().copied().chain(more).collect::<Vec<_>>())
    }
}

/// Length of the first frame, if it is complete.
fn whole(bytes: &[u8]) -> Option<usize> {
    let head = bytes.get(..FRAME_HEAD)?;
    let length = FRAME_HEAD + u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    (bytes.len() >= length).then_some(length)
}

async fn pour(to: &mut (impl AsyncWriteExt + Unpin), flood: &Flood, stream: u32) -> io::Result<()> {
    to.write_all(&(flood.first)(stream)).await?;
    for first in (0..flood.times).step_by(TOGETHER as usize) {
        let bytes: Vec<u8> = (first..first + TOGETHER).flat_map(|at| (flood.again)(at, stream)).collect();
        to.write_all(&bytes).await?;
        flood.sent.fetch_add(TOGETHER as usize, Ordering::Relaxed);
    }
    to.flush().await
}

/// Frames of the proxy, without its replies to inserted frames, which the server would not understand.
async fn up(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut deaf: watch::Receiver<bool>,
) -> io::Result<()> {
    let (mut unread, mut part, mut has_acknowledged) = (Vec::new(), vec![0; 64 << 10], false);
    let mut preface = vec![0; PREFACE.len()];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    loop {
        while let Some(length) = whole(&unread) {
            let passed: Vec<u8> = unread.drain(..length).collect();
            let is_ours = match (passed[3], passed[4] & ACK) {
                (PING, ACK) => true,
                (SETTINGS, ACK) => std::mem::replace(&mut has_acknowledged, true),
                _ => false,
            };
            if !is_ours {
                to.write_all(&passed).await?;
            }
        }
        to.flush().await?;
        let is_deaf = async { drop(deaf.wait_for(|is_deaf| *is_deaf).await) };
        tokio::select! {
            biased;
            () = is_deaf => std::future::pending().await,
            read = from.read(&mut part) => match read? {
                0 => return Ok(()),
                read => unread.extend_from_slice(&part[..read]),
            },
        }
    }
}

//! A client that sends arbitrary bytes and checks the server: frames in order, decodable header blocks, no byte beyond
//! a window.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADER_TABLE_SIZE, HEADERS, INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE, NO_ERROR, PADDED, PING, PREFACE, PRIORITIZED, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW,
    WINDOW_UPDATE, frame,
};
use super::hpack::{Field, Reader};
use crate::direct::{Client, Io, within};

const FRAME_HEAD: usize = 9;

/// Everything received on one stream.
#[derive(Default)]
pub struct Stream {
    pub heads: Vec<Vec<Field>>,
    pub body: Vec<u8>,
    /// Payload length of each DATA frame.
    pub frames: Vec<usize>,
    pub is_ended: bool,
    pub reset: Option<u32>,
    /// Window that the server gave for the stream's body.
    given: i64,
}

/// Everything received on a connection.
#[derive(Default)]
pub struct ReceivedFrames {
    pub streams: BTreeMap<u32, Stream>,
    pub settings: HashMap<u16, u32>,
    pub settings_acks: usize,
    pub pongs: Vec<u64>,
    /// Last stream and code of each GOAWAY.
    pub goodbyes: Vec<(u32, u32)>,
    /// Nothing more can arrive.
    pub is_over: bool,
    given: i64,
}

/// A frame, borrowed from the received bytes.
struct Frame<'a> {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &'a [u8],
}

/// A connection.
pub struct Wire {
    io: Box<dyn Io>,
    unread: Vec<u8>,
    pub received: ReceivedFrames,
    fields: Reader,
    /// An incomplete header block: its stream, whether it ends the stream, and its bytes so far.
    head: Option<(u32, bool, Vec<u8>)>,
    /// Settings that the server has not acknowledged yet, and those that it has.
    unacknowledged: VecDeque<HashMap<u16, u32>>,
    agreed: HashMap<u16, u32>,
    /// Window that the client gave for the bodies of streams and, under number 0, for the connection.
    windows: HashMap<u32, i64>,
    received_bytes: i64,
    /// Whether the server's settings and pings are acknowledged.
    pub is_polite: bool,
    /// Whether received bytes are parsed as frames.
    pub is_read: bool,
}

impl Stream {
    pub fn status(&self) -> Option<u16> {
        let (name, value) = self.heads.first()?.first()?;
        assert_eq!(name, ":status", "it comes first");
        Some(value.parse().expect("a number"))
    }

    pub fn is_settled(&self) -> bool {
        self.is_ended || self.reset.is_some()
    }
}

impl ReceivedFrames {
    pub fn is_settled(&self, stream: u32) -> bool {
        self.streams.get(&stream).is_some_and(Stream::is_settled)
    }

    /// Status of a complete response.
    pub fn answer(&self, stream: u32) -> Option<u16> {
        let stream = self.streams.get(&stream)?;
        if stream.is_ended { stream.status() } else { None }
    }

    pub fn reset(&self, stream: u32) -> Option<u32> {
        self.streams.get(&stream)?.reset
    }

    pub fn is_failed(&self) -> bool {
        self.is_over || self.goodbyes.iter().any(|(_, code)| *code != NO_ERROR)
    }

    /// Total window of a stream or, with number 0, of the connection, from its beginning.
    pub fn window(&self, stream: u32) -> i64 {
        if stream == 0 {
            return i64::from(WINDOW) + self.given;
        }
        let initial = self.settings.get(&INITIAL_WINDOW_SIZE).copied().unwrap_or(WINDOW);
        i64::from(initial) + self.streams.get(&stream).map_or(0, |stream| stream.given)
    }
}

impl Wire {
    /// Connects and sends nothing.
    pub async fn to(client: &Client) -> Self {
        Self {
            io: client.connect().await.expect("a connection"),
            unread: Vec::new(),
            received: ReceivedFrames::default(),
            fields: Reader::default(),
            head: None,
            unacknowledged: VecDeque::new(),
            agreed: HashMap::new(),
            windows: HashMap::new(),
            received_bytes: 0,
            is_polite: true,
            is_read: true,
        }
    }

    /// Sends bytes, and records their effect on the server's limits. An error shows when reading.
    pub async fn send(&mut self, bytes: &[u8]) {
        self.note(bytes);
        self.write(bytes).await;
    }

    /// Sends bytes that are not complete frames.
    pub async fn write(&mut self, bytes: &[u8]) {
        let _ = self.io.write_all(bytes).await;
        let _ = self.io.flush().await;
    }

    /// Closes the sending side.
    pub async fn finish(&mut self) {
        let _ = self.io.shutdown().await;
    }

    /// Records the effect of bytes that are sent in pieces.
    pub fn note(&mut self, bytes: &[u8]) {
        let mut rest = bytes.strip_prefix(PREFACE).unwrap_or(bytes);
        while let Some((frame, after)) = Frame::split(rest) {
            rest = after;
            if frame.kind == SETTINGS && frame.flags & ACK == 0 && frame.stream == 0 {
                self.unacknowledged.push_back(read_settings(frame.payload));
            }
            if let (WINDOW_UPDATE, Ok(more)) = (frame.kind, <[u8; 4]>::try_from(frame.payload)) {
                *self.windows.entry(frame.stream).or_default() += i64::from(u32::from_be_bytes(more));
            }
        }
    }

    /// Reads until the condition holds or nothing more can arrive.
    pub async fn until(&mut self, what: &str, is_there: impl Fn(&ReceivedFrames) -> bool) {
        while !is_there(&self.received) && !self.received.is_over {
            within(what, self.read()).await;
        }
    }

    /// Reads until the condition holds. Fails if the connection ends first.
    pub async fn wait(&mut self, what: &str, is_there: impl Fn(&ReceivedFrames) -> bool) {
        self.until(what, &is_there).await;
        assert!(is_there(&self.received), "{what}: the connection ended before: {:?}", self.received.goodbyes);
    }

    /// Waits until the server has processed everything that was sent before.
    pub async fn settle(&mut self) {
        let mark = 0x5e77 << 32 | self.received.pongs.len() as u64;
        self.send(&frame(PING, 0, 0, &mark.to_be_bytes())).await;
        self.wait("a ping is answered", |received| received.pongs.contains(&mark)).await;
    }

    /// Sends a body within the windows, in frames that `frame` makes of at most `bytes` bytes each.
    pub async fn upload(&mut self, stream: u32, body: &[u8], bytes: usize, frame: impl Fn(&[u8], bool) -> Vec<u8>) {
        // Other streams may have used the connection's window before. So the test sends a single body, or does its own
        // accounting.
        let (mut sent, mut rest) = (0, body);
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(bytes));
            let bytes = frame(part, after.is_empty());
            let cost = i64::try_from(bytes.len() - FRAME_HEAD).expect("short");
            let is_open = |received: &ReceivedFrames| sent + cost <= received.window(0).min(received.window(stream));
            self.wait("the server gives windows back", is_open).await;
            self.write(&bytes).await;
            (sent, rest) = (sent + cost, after);
        }
    }

    async fn read(&mut self) {
        let mut part = vec![0; 64 << 10];
        match self.io.read(&mut part).await {
            Ok(read @ 1..) => self.unread.extend_from_slice(&part[..read]),
            _ => self.received.is_over = true,
        }
        if !self.is_read {
            return;
        }
        let (unread, mut replies) = (std::mem::take(&mut self.unread), Vec::new());
        let mut rest = unread.as_slice();
        while let Some((frame, after)) = Frame::split(rest) {
            rest = after;
            assert!(frame.payload.len() <= self.allowed(MAX_FRAME_SIZE, 1 << 14) as usize, "a frame too long");
            replies.extend(self.take_in(&frame));
        }
        self.unread = rest.to_vec();
        if self.is_polite && !replies.is_empty() {
            self.write(&replies).await;
        }
    }

    /// The largest value of a setting that the server may assume, because it may not have seen the newest settings.
    fn allowed(&self, id: u16, default: u32) -> u32 {
        let agreed = self.agreed.get(&id).copied().unwrap_or(default);
        self.unacknowledged.iter().filter_map(|unacknowledged| unacknowledged.get(&id).copied()).fold(agreed, u32::max)
    }

    /// Processes a frame, and returns the reply to it.
    fn take_in(&mut self, &Frame { kind, flags, stream, payload }: &Frame<'_>) -> Vec<u8> {
        let is_first = self.received.settings.is_empty() && self.received.settings_acks == 0;
        assert!(!is_first || kind == SETTINGS || kind == GOAWAY, "the server begins with its settings: {kind}");
        assert!(self.head.is_none() || kind == CONTINUATION, "a head is not interrupted");
        match kind {
            DATA => self.take_data(flags, stream, payload),
            HEADERS => {
                let block = unpadded(flags, payload);
                let block = if flags & PRIORITIZED == 0 { block } else { &block[5..] };
                self.head = Some((stream, flags & END_STREAM != 0, block.to_vec()));
                self.take_head(flags);
            }
            CONTINUATION => {
                let (head, ..) = self.head.as_mut().map(|(at, _, block)| (*at, block.extend(payload))).expect("a head");
                assert_eq!(head, stream, "CONTINUATION frames follow their HEADERS frame");
                self.take_head(flags);
            }
            RST_STREAM => {
                let reset = &mut self.received.streams.entry(stream).or_default().reset;
                assert!(reset.is_none(), "reset twice: {stream}");
                *reset = Some(number(payload));
            }
            SETTINGS if flags & ACK != 0 => self.take_ack(),
            SETTINGS => {
                self.received.settings.extend(read_settings(payload));
                return frame(SETTINGS, ACK, 0, &[]);
            }
            PING if flags & ACK != 0 => {
                self.received.pongs.push(u64::from_be_bytes(payload.try_into().expect("eight bytes")));
            }
            PING => return frame(PING, ACK, 0, payload),
            GOAWAY => self.received.goodbyes.push((number(payload), number(&payload[4..]))),
            WINDOW_UPDATE => {
                let more = i64::from(number(payload));
                assert!(more > 0, "a window grows");
                match stream {
                    0 => self.received.given += more,
                    _ => self.received.streams.entry(stream).or_default().given += more,
                }
            }
            PUSH_PROMISE => panic!("push was not enabled"),
            _ => {}
        }
        Vec::new()
    }

    fn take_data(&mut self, flags: u8, number: u32, payload: &[u8]) {
        let length = i64::try_from(payload.len()).expect("short");
        self.received_bytes += length;
        let windows = |stream| self.windows.get(&stream).copied().unwrap_or_default();
        assert!(self.received_bytes <= i64::from(WINDOW) + windows(0), "more than the connection's window");
        let (initial, given) = (self.allowed(INITIAL_WINDOW_SIZE, WINDOW), windows(number));
        let stream = self.received.streams.get_mut(&number).expect("a head comes first");
        assert!(!stream.heads.is_empty() && !stream.is_settled(), "data before or after the answer: {number}");
        stream.frames.push(payload.len());
        let received_bytes = i64::try_from(stream.frames.iter().sum::<usize>()).expect("short");
        assert!(length == 0 || received_bytes <= i64::from(initial) + given, "more than the window of stream {number}");
        stream.body.extend_from_slice(unpadded(flags, payload));
        stream.is_ended |= flags & END_STREAM != 0;
    }

    fn take_head(&mut self, flags: u8) {
        if flags & END_HEADERS == 0 {
            return;
        }
        let (number, is_end, block) = self.head.take().expect("it has begun");
        let fields = self.fields.read(&block);
        let stream = self.received.streams.entry(number).or_default();
        assert!(!stream.is_settled(), "a head after the response: {number}");
        stream.heads.push(fields);
        stream.is_ended |= is_end;
    }

    fn take_ack(&mut self) {
        self.received.settings_acks += 1;
        let unacknowledged = self.unacknowledged.pop_front().expect("settings are acknowledged once");
        if let Some(bytes) = unacknowledged.get(&HEADER_TABLE_SIZE) {
            self.fields.allow(*bytes as usize);
        }
        self.agreed.extend(unacknowledged);
    }
}

impl<'a> Frame<'a> {
    /// The first frame, if it is complete, and the bytes after it.
    fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (head, rest) = bytes.split_at_checked(FRAME_HEAD)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (payload, rest) = rest.split_at_checked(length)?;
        let stream = number(&head[5..]) & (u32::MAX >> 1);
        Some((Self { kind: head[3], flags: head[4], stream, payload }, rest))
    }
}

fn unpadded(flags: u8, payload: &[u8]) -> &[u8] {
    if flags & PADDED == 0 {
        return payload;
    }
    let (padding, rest) = payload.split_first().expect("how much padding there is");
    &rest[..rest.len() - usize::from(*padding)]
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"))
}

fn read_settings(payload: &[u8]) -> HashMap<u16, u32> {
    payload.chunks_exact(6).map(|one| (u16::from_be_bytes([one[0], one[1]]), number(&one[2..]))).collect()
}

//! HTTP/2 attacks: far more frames than a client needs, or too few to finish anything (R-DOWNSTREAM-2 to
//! R-DOWNSTREAM-5, R-THREAT-10, R-THREAT-11). The proxy disconnects or throttles the sender at little cost, and does
//! not disturb other clients.

use std::io;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::bed::{self, Plan, Proxy, RequestSpec, log_line, unique, within};
use crate::hostile::streams::{Fields, field, frame, head, hello, literals};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
const REFUSED_STREAM: u32 = 7;
pub const FRAME_HEAD: usize = 9;

/// The number of connections of one flood.
const CONNECTIONS: usize = 4;
const FLOOD_BYTES_MAX: usize = 8 << 20;
const FLOOD_MAX: Duration = Duration::from_secs(4);
/// The CPU limit: one CPU for the duration of a flood.
const CPU_SECONDS_MAX: f64 = 10.0;
const MEMORY_BYTES_MAX: u64 = 96 << 20;

/// Returns the bytes to send repeatedly, by their sequence number.
type Flood = fn(u32, &Fields) -> Vec<u8>;

const FLOODS: [(&str, Flood); 9] = [
    ("rapid reset", |at, fields| {
        let stream = 2 * at + 3;
        [head(stream, fields, true), frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
    }),
    ("streams that are never finished", |at, fields| head(2 * at + 3, fields, false)),
    ("streams made to be reset by us", |at, fields| {
        let stream = 2 * at + 3;
        [head(stream, fields, true), frame(WINDOW_UPDATE, 0, stream, &0_u32.to_be_bytes())].concat()
    }),
    ("continuations", |at, _| {
        let part = literals(&vec![field("x", "y")]);
        if at == 0 { frame(HEADERS, 0, 3, &part) } else { frame(CONTINUATION, 0, 3, &part) }
    }),
    ("pings", |at, _| frame(PING, 0, 0, &u64::from(at).to_be_bytes())),
    ("settings", |at, _| frame(SETTINGS, 0, 0, &[[0, 3].as_slice(), &at.to_be_bytes()].concat())),
    ("priorities", |at, _| frame(PRIORITY, 0, 2 * at + 3, &[0, 0, 0, 0, 1])),
    ("empty data", |at, fields| if at == 0 { head(3, fields, false) } else { frame(DATA, 0, 3, &[]) }),
    ("an indexed header that is sent again", |at, fields| {
        // Adds four kilobytes to the header table, and then refers to them with one byte each (RFC 7541 §6.1).
        let entry = [[0x40, 1, b'x', 0x7f, 0xa1, 0x1e].as_slice(), &[b'y'; 4000]].concat();
        let block = [literals(fields), if at == 0 { entry } else { vec![0xbe; 8000] }].concat();
        frame(HEADERS, END_HEADERS | 1, 2 * at + 3, &block)
    }),
];

fn question(token: &str) -> Fields {
    let fields = [(":method", "GET"), (":scheme", "https"), (":authority", "127.0.0.1"), (":path", "/api/v1/nodes")];
    let mut fields: Fields = fields.iter().map(|(name, value)| field(name, value)).collect();
    fields.push(field("authorization", &format!("Bearer {token}")));
    fields
}

/// Writes and flushes. Without the flush, TLS may buffer the bytes until the task's next write.
async fn send(io: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    io.write_all(bytes).await?;
    io.flush().await
}

/// Reads and discards until the end.
async fn drain(mut io: ReadHalf<TlsStream<TcpStream>>) {
    let mut part = vec![0; 16 << 10];
    while let Ok(1..) = io.read(&mut part).await {}
}

async fn pour(mut io: WriteHalf<TlsStream<TcpStream>>, flood: Flood, fields: &Fields) -> usize {
    let mut sent = 0;
    if send(&mut io, &hello()).await.is_err() {
        return sent;
    }
    for at in 0.. {
        let bytes = flood(at, fields);
        if sent > FLOOD_BYTES_MAX || send(&mut io, &bytes).await.is_err() {
            break;
        }
        sent += bytes.len();
    }
    sent
}

/// Sends until the proxy stops reading. Half of the senders never read a response. Returns the number of bytes.
async fn flood(proxy: &Proxy, flood: Flood, fields: &Fields) -> usize {
    let senders = (0..CONNECTIONS).map(async |at| {
        let (reader, writer) = split(proxy.target().connect("h2").await);
        let reading = async {
            if at % 2 == 0 {
                drain(reader).await;
            }
            std::future::pending::<()>().await;
        };
        let pouring = async { timeout(FLOOD_MAX, pour(writer, flood, fields)).await.unwrap_or(FLOOD_BYTES_MAX) };
        tokio::select! {
            sent = pouring => sent,
            () = reading => 0,
        }
    });
    join_all(senders).await.into_iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_flood_costs_little_cpu_and_does_not_delay_others() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::delegated(&bed).start(&bed).await;
    let (namespace, token) = (bed.namespace("floods").await, bed.user("admin").token);
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let mut watch = proxy.client().watch(RequestSpec::get(&format!("{maps}?watch=true"))).await;
    for (name, what) in FLOODS {
        let (began, cpu, memory) = (Instant::now(), proxy.cpu_seconds(), proxy.resident_bytes());
        // Runs on its own connection during the flood.
        let other = async {
            let map = unique("map");
            bed.direct().create(&maps, json!({"metadata": {"name": map}})).await;
            while watch.change().await.name() != map {}
            assert_eq!(proxy.client().get("/api/v1/nodes").await.status, 200, "{name}");
            began.elapsed()
        };
        let fields = question(&token);
        let (sent, other) = tokio::join!(flood(&proxy, what, &fields), other);
        let (cpu, memory) = (proxy.cpu_seconds() - cpu, proxy.resident_bytes().saturating_sub(memory));
        let took = began.elapsed();
        log_line(&format!(
            "{name}: {} KiB in {took:.1?}, {cpu:.1} s of CPU, {} KiB more; others: {other:.1?}",
            sent >> 10,
            memory >> 10
        ));
        assert!(cpu < CPU_SECONDS_MAX, "{name}: {cpu} s of CPU");
        assert!(memory < MEMORY_BYTES_MAX, "{name}: {memory} bytes");
        proxy.assert_sound();
    }
}

/// The complete frames in received bytes: type, stream and payload of each.
pub fn frames_of_streams(mut received: &[u8]) -> impl Iterator<Item = (u8, u32, &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = received.split_at_checked(FRAME_HEAD)?;
        let (payload, rest) = rest.split_at_checked(number(&[&[0], &head[..3]].concat()) as usize)?;
        received = rest;
        Some((head[3], number(&head[5..]), payload))
    })
}

/// The complete frames in received bytes: type and payload of each.
fn frames(received: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    frames_of_streams(received).map(|(kind, _, payload)| (kind, payload))
}

/// The first four bytes as a big-endian number.
fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"))
}

fn kinds(received: &[u8]) -> Vec<u8> {
    frames(received).map(|(kind, _)| kind).collect()
}

#[tokio::test]
async fn unauthenticated_connection_serves_one_request_then_goaway() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::delegated(&bed).start(&bed).await;
    for token in ["a-guess", ""] {
        let mut fields = question(token);
        if token.is_empty() {
            fields.pop();
        }
        let mut io = proxy.target().connect("h2").await;
        send(&mut io, &[hello(), head(1, &fields, true)].concat()).await.expect("it is sent");
        let (mut received, mut part, mut answered, mut insisted) = (Vec::new(), [0; 4096], 0, false);
        while let Ok(read @ 1..) = within("the end of the connection", io.read(&mut part)).await {
            received.extend_from_slice(&part[..read]);
            // A request after the GOAWAY is ignored.
            if !insisted && kinds(&received).contains(&GOAWAY) {
                insisted = true;
                send(&mut io, &head(3, &fields, true)).await.expect("it is still open");
            }
            // If the client does not answer the ping after a GOAWAY, the proxy waits for a minute.
            let pings = frames(&received).filter(|(kind, _)| *kind == PING).map(|(_, payload)| payload.to_vec());
            for ping in pings.skip(answered).collect::<Vec<_>>() {
                let _ = send(&mut io, &frame(PING, ACK, 0, &ping)).await;
                answered += 1;
            }
        }
        let resets: Vec<_> = frames(&received).filter(|(kind, _)| *kind == RST_STREAM).map(|(_, why)| why).collect();
        assert_eq!(resets, [REFUSED_STREAM.to_be_bytes()], "{token:?}");
        let kinds = kinds(&received);
        let answers: Vec<_> = kinds.iter().filter(|kind| **kind == HEADERS).collect();
        assert!(answers.len() == 1 && kinds.contains(&GOAWAY), "{token:?}: {kinds:?}");
    }
    // An authenticated client keeps its connection.
    let mut fields = question(&bed.user("bob").token);
    let (mut reader, mut writer) = split(proxy.target().connect("h2").await);
    send(&mut writer, &hello()).await.expect("it is sent");
    for stream in [1, 3] {
        send(&mut writer, &head(stream, &fields, true)).await.expect("it is sent");
        fields.push(field("x-again", "a"));
    }
    let mut received = Vec::new();
    let answers = |received: &[u8]| kinds(received).into_iter().filter(|kind| *kind == HEADERS).count();
    while answers(&received) < 2 {
        let mut part = [0; 4096];
        let read = within("two answers", reader.read(&mut part)).await.expect("the connection holds");
        assert!(read > 0, "after {:?}", kinds(&received));
        received.extend_from_slice(&part[..read]);
    }
    assert!(!kinds(&received).contains(&GOAWAY));
}

/// A GOAWAY loses no request (RFC 9113 §6.8 and RFC 9113 §8.7). Every request on a connection that is being closed is
/// answered or refused. A refusal shows the client that the request was not processed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_racing_a_goaway_are_processed_or_refused() {
    const ROUNDS: usize = 300;
    const AT_ONCE: usize = 20;
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::delegated(&bed).start(&bed).await;
    let fields = [question("a-guess"), question(&bed.user("admin").token)];
    let rounds = (0..ROUNDS).map(|round| around_a_goodbye(&proxy, &fields, round));
    let answers: Vec<bool> = stream::iter(rounds).buffer_unordered(AT_ONCE).collect().await;
    let answered = answers.iter().filter(|is_answered| **is_answered).count();
    log_line(&format!("{answered} answered, {} refused", ROUNDS - answered));
    assert!(answered > 0 && answered < ROUNDS);
}

/// Sends an unauthenticated request, and then an authenticated one on the same connection. Returns whether the second
/// one was answered instead of refused.
async fn around_a_goodbye(proxy: &Proxy, [guess, known]: &[Fields; 2], round: usize) -> bool {
    let (mut reader, mut writer) = split(proxy.target().connect("h2").await);
    send(&mut writer, &[hello(), head(1, guess, true)].concat()).await.expect("it is sent");
    // Directly after the first request, after its refusal, or after the GOAWAY.
    let is_moment = |received: &[u8]| match round % 3 {
        0 => true,
        1 => kinds(received).contains(&HEADERS),
        _ => kinds(received).contains(&GOAWAY),
    };
    let is_answered =
        |received: &[u8], stream| frames_of_streams(received).any(|(kind, of, _)| kind == HEADERS && of == stream);
    let (mut received, mut part, mut sent, mut pings) = (Vec::new(), [0; 4096], None, 0);
    // If the caller is authenticated before the first request is refused, the connection may stay open.
    let may_stay = round.is_multiple_of(3);
    while !(may_stay && is_answered(&received, 1) && is_answered(&received, 3)) {
        if sent.is_none() && is_moment(&received) {
            sent = Some(send(&mut writer, &head(3, known, true)).await.is_ok());
        }
        for ping in frames(&received).filter(|(kind, _)| *kind == PING).skip(pings).map(|(_, it)| it.to_vec()) {
            let _ = send(&mut writer, &frame(PING, ACK, 0, &ping)).await;
            pings += 1;
        }
        match within("the end of the connection", reader.read(&mut part)).await {
            Ok(read @ 1..) => received.extend_from_slice(&part[..read]),
            _ => break,
        }
    }
    assert!(is_answered(&received, 1), "round {round}: closed before it answered: {:?}", kinds(&received));
    let last = frames(&received).filter(|(kind, _)| *kind == GOAWAY).map(|(_, payload)| number(payload)).last();
    assert!(
        may_stay || last.is_some(),
        "round {round}: an unauthenticated connection gets GOAWAY: {:?}",
        kinds(&received)
    );
    if is_answered(&received, 3) {
        return true;
    }
    let reset = frames_of_streams(&received).find(|(kind, of, _)| *kind == RST_STREAM && *of == 3);
    let is_refused = reset.is_some_and(|(.., why)| number(why) == REFUSED_STREAM) || last.is_some_and(|last| last < 3);
    assert!(sent == Some(false) || is_refused, "round {round}: lost: {:?}, last {last:?}", kinds(&received));
    false
}

/// R-THREAT-11: the proxy does not accumulate responses that the client does not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_do_not_accumulate_in_memory() {
    const STREAMS: u32 = 200;
    let Some(bed) = bed::shared().await else { return };
    bed.load().await;
    let proxy = Plan::delegated(&bed).start(&bed).await;
    let pods = "/api/v1/namespaces/bulk/pods?resourceVersion=0";
    let whole = proxy.client().get(pods).await.body.len();
    let mut fields = question(&bed.user("admin").token);
    fields[3] = field(":path", pods);
    let before = proxy.resident_bytes();
    // A window of zero: the proxy may send no data.
    let mut bytes = [hello(), frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
    for stream in 0..STREAMS {
        bytes.extend(head(2 * stream + 1, &fields, true));
    }
    let mut stuck = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut io = proxy.target().connect("h2").await;
        send(&mut io, &bytes).await.expect("it is sent");
        stuck.push(io);
    }
    let requests = STREAMS as usize * CONNECTIONS;
    bed::eventually("all of it is being answered", async || {
        let served = proxy.metrics().await.sum("kube_fanout_served_total", &[]);
        (served > i64::try_from(requests).expect("small")).then_some(())
    })
    .await;
    let took = proxy.resident_bytes().saturating_sub(before);
    log_line(&format!(
        "{requests} unread responses of {} KiB: {} KiB each",
        whole >> 10,
        (took / requests as u64) >> 10
    ));
    assert!(took < requests as u64 * (256 << 10), "{took} bytes");
    assert_eq!(proxy.client().get(pods).await.body.len(), whole);
    proxy.assert_sound();
    drop(stuck);
}

/// R-DOWNSTREAM-5: connections that stall in the middle of a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_handshakes_and_heads_are_disconnected() {
    const EACH: usize = 100;
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::delegated(&bed).start(&bed).await;
    let target = proxy.target();
    let silent = (0..EACH).map(async |_| {
        let mut io = TcpStream::connect(target.host()).await.expect("it listens");
        // The start of a handshake.
        send(&mut io, b"\x16\x03\x01\x02\x00\x01\x00").await.expect("it is sent");
        within("the end of a handshake that never ends", io.read_to_end(&mut Vec::new())).await.is_ok()
    });
    let slow = (0..EACH).map(async |_| {
        let mut io = target.connect("http/1.1").await;
        send(&mut io, b"GET /version HTTP/1.1\r\nHost: 127.0").await.expect("it is sent");
        within("the end of a head that never ends", io.read_to_end(&mut Vec::new())).await.is_ok()
    });
    let began = Instant::now();
    let others = async {
        for _ in 0..20 {
            assert_eq!(proxy.client().get("/api/v1/nodes").await.status, 200);
        }
        began.elapsed()
    };
    let (_, _, others) = tokio::join!(join_all(silent), join_all(slow), others);
    log_line(&format!("{} connections hung up on after {:.1?}; others: {others:.1?}", 2 * EACH, began.elapsed()));
    assert!(began.elapsed() < Duration::from_secs(30));
    proxy.assert_sound();
}

//! Attacks as bytes on connections: what the attacker sends, which responses the proxy may give, and the checks with
//! one attacker and with several.

use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, split};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::handshakes::{FLOOD, NEWCOMERS_MIN, newcomers, shake};
use super::memory::Watcher;
use super::{Answers, Field, allow, attack};
use crate::bed::{Identity, Target, log_line};
use crate::floods::{FRAME_HEAD, frames_of_streams};
use crate::hostile::streams::{Fields, field, hello};

/// An attack, as each of its connections performs it.
pub struct Attack {
    pub name: &'static str,
    /// The protocol of its connections, by its ALPN name.
    pub protocol: &'static str,
    /// The number of concurrent connections of one attacker.
    pub connections: usize,
    /// The first bytes of each connection.
    pub opening: Vec<u8>,
    /// The bytes that follow in a loop, as fast as the proxy reads them. If empty, the connection is only held open.
    pub again: Vec<u8>,
    /// The number of requests in `opening`. The attacker closes the connection when it has all responses; if 0, never.
    pub requests: usize,
    /// Whether the attacker reads.
    pub reads: bool,
    /// The responses that the proxy may give. The first of them must occur.
    pub promised: &'static [&'static str],
    /// The largest number of responses on a connection.
    pub responses_max: usize,
}

const HEADERS: u8 = 1;
const RESET: u8 = 3;
const GOAWAY: u8 = 7;
/// Outcomes that are always allowed: connections opened, ended and refused.
const ALWAYS: [&str; 3] = ["connections", "ended", "refused"];
/// The limit for the growth of resident memory during an attack.
const GROWN_MAX: u64 = 100 << 20;
/// The pause between two newcomers.
const NEWCOMER_EVERY: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A close frame of WebSocket with the code 1008 (RFC 6455 §7.4.1).
const CLOSED_FOR_POLICY: [u8; 4] = [0x88, 2, 0x03, 0xf0];
const STATUS_LINE: &[u8] = b"HTTP/1.1 ";

/// The head of an HTTP/2 request.
pub fn question(method: &str, path: &str, more: &[(&str, &str)]) -> Fields {
    let mut fields = vec![field(":method", method), field(":authority", "kube-fanout")];
    if method != "CONNECT" {
        fields.extend([field(":scheme", "https"), field(":path", path)]);
    }
    fields.extend(more.iter().map(|(name, value)| field(name, value)));
    fields
}

/// The client preface and SETTINGS, followed by these frames.
pub fn after_hello(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    std::iter::once(hello()).chain(frames).flatten().collect()
}

impl Attack {
    /// An HTTP/1.1 connection that is held open.
    pub fn http1() -> Self {
        Self {
            name: "",
            protocol: "http/1.1",
            connections: 8,
            opening: Vec::new(),
            again: Vec::new(),
            requests: 0,
            reads: true,
            promised: &ALWAYS,
            responses_max: usize::MAX,
        }
    }

    /// An HTTP/2 connection that is held open.
    pub fn http2() -> Self {
        Self { protocol: "h2", ..Self::http1() }
    }

    /// Opens a connection, sends, and records the responses until the connection or the attack ends.
    async fn strike(&self, target: &Target, connector: &TlsConnector, over: &AtomicBool, answers: &Answers) {
        let striking = async {
            let Ok(io) = shake(target, connector, FLOOD).await else {
                answers.put("refused");
                return sleep(LOOK_EVERY).await;
            };
            answers.put("connections");
            let (reader, mut writer) = split(io);
            let sending = async {
                let mut sent = writer.write_all(&self.opening).await.and(writer.flush().await);
                while sent.is_ok() && !self.again.is_empty() {
                    sent = writer.write_all(&self.again).await;
                }
                // The proxy may still respond after it stops reading.
                pending::<()>().await;
            };
            tokio::select! {
                () = self.read_responses(reader, answers) => {}
                () = sending => {}
            }
        };
        let is_over = async {
            while !over.load(Ordering::SeqCst) {
                sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            () = striking => {}
            () = is_over => {}
        }
    }

    async fn read_responses(&self, mut reader: ReadHalf<TlsStream<TcpStream>>, answers: &Answers) {
        if !self.reads {
            return pending().await;
        }
        let (mut received, mut part, mut responses, mut answered) = (Vec::new(), vec![0; 16 << 10], 0, 0);
        loop {
            match reader.read(&mut part).await {
                Ok(read @ 1..) => received.extend_from_slice(&part[..read]),
                _ => return answers.put("ended"),
            }
            for answer in
                if self.protocol == "h2" { http2_answers(&mut received) } else { http1_answers(&mut received) }
            {
                responses += usize::from(answer.parse::<u16>().is_ok());
                answered += usize::from(!answer.starts_with("goaway"));
                answers.put(if responses > self.responses_max { "one too many".to_owned() } else { answer });
            }
            if self.requests > 0 && answered >= self.requests {
                return;
            }
        }
    }
}

/// Removes the complete frames from the received bytes. Returns the statuses of responses, and the reasons for the end
/// of streams and of the connection.
fn http2_answers(received: &mut Vec<u8>) -> Vec<String> {
    let (mut taken, mut answers) = (0, Vec::new());
    for (kind, _, payload) in frames_of_streams(received) {
        taken += FRAME_HEAD + payload.len();
        match (kind, payload) {
            (HEADERS, block) => answers.push(status(block)),
            (RESET, [.., code]) => answers.push(format!("reset {code}")),
            (GOAWAY, [_, _, _, _, _, _, _, code, ..]) => answers.push(format!("goaway {code}")),
            _ => {}
        }
    }
    received.drain(..taken);
    answers
}

/// The status at the start of a header block from the proxy.
fn status(block: &[u8]) -> String {
    // The block may begin with a table size update.
    let status = match block.strip_prefix(&[0x20]).unwrap_or(block) {
        [0x88, ..] => "200",
        [0x8b, ..] => "304",
        [0x8c, ..] => "400",
        [0x8d, ..] => "404",
        [0x8e, ..] => "500",
        [0x08, 3, first, second, third, ..] => return String::from_utf8_lossy(&[*first, *second, *third]).into_owned(),
        _ => "trailers",
    };
    status.to_owned()
}

/// Removes the statuses and the close code of a WebSocket from the received bytes.
fn http1_answers(received: &mut Vec<u8>) -> Vec<String> {
    let mut answers = Vec::new();
    let find = |received: &[u8], what: &[u8]| received.windows(what.len()).position(|part| part == what);
    while let Some(at) =
        find(received, STATUS_LINE).map(|at| at + STATUS_LINE.len()).filter(|at| at + 3 <= received.len())
    {
        answers.push(String::from_utf8_lossy(&received[at..at + 3]).into_owned());
        received.drain(..at);
    }
    if find(received, &CLOSED_FOR_POLICY).is_some() {
        answers.push("close 1008".to_owned());
        received.clear();
    }
    // Keeps a possibly incomplete status line.
    received.drain(..received.len().saturating_sub(STATUS_LINE.len() + 2));
    answers
}

/// Runs each attack against a new proxy, with one attacker and with all. The proxy must serve and admit other clients,
/// its memory must stay within its bound, and every response must be a promised one. Newcomers belong to another
/// account and connect from this address.
pub async fn withstand(field: &mut Field, config: &str, by: &[Identity], newcomer: Ipv4Addr, attacks: Vec<Attack>) {
    let mut faults = Vec::new();
    for attack in attacks {
        field.restart(config).await;
        let before = field.proxy.resident_bytes();
        for by in [&by[..1], by] {
            faults.extend(besiege(field, &attack, by, newcomer, before).await);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Runs an attack with all attackers against a new proxy.
pub async fn withstand_all(field: &mut Field, config: &str, by: &[Identity], newcomer: Ipv4Addr, attack: &Attack) {
    field.restart(config).await;
    let before = field.proxy.resident_bytes();
    let faults = besiege(field, attack, by, newcomer, before).await;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

async fn besiege(field: &Field, how: &Attack, by: &[Identity], newcomer: Ipv4Addr, before: u64) -> Vec<String> {
    let (what, target) = (format!("{} by {}", how.name, by.len()), field.proxy.target());
    let connector = |who: &Identity| {
        let mut tls = target.by(who).tls();
        tls.alpn_protocols = vec![how.protocol.as_bytes().to_vec()];
        TlsConnector::from(Arc::new(tls))
    };
    let connectors: Vec<_> = by.iter().map(connector).collect();
    let (answers, watcher) = (Answers::default(), Watcher::of(&field.proxy));
    let path = format!("{}?resourceVersion=0", field.pod);
    let mut came = 0;
    let attacking = async |_| {
        let over = AtomicBool::new(false);
        let (over, connectors, target) = (&over, &connectors, &target);
        let blow = |who: usize, _, answers: Answers| async move {
            how.strike(target, &connectors[who % connectors.len()], over, &answers).await;
        };
        let coming = async {
            let coming = newcomers(&field.healthy(), &path, newcomer, NEWCOMER_EVERY).await;
            // A busy machine may delay the attack.
            allow(|| answers.counts().contains_key(how.promised[0])).await;
            over.store(true, Ordering::SeqCst);
            coming.0.len()
        };
        (came, ()) = tokio::join!(coming, attack(by.len() * how.connections, over, &answers, blow));
        answers.clone()
    };
    field.besiege(&what, None, attacking).await;
    let grown = watcher.seen().await.max.saturating_sub(before);
    log_line(&format!("{what}: {} MiB more, {came} new clients", grown >> 20));
    let counts = answers.counts();
    let wrong: Vec<_> = counts.keys().map(String::as_str).filter(|answer| !is_promised(how, answer)).collect();
    let promised = how.promised[0];
    let faults = [
        (grown > GROWN_MAX, format!("{} MiB more", grown >> 20)),
        (came < NEWCOMERS_MIN, format!("{came} new clients were accepted")),
        (!wrong.is_empty(), format!("{wrong:?} among {counts:?}")),
        (!counts.contains_key(promised), format!("no {promised} among {counts:?}")),
    ];
    faults.into_iter().filter(|(is_so, _)| *is_so).map(|(_, fault)| format!("{what}: {fault}")).collect()
}

fn is_promised(how: &Attack, answer: &str) -> bool {
    ALWAYS.contains(&answer) || how.promised.contains(&answer)
}

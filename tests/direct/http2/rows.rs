//! A table row: the bytes that a client sends, and the permitted outcomes. All rows of a table run at once, each on a
//! connection of its own, and all failures are reported.

use std::io::Write as _;

use futures_util::stream::{self, StreamExt as _};
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kube_fanout::net::Http2Codec;
use tokio::time::timeout;

use super::frames::{get, hello, ping};
use super::wire::{ReceivedFrames, Wire};
use crate::direct::{self, App, Client, PATIENCE, Plan, Stub, stub};

/// Answers with a short text.
pub const SMALL: &str = "/small";
/// Answers with the body of the request; the header `trailers` has the number of its trailers.
pub const ECHO: &str = "/echo";
/// Neither answers nor reads.
pub const HANG: &str = "/hang";
/// Must never be requested.
pub const MALFORMED: &str = "/malformed";
/// Stream of the request after each row, which shows that the connection is still usable.
pub const LAST: u32 = 100_001;
const PROBE: u64 = 0xdead_beef;
const AT_ONCE: usize = 16;

/// A permitted outcome of a row. If the RFC lets a server choose, a row has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No reaction; the connection continues.
    Ignored,
    /// A complete response with this status on this stream; the connection continues.
    Answered(u32, u16),
    /// A reset of this stream with this code; the connection continues.
    Reset(u32, u32),
    /// The connection ends with this code.
    Ends(u32),
    /// The connection ends, with or without a code.
    Closed,
}

use Outcome::{Answered, Closed, Ends, Ignored, Reset};

/// Name of the row, the bytes after the preface, and the permitted outcomes.
pub type Row = (&'static str, Vec<u8>, Vec<Outcome>);

/// State of the connection before a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// The row begins with the preface.
    Nothing,
    /// Only settings were exchanged.
    Hello,
    /// Stream 1 has been answered.
    Answer,
}

/// Both implementations of the server.
pub const CODECS: [Http2Codec; 2] = [Http2Codec::Own, Http2Codec::Hyper];

/// A proxy that serves HTTP/2 with this implementation.
pub fn served_by(codec: Http2Codec, plan: Plan) -> Plan {
    plan.with(|config| config.connections.http2_codec = codec)
}

/// An upstream with all of these paths, and a proxy in front of it with high concurrency limits.
pub async fn proxy() -> (Stub, App) {
    proxy_by(Http2Codec::Own).await
}

pub async fn proxy_by(codec: Http2Codec) -> (Stub, App) {
    let upstream = stub(|request: Request<Incoming>| async move {
        if request.uri().path() == HANG {
            std::future::pending::<()>().await;
        }
        if request.uri().path() != ECHO {
            return Ok(Stub::reply(200, "small"));
        }
        let whole = request.into_body().collect().await?;
        let trailers = whole.trailers().map_or(0, http::HeaderMap::len);
        let mut reply = Stub::reply(200, whole.to_bytes());
        reply.headers_mut().insert("trailers", trailers.into());
        Ok(reply)
    });
    let upstream = upstream.await;
    let app = served_by(codec, roomy(direct::in_front_of(&upstream.url()))).run().await;
    (upstream, app)
}

pub fn roomy(plan: Plan) -> Plan {
    plan.with(|config| {
        let limits = &mut config.serve.limits;
        (limits.forwards_max, limits.forwards_per_caller_max, limits.anonymous_forwards_max) = (5_000, 5_000, 5_000);
    })
}

/// Runs the rows of each table, and fails with all unexpected outcomes.
pub async fn hold(client: &Client, tables: Vec<(&'static str, Before, Vec<Row>)>) {
    let rows = tables.into_iter().flat_map(|(table, before, rows)| rows.into_iter().map(move |it| (table, before, it)));
    let run = stream::iter(rows).map(async |(table, before, (name, sent, allowed))| {
        let outcome = timeout(PATIENCE, row(client, before, &sent, &allowed)).await;
        let outcome = outcome.unwrap_or_else(|_| Some("no response arrived".to_owned()))?;
        Some(format!("{table}, {name}: {outcome}, not any of {allowed:?}"))
    });
    let outcomes: Vec<Option<String>> = run.buffer_unordered(AT_ONCE).collect().await;
    let failed: Vec<_> = outcomes.into_iter().flatten().collect();
    assert!(failed.is_empty(), "\n  {}\n", failed.join("\n  "));
}

/// Returns the outcome if it is not permitted.
async fn row(client: &Client, before: Before, sent: &[u8], allowed: &[Outcome]) -> Option<String> {
    let mut wire = Wire::to(client).await;
    let first = if before == Before::Hello { hello() } else { Vec::new() };
    if before == Before::Answer {
        wire.send(&[hello(), get(1, SMALL)].concat()).await;
        wire.wait("the first answer", |received| received.answer(1).is_some()).await;
    }
    wire.send(&[first.as_slice(), sent, &ping(PROBE), &get(LAST, SMALL)].concat()).await;
    let awaited: Vec<u32> = if allowed.contains(&Ignored) { Vec::new() } else { streams(allowed) };
    let is_settled = |received: &ReceivedFrames| {
        let goes_on = received.pongs.contains(&PROBE) && received.is_settled(LAST);
        received.is_failed() || (goes_on && awaited.iter().all(|stream| received.is_settled(*stream)))
    };
    wire.until("an outcome", is_settled).await;
    if wire.received.is_failed() {
        wire.until("the connection's end", |received| received.is_over).await;
    }
    let received = &wire.received;
    (!allowed.iter().any(|outcome| is(*outcome, received))).then(|| describe(received))
}

fn streams(allowed: &[Outcome]) -> Vec<u32> {
    let stream = |outcome: &Outcome| match outcome {
        Answered(stream, _) | Reset(stream, _) => Some(*stream),
        Ignored | Ends(_) | Closed => None,
    };
    allowed.iter().filter_map(stream).collect()
}

fn is(outcome: Outcome, received: &ReceivedFrames) -> bool {
    let goes_on = received.goodbyes.is_empty() && !received.is_over && received.answer(LAST) == Some(200);
    match outcome {
        Ignored => goes_on && received.streams.values().all(|stream| stream.reset.is_none()),
        Answered(stream, status) => goes_on && received.answer(stream) == Some(status),
        Reset(stream, code) => goes_on && received.reset(stream) == Some(code),
        Ends(code) => received.is_over && received.goodbyes.last().is_some_and(|(_, why)| *why == code),
        Closed => received.is_over,
    }
}

/// Writes a line to stderr, which is visible even if the test passes.
pub fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

fn describe(received: &ReceivedFrames) -> String {
    let streams = received.streams.iter().map(|(number, stream)| {
        let (status, reset) = (stream.status(), stream.reset);
        format!("{number}: {status:?}, ended {}, reset {reset:?}", stream.is_ended)
    });
    let (streams, pongs) = (streams.collect::<Vec<_>>().join("; "), received.pongs.len());
    format!("streams [{streams}], {pongs} pongs, goodbyes {:?}, over {}", received.goodbyes, received.is_over)
}

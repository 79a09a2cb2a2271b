//! A row of a table is what a client sends and what may come of it. All rows of a table run at once, each on a
//! connection of its own, and all that fail are told.

use std::io::Write as _;

use futures_util::stream::{self, StreamExt as _};
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::frames::{get, hello, ping};
use super::wire::{Heard, Wire};
use crate::direct::{self, App, Client, PATIENCE, Plan, Stub, stub};

/// Answers with a short text.
pub const SMALL: &str = "/small";
/// Answers with the body of the request; the header `trailers` says how many of those came.
pub const ECHO: &str = "/echo";
/// Never answers, nor reads.
pub const HANG: &str = "/hang";
/// Must never be asked for.
pub const MALFORMED: &str = "/malformed";
/// The request behind each row, which shows that the connection holds.
pub const LAST: u32 = 100_001;
const PROBE: u64 = 0xdead_beef;
const AT_ONCE: usize = 16;

/// What may come of a row. Where the RFC lets a server choose, a row has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing, and the connection goes on.
    Ignored,
    /// A whole answer with this status on this stream, and the connection goes on.
    Answered(u32, u16),
    /// This stream is reset with this code, and the connection goes on.
    Reset(u32, u32),
    /// The connection ends with this code.
    Ends(u32),
    /// The connection ends, with a code or without.
    Closed,
}

use Outcome::{Answered, Closed, Ends, Ignored, Reset};

/// The row's name, what is sent behind the preface, and what may come of it.
pub type Row = (&'static str, Vec<u8>, Vec<Outcome>);

/// In what state the connection is before a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// The row begins with the preface.
    Nothing,
    /// There were only settings.
    Hello,
    /// Stream 1 has been answered.
    Answer,
}

/// An upstream that has all of these paths, and a proxy before it with room for many requests at once.
pub async fn proxy() -> (Stub, App) {
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
    let app = roomy(direct::in_front_of(&upstream.url())).run().await;
    (upstream, app)
}

pub fn roomy(plan: Plan) -> Plan {
    plan.with(|config| {
        let limits = &mut config.serve.limits;
        (limits.forwards_max, limits.forwards_per_caller_max, limits.anonymous_forwards_max) = (5_000, 5_000, 5_000);
    })
}

/// Runs the rows of each table, and fails with all that came out otherwise.
pub async fn hold(client: &Client, tables: Vec<(&'static str, Before, Vec<Row>)>) {
    let rows = tables.into_iter().flat_map(|(table, before, rows)| rows.into_iter().map(move |it| (table, before, it)));
    let run = stream::iter(rows).map(async |(table, before, (name, sent, allowed))| {
        let outcome = timeout(PATIENCE, row(client, before, &sent, &allowed)).await;
        let outcome = outcome.unwrap_or_else(|_| Some("nothing came of it".to_owned()))?;
        Some(format!("{table}, {name}: {outcome}, not any of {allowed:?}"))
    });
    let outcomes: Vec<Option<String>> = run.buffer_unordered(AT_ONCE).collect().await;
    let failed: Vec<_> = outcomes.into_iter().flatten().collect();
    assert!(failed.is_empty(), "\n  {}\n", failed.join("\n  "));
}

/// What came of it, if that may not be.
async fn row(client: &Client, before: Before, sent: &[u8], allowed: &[Outcome]) -> Option<String> {
    let mut wire = Wire::to(client).await;
    let first = if before == Before::Hello { hello() } else { Vec::new() };
    if before == Before::Answer {
        wire.send(&[hello(), get(1, SMALL)].concat()).await;
        wire.wait("the first answer", |heard| heard.answer(1).is_some()).await;
    }
    wire.send(&[first.as_slice(), sent, &ping(PROBE), &get(LAST, SMALL)].concat()).await;
    let awaited: Vec<u32> = if allowed.contains(&Ignored) { Vec::new() } else { streams(allowed) };
    let is_settled = |heard: &Heard| {
        let goes_on = heard.pongs.contains(&PROBE) && heard.is_settled(LAST);
        heard.is_failed() || (goes_on && awaited.iter().all(|stream| heard.is_settled(*stream)))
    };
    wire.until("an outcome", is_settled).await;
    if wire.heard.is_failed() {
        wire.until("the connection's end", |heard| heard.is_over).await;
    }
    let heard = &wire.heard;
    (!allowed.iter().any(|outcome| is(*outcome, heard))).then(|| tell(heard))
}

fn streams(allowed: &[Outcome]) -> Vec<u32> {
    let stream = |outcome: &Outcome| match outcome {
        Answered(stream, _) | Reset(stream, _) => Some(*stream),
        Ignored | Ends(_) | Closed => None,
    };
    allowed.iter().filter_map(stream).collect()
}

fn is(outcome: Outcome, heard: &Heard) -> bool {
    let goes_on = heard.goodbyes.is_empty() && !heard.is_over && heard.answer(LAST) == Some(200);
    match outcome {
        Ignored => goes_on && heard.streams.values().all(|stream| stream.reset.is_none()),
        Answered(stream, status) => goes_on && heard.answer(stream) == Some(status),
        Reset(stream, code) => goes_on && heard.reset(stream) == Some(code),
        Ends(code) => heard.is_over && heard.goodbyes.last().is_some_and(|(_, why)| *why == code),
        Closed => heard.is_over,
    }
}

/// Writes a line to stderr, which is seen also if the test passes.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

fn tell(heard: &Heard) -> String {
    let streams = heard.streams.iter().map(|(number, stream)| {
        let (status, reset) = (stream.status(), stream.reset);
        format!("{number}: {status:?}, ended {}, reset {reset:?}", stream.is_ended)
    });
    let (streams, pongs) = (streams.collect::<Vec<_>>().join("; "), heard.pongs.len());
    format!("streams [{streams}], {pongs} pongs, goodbyes {:?}, over {}", heard.goodbyes, heard.is_over)
}

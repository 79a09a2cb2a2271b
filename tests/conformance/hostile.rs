//! Requests that no honest client sends, drawn with a seed. No sender gains another identity by them, no request is
//! smuggled past the proxy, and the proxy survives (R-THREAT-1 to R-THREAT-4, R-THREAT-10, R-THREAT-12).
//!
//! The apiserver's own audit log decides. Every request has a marker in its query, and a request that is hidden inside
//! another one has its own marker. The log shows which of them arrived, and as which user. `make hostile
//! REQUESTS=10000` sends more than `make test`.

mod cases;
mod framing;
mod heads;
mod judge;
pub mod streams;
mod targets;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fastrand::Rng;
use futures_util::{StreamExt, stream};
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::bed::{
    self, Authority, Identity, Plan, Proxy, Seed, eventually, log_line, number, read_until_quiet, within,
};
use cases::{Case, Cast, Wire};
use judge::Judge;

const AT_ONCE: usize = 48;
/// The wait for forbidden bytes. They would arrive at once, because they have already been sent.
const QUIET: Duration = Duration::from_millis(200);
/// How long a connection stays open after that: a stalled server still has to read what was sent, and forward it.
const KEPT: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: usize = 256 << 10;
const SHOWN_MAX: usize = 20;

/// Reads from a connection until it is quiet. The connection stays open for a while in the background.
async fn read_response(mut io: impl AsyncRead + Unpin + Send + 'static) -> Vec<u8> {
    let response = read_until_quiet(&mut io, QUIET, ANSWER_BYTES_MAX).await;
    tokio::spawn(async move {
        sleep(KEPT).await;
        drop(io);
    });
    response
}

/// Sends a case. Returns the response bytes, complete or not.
async fn send(proxy: &Proxy, identity: &Identity, case: &Case) -> Vec<u8> {
    let target = proxy.target().by(identity);
    let protocol = match case.wire {
        Wire::Tcp => {
            let mut io = TcpStream::connect(target.host()).await.expect("it listens");
            let _ = io.write_all(&case.bytes).await;
            return read_response(io).await;
        }
        Wire::Http1 => "http/1.1",
        Wire::Http2 => "h2",
    };
    let mut io = target.connect(protocol).await;
    // A server may close the connection before it has read everything.
    let _ = io.write_all(&case.bytes).await;
    let _ = io.flush().await;
    read_response(io).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_requests_cannot_spoof_identity_or_smuggle() {
    let Some(bed) = bed::audited("hostile").await else { return };
    let proxy = Plan::delegated(&bed).start(&bed).await;
    let cast = Cast::assemble(&bed, &Authority::of(&bed)).await;
    let mut judge = Judge::new(&bed.direct(), &bed.target(), &cast).await;
    let count = number("HOSTILE_REQUESTS", 1500);
    let drawn = Seed::new("HOSTILE_SEED", |seed| format!("make hostile SEED={seed} REQUESTS={count}"));
    let (seed, mut random, started) = (drawn.first(), Rng::with_seed(drawn.first()), Instant::now());
    let cases: Vec<_> = (0..count).map(|at| Case::draw(&cast, &mut random, at)).collect();
    let answers = stream::iter(cases).map(async |case| {
        let response = within(case.family, send(&proxy, &cast.callers[case.caller], &case)).await;
        (case, response)
    });
    let mut answers = answers.buffer_unordered(AT_ONCE);
    let mut statuses = BTreeMap::<String, u32>::new();
    let mut cases = Vec::new();
    while let Some((case, response)) = answers.next().await {
        *statuses.entry(judge::status(case.wire, &response)).or_default() += 1;
        judge.check_response(&case, &response);
        cases.push(case);
    }
    drop(answers);
    proxy.assert_sound();
    // The last request is logged last.
    let last = format!("/version?mark=the-end-{seed}");
    assert_eq!(proxy.client().get(&last).await.status, 200);
    let log = eventually("the log is whole", async || {
        let log = bed.audit();
        let is_there = log.iter().any(|event| event["requestURI"] == last.as_str());
        (is_there && judge::is_complete(&log)).then_some(log)
    })
    .await;
    let arrived = judge.read(&cases, &log);
    let took = started.elapsed().as_secs_f64();
    log_line(&format!("seed {seed}: {count} requests in {took:.1} s, {arrived} arrived upstream; {statuses:?}"));
    let wrong = judge.wrong;
    let first_ones: Vec<_> = wrong.iter().take(SHOWN_MAX).cloned().collect();
    assert!(wrong.is_empty(), "seed {seed}: {} are wrong:\n{}", wrong.len(), first_ones.join("\n\n"));
    assert!(arrived * 10 > count, "only {arrived} of {count} arrived: that shows little");
}

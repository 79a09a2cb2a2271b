//! Clients do not disturb each other (P4, R-THREAT-11, R-THREAT-13, R-THREAT-14). The watches of some clients continue
//! while others send refused requests, leave streams unread or guess tokens.
//!
//! `make neighbours SECONDS=60` runs longer, with more of each.

mod kubelet;
mod town;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method};
use http_body_util::BodyExt;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::bed::{self, Http, Identity, Protocol, RequestSpec, eventually, log_line, number, unique};
use kubelet::Kubelet;
use town::{CACHED, PASSED, Town};

/// The documented limit for unknown tokens from one address (docs/CONFIG.md).
const REVIEWS_PER_SECOND: f64 = 20.0;
const REVIEWS_AT_ONCE: f64 = 200.0;
const UNKNOWN_AT_ONCE: usize = 32;
/// The additional time for guesses until they are a flood.
const LONGER: Duration = Duration::from_secs(85);

fn seconds() -> Duration {
    Duration::from_secs(number("NEIGHBOURS_SECONDS", 5))
}

/// Sends a request that is refused, for a cached or a forwarded path, over either protocol.
async fn knock(town: &Town, at: u64) {
    let identity = match at % 4 {
        0 => Identity::token("a guess", &unique("guess")),
        1 => Identity::anonymous(),
        2 => town.powerless.clone(),
        _ => Identity::token("no token", "@"),
    };
    let path = [CACHED, PASSED, "/api/v1/nodes", "/api/v1/namespaces/t1/secrets?watch=true"][fastrand::usize(..4)];
    let protocol = [Protocol::H1, Protocol::H2][fastrand::usize(..2)];
    let answer = Http::new(town.target().by(&identity), protocol).get(path).await;
    assert!([401, 403, 429].contains(&answer.status.as_u16()), "{}: {path}: {}", identity.name, answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_requests_do_not_end_watches_of_other_clients() {
    let Some(bed) = bed::own("refused").await else { return };
    let town = Town::settle(bed, "").await;
    let watches = town.watches(200).await;
    let (until, mut ticks) = (Instant::now() + seconds(), interval(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let ticks = stream::unfold(ticks, |mut ticks| async move {
        ticks.tick().await;
        Some(((), ticks))
    });
    let knocks = ticks.take_while(|()| std::future::ready(Instant::now() < until)).enumerate();
    let knocks = knocks.map(|(at, ())| knock(&town, at as u64)).buffer_unordered(64).count().await;
    log_line(&format!("{} watches beside {knocks} requests that were refused in {:?}", watches.len(), seconds()));
    town.assert_unharmed(watches).await;
}

/// Follows a log and reads only the head of the response.
async fn unread(town: &Town, path: &str) -> impl Sized {
    let mut io = town.target().connect("http/1.1").await;
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {}\r\n\r\n", town.good[0].token);
    io.write_all(head.as_bytes()).await.expect("it is sent");
    io.flush().await.expect("it is sent");
    let mut start = [0; 12];
    bed::within("the head of a log", io.read_exact(&mut start)).await.expect("an answer");
    assert_eq!(&start, b"HTTP/1.1 200");
    io
}

/// Reads a number of bytes from a log, which may be endless.
async fn read(http: &Http, path: &str, bytes: usize) {
    let mut body = http.send(RequestSpec::get(path)).await.into_body();
    let mut seen = 0;
    while seen < bytes {
        let frame = bed::within("more of a log", body.frame()).await.expect("it has no end").expect("it continues");
        seen += frame.into_data().as_ref().map_or(0, Bytes::len);
    }
}

/// The time until eight concurrent clients have each read a number of bytes from a log.
async fn read_by_eight(http: &Http, path: &str, bytes: usize) -> Duration {
    let began = Instant::now();
    stream::iter(0..8).for_each_concurrent(None, |_| read(http, path, bytes)).await;
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_log_streams_do_not_delay_others_or_grow_memory() {
    const READ: usize = 4 << 20;
    let Some(bed) = bed::own("unread").await else { return };
    // One caller has all unread streams, in addition to the other callers' reads.
    let town = Town::settle(bed, "limits: {streamsPerCaller: 1500}").await;
    let kubelet = Kubelet::start(&town.bed).await;
    let watches = town.watches(40).await;
    let count = number("NEIGHBOURS_UNREAD", 100);
    let before = town.resident_bytes();
    let open = stream::iter(0..count).map(|_| unread(&town, &kubelet.log)).buffer_unordered(32);
    let stuck = open.collect::<Vec<_>>().await;
    let mut sent = 0;
    eventually("every buffer between the logs and their readers is full", async || {
        sleep(Duration::from_millis(500)).await;
        let more = kubelet.sent_bytes();
        (std::mem::replace(&mut sent, more) == more).then_some(())
    })
    .await;
    let filled = town.resident_bytes();
    let read = async || {
        let directly = read_by_eight(&town.bed.direct(), &kubelet.log, READ).await;
        let mut took = Duration::ZERO;
        for http in town.clients() {
            took = took.max(read_by_eight(&http, &kubelet.log, READ).await);
        }
        log_line(&format!(
            "eight others read {READ} bytes of one in {took:?}, of the apiserver itself in {directly:?}"
        ));
        took < 5 * directly + Duration::from_secs(1) + bed::ALLOWANCE
    };
    // If the unread streams blocked other reads, both attempts would be slow.
    let is_soon = read().await || read().await;
    let after = town.resident_bytes();
    let each = filled.saturating_sub(before) / count;
    log_line(&format!("{count} unread logs: {} KiB of memory each", each >> 10));
    log_line(&format!("memory: {} MiB, then {}, then {}", before >> 20, filled >> 20, after >> 20));
    assert!(each < 1 << 20, "an unread stream takes {each} bytes");
    assert!(after < filled + (64 << 20), "from {filled} to {after} bytes");
    assert!(is_soon, "unread logs hold others up");
    town.assert_unharmed(watches).await;
    drop(stuck);
}

/// Reads with a valid token during the flood. Its cached review expires soon, so it is reviewed repeatedly.
async fn go_on_reading(http: &Http, over: &AtomicBool) -> u32 {
    let mut answers = 0;
    while !over.load(Ordering::Relaxed) {
        let answer = http.get(CACHED).await;
        assert_eq!(answer.status, 200, "after {answers} answers: {}", answer.text());
        answers += 1;
    }
    answers
}

/// Guesses count as a flood if they are this many times the permitted reviews.
const FLOOD: f64 = 1.5;

/// The permitted number of reviews of unknown tokens within a time.
fn allowed(time: Duration) -> f64 {
    REVIEWS_AT_ONCE + REVIEWS_PER_SECOND * (time.as_secs_f64() + 1.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_guessing_is_rate_limited_and_spares_known_callers() {
    let Some(bed) = bed::own("guesses").await else { return };
    let town = Town::settle(bed, "delegated: {tokenTTL: 1s}").await;
    let watches = town.watches(20).await;
    let proxy_asked = async || {
        town.metrics().await.sum("kube_fanout_auth_reviews_total", &[("kind", "token"), ("result", "unauthenticated")])
    };
    let (reviews_sent, counted) = (proxy_asked().await, town.reviews().await);
    let (began, over, answered) = (Instant::now(), AtomicBool::new(false), AtomicUsize::new(0));
    let strangers = Http::new(town.target().by(&Identity::anonymous()), Protocol::H1);
    let guess = async |_| {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, format!("Bearer {}", unique("guess")).parse().expect("a token"));
        let request = RequestSpec { method: Method::GET, path: CACHED.to_owned(), headers, body: Bytes::new() };
        let answer = strangers.fetch(request).await;
        assert!([401, 429].contains(&answer.status.as_u16()), "{}", answer.text());
        answered.fetch_add(1, Ordering::Relaxed);
    };
    let goes_on = || {
        let elapsed = began.elapsed();
        // The guesses must be a flood even if the machine stalls before they have ended.
        let is_flood = answered.load(Ordering::Relaxed) as f64 > FLOOD * allowed(elapsed + bed::ALLOWANCE);
        elapsed < seconds() || !is_flood && elapsed < seconds() + LONGER
    };
    let guesses = stream::iter(0..).take_while(|_| std::future::ready(goes_on()));
    let guesses = guesses.map(guess).buffer_unordered(UNKNOWN_AT_ONCE).count();
    let guesses = async {
        let count = guesses.await;
        over.store(true, Ordering::Relaxed);
        count
    };
    let clients = town.clients();
    let (guesses, by_token, by_certificate) =
        tokio::join!(guesses, go_on_reading(&clients[0], &over), go_on_reading(&clients[1], &over));
    let took = began.elapsed();
    let (reviews_sent, counted) = (proxy_asked().await - reviews_sent, town.reviews().await - counted);
    log_line(&format!("{guesses} guesses in {took:.1?}: {reviews_sent} questions, the apiserver saw {counted}"));
    log_line(&format!("at the same time {by_token} responses with a token and {by_certificate} with a certificate"));
    let allowed = allowed(took);
    assert!(guesses as f64 > FLOOD * allowed, "that was no flood");
    assert!((reviews_sent as f64) <= allowed, "{reviews_sent} questions, {allowed} allowed");
    // The reviews of the one valid token, one per second, come in addition.
    assert!((counted as f64) <= allowed + 2.0 * took.as_secs_f64() + 2.0, "{counted} questions, {allowed} allowed");
    town.assert_unharmed(watches).await;
}

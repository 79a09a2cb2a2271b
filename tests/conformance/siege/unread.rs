//! Responses that attackers request and do not read.

use std::time::Duration;

use http::header::AUTHORIZATION;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{ATTACKERS, Answers, Field, callers};
use crate::bed::{self, Http, Identity, Protocol, RequestSpec, Target, log_line};
use crate::hostile::streams::{Fields, field, frame, head, hello};

const SETTINGS: u8 = 4;
/// The number of streams of one connection, below the proxy's limit.
const STREAMS: u32 = 200;
/// The apiserver's limit.
const STREAMS_OF_THE_APISERVER: u32 = 100;
const IN_FLIGHT: &str = "apiserver_current_inflight_requests{request_kind=\"readOnly\"}";
/// The number of requests that an apiserver always has in flight for itself.
const AT_REST_MAX: f64 = 8.0;
/// The limit for memory of unread forwarded responses, all together. The permits suffice for 600 of them.
const HELD_MAX: u64 = 300 << 20;
/// A short response lasts for at most a minute, after which its permit is released.
const PLACE_MAX: Duration = Duration::from_secs(75);

/// Whether the apiserver handles nothing but this request, according to its own metrics of the last second. A busy one
/// may close the connection.
async fn is_at_rest(field: &Field) -> bool {
    let Ok(answer) = field.bed.direct().try_fetch(RequestSpec::get("/metrics")).await else { return false };
    let text = answer.text();
    let reads = text.lines().find_map(|line| line.strip_prefix(IN_FLIGHT));
    reads.is_some_and(|reads| reads.trim().parse::<f64>().expect("a number") <= AT_REST_MAX)
}

fn question(path: &str, token: &str) -> Fields {
    let fields = [(":method", "GET"), (":scheme", "https"), (":authority", "127.0.0.1"), (":path", path)];
    let mut fields: Fields = fields.iter().map(|(name, value)| field(name, value)).collect();
    if !token.is_empty() {
        fields.push(field("authorization", &format!("Bearer {token}")));
    }
    fields
}

/// Opens a connection with a window of zero: all requests are answered, but no response can be sent.
async fn stuck(target: Target, streams: u32, who: &Identity, path: &str) -> TlsStream<TcpStream> {
    let mut io = target.by(who).connect("h2").await;
    let mut bytes = [hello(), frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
    for stream in 0..streams {
        bytes.extend(head(2 * stream + 1, &question(path, &who.token), true));
    }
    // The proxy may close the connection.
    let _ = io.write_all(&bytes).await;
    io
}

/// The healthy client's p99 while the attackers send the same requests directly to the apiserver. This costs the proxy
/// nothing, but loads the machine as much.
async fn at_the_apiserver(field: &Field, attackers: &[Identity], path: &str) -> f64 {
    let mut stuck_watches = Vec::new();
    let floor = field
        .besiege("unread answers of the apiserver itself", Some(f64::INFINITY), async |_| {
            let answers = Answers::default();
            for who in attackers.iter().chain(attackers) {
                stuck_watches.push(stuck(field.bed.target(), STREAMS_OF_THE_APISERVER, who, path).await);
                answers.put("connections");
            }
            answers
        })
        .await;
    drop(stuck_watches);
    // Until then the apiserver does not answer token reviews in time.
    bed::eventually("the apiserver has done with them", async || is_at_rest(field).await.then_some(())).await;
    floor
}

/// Unread responses do not delay other clients, and their permits are released.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn unread_responses_do_not_delay_others() {
    // An apiserver that is busy with the responses answers token reviews too late.
    let Some(field) = Field::lay("delegated: {tokenTTL: 5m, allowedTTL: 5m}").await else { return };
    let attackers = callers(&field.bed, ATTACKERS);
    let passed = format!("{}?limit=500&labelSelector=app&pretty=true", field.pods);
    let cached = format!("{}?resourceVersion=0", field.pods);
    let mut stuck_watches = Vec::new();
    let mut beside = async |what: &str, path: &str, floor: Option<f64>| {
        field
            .besiege(what, floor, async |_| {
                let answers = Answers::default();
                for who in &attackers {
                    stuck_watches.push(stuck(field.proxy.target(), STREAMS, who, path).await);
                    answers.put("connections");
                }
                answers
            })
            .await;
    };
    beside("unread lists from memory", &cached, None).await;
    let floor = if super::ratio_max() > 0.0 { Some(at_the_apiserver(&field, &attackers, &passed).await) } else { None };
    let before = field.proxy.resident_bytes();
    beside("unread forwarded responses", &passed, floor).await;
    let grown = field.proxy.resident_bytes().saturating_sub(before);
    log_line(&format!("they hold {} MiB", grown >> 20));
    assert!(grown <= HELD_MAX, "unread answers that pass through hold {} MiB", grown >> 20);
    let anonymous = async |path: &str| {
        let http = Http::new(field.proxy.target().by(&Identity::anonymous()), Protocol::H1);
        http.fetch(RequestSpec { headers: http::HeaderMap::new(), ..RequestSpec::get(path) }).await.status.as_u16()
    };
    for _ in 0..40 {
        stuck_watches.push(stuck(field.proxy.target(), STREAMS, &Identity::anonymous(), "/version").await);
    }
    // Another caller's requests get permits, however many the attackers hold. A 503 is no lack of permits, because an
    // apiserver that is busy with the responses may not answer the access review in time.
    let token = field.bed.user("admin").token;
    bed::eventually("a healthy client is answered", async || {
        let mut request = RequestSpec::get("/api/v1/namespaces/default/secrets?limit=1");
        request.headers.insert(AUTHORIZATION, format!("Bearer {token}").parse().expect("a token"));
        let status = Http::new(field.healthy(), Protocol::H2).fetch(request).await.status.as_u16();
        assert!([200, 503].contains(&status), "{status}");
        (status == 200).then_some(())
    })
    .await;
    log_line(&format!("forwarded without credentials: {}", anonymous("/version").await));
    if super::ratio_max() > 0.0 {
        let began = std::time::Instant::now();
        bed::eventually("the permits of anonymous requests are returned", async || {
            (anonymous("/version").await == 200).then_some(())
        })
        .await;
        log_line(&format!("anonymous requests are answered again after {:.1?}", began.elapsed()));
        assert!(began.elapsed() < PLACE_MAX);
    }
    field.proxy.assert_sound();
    drop(stuck_watches);
}

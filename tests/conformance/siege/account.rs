//! Attacks by one or several ordinary accounts.

use serde_json::json;

use super::attacks::{Attack, after_hello, question, withstand, withstand_all};
use super::handshakes::{FLOOD, OTHER};
use super::{ATTACKERS, Field};
use crate::bed::{Authority, Identity, unique};
use crate::hostile::streams::{frame, head};

const SETTINGS: u8 = 4;
/// The maximum number of streams of a connection.
const STREAMS: u32 = 250;
/// A version that upstream does not reach within a test.
const FUTURE: &str = "resourceVersion=999999999";
/// SETTINGS with an initial window of zero bytes for each stream.
const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];
/// A listener with a low connection limit, which one account reaches, or all together.
const FEW_PLACES: &str = "limits: {connections: 256}";
const MORE_THAN_PLACES: usize = 304;
/// An empty masked WebSocket frame (RFC 6455 §5.2).
const EMPTY_MESSAGE: [u8; 6] = [0x82, 0x80, 0, 0, 0, 0];
/// Nearly the longest accepted head.
const LONG_QUERY_BYTES: usize = 60_000;

/// One account for each attacker. None is the healthy client's.
fn accounts(field: &Field) -> Vec<Identity> {
    let authority = Authority::of(&field.bed);
    (0..ATTACKERS).map(|_| authority.issue(&unique("mallory"), &["system:masters"])).collect()
}

/// The maximum number of requests for one connection.
fn streams(request: impl Fn(u32) -> (String, Vec<(&'static str, String)>)) -> Vec<u8> {
    after_hello((0..STREAMS).map(|at| {
        let (path, more) = request(at);
        let more: Vec<_> = more.iter().map(|(name, value)| (*name, value.as_str())).collect();
        head(2 * at + 1, &question("GET", &path, &more), true)
    }))
}

/// A pod whose proxy redirects to the query of the request.
async fn redirecting_pod(field: &Field) -> String {
    let (direct, namespace) = (field.bed.direct(), field.bed.namespace("redirects").await);
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let spec = json!({"containers": [{"name": "a", "image": "a"}]});
    direct.create(&pods, json!({"metadata": {"name": "a"}, "spec": spec})).await;
    let ip = "10.1.2.3";
    direct.patch(&format!("{pods}/a/status"), json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}})).await;
    format!("{pods}/a/proxy?{}", "a".repeat(LONG_QUERY_BYTES))
}

async fn attacks(field: &Field) -> Vec<Attack> {
    let (pods, pod, redirects) = (&field.pods, &field.pod, redirecting_pod(field).await);
    let watch = format!("{pods}?watch=true&resourceVersion=0&labelSelector=app%3Dnobody");
    let upgrade = format!(
        "GET {watch} HTTP/1.1\r\nhost: a\r\norigin: https://a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    vec![
        Attack {
            name: "reads of a future version",
            // 40,000 requests in total.
            connections: 160,
            opening: streams(|at| (format!("{}?{FUTURE}", [pods, pod][at as usize % 2]), Vec::new())),
            requests: STREAMS as usize,
            promised: &["429", "504", "reset 7"],
            ..Attack::http2()
        },
        Attack {
            name: "discovery with ever new Accept headers",
            opening: streams(|at| {
                let form = ["application/json", "application/json;as=APIResourceList"][at as usize % 2];
                let accept = format!("{form};q=0.{at},{}", "*/*;q=0.1,".repeat(40));
                ("/apis/apps/v1".to_owned(), vec![("kube-fanout-hops", format!("hop-{at}")), ("accept", accept)])
            }),
            requests: STREAMS as usize,
            promised: &["200", "429", "reset 7"],
            ..Attack::http2()
        },
        Attack {
            name: "frames of WebSocket that carry nothing",
            opening: upgrade.into_bytes(),
            again: EMPTY_MESSAGE.repeat(10_000),
            promised: &["101", "close 1008"],
            ..Attack::http1()
        },
        Attack {
            name: "large heads of answers that are not read",
            opening: streams(|_| (redirects.clone(), Vec::new())),
            reads: false,
            promised: &["connections"],
            ..Attack::http2()
        },
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn attacks_by_authenticated_accounts_slow_no_other_client() {
    let Some(mut field) = Field::lay("").await else { return };
    let (by, attacks) = (accounts(&field), attacks(&field).await);
    withstand(&mut field, "", &by, FLOOD, attacks).await;
}

/// Each account opens a new connection whenever the proxy closes one.
///
/// Newcomers have the address of the accounts if no more connections wait there than the proxy authenticates at once, a
/// quarter of the limit. Beyond that, connections of one address close each other before their caller is known, so
/// newcomers have another address.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn new_client_connects_while_accounts_use_all_connections() {
    let Some(mut field) = Field::lay("").await else { return };
    let by = accounts(&field);
    for (name, settings, query) in [
        ("unread lists on all connections", &NO_WINDOW[..], "resourceVersion=0"),
        ("watches on all connections", &[], "watch=true&resourceVersion=0"),
    ] {
        let path = format!("{}?{query}", field.pods);
        for (accounts, connections, newcomer) in [
            (1, MORE_THAN_PLACES, FLOOD),
            (ATTACKERS, MORE_THAN_PLACES / ATTACKERS, FLOOD),
            (ATTACKERS, MORE_THAN_PLACES, OTHER),
        ] {
            let unread_watches = Attack {
                name,
                connections,
                opening: after_hello([frame(SETTINGS, 0, 0, settings), head(1, &question("GET", &path, &[]), true)]),
                promised: &["200", "429", "goaway 0", "reset 2", "reset 7", "reset 8"],
                ..Attack::http2()
            };
            withstand_all(&mut field, FEW_PLACES, &by[..accounts], newcomer, &unread_watches).await;
        }
    }
}

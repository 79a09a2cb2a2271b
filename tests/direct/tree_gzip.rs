//! A proxy below a proxy receives initial states compressed, and then events as they are.

use std::io::Write as _;

use bytes::Bytes;
use demo::{self, RunningDemoApiserver};
use futures_util::StreamExt as _;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use http::request::Parts;
use http::{Method, Response};
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody};
use kube_fanout::serve::WatchCompression;
use kube_fanout::upstream::CredentialSource;

use crate::direct::{self, App, Behind, Dir, History, PODS, Stub, pair};
use crate::tree_deltas::{assert_same_state, fallbacks, filled, labelled, metric};

const BYTES: &str = "kube_fanout_upstream_body_bytes_total";
const FAILURES: &str = "kube_fanout_upstream_failures_total";
const RECEIVED: &str = "kube_fanout_upstream_delta_bytes_total";
/// Header in which a proxy asks for differences.
const DELTAS: &str = "kube-fanout-deltas-after";
/// Header in which a proxy asks for compressed lists.
const GZIP: &str = "kube-fanout-accept-encoding";

/// Returns the number of bytes that a leaf has received for initial states.
async fn initial_bytes(leaf: &App) -> u64 {
    let text = leaf.admin("/metrics").await.text();
    let line = text.lines().find(|line| line.starts_with(&format!("{BYTES}{{cause=\"list\"")));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("a number")
}

/// Runs a leaf, which lists pods. Returns it, and how many bytes that took.
async fn leaf_of(credentials: CredentialSource) -> (App, u64) {
    let leaf = direct::by(credentials).run().await;
    leaf.discovered().await;
    let before = initial_bytes(&leaf).await;
    filled(&leaf).await;
    let bytes = initial_bytes(&leaf).await - before;
    (leaf, bytes)
}

fn at(url: &str) -> CredentialSource {
    CredentialSource::Anonymous(url.parse().expect("a URL"))
}

/// Checks that upstream itself was never asked for a compressed response by a proxy.
fn assert_plain_upstream(up: &RunningDemoApiserver) {
    let requests = up.requests();
    let by_proxies = requests.iter().filter(|seen| seen.headers.contains_key("kube-fanout-hops"));
    assert!(by_proxies.clone().count() > 0);
    by_proxies.for_each(|seen| assert!(!seen.headers.contains_key(ACCEPT_ENCODING), "{}", seen.uri));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaf_receives_initial_state_compressed_and_events_as_differences() {
    let up = demo::upstream().pods(300).seed(91).run().await;
    let plan = || direct::app(&up).with(|config| config.serve.compress_watches = WatchCompression::Never);
    let plain_zone = plan().run().await;
    plain_zone.discovered().await;
    let (leaf, plain) = leaf_of(at(&plain_zone.url())).await;
    assert_same_state(&up, &leaf).await;
    // HTTP/2 needs TLS.
    let (dir, own) = (Dir::new(), pair());
    let certificate = dir.file("tls.crt", &own.cert.pem());
    let key = dir.file("tls.key", &own.signing_key.serialize_pem());
    let [http1, http2] = [direct::app(&up), direct::app(&up).tls_from(certificate.clone(), key)];
    let (http1, http2) = (http1.run().await, http2.run().await);
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
         users: [{{name: a, user: {{}}}}]\n\
         clusters: [{{name: a, cluster: {{server: {:?}, certificate-authority: {certificate:?}}}}}]\n",
        http2.origin()
    );
    let over_tls = CredentialSource::File(dir.file("kubeconfig", &kubeconfig));
    for (zone, credentials) in [(&http1, at(&http1.url())), (&http2, over_tls)] {
        zone.discovered().await;
        let mut history = History::begin(&up, PODS).await;
        // The second leaf is a restarted one.
        for _ in 0..2 {
            let (leaf, bytes) = leaf_of(credentials.clone()).await;
            assert!(bytes > 0 && bytes * 2 <= plain, "{bytes} bytes for {plain}");
            assert_same_state(&up, &leaf).await;
            let watch = leaf.watch(PODS).from(history.from).await;
            let last = up.churn(50).await;
            watch.reached(last).await;
            history.assert_delivered(&[watch], last).await;
            assert_same_state(&up, &leaf).await;
            let events = metric(&leaf, RECEIVED).await;
            assert!(events > 0);
            assert_eq!((fallbacks(&leaf).await, labelled(&leaf, FAILURES, "pods").await), (0, 0));
            leaf.stop().await;
        }
    }
    assert_plain_upstream(&up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaf_of_one_node_receives_its_selection_compressed() {
    let up = demo::upstream().pods(200).nodes(2).seed(92).run().await;
    let zone = direct::app(&up).run().await;
    zone.discovered().await;
    let leaf = |url: String| async move {
        let leaf = direct::in_front_of(&url).with(|config| config.serve.coverage.node = Some("node-1".into()));
        let leaf = leaf.preload("pods").run().await;
        leaf.discovered().await;
        leaf.until_feed("pods", "it is filled", |feed| feed["state"] == "live").await;
        leaf
    };
    let plain = leaf(up.url()).await;
    let compressed = leaf(zone.url()).await;
    let (plain_bytes, bytes) = (initial_bytes(&plain).await, initial_bytes(&compressed).await);
    assert!(bytes > 0 && bytes * 2 <= plain_bytes, "{bytes} bytes for {plain_bytes}");
    let path = format!("{PODS}?fieldSelector=spec.nodeName%3Dnode-1&resourceVersion=0");
    let (ours, theirs) = (compressed.get(&path).await, plain.get(&path).await);
    assert!(ours.is_cached() && theirs.is_cached());
    assert_eq!(ours.items(), theirs.items());
    assert!(!ours.items().is_empty());
}

/// What is wrong with a compressed body.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Damage {
    Magic,
    /// A byte in its middle is another one.
    Middle,
    /// Everything but the checksum is right.
    Checksum,
    /// It ends within the member.
    End,
    /// It inflates to a thousand times its length.
    Bomb,
}

/// The start of the end of a member, which a watch sends after the initial events: an empty last block. The checksum
/// and the length follow.
const LAST_BLOCK: [u8; 2] = [3, 0];

impl Damage {
    /// Damages a part of a body, or a whole one.
    fn apply(self, data: &[u8], is_whole: bool) -> Bytes {
        let at = match self {
            Self::Magic => 0,
            Self::Middle => data.len() / 2,
            Self::Checksum if is_whole || data.len() == 10 && data.starts_with(&LAST_BLOCK) => data.len() - 8,
            Self::Checksum => return Bytes::copy_from_slice(data),
            Self::End => return Bytes::copy_from_slice(&data[..data.len() / 2]),
            Self::Bomb => return bomb().into(),
        };
        let mut damaged = data.to_vec();
        damaged[at] ^= 1;
        damaged.into()
    }
}

/// Runs a stub in front of a zone that damages every compressed body about pods. If `is_paged`, it refuses streamed
/// lists.
async fn damaging(zone: &App, is_paged: bool, damage: Damage) -> Stub {
    let behind = Behind::at(&zone.url());
    direct::stub(move |request| {
        let behind = behind.clone();
        async move {
            let is_of_pods = request.uri().path() == PODS;
            if is_paged && request.uri().query().is_some_and(|query| query.contains("sendInitialEvents")) {
                return Ok(Stub::reply(422, "{}"));
            }
            let (head, body) = behind.answer(request).await?.into_parts();
            let is_gzip = |name: &str| head.headers.get(name).is_some_and(|value| value == "gzip");
            let is_whole = is_gzip(CONTENT_ENCODING.as_str());
            if !is_of_pods || (!is_gzip(DELTAS) && !is_whole) {
                return Ok(Response::from_parts(head, body));
            }
            let body = if is_whole {
                Full::new(body.collect().await?.to_bytes()).map_err(|never| match never {}).boxed_unsync()
            } else {
                body
            };
            let mut is_damaged = false;
            let body = body.map_frame(move |frame| {
                frame.map_data(|data| {
                    let sent = if is_damaged { data.clone() } else { damage.apply(&data, is_whole) };
                    is_damaged |= sent != data;
                    sent
                })
            });
            let frames = match damage {
                Damage::End | Damage::Bomb => 1,
                Damage::Magic | Damage::Middle | Damage::Checksum => usize::MAX,
            };
            let body = StreamBody::new(BodyStream::new(body).take(frames));
            Ok(Response::from_parts(head, body.boxed_unsync()))
        }
    })
    .await
}

/// Returns an endless object, compressed.
fn bomb() -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(br#"{"type":"ADDED","object":{"metadata":{"name":""#).expect("a vector has room");
    writer.write_all(&vec![b'a'; 64 << 20]).expect("a vector has room");
    writer.finish().expect("a vector has room")
}

/// Something between a leaf and its zone that damages every compressed body costs the leaf one request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_whose_compressed_body_is_damaged_is_requested_plain() {
    let up = demo::upstream().pods(300).seed(93).run().await;
    let mut history = History::begin(&up, PODS).await;
    let zone = direct::app(&up).run().await;
    zone.discovered().await;
    for is_paged in [false, true] {
        for damage in [Damage::Magic, Damage::Middle, Damage::Checksum, Damage::End, Damage::Bomb] {
            if is_paged && damage == Damage::Bomb {
                // A page is read as a whole, and is then too large.
                continue;
            }
            let what = format!("{damage:?}, paged: {is_paged}");
            let stub = damaging(&zone, is_paged, damage).await;
            let (leaf, _) = leaf_of(at(&stub.url())).await;
            assert_same_state(&up, &leaf).await;
            assert_eq!(labelled(&leaf, FAILURES, "unreadable").await, 1, "{what}");
            let (mark, header) = if is_paged { ("limit=500", GZIP) } else { ("sendInitialEvents", DELTAS) };
            let query = |head: &Parts| head.uri.query().unwrap_or_default().to_owned();
            let lists = stub.seen(PODS).into_iter().filter(|head| query(head).contains(mark));
            let lists = lists.filter(|head| !query(head).contains("fieldSelector"));
            let asked: Vec<_> = lists.map(|head| head.headers.contains_key(header)).collect();
            assert_eq!(asked, [true, false], "{what}");
            let watch = leaf.watch(PODS).from(history.from).await;
            let last = up.churn(20).await;
            watch.reached(last).await;
            history.assert_delivered(&[watch], last).await;
            assert_same_state(&up, &leaf).await;
            leaf.stop().await;
        }
    }
    assert_plain_upstream(&up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_request_does_not_ask_for_proxy_compression() {
    let up = demo::upstream().pods(3).seed(95).run().await;
    let zone = direct::app(&up).run().await;
    zone.discovered().await;
    let request = zone.request(Method::GET, "/healthz/etcd").header("kube-fanout-hops", "1f").header(GZIP, "gzip");
    request.send().await;
    let requests = up.requests();
    let forwarded = requests.iter().find(|seen| seen.uri.path() == "/healthz/etcd").expect("it is forwarded");
    assert!(!forwarded.headers.contains_key(GZIP));
}

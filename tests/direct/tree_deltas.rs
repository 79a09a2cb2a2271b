//! A proxy below a proxy receives events as differences, and what it serves is what the apiserver sent.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use demo::{self, Pod, RunningDemoApiserver};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use http::Method;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use kube_fanout::serve::WatchCompression;
use kube_fanout::wire::{DeltaFrame, FeedEncoding, FrameSplitter, is_delta};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::direct::{self, App, Behind, History, PODS, Protocol, Stub, eventually};
use crate::tree::tree;

const RECEIVED: &str = "kube_fanout_upstream_delta_bytes_total";
const PLAIN: &str = "kube_fanout_upstream_delta_plain_bytes_total";
const FAILURES: &str = "kube_fanout_upstream_failures_total";
/// Header in which a proxy asks for differences.
const DELTAS: &str = "kube-fanout-deltas-after";

/// The metrics that move here.
pub const METRICS: [(&str, &str); 2] = [(RECEIVED, "pods.v1"), (PLAIN, "pods.v1")];

/// Returns the sum of a metric of the feeds of pods over all its labels.
pub async fn metric(app: &App, name: &str) -> u64 {
    labelled(app, name, "pods").await
}

/// Returns the sum of a metric of the feeds of pods with a text in the labels.
pub async fn labelled(app: &App, name: &str, label: &str) -> u64 {
    let text = app.admin("/metrics").await.text();
    let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains("pods"));
    lines.filter(|line| line.contains(label)).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Returns how many differences a proxy could not apply.
pub async fn fallbacks(app: &App) -> u64 {
    labelled(app, FAILURES, "delta_").await
}

/// Fills the leaf's feed with the current state.
pub async fn filled(leaf: &App) {
    assert!(leaf.get(&format!("{PODS}?resourceVersion=0")).await.is_cached());
}

/// Checks that the leaf has exactly what upstream has.
pub async fn assert_same_state(up: &RunningDemoApiserver, leaf: &App) {
    let ours = leaf.get(&format!("{PODS}?resourceVersion=0")).await;
    let theirs = direct::upstream_client(up).get(&format!("{PODS}?resourceVersion=0")).await;
    assert!(ours.is_cached(), "{:?}", ours.headers);
    let items = |list: &direct::Answer| list.text().split_once("\"items\":").map(|(_, items)| items.to_owned());
    assert!(items(&ours).is_some() && items(&ours) == items(&theirs));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaf_follows_zone_by_deltas_through_cuts_and_restarts() {
    let up = demo::upstream().pods(60).seed(83).run().await;
    let mut history = History::begin(&up, PODS).await;
    let (zone, mut leaves) = tree(&up, 2).await;
    join_all(leaves.iter().map(filled)).await;
    let open = (0..6).map(|n| leaves[n % 2].watch(PODS).from(history.from).over(Protocol::ALL[n % 3]).into_future());
    let watches = join_all(open).await;
    let mut last = 0;
    for _ in 0..5 {
        last = up.churn(200).await;
        join_all(watches.iter().map(|watch| watch.reached(last))).await;
        up.faults().drop_connections();
    }
    history.assert_delivered(&watches, last).await;
    for leaf in &leaves {
        assert_same_state(&up, leaf).await;
        let (received, plain) = (metric(leaf, RECEIVED).await, metric(leaf, PLAIN).await);
        assert!(received > 0 && received * 2 < plain, "{received} bytes for {plain}");
        assert_eq!(fallbacks(leaf).await, 0);
    }
    drop(watches);
    leaves.remove(0).stop().await;
    let before = up.churn(20).await;
    let leaf = direct::in_front_of(&zone.url()).run().await;
    leaf.discovered().await;
    // The feed starts at the client's version, and its first stream has differences to the state there.
    let watch = leaf.watch(PODS).from(last).await;
    watch.reached(before).await;
    let received = metric(&leaf, RECEIVED).await;
    assert!(received > 0);
    let last = up.churn(100).await;
    watch.reached(last).await;
    history.assert_delivered_filtered(&[watch], last).await;
    assert_same_state(&up, &leaf).await;
    assert!(metric(&leaf, RECEIVED).await > received);
    assert_eq!(fallbacks(&leaf).await, 0);
}

/// Pods that enter the selection of a leaf, change there, leave it, return and end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaf_of_one_node_receives_differences_within_its_selection() {
    const OURS: &str = "spec.nodeName=node-1";
    let up = demo::upstream().pods(30).seed(86).run().await;
    let mut history = History::begin(&up, PODS).await;
    let zone = direct::app(&up).run().await;
    zone.discovered().await;
    let leaf = direct::in_front_of(&zone.url()).with(|config| config.serve.coverage.node = Some("node-1".into()));
    let leaf = leaf.preload("pods").run().await;
    leaf.discovered().await;
    let watch = leaf.watch(PODS).fields(OURS).from(history.from).await;
    let mut last = 0;
    for node in ["", "node-2", "node-1", "node-1", "node-2", "node-1"] {
        for restarts in 0..3 {
            last = up.put_pod(&Pod::new("default", "moving").node(node).restarts(restarts));
        }
        if node == "node-1" {
            watch.reached(last).await;
        }
    }
    up.delete_pod("default", "moving");
    last = up.put_pod(&Pod::new("default", "end").node("node-1")).max(last);
    history.assert_delivered_filtered(&[watch], last).await;
    assert!(metric(&leaf, RECEIVED).await > 0);
    assert_eq!(fallbacks(&leaf).await, 0);
}

/// Reads a stream with differences as a leaf does, with the objects of a plain one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn differences_are_the_plain_events_over_http1_and_http2() {
    let up = demo::upstream().pods(5).seed(87).run().await;
    let zone = direct::app(&up).run().await;
    zone.discovered().await;
    filled(&zone).await;
    let from = up.revision();
    for restarts in 0..20 {
        up.put_pod(&Pod::new("default", "a").node("node-1").restarts(restarts));
    }
    let last = up.delete_pod("default", "a");
    zone.reached("pods", last).await;
    let path = format!("{PODS}?watch=true&resourceVersion={from}");
    let events = 21;
    let has_all = |text: &[u8]| text.split(|byte| *byte == b'\n').count() > events;
    let plain = zone.request(Method::GET, &path).send_until("all events", has_all).await.text();
    let (mut bodies, mut expected) = (HashMap::new(), Vec::new());
    for line in plain.lines() {
        let (event_type, body) =
            line.strip_prefix(r#"{"type":""#).expect("an event").split_once(r#"","object":"#).expect("an object");
        let rv = body.split_once(r#""resourceVersion":""#).expect("a version").1.split_once('"').expect("digits").0;
        bodies.insert(rv.parse::<u64>().expect("a version"), body.strip_suffix('}').expect("the end of the event"));
        expected.push((event_type, format!("{line}\n")));
    }
    assert_eq!(expected.len(), events);
    let splitter = |bytes: &[u8]| {
        let mut splitter = FrameSplitter::new(FeedEncoding::Json, 1 << 20).with_deltas();
        splitter.push(bytes);
        splitter
    };
    let has_all = |bytes: &[u8]| {
        let mut splitter = splitter(bytes);
        std::iter::from_fn(|| splitter.next_frame().expect("no error")).count() >= events
    };
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let request = zone.over(protocol).request(Method::GET, &path).header("kube-fanout-hops", "1f");
        let answer = request.header(DELTAS, &from.to_string()).send_until("all differences", has_all).await;
        assert!(answer.headers.contains_key(DELTAS), "{protocol:?}");
        let mut splitter = splitter(&answer.body);
        for (event_type, whole) in &expected {
            let frame = splitter.next_frame().expect("no error").expect("an event");
            assert!(is_delta(&frame) && frame.len() * 2 < whole.len(), "{} of {} bytes", frame.len(), whole.len());
            let delta = DeltaFrame::parse(&frame).expect("well-formed");
            let base = delta.base.map(|rv| format!("{{\"type\":\"{event_type}\",\"object\":{}}}\n", bodies[&rv.0]));
            let read = delta.frame(base.unwrap_or_default().as_bytes(), 1 << 20).expect("the event");
            assert_eq!(read, whole.as_bytes(), "{protocol:?}");
        }
        assert!(matches!(splitter.next_frame(), Ok(None)));
    }
}

/// A part of a difference.
#[derive(Debug, Clone, Copy)]
enum Part {
    Mark,
    Base,
    Digest,
}

/// Damages the difference at the start of `data`, if there is one.
fn damaged(data: &Bytes, part: Part) -> Option<Bytes> {
    let mut damaged = data.to_vec();
    let varint = |from: usize| data[from..].iter().position(|byte| *byte < 0x80).map(|at| from + at + 1);
    let digest = varint(1).filter(|_| is_delta(data)).and_then(varint)?;
    match part {
        Part::Mark => damaged[0] ^= 4,
        // The highest bits of the base's version.
        Part::Base => damaged[digest - 1] ^= 0x40,
        Part::Digest => damaged[digest] ^= 1,
    }
    Some(damaged.into())
}

/// What is between a leaf and its zone.
struct Between {
    stub: Stub,
    /// The parts to damage in the next differences.
    lies: Arc<Mutex<Vec<Part>>>,
    /// Ends the streams.
    cut: watch::Sender<()>,
}

impl Between {
    /// Starts a stub that passes initial states through `alter`. They are then plain, and no differences follow.
    async fn start(zone: &App, alter: Option<fn(&str) -> String>) -> Self {
        let (lies, cut) = (Arc::<Mutex<Vec<Part>>>::default(), watch::Sender::new(()));
        let (behind, shared_lies, cuts) = (Behind::at(&zone.url()), lies.clone(), cut.clone());
        let stub = direct::stub(move |mut request| {
            let (behind, lies, mut cut) = (behind.clone(), shared_lies.clone(), cuts.subscribe());
            async move {
                let is_initial = request.uri().query().is_some_and(|query| query.contains("sendInitialEvents"));
                let alter = alter.filter(|_| is_initial);
                alter.and_then(|_| request.headers_mut().remove(DELTAS));
                Ok(behind.answer(request).await?.map(|body| {
                    let frames = BodyStream::new(body).take_until(async move { cut.changed().await.is_ok() });
                    let body = StreamBody::new(frames).map_frame(move |frame| {
                        frame.map_data(|data| {
                            let text = std::str::from_utf8(&data).ok();
                            let data = alter.zip(text).map_or(data.clone(), |(alter, text)| alter(text).into());
                            let mut lies = lies.lock();
                            let lie = lies.last().and_then(|part| damaged(&data, *part));
                            match lie {
                                Some(lie) => {
                                    lies.pop();
                                    lie
                                }
                                None => data,
                            }
                        })
                    });
                    body.boxed_unsync()
                }))
            }
        })
        .await;
        Self { stub, lies, cut }
    }

    /// Returns the number of watches with differences and without that were requested.
    fn watches(&self) -> (usize, usize) {
        let seen = self.stub.seen(PODS);
        let watches = seen.iter().filter(|head| head.uri.query().is_some_and(|query| query.contains("watch=true")));
        let (with, without): (Vec<_>, Vec<_>) = watches.partition(|head| head.headers.contains_key(DELTAS));
        (with.len(), without.len())
    }
}

/// A leaf with pods, and what its zone sends it.
struct Scene {
    up: RunningDemoApiserver,
    history: History,
    _zone: App,
    between: Between,
    leaf: App,
}

impl Scene {
    /// Starts the stub as [`Between::start`] does.
    async fn start(seed: u64, alter: Option<fn(&str) -> String>) -> Self {
        let up = demo::upstream().pods(20).seed(seed).run().await;
        let history = History::begin(&up, PODS).await;
        let zone = direct::app(&up).run().await;
        zone.discovered().await;
        let between = Between::start(&zone, alter).await;
        let leaf = direct::in_front_of(&between.stub.url()).run().await;
        leaf.discovered().await;
        filled(&leaf).await;
        Self { up, history, _zone: zone, between, leaf }
    }
}

/// A zone that damages differences costs the leaf two streams between two ends of them, however often it does that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_difference_costs_one_whole_stream_and_no_event() {
    let Scene { up, mut history, between, leaf, _zone } = Scene::start(84, None).await;
    let watch = leaf.watch(PODS).from(history.from).await;
    watch.reached(up.churn(20).await).await;
    assert!(metric(&leaf, RECEIVED).await > 0);
    let reasons =
        [(Part::Mark, "delta_malformed"), (Part::Base, "delta_unknown_base"), (Part::Digest, "delta_wrong_digest")];
    let mut last = 0;
    for (n, (part, reason)) in reasons.into_iter().enumerate() {
        let (with, _) = between.watches();
        // The next stream must not fail, too.
        between.lies.lock().extend([part]);
        watch.reached(up.churn(20).await).await;
        assert!(between.lies.lock().is_empty());
        assert_eq!((labelled(&leaf, FAILURES, reason).await, fallbacks(&leaf).await), (1, n as u64 + 1));
        // The stream after that has whole events, even if it would be damaged again.
        between.lies.lock().extend([part; 100]);
        let received = metric(&leaf, RECEIVED).await;
        last = up.churn(50).await;
        watch.reached(last).await;
        assert_eq!((metric(&leaf, RECEIVED).await, between.watches().0), (received, with));
        between.lies.lock().clear();
        between.cut.send_replace(());
        eventually("differences are requested again", || async { between.watches().0 == with + 1 }).await;
        last = up.churn(20).await;
        watch.reached(last).await;
        assert!(metric(&leaf, RECEIVED).await > received);
    }
    history.assert_delivered(&[watch], last).await;
    assert_same_state(&up, &leaf).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_that_damages_every_difference_is_not_asked_in_a_loop() {
    const ROUNDS: usize = 5;
    let Scene { up, mut history, between, leaf, _zone } = Scene::start(88, None).await;
    between.lies.lock().extend([Part::Digest; 1_000]);
    let watch = leaf.watch(PODS).from(history.from).await;
    let mut last = 0;
    for round in 1..=ROUNDS {
        last = up.churn(50).await;
        watch.reached(last).await;
        let (with, without) = between.watches();
        assert_eq!((fallbacks(&leaf).await, with), (round as u64, round));
        // The zone may no longer have the change that a stream repeats, so that another one is opened.
        assert!(without <= 2 * round, "{without} streams");
        if round < ROUNDS {
            between.cut.send_replace(());
            eventually("differences are requested again", || async { between.watches().0 == round + 1 }).await;
        }
    }
    history.assert_delivered(&[watch], last).await;
    assert_same_state(&up, &leaf).await;
}

/// The leaf has listed other bytes for the same versions than its zone has, as after a change of the zone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_with_other_bytes_costs_one_whole_stream_and_no_event() {
    let age = |text: &str| text.replace(r#""creationTimestamp":"20"#, r#""creationTimestamp":"19"#);
    let Scene { up, mut history, between, leaf, _zone } = Scene::start(89, Some(age)).await;
    let watch = leaf.watch(PODS).from(history.from).await;
    between.cut.send_replace(());
    eventually("differences are requested", || async { between.watches().0 > 1 }).await;
    let last = up.churn(200).await;
    watch.reached(last).await;
    history.assert_delivered(&[watch], last).await;
    assert_eq!((labelled(&leaf, FAILURES, "delta_wrong_digest").await, fallbacks(&leaf).await), (1, 1));
    // The zone may no longer have the change that a stream repeats, so that another one is opened.
    assert!((2..=3).contains(&between.watches().0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_without_compression_sends_no_deltas() {
    let up = demo::upstream().pods(5).seed(85).run().await;
    let zone = direct::app(&up).with(|config| config.serve.compress_watches = WatchCompression::Never).run().await;
    zone.discovered().await;
    let leaf = direct::in_front_of(&zone.url()).run().await;
    leaf.discovered().await;
    filled(&leaf).await;
    let watch = leaf.watch(PODS).from(up.revision()).await;
    watch.reached(up.churn(20).await).await;
    assert_eq!(metric(&leaf, RECEIVED).await, 0);
    assert_same_state(&up, &leaf).await;
}

//! Bookmarks that cannot be true, on a stream over a connection (R-UPSTREAM-10). No client loses an event because of
//! them.

use std::sync::Arc;

use base::now_ns;
use demo::{self, RunningDemoApiserver};
use http::Request;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use verify::ApiserverGuarantee;

use crate::direct::{self, App, Behind, Ended, Failure, History, PODS, Protocol, Reply, Stub, Watch, eventually};

/// Senders of lines to insert into each open stream of pods.
type Streams = Arc<Mutex<Vec<mpsc::UnboundedSender<String>>>>;

/// A relay that inserts lines of a test between the events of watches of pods.
async fn relay(up: &RunningDemoApiserver) -> (Stub, Streams) {
    let (behind, streams) = (Behind::at(&up.url()), Streams::default());
    let known = streams.clone();
    let stub = direct::stub(move |request| {
        let (behind, known) = (behind.clone(), known.clone());
        async move { pass(&behind, &known, request).await }
    });
    (stub.await, streams)
}

async fn pass(behind: &Behind, streams: &Streams, request: Request<Incoming>) -> Result<Reply, Failure> {
    let query = request.uri().query().unwrap_or_default();
    // A streamed list that matches nothing proves freshness, and has no events.
    let is_proof = query.contains("sendInitialEvents=true");
    let is_watch = request.uri().path() == PODS && query.contains("watch=true") && !is_proof;
    let answer = behind.answer(request).await?;
    if !is_watch {
        return Ok(answer);
    }
    let (line, mut inserted) = mpsc::unbounded_channel::<String>();
    streams.lock().push(line);
    let (head, mut body) = answer.into_parts();
    let (whole, mut pieces) = mpsc::unbounded_channel();
    drop(tokio::spawn(async move {
        let mut is_amid = false;
        loop {
            let piece = tokio::select! {
                biased;
                Some(line) = inserted.recv(), if !is_amid => Ok(Frame::data(line.into())),
                frame = body.frame() => match frame {
                    None => return,
                    Some(frame) => frame,
                },
            };
            if let Ok(data) = &piece {
                is_amid = data.data_ref().is_some_and(|data: &bytes::Bytes| !data.ends_with(b"\n"));
            }
            if whole.send(piece).is_err() {
                return;
            }
        }
    }));
    let pieces = futures_util::stream::poll_fn(move |cx| pieces.poll_recv(cx));
    Ok(http::Response::from_parts(head, StreamBody::new(pieces).boxed_unsync()))
}

/// A bookmark in the apiserver's bytes.
fn bookmark(kind: &str, version: &str) -> String {
    let head = format!(r#"{{"kind":"{kind}","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"}}"#);
    format!("{{\"type\":\"BOOKMARK\",\"object\":{head},\"spec\":{{\"containers\":null}},\"status\":{{}}}}}}\n")
}

/// Inserts a line into the newest stream.
fn insert_line(streams: &Streams, line: &str) {
    streams.lock().last().expect("a stream").send(line.to_owned()).expect("it is open");
}

struct Scene {
    up: RunningDemoApiserver,
    streams: Streams,
    app: App,
    history: History,
    watches: Vec<Watch>,
    _stub: Stub,
}

async fn scene(seed: u64) -> Scene {
    let up = demo::upstream().pods(20).seed(seed).run().await;
    let (stub, streams) = relay(&up).await;
    let history = History::begin(&up, PODS).await;
    let app = direct::in_front_of(&stub.url()).run().await;
    let mut watches = Vec::new();
    for protocol in Protocol::ALL {
        watches.push(app.watch(PODS).from(history.from).bookmarks().over(protocol).await);
    }
    let last = up.churn(5).await;
    for watch in &watches {
        watch.reached(last).await;
    }
    Scene { up, streams, app, history, watches, _stub: stub }
}

/// The events that it covers come after it, so no client may continue as if it had received them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_older_than_bookmark_ends_watches_with_410() {
    let Scene { up, streams, app, mut history, watches, _stub } = scene(701).await;
    let since = now_ns();
    let ahead = up.revision() + 3;
    insert_line(&streams, &bookmark("Pod", &ahead.to_string()));
    app.reached("pods", ahead).await;
    let last = up.churn(6).await;
    for watch in &watches {
        assert_eq!(watch.ended().await, Ended::Expired, "the bookmark was wrong");
    }
    let mut evidence = history.read_to(last).await.evidence();
    eventually("it is relisted", || async { app.get(&format!("{PODS}?resourceVersion={last}")).await.is_cached() })
        .await;
    evidence.answer(&app.get(PODS).await);
    // Between the false bookmark and the event that disproves it, clients rely on it.
    let believed = [
        ApiserverGuarantee::Expired,
        ApiserverGuarantee::Reliable,
        ApiserverGuarantee::Bookmarkable,
        ApiserverGuarantee::Continuity,
    ];
    evidence.watches(&watches).broken("a bookmark that runs ahead", since, &believed);
    evidence.shows(&[ApiserverGuarantee::Ordered, ApiserverGuarantee::Typed, ApiserverGuarantee::ListSnapshot]);
    let second = app.watch(PODS).from(last).await;
    second.reached(up.create_pod("default", "behind")).await;
}

/// A bookmark that does not belong to this stream is ignored, and the stream resumes from its last version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_bookmark_is_ignored_and_stream_resumes() {
    let Scene { up, streams, app, mut history, watches, _stub } = scene(702).await;
    // A bookmark of this stream is accepted. Upstream's own count of streams contains proofs of freshness.
    let opened = streams.lock().len();
    up.put("configmaps", direct::configmap("default", "elsewhere", "x"));
    let now = up.revision();
    insert_line(&streams, &bookmark("Pod", &now.to_string()));
    app.reached("pods", now).await;
    assert_eq!(streams.lock().len(), opened, "and the stream continues");
    let sayings = [
        ("of another kind", bookmark("ConfigMap", &(now + 100).to_string())),
        ("without a version", bookmark("Pod", "")),
        ("of no number", bookmark("Pod", "soon")),
        ("of version 0", bookmark("Pod", "0")),
        ("without an object", "{\"type\":\"BOOKMARK\"}\n".to_owned()),
    ];
    let mut last = now;
    for (what, line) in sayings {
        let opened = streams.lock().len();
        insert_line(&streams, &line);
        eventually(what, || async { streams.lock().len() > opened }).await;
        last = up.churn(3).await;
        app.reached("pods", last).await;
    }
    history.assert_delivered(&watches, last).await;
    assert!(watches.iter().all(Watch::is_open));
    let newest = watches.iter().flat_map(Watch::bookmarks).map(|bookmark| bookmark.rv).max();
    assert!(newest.is_none_or(|newest| newest <= last), "{newest:?} after {last}");
}

//! Clients that accept gzip receive at most a thousandth more bytes than from the apiserver (R-GZIP-1).

use std::io::Read;

use futures_util::future::{join, join_all};
use http::header::ACCEPT_ENCODING;

use crate::bed::exemplar::exemplar_pod;
use crate::bed::{self, Answer, Plan, Plane, Proxy, RequestSpec, fill, gunzip, log_line};
use crate::reduced_costs::create;

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const SENSITIVE: &str = "feeds:\n  sensitive: [secrets]\n";

/// The content of one gzip member, after which nothing may follow.
fn gunzipped(answer: &Answer, what: &str) -> Vec<u8> {
    assert_eq!(answer.header("content-encoding"), "gzip", "{what}");
    let (mut plain, mut decoder) = (Vec::new(), flate2::bufread::GzDecoder::new(answer.body.as_ref()));
    decoder.read_to_end(&mut plain).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(decoder.into_inner().is_empty(), "{what}: one member");
    plain
}

#[tokio::test]
async fn compressed_list_is_at_most_a_thousandth_larger() {
    // Both sides must report the same version.
    let Some(bed) = bed::quiet("compression").await else { return };
    let proxy = Plan::tls().config(SENSITIVE).start(&bed).await;
    let loads = [
        ("pods", ("pods", 400, 0), "random"),
        ("pods with padding", ("pods", 400, 4_000), "random"),
        ("configmaps", ("configmaps", 800, 0), "random"),
        ("large random secrets", ("secrets", 12, 200_000), "random"),
        ("random secrets", ("secrets", 100, 20_000), "random"),
        ("small random secrets", ("secrets", 600, 1_500), "random"),
        ("secrets that compress", ("secrets", 12, 200_000), "words"),
    ];
    let loads = loads.map(async |(what, load, content)| {
        let namespace = fill(&bed, &what.replace(' ', "-"), load, content).await;
        (what, format!("/api/v1/namespaces/{namespace}/{}", load.0))
    });
    // Several namespaces with a few pods each: compression must continue across them.
    let few = (0..12).map(async |at| fill(&bed, &format!("few-{at}"), ("pods", 10, 0), "random").await);
    let (mut paths, _) = join(join_all(loads), join_all(few)).await;
    paths.push(("pods of everywhere", "/api/v1/pods".to_owned()));
    paths.push(("configmaps by label", format!("{}?labelSelector=app%21%3Dpod-1", paths[2].1)));
    for (what, path) in paths {
        for form in [JSON, PROTOBUF] {
            compare(&bed, &proxy, (what, &path), form).await;
        }
    }
}

async fn compare(bed: &Plane, proxy: &Proxy, (what, path): (&str, &str), form: &str) {
    let what = format!("{what} in {}", form.trim_start_matches("application/"));
    let request = RequestSpec::get(path).accept(form);
    let plain = bed.direct().fetch(request.clone()).await.body;
    let request = request.header(ACCEPT_ENCODING, "gzip");
    let (ours, theirs) = (proxy.client().list_now(request.clone()).await, bed.direct().fetch(request).await);
    assert!(ours.is_cached(), "{what}: {}", ours.status);
    assert!(gunzipped(&ours, &what) == gunzipped(&theirs, &what), "{what}: another body");
    let (len, mine, its) = (plain.len(), ours.body.len(), theirs.body.len());
    let ratio = mine as f64 / its as f64;
    log_line(&format!("{what}: {len} bytes, compressed {mine}, by the apiserver {its}: × {ratio:.4}"));
    // zlib splits text without repetitions into more blocks than Go does, each with codes of its own.
    assert!(mine <= its + its / 1000, "{what}: {mine} bytes, and from the apiserver {its}");
}

/// Returns the frames of a watch, without the bookmarks.
fn events<'a>(form: &str, text: &'a [u8]) -> Vec<&'a [u8]> {
    let (mut rest, mut frames) = (text, Vec::new());
    while !rest.is_empty() {
        let end = if form == JSON {
            rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |at| at + 1)
        } else {
            let prefix = *rest.first_chunk().expect("a whole frame");
            4 + u32::from_be_bytes(prefix) as usize
        };
        let (frame, others) = rest.split_at(end);
        frames.push(frame);
        rest = others;
    }
    frames.retain(|frame| !frame.windows(8).any(|window| window == b"BOOKMARK"));
    frames
}

/// Reads a compressed watch-list from both servers. Returns how many bytes the proxy and the apiserver sent.
async fn compare_watch_list(
    bed: &Plane,
    proxy: &Proxy,
    (what, path, count): (&str, &str, usize),
    form: &str,
) -> (usize, usize) {
    const STATE: &str = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let what = format!("{count} {what} in {}", form.trim_start_matches("application/"));
    let path = format!("{path}?timeoutSeconds=8&{STATE}");
    let request = RequestSpec::get(&path).accept(form).header(ACCEPT_ENCODING, "gzip");
    let (ours, theirs) = (proxy.client().fetch(request.clone()).await, bed.direct().fetch(request).await);
    for header in ["content-type", "content-encoding", "vary"] {
        assert_eq!(ours.header(header), theirs.header(header), "{what}: {header}");
    }
    assert!(ours.is_cached(), "{what}");
    let (mine, its) = (gunzipped(&ours, &what), gunzip(&theirs.body));
    let (ours_seen, theirs_seen) = (events(form, &mine), events(form, &its));
    assert_eq!(theirs_seen.len(), count, "{what}");
    assert!(ours_seen == theirs_seen, "{what}: other events");
    let (plain, ours, theirs) = (mine.len(), ours.body.len(), theirs.body.len());
    log_line(&format!("{what}: {plain} bytes, compressed {ours}, by the apiserver {theirs}"));
    (ours, theirs)
}

/// The apiserver compresses watch-lists from 1.37 on, each flush as a member of its own.
#[tokio::test]
async fn compressed_watch_list_is_as_the_apiservers_and_no_larger() {
    let Some(bed) = bed::quiet("compressed-watches").await else { return };
    let proxy = Plan::tls().start(&bed).await;
    for (resource, count, bytes) in [("configmaps", 30, 3_000), ("pods", 1_000, 0)] {
        let namespace = fill(&bed, &format!("watched-{resource}"), (resource, count, bytes), "random").await;
        let path = format!("/api/v1/namespaces/{namespace}/{resource}");
        for form in [JSON, PROTOBUF] {
            let (ours, theirs) = compare_watch_list(&bed, &proxy, (resource, &path, count), form).await;
            assert!(ours <= theirs + theirs / 1000, "{resource}: {ours} bytes, and from the apiserver {theirs}");
        }
    }
    let Some(mut pod) = exemplar_pod(&bed) else { return log_line("SKIPPED: no exemplar pod in Go's module cache") };
    let namespace = bed.namespace("watched-exemplars").await;
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    pod["metadata"]["namespace"] = namespace.into();
    create(&bed.direct(), &path, ("exemplar", EXEMPLARS), &pod).await;
    for form in [JSON, PROTOBUF] {
        let (ours, theirs) = compare_watch_list(&bed, &proxy, ("exemplar pods", &path, EXEMPLARS), form).await;
        assert!(ours <= theirs, "{form}: {ours} bytes, and from the apiserver {theirs}");
    }
}

const EXEMPLARS: usize = 300;

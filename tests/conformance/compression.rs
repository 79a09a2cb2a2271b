//! Clients that accept gzip receive at most a thousandth more bytes than from the apiserver (R-GZIP-1).

use std::io::Read;

use flate2::bufread::GzDecoder;
use futures_util::future::{join, join_all};
use http::header::ACCEPT_ENCODING;

use crate::bed::exemplar::exemplar_pod;
use crate::bed::{self, Answer, Plan, Plane, Proxy, RequestSpec, fill, log_line};
use crate::reduced_costs::create;

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const SENSITIVE: &str = "feeds:\n  sensitive: [secrets]\n";

/// The content of one gzip member, after which nothing may follow.
fn gunzipped(answer: &Answer, what: &str) -> Vec<u8> {
    assert_eq!(answer.header("content-encoding"), "gzip", "{what}");
    let (mut plain, mut decoder) = (Vec::new(), GzDecoder::new(answer.body.as_ref()));
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

/// Reads a compressed watch-list from both servers. Returns how many bytes the proxy and the apiserver sent.
async fn compare_watch_list(
    bed: &Plane,
    proxy: &Proxy,
    (what, path, count): (&str, &str, usize),
    form: &str,
) -> (usize, usize) {
    const STATE: &str = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let what = format!("{count} {what} in {}", form.trim_start_matches("application/"));
    let request = RequestSpec::get(&format!("{path}?{STATE}")).accept(form).header(ACCEPT_ENCODING, "gzip");
    let ours = proxy.client().initial_state(request.clone()).await;
    let theirs = bed.direct().initial_state(request).await;
    for header in ["content-type", "content-encoding", "vary"] {
        assert_eq!(ours.answer.header(header), theirs.answer.header(header), "{what}: {header}");
    }
    assert!(ours.answer.is_cached(), "{what}");
    assert_eq!(theirs.events.len(), count, "{what}");
    assert!(ours.events == theirs.events, "{what}: other events");
    let mut first_member = Vec::new();
    let ends_here = GzDecoder::new(ours.answer.body.as_ref()).read_to_end(&mut first_member);
    assert!(ends_here.is_err() && first_member == ours.plain, "{what}: one member, and it is still open");
    let (plain, ours, theirs) = (ours.plain.len(), ours.answer.body.len(), theirs.answer.body.len());
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

//! Clients that accept gzip get no more bytes than from the apiserver, and get them no later (R-GZIP-1).
//!
//! `make informers` is the long form of the second test, which follows Kubernetes' own load test (perf-tests,
//! `util-images/watch-list`): informers on one connection, which begin with Secrets of 200 KB. The long form needs a
//! release build and also checks how long they take. The short form only checks which objects they have.

use std::io::Read;

use http::header::ACCEPT_ENCODING;

use crate::bed::{self, Answer, Ask, Plan, Plane, Proxy, Target, number, say};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const SENSITIVE: &str = "feeds:\n  sensitive: [secrets]\n";

/// A namespace with so many objects of a resource, of about so many bytes.
async fn fill(plane: &Plane, what: &str, (resource, count, bytes): (&str, usize, usize), content: &str) -> String {
    let namespace = plane.namespace(what).await;
    let load = plane.drive("load").args(["--namespace", &namespace, "--resource", resource, "--content", content]);
    let load = load.args(["--pods", &count.to_string(), "--size", &bytes.to_string(), "--workers", "4"]);
    load.start().finish().await;
    namespace
}

/// What one gzip member holds; nothing may be behind it.
fn gunzipped(answer: &Answer, what: &str) -> Vec<u8> {
    assert_eq!(answer.header("content-encoding"), "gzip", "{what}");
    let (mut plain, mut decoder) = (Vec::new(), flate2::bufread::GzDecoder::new(answer.body.as_ref()));
    decoder.read_to_end(&mut plain).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(decoder.into_inner().is_empty(), "{what}: one member");
    plain
}

#[tokio::test]
async fn a_compressed_list_is_no_longer_than_the_apiservers() {
    // Both sides are to say the same version.
    let Some(bed) = bed::quiet("compression").await else { return };
    let proxy = Plan::tls().config(SENSITIVE).start(&bed).await;
    let mut paths = Vec::new();
    for (what, load, content) in [
        ("pods", ("pods", 400, 0), "random"),
        ("pods with padding", ("pods", 400, 4_000), "random"),
        ("configmaps", ("configmaps", 800, 0), "random"),
        ("large random secrets", ("secrets", 12, 200_000), "random"),
        ("random secrets", ("secrets", 100, 20_000), "random"),
        ("small random secrets", ("secrets", 600, 1_500), "random"),
        ("secrets that compress", ("secrets", 12, 200_000), "words"),
    ] {
        let namespace = fill(&bed, &what.replace(' ', "-"), load, content).await;
        paths.push((what, format!("/api/v1/namespaces/{namespace}/{}", load.0)));
    }
    // Many namespaces of a few pods each: what is compressed does not end with each of them.
    for at in 0..40 {
        fill(&bed, &format!("few-{at}"), ("pods", 10, 0), "random").await;
    }
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
    let ask = Ask::get(path).accept(form);
    let plain = bed.direct().ask(ask.clone()).await.body;
    let ask = ask.header(ACCEPT_ENCODING, "gzip");
    let (ours, theirs) = (proxy.client().list_now(ask.clone()).await, bed.direct().ask(ask).await);
    assert!(ours.is_cached(), "{what}: {}", ours.status);
    assert!(gunzipped(&ours, &what) == gunzipped(&theirs, &what), "{what}: another body");
    let (len, mine, its) = (plain.len(), ours.body.len(), theirs.body.len());
    let ratio = mine as f64 / its as f64;
    say(&format!("{what}: {len} bytes, compressed {mine}, by the apiserver {its}: × {ratio:.4}"));
    assert!(mine <= its, "{what}: {mine} bytes, and from the apiserver {its}");
}

/// How informers of a namespace's Secrets began, all of them: the seconds it took, and those of everybody's CPU.
struct Began {
    seconds: f64,
    client: f64,
    apiserver: f64,
    proxy: f64,
}

/// A load, and by what informers begin.
struct Load<'a> {
    bed: &'a Plane,
    proxy: &'a Proxy,
    namespace: &'a str,
    objects: usize,
    watchlist: &'a str,
    count: u64,
}

impl Load<'_> {
    async fn begin(&self, target: &Target) -> Began {
        let (apiserver, proxy) = (self.bed.apiserver_cpu_seconds(), self.proxy.cpu_seconds());
        let client = bed::cpu_seconds_of_ended();
        let run = self.bed.drive("informers").at(target).args(["--resource", "secrets", "--for", "1ms"]);
        let run = run.args(["--namespace", self.namespace, "--watchlist", self.watchlist]);
        let run = run.args(["--count", &self.count.to_string(), "--reference-server", self.bed.url()]);
        let summary = run.start().finish().await.summary();
        assert_eq!((&summary["reference"], &summary["distinct_stores"]), (&"equal".into(), &1.into()), "{summary}");
        assert_eq!(summary["objects"], self.objects, "{summary}");
        let (lists, streamed) = if self.watchlist == "on" { (0, self.count) } else { (self.count, 0) };
        assert_eq!((&summary["lists"], &summary["watchlists"]), (&lists.into(), &streamed.into()), "{summary}");
        Began {
            seconds: summary["sync_seconds"].as_f64().expect("a number"),
            client: bed::cpu_seconds_of_ended() - client,
            apiserver: self.bed.apiserver_cpu_seconds() - apiserver,
            proxy: self.proxy.cpu_seconds() - proxy,
        }
    }

    /// Rounds of both sides in turn; the medians. Returns how many times the direct time they take.
    async fn compare(&self, what: &str) -> f64 {
        let (mut direct, mut through) = (Vec::new(), Vec::new());
        for _ in 0..number("INFORMERS_ROUNDS", 1) {
            direct.push(self.begin(&self.bed.target()).await);
            through.push(self.begin(&self.proxy.target()).await);
        }
        let median = |mut all: Vec<Began>| {
            all.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
            all.swap_remove(all.len() / 2)
        };
        let (direct, through) = (median(direct), median(through));
        let ratio = through.seconds / direct.seconds;
        let how = if self.watchlist == "on" { "watch-list" } else { "LIST" };
        say(&format!(
            "{} informers of {} secrets, {what}, by {how}: directly {:.2} s (CPU of the apiserver {:.1} s, of the \
             client {:.1} s), through the proxy {:.2} s (CPU {:.1} s, of the apiserver {:.1} s, of the client {:.1} \
             s): × {ratio:.2}",
            self.count,
            self.objects,
            direct.seconds,
            direct.apiserver,
            direct.client,
            through.seconds,
            through.proxy,
            through.apiserver,
            through.client,
        ));
        ratio
    }
}

#[tokio::test]
async fn informers_of_large_secrets_begin_no_later_than_directly() {
    let Some(bed) = bed::own("informers").await else { return };
    let objects = usize::try_from(number("INFORMERS_SECRETS", 20)).expect("a small number");
    let counts = std::env::var("INFORMERS").unwrap_or_else(|_| "4".to_owned());
    let limits = [("off", number("INFORMERS_LIST_PERCENT", 0)), ("on", number("INFORMERS_WATCH_LIST_PERCENT", 0))];
    let proxy = Plan::tls().config(SENSITIVE).start(&bed).await;
    let mut slow = Vec::new();
    for content in ["random", "words"] {
        let namespace = fill(&bed, content, ("secrets", objects, 200_000), content).await;
        for count in counts.split_whitespace().map(|count| count.parse().expect("numbers")) {
            for (watchlist, percent_max) in limits {
                let (bed, proxy, namespace): (&Plane, _, _) = (&bed, &proxy, namespace.as_str());
                let load = Load { bed, proxy, namespace, objects, watchlist, count };
                let ratio = load.compare(content).await;
                if percent_max > 0 && ratio * 100.0 > percent_max as f64 {
                    slow.push(format!("{count} informers, {content}, watch-list {watchlist}: × {ratio:.2}"));
                }
            }
        }
    }
    proxy.assert_sound();
    assert!(slow.is_empty(), "{slow:?}");
}

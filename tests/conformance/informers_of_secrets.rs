//! Informers that start with large Secrets, directly and through the proxy (R-GZIP-1).
//!
//! The scenario is Kubernetes' own load test (perf-tests, `util-images/watch-list`): informers on one connection that
//! start with Secrets of 200 KB. `make informers` is the long form. It needs a release build and also checks how long
//! the informers take. The short form only checks which objects they have.

use crate::bed::{self, Plan, Plane, Proxy, Target, fill, log_line, number};

const SENSITIVE: &str = "feeds:\n  sensitive: [secrets]\n";

/// The start of all informers of a namespace's Secrets: the elapsed seconds, and the CPU seconds of each process.
struct Began {
    seconds: f64,
    client: f64,
    apiserver: f64,
    proxy: f64,
}

/// A load, and the initial list of the informers.
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

    /// Runs both sides alternately and compares the medians. Returns the ratio of the proxied time to the direct time.
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
        log_line(&format!(
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
async fn large_secret_informers_sync_as_fast_as_direct() {
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

//! Reads without a version contain every write that completed before them, and cost upstream little (L5, F4, O3).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::now_ns;
use demo::{self, RunningDemoApiserver};
use futures_util::future::join_all;
use http::Request;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::sync::Notify;
use verify::ApiserverGuarantee;

use crate::direct::{self, Answer, Behind, Client, History, PODS, Stub, Watch, configmap};

/// More than are proven by a list of their versions alone.
const MANY: usize = 501;
const DEFAULT_PODS: &str = "/api/v1/namespaces/default/pods";

/// Number of requests for pods that upstream has answered.
fn requests(up: &RunningDemoApiserver) -> u64 {
    let counts = up.counts();
    counts.gets.of("pods") + counts.lists.of("pods") + counts.watches_opened.of("pods")
}

/// Writes, and the reads after them.
#[derive(Default)]
struct Reads {
    written: Mutex<Vec<(String, u64, u64)>>,
    answers: Mutex<Vec<Answer>>,
    watches: Mutex<Vec<Watch>>,
}

impl Reads {
    fn write(&self, up: &RunningDemoApiserver, name: &str) -> u64 {
        let version = up.update_pod("default", name);
        self.written.lock().push((format!("default/{name}"), version, now_ns()));
        version
    }

    /// A LIST or a GET. Returns whether it came from the cache.
    async fn get(&self, client: &Client, path: &str) -> bool {
        let answer = client.get(path).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let cached = answer.is_cached();
        self.answers.lock().push(answer);
        cached
    }

    async fn watch_list(&self, client: &Client) {
        let mut watch = client.watch(DEFAULT_PODS).initial_events().await;
        watch.listed().await;
        watch.leave().await;
        self.watches.lock().push(watch);
    }

    /// Asserts that each read contains everything that was written before it.
    async fn have_all(&self, up: &RunningDemoApiserver, history: &mut History) {
        let mut evidence = history.read_to(up.revision()).await.evidence();
        for (key, version, at_ns) in self.written.lock().iter() {
            evidence.written(key, *version, *at_ns);
        }
        evidence.answers(self.answers.lock().iter()).watches(self.watches.lock().iter());
        evidence.shows(&[ApiserverGuarantee::Consistent, ApiserverGuarantee::ListSnapshot]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_after_write_contains_write_in_quiet_cluster() {
    let up = demo::upstream().run().await;
    let (mut history, reads) = (History::begin(&up, PODS).await, Reads::default());
    let app = direct::app(&up).run().await;
    app.discovered().await;
    app.get(DEFAULT_PODS).await;
    let (before, mut cached) = (requests(&up), 0);
    for trial in 0..200 {
        reads.write(&up, &format!("p{}", trial % 5));
        cached += u32::from(reads.get(&app, DEFAULT_PODS).await);
    }
    assert!(cached >= 180, "{cached} of 200 from the cache");
    let questions = requests(&up) - before;
    reads.have_all(&up, &mut history).await;
    // A position request, a catch-up watch if its event is late, a comparison, and one more if that was too early.
    assert!(questions <= 4 * 200, "{questions} questions for 200 reads");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_after_write_contains_write_during_churn() {
    let up = demo::upstream().pods(100).seed(61).run().await;
    let (mut history, done) = (History::begin(&up, PODS).await, Reads::default());
    let app = direct::app(&up).run().await;
    let reads = async {
        let mut cached = 0;
        for trial in 0..150 {
            let name = format!("mine-{}", trial % 5);
            done.write(&up, &name);
            match trial % 3 {
                0 => done.watch_list(&app).await,
                1 => cached += u32::from(done.get(&app.over(direct::Protocol::Http2), DEFAULT_PODS).await),
                _ => {
                    let _ = done.get(&app, &format!("{DEFAULT_PODS}/{name}")).await;
                }
            }
        }
        assert!(cached >= 40, "{cached} of 50 lists from the cache");
    };
    Box::pin(direct::during_churn(&up, reads)).await;
    done.have_all(&up, &mut history).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_readers_see_own_writes_with_shared_checks() {
    let up = Arc::new(demo::upstream().run().await);
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    app.discovered().await;
    app.get(DEFAULT_PODS).await;
    let (before, reads) = (requests(&up), Arc::new(Reads::default()));
    let reader = |n: usize| {
        let (up, reads, client) = (up.clone(), reads.clone(), (*app).clone());
        async move {
            for trial in 0..12 {
                reads.write(&up, &format!("r{n}"));
                if trial % 4 == 3 {
                    reads.watch_list(&client).await;
                } else {
                    let _ = reads.get(&client, DEFAULT_PODS).await;
                }
            }
        }
    };
    join_all((0..40).map(|n| tokio::spawn(reader(n)))).await.into_iter().for_each(|joined| joined.expect("no failure"));
    let questions = requests(&up) - before;
    reads.have_all(&up, &mut history).await;
    // How many reads share one request depends on how many the machine runs concurrently; the nightly tier measures
    // that.
    assert!(questions < 2 * 480, "{questions} questions for 480 reads");
}

/// Between a request and its response the process, or upstream, may stall while many writes complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_freshness_response_does_not_cover_later_read() {
    let up = demo::upstream().pods(MANY).run().await;
    let witness = up.beside();
    let (mut history, reads) = (History::following(&witness, PODS).await, Reads::default());
    let app = direct::app(&up).run().await;
    app.get(DEFAULT_PODS).await;
    let (before, proofs) = (up.revision(), up.counts().watch_lists.of("pods"));
    // The stream goes silent. The response to the next request is current and arrives later.
    up.faults().stall_watches(0);
    up.faults().hush_watches();
    up.faults().lag(1, before);
    let first = async {
        let first = app.get(DEFAULT_PODS).await;
        // Leaves a wrong second response, one that relies on the first request's proof, as much time as the proxy needs
        // for a hundred others. The right one needs the stream.
        for _ in 0..100 {
            if !reads.answers.lock().is_empty() {
                break;
            }
            assert_eq!(app.get(&format!("{DEFAULT_PODS}?resourceVersion=0")).await.status, 200);
        }
        up.faults().resume_watches();
        first
    };
    let second = async {
        let is_requested = up.until(|counts| counts.watch_lists.of("pods") > proofs);
        direct::within("the question", is_requested).await;
        reads.write(&up, "meanwhile");
        let release = async {
            // A read that does not wait is judged for that.
            let waits = async || app.feed("pods").await.is_some_and(|feed| feed["readers"].as_u64() >= Some(2));
            let is_there = async || waits().await || !reads.answers.lock().is_empty();
            direct::eventually("the second waits, or has its answer", is_there).await;
            up.faults().unhush_watches();
        };
        tokio::join!(reads.get(&app, DEFAULT_PODS), release);
    };
    let (first, ()) = tokio::join!(first, second);
    reads.have_all(&up, &mut history).await;
    assert!(first.is_cached() && first.rv() == before, "it arrived before the write");
}

/// A server in front of another one that holds back the first response about an object after it has received it.
async fn holding(up: &RunningDemoApiserver, path: &'static str, has_it: Arc<AtomicBool>, go: Arc<Notify>) -> Stub {
    let behind = Behind::at(&up.url());
    let relay = move |request: Request<Incoming>| {
        let (behind, has_it, go) = (behind.clone(), has_it.clone(), go.clone());
        async move {
            let is_requested = request.uri().path() == path;
            let answer = behind.answer(request).await?;
            if is_requested && !has_it.swap(true, Ordering::SeqCst) {
                go.notified().await;
            }
            Ok(answer)
        }
    };
    direct::stub(relay).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn get_after_write_does_not_join_request_in_flight() {
    const ONE: &str = "/api/v1/namespaces/default/pods/one";
    let up = demo::upstream().pods(3).run().await;
    up.create_pod("default", "one");
    let (mut history, reads) = (History::begin(&up, PODS).await, Reads::default());
    let (has_it, go) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
    let holding_server = holding(&up, ONE, has_it.clone(), go.clone()).await;
    let app = direct::in_front_of(&holding_server.url()).run().await;
    app.discovered().await;
    let client = app.multiplexed().await;
    let behind = async {
        direct::eventually("upstream has answered", || async { has_it.load(Ordering::SeqCst) }).await;
        reads.write(&up, "one");
        let crowd = join_all((0..5).map(|_| reads.get(&client, ONE)));
        // A later request on the same connection is answered, so the earlier ones have been accepted.
        let release = async {
            assert_eq!(client.get("/livez").await.status, 200);
            go.notify_one();
        };
        tokio::join!(crowd, release);
    };
    tokio::join!(client.get(ONE), behind);
    reads.have_all(&up, &mut history).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_to_other_resource_keeps_reads_on_cache() {
    let (small, large) = (demo::upstream().pods(40).run().await, demo::upstream().pods(700).run().await);
    let (few, many) = (direct::app(&small).run().await, direct::app(&large).run().await);
    for (up, app) in [(&small, &few), (&large, &many)] {
        app.get(PODS).await;
        for n in 0..2 {
            let write = || {
                up.put("configmaps", configmap("default", "other", &n.to_string()));
                PODS.to_owned()
            };
            let list = direct::proven(app, write).await;
            assert!(list.is_cached(), "served from the cache, not forwarded");
            assert_eq!(list.items().len(), up.keys("pods").len());
        }
    }
}

/// A proven state has the version of the proof, and no later read has an older one (R-VERSION-1).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_after_write_to_other_resource_has_its_version() {
    let up = demo::upstream().pods(40).run().await;
    up.put("events", configmap("default", "one", "x"));
    let app = direct::app(&up).run().await;
    for (path, plural) in [(PODS, "pods"), ("/api/v1/events", "events")] {
        app.get(path).await;
        let written = Cell::new(0);
        let elsewhere = || written.set(up.put("configmaps", configmap("default", "other", &up.revision().to_string())));
        let list = direct::proven(&app, || {
            elsewhere();
            path.to_owned()
        });
        let list = list.await;
        assert!(list.is_cached() && list.rv() >= written.get(), "{path}: {} of {}", list.rv(), written.get());
        let any = app.get(&format!("{path}?resourceVersion=0")).await;
        assert!(any.is_cached() && any.rv() >= list.rv(), "{path}: {} after {}", any.rv(), list.rv());
        let watch = app.watch(path).initial_events().await;
        watch.listed().await;
        assert!(watch.bookmarks()[0].rv >= list.rv(), "{path}");
        let not_older = direct::proven(&app, || {
            elsewhere();
            format!("{path}?resourceVersion={}&resourceVersionMatch=NotOlderThan", written.get())
        });
        let not_older = not_older.await;
        assert!(not_older.is_cached() && not_older.rv() >= written.get(), "{path}: {}", not_older.rv());
        assert_eq!(not_older.items().len(), up.keys(plural).len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identical_gets_coalesce_and_contain_every_write() {
    const ONE: &str = "/api/v1/namespaces/default/pods/one";
    for trial in 0..5 {
        let up = demo::upstream().pods(3).run().await;
        let rv = up.update_pod("default", "one");
        let (has_it, go) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let holding_server = holding(&up, ONE, has_it.clone(), go.clone()).await;
        let app = direct::in_front_of(&holding_server.url()).run().await;
        app.discovered().await;
        let (client, before) = (app.multiplexed().await, up.counts().gets.of("pods"));
        let first = async {
            let answer = client.get(ONE).await;
            assert!(answer.rv() == rv && !answer.is_cached(), "trial {trial}");
        };
        let others = async {
            // The response to the first request is under way, so new reads need another request.
            direct::eventually("upstream has answered", || async { has_it.load(Ordering::SeqCst) }).await;
            let rv = up.update_pod("default", "one");
            let crowd = join_all((0..20).map(|_| client.get(ONE)));
            // A later request on the same connection is answered, so the earlier ones have been accepted.
            let release = async {
                assert_eq!(client.get("/livez").await.status, 200);
                go.notify_one();
            };
            let (answers, ()) = tokio::join!(crowd, release);
            assert!(answers.iter().all(|answer| answer.rv() == rv && !answer.is_cached()), "trial {trial}");
        };
        tokio::join!(first, others);
        let gets = up.counts().gets.of("pods") - before;
        assert!((2..=3).contains(&gets), "{gets} upstream requests for one GET and twenty later ones");
    }
}

#[tokio::test]
async fn bounded_consistency_sends_no_freshness_checks() {
    let up = demo::upstream().pods(20).run().await;
    let app = direct::app(&up).bounded().run().await;
    app.discovered().await;
    app.get(PODS).await;
    let before = requests(&up);
    for _ in 0..20 {
        assert!(app.get(PODS).await.is_cached());
        app.watch(PODS).initial_events().await.listed().await;
    }
    assert_eq!(requests(&up), before);
}

#[tokio::test]
async fn upstream_outage_fails_consistent_reads_and_marks_cached_stale() {
    let up = demo::upstream().pods(5).run().await;
    // No proof can come, so the reads wait for no reason.
    let app = direct::app(&up).with(|config| config.serve.fresh_wait_max = Duration::from_millis(300)).run().await;
    let open = app.watch(PODS).initial_events().from(0).await;
    open.listed().await;
    up.faults().down().await;
    app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    let one = format!("{DEFAULT_PODS}/one");
    let watch = app.watch(PODS).initial_events().open();
    let (list, watch, get) = tokio::join!(app.get(PODS), watch, app.get(&one));
    let watch = watch.err().expect("a refusal");
    for refused in [&list, &watch, &get] {
        assert_eq!(refused.refusal(), (503, "ServiceUnavailable".to_owned()));
        assert!(refused.header("retry-after").is_some_and(|seconds| seconds.parse::<u32>().is_ok()));
    }
    let old = app.get("/api/v1/pods?resourceVersion=0").await;
    assert_eq!((old.status, old.is_cached(), old.items().len()), (200, true, 5));
    assert!(old.header("kube-fanout-stale-seconds").is_some_and(|age| age.parse::<u64>().is_ok()));
    let ready = app.admin("/readyz").await;
    assert!(ready.text().contains("stale for"), "{}", ready.text());
    assert!(open.is_open());
    up.faults().up().await;
    app.until_feed("pods", "live again", |feed| feed["state"] == "live").await;
    let list = direct::proven(&app, || PODS.to_owned()).await;
    assert_eq!((list.status, list.header("kube-fanout-stale-seconds")), (200, None));
}

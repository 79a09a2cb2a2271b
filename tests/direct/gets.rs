//! GETs of the most recent state share proofs where many ask and upstream is spared by it, and none of them is old
//! (L5, F4).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::now_ns;
use demo::{self, RunningUpstream};
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::Instant;
use verify::Promise;

use crate::direct::{self, ALLOWANCE, Answer, App, History, PODS, configmap};

const CLIENTS: usize = 24;
/// The answers that are enough in any case: where a machine does other things, the proxy may have measured for a while
/// that to share does not pay, and passes all on.
const ANSWERS_MAX: usize = 4_000;
/// The fewest answers from memory of which it can be said what they cost.
const SHARED_MIN: usize = 200;
/// The answers a second that are enough for the proxy to try in any case: twice what it asks for.
const SHARING_RATE: f64 = 400.0;
/// A client writes before every so manieth of its GETs, and must find that.
const WRITES_ONE_IN: usize = 20;

/// What many clients asked and got, and what they had written.
#[derive(Default)]
struct Asked {
    answers: Mutex<Vec<Answer>>,
    cached: AtomicUsize,
    written: Mutex<Vec<(String, u64, u64)>>,
}

impl Asked {
    fn came(&self, answer: Answer) {
        self.cached.fetch_add(usize::from(answer.is_cached()), Ordering::Relaxed);
        self.answers.lock().push(answer);
    }

    fn cached(&self) -> usize {
        self.cached.load(Ordering::Relaxed)
    }

    /// Whether so many came from memory, or so many came at all that no more are waited for.
    fn has(&self, cached: usize, most: usize) -> bool {
        self.answers.lock().len() >= most || self.cached() >= cached
    }
}

/// Clients that read pods of their own until `enough`.
async fn read(app: &App, up: &Arc<RunningUpstream>, asked: &Arc<Asked>, enough: impl Fn(&Asked) -> bool) {
    let enough = &enough;
    let client = async |number: usize| {
        let (client, name) = (app.multiplexed().await, format!("own-{number}"));
        up.create_pod("default", &name);
        for trial in 0.. {
            if trial % WRITES_ONE_IN == 0 {
                let version = up.update_pod("default", &name);
                asked.written.lock().push((format!("default/{name}"), version, now_ns()));
            }
            let answer = client.get(&format!("/api/v1/namespaces/default/pods/{name}")).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            asked.came(answer);
            if enough(asked) {
                return;
            }
        }
    };
    direct::within("enough answers", join_all((0..CLIENTS).map(client))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_gets_of_different_objects_cost_upstream_less_than_half_and_none_is_old() {
    let up = Arc::new(demo::upstream().pods(50).run().await);
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    app.get(PODS).await;
    let asked = Arc::new(Asked::default());
    let work = async {
        read(&app, &up, &asked, |asked| asked.has(SHARED_MIN, ANSWERS_MAX)).await;
        let (before, from) = (up.counts().requests, asked.answers.lock().len());
        let enough = asked.cached() + 5 * SHARED_MIN;
        read(&app, &up, &asked, |asked| asked.has(enough, from + ANSWERS_MAX)).await;
        let answers = asked.answers.lock();
        let from_memory = answers[from..].iter().filter(|answer| answer.is_cached()).count();
        (up.counts().requests - before, answers.len() - from - from_memory, from_memory)
    };
    let began = Instant::now();
    let (requests, passed, from_memory) = Box::pin(direct::amid_churn(&up, work)).await;
    let rate = asked.answers.lock().len() as f64 / began.elapsed().as_secs_f64();
    let mut evidence = history.upto(up.revision()).await.evidence();
    for (key, version, at_ns) in asked.written.lock().iter() {
        evidence.written(key, *version, *at_ns);
    }
    evidence.answers(asked.answers.lock().iter()).shows(&[Promise::Consistent]);
    let proofs = usize::try_from(requests).expect("not many") - passed;
    let (cached, judged) = (asked.cached(), rate >= SHARING_RATE);
    assert!(cached > 0 || !judged, "not one was answered from memory, of {rate:.0} a second");
    if cached == 0 {
        direct::skipped(&format!("whether proofs are shared is not judged by {rate:.0} answers a second"));
    }
    assert!(
        2 * proofs < from_memory || from_memory < SHARED_MIN,
        "{proofs} requests for the proofs of {from_memory} GETs; {passed} were passed on"
    );
}

/// A stream that does not come to what upstream answers proves nothing soon enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_proofs_are_late_gets_are_passed_on_and_wait_for_nothing() {
    let up = Arc::new(demo::upstream().pods(600).run().await);
    let app = direct::app(&up).run().await;
    app.get(PODS).await;
    // Everything else in the cluster is written, and no pod: each proof takes a watch.
    let others = async {
        for number in 0..u32::MAX {
            up.put("configmaps", configmap("default", "other", &number.to_string()));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let asked = Asked::default();
    let client = async |number: usize| {
        let client = app.multiplexed().await;
        while asked.answers.lock().len() < 1500 {
            let began = Instant::now();
            let answer = client.get(&format!("/api/v1/nodes/none-{number}")).await;
            assert_eq!(answer.status, 404);
            let pod = client.get("/api/v1/namespaces/default/pods/none").await;
            assert_eq!(pod.status, 404);
            assert!(began.elapsed() < Duration::from_secs(2) + ALLOWANCE, "{:?}", began.elapsed());
            asked.came(pod);
        }
    };
    let work = direct::within("the reads", join_all((0..CLIENTS).map(client)));
    tokio::select! {
        _ = work => {}
        () = others => unreachable!("there are many"),
    }
    let from_memory = asked.cached();
    assert!(from_memory < 300, "{from_memory} of 1500 waited for proofs that came late");
}

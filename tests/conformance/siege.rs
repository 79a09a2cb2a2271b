//! The cost of attacks for other clients: one healthy client repeatedly requests the same cached object, alone and
//! under attack (R-THREAT-10, R-THREAT-11, R-THREAT-13). Each attack counts the answers that it received, so that no
//! test passes because its attack did nothing.
//!
//! The short form is part of every test run. It checks the answers and that the proxy survives. `make siege` is the
//! long form, with 10,000 objects, more time and a release build. It fails when the healthy client's p99 under attack
//! is more than `SIEGE_RATIO` times its p99 alone.
//!
//! In production, attackers, apiserver and clients have their own machines. The long form imitates this. The proxy has
//! its own CPU, and the healthy client has priority on the remaining ones (`chrt`, where this user may). A storm of one
//! identity has the lowest priority. An attack may have a *floor*: the cost of the same bytes without the expensive
//! part of the attack. A p99 near that of the floor is not a fault.

mod account;
mod attacks;
mod bench;
mod chains;
mod handshakes;
mod memory;
mod selectors;
mod storm;
mod strangers;
mod unread;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use futures_util::future::join_all;
use serde_json::Value;

use crate::bed::{
    self, BULK_PODS, Bed, Http, Identity, Lent, Plan, Plane, Protocol, Proxy, RequestSpec, Target, log_line,
};

/// The interval of the healthy client's requests. A closed loop would measure throughput instead.
const EVERY: Duration = Duration::from_millis(2);
/// The limit of a p99 relative to its floor, which covers the variation between runs.
const FLOOR_RATIO: f64 = 1.5;
/// The minimum number of answers in a second plus [`LATE_MAX`]. A client that is blocked gets fewer, however busy the
/// machine is; an idle machine gives 200 per second.
const ANSWERS_MIN: usize = 5;
/// The wait for late answers, which only ends a hang: attackers, apiserver and proxy share two cores, which may be
/// slow.
const LATE_MAX: Duration = bed::PATIENCE;
/// The number of attackers of one kind.
const ATTACKERS: usize = 8;

fn seconds() -> Duration {
    Duration::from_secs(bed::number("SIEGE_SECONDS", 1))
}

/// The limit of the healthy client's p99 relative to its p99 alone; 0 if figures are not compared.
fn ratio_max() -> f64 {
    bed::number("SIEGE_RATIO", 0) as f64
}

/// A proxy with many cached pods, one of which the healthy client reads.
struct Field {
    bed: Bed<Lent>,
    proxy: Arc<Proxy>,
    /// The path of the collection.
    pods: String,
    /// The path of one object in it.
    pod: String,
    processors: Processors,
}

/// The CPUs of this thread and its children. If figures are compared, the first CPU belongs to the proxy, and
/// everything else uses the others. Dropping this value restores all CPUs for this thread.
struct Processors {
    last: usize,
}

impl Field {
    /// Sets up the field. `None` without a test bed.
    async fn lay(config: &str) -> Option<Self> {
        let processors = Processors::all();
        processors.for_others();
        let bed = bed::alone().await?;
        let count = usize::try_from(bed::number("SIEGE_OBJECTS", BULK_PODS as u64)).expect("a small number");
        let namespace = if count == BULK_PODS { "bulk" } else { "siege" };
        bed.load().await;
        if namespace == "siege" {
            let load = bed.drive("load").args(["--namespace", namespace, "--pods", &count.to_string()]);
            load.args(["--size", "2500", "--workers", "8"]).start().finish().await;
        }
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let list = bed.direct().json(&format!("{pods}?limit=1")).await;
        let pod = format!("{pods}/{}", list["items"][0]["metadata"]["name"].as_str().expect("a name"));
        let proxy = Self::start(&bed, &processors, config, &pods).await;
        Some(Self { bed, proxy, pods, pod, processors })
    }

    /// Starts a proxy and fills its cache with the collection.
    async fn start(bed: &Plane, processors: &Processors, config: &str, pods: &str) -> Arc<Proxy> {
        Processors::for_proxy();
        let proxy = Plan::delegated(bed).config(config).start(bed).await;
        processors.for_others();
        let whole = proxy.client().get(&format!("{pods}?resourceVersion=0")).await;
        assert!(whole.is_cached(), "{}", whole.text());
        Arc::new(proxy)
    }

    /// Replaces the proxy with a new one, so that memory growth from earlier attacks hides nothing.
    async fn restart(&mut self, config: &str) {
        self.proxy = Self::start(&self.bed, &self.processors, config, &self.pods).await;
    }

    /// The proxy with the credentials of the healthy client, which is not an attacker.
    fn healthy(&self) -> Target {
        self.proxy.target().by(&self.bed.user("admin"))
    }

    /// Measures the healthy client's cached GETs, alone and under `attack`. Returns the p99 under attack, in
    /// milliseconds. `attack` receives a flag for its end. `floor` is the p99 under a harmless load that uses as much
    /// of the machine.
    async fn besiege<F, A>(&self, what: &str, floor: Option<f64>, attack: A) -> f64
    where
        F: Future<Output = Answers>,
        A: FnOnce(Arc<AtomicBool>) -> F,
    {
        let path = format!("{}?resourceVersion=0", self.pod);
        if ratio_max() > 0.0 {
            // A warm-up before the comparison.
            Reader::start(self.healthy(), path.clone()).stop_after(seconds()).await;
        }
        let alone = Reader::start(self.healthy(), path.clone()).stop_after(seconds()).await;
        let over = Arc::new(AtomicBool::new(false));
        let reader = Reader::start(self.healthy(), path);
        let reading = async {
            let seen = reader.stop_after(seconds()).await;
            over.store(true, Ordering::SeqCst);
            seen
        };
        let cpu = self.proxy.cpu_seconds();
        let (under, answers) = tokio::join!(reading, attack(over.clone()));
        let cpu = self.proxy.cpu_seconds() - cpu;
        let ratio = under.at(0.99) / alone.at(0.99);
        log_line(&format!(
            "{what}: alone {alone}; under attack {under}; p99 × {ratio:.1}; {cpu:.1} s of CPU; {answers}"
        ));
        self.proxy.assert_sound();
        assert!(under.0.len() >= ANSWERS_MIN, "{what}: the healthy one was not answered");
        assert!(answers.count() > 0, "{what}: no attack was answered");
        let is_at_floor = floor.is_some_and(|floor| under.at(0.99) <= floor * FLOOR_RATIO);
        assert!(ratio_max() == 0.0 || ratio <= ratio_max() || is_at_floor, "{what}: p99 × {ratio:.1}, floor {floor:?}");
        under.at(0.99)
    }
}

/// The healthy client, in its own thread, so that its measurements exclude the attackers' own work.
struct Reader {
    over: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    thread: thread::JoinHandle<Latencies>,
}

/// Sorted latencies in milliseconds.
struct Latencies(Vec<f64>);

impl Reader {
    fn start(target: Target, path: String) -> Self {
        let (over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (until, count) = (over.clone(), answered.clone());
        let thread = thread::spawn(move || {
            come_first();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let http = Http::new(target, Protocol::H2);
                let mut seen = Vec::new();
                while !until.load(Ordering::SeqCst) {
                    let began = Instant::now();
                    let answer = http.get(&path).await;
                    assert!(answer.status == 200 && answer.is_cached(), "{}: {}", answer.status, answer.text());
                    seen.push(began.elapsed().as_secs_f64() * 1e3);
                    count.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(EVERY).await;
                }
                // The first request includes the connection setup.
                let mut seen: Vec<_> = seen.into_iter().skip(1).collect();
                seen.sort_by(f64::total_cmp);
                Latencies(seen)
            })
        });
        Self { over, answered, thread }
    }

    async fn stop_after(self, time: Duration) -> Latencies {
        tokio::time::sleep(time).await;
        allow(|| self.answered.load(Ordering::SeqCst) > ANSWERS_MIN).await;
        self.over.store(true, Ordering::SeqCst);
        tokio::task::spawn_blocking(move || self.thread.join()).await.expect("joined").expect("it was answered")
    }
}

impl Processors {
    fn all() -> Self {
        Self { last: thread::available_parallelism().map_or(0, |count| count.get() - 1) }
    }

    fn for_proxy() {
        Self::keep_to(0, 0);
    }

    fn for_others(&self) {
        Self::keep_to(self.last.min(1), self.last);
    }

    fn keep_to(first: usize, last: usize) {
        if ratio_max() > 0.0 {
            scheduled("taskset", &["--cpu-list", "--pid", &format!("{first}-{last}")]).expect("they are there");
        }
    }
}

impl Drop for Processors {
    fn drop(&mut self) {
        Self::keep_to(0, self.last);
    }
}

/// Gives this thread real-time priority if figures are compared.
fn come_first() {
    if ratio_max() > 0.0
        && let Err(why) = scheduled("chrt", &["--fifo", "--pid", "1"])
    {
        log_line(&format!("the healthy client waits for processors as all do: {why}"));
    }
}

/// Runs a command with this thread's id as its last argument.
fn scheduled(program: &str, arguments: &[&str]) -> Result<(), String> {
    let thread = fs::read_link("/proc/thread-self").expect("Linux");
    let number = thread.file_name().and_then(|number| number.to_str()).expect("a number");
    let ran =
        Command::new(program).args(arguments).arg(number).output().map_err(|error| format!("{program}: {error}"))?;
    if ran.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&ran.stderr).into_owned()) }
}

/// Waits for a condition that a busy machine may delay, up to [`LATE_MAX`].
async fn allow(holds: impl Fn() -> bool) {
    let late = bed::eventually("late responses", async || holds().then_some(()));
    let _ = tokio::time::timeout(LATE_MAX, late).await;
}

impl Latencies {
    fn at(&self, share: f64) -> f64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
        let at = (self.0.len() as f64 * share) as usize;
        self.0.get(at).or(self.0.last()).copied().unwrap_or(f64::INFINITY)
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| self.at(share));
        write!(f, "p50 {p50:.2} p99 {p99:.2} max {max:.1} ms of {}", self.0.len())
    }
}

/// The attackers' answers by outcome: `200 cached`, `429`, `ended`.
#[derive(Debug, Clone, Default)]
struct Answers(Arc<Mutex<BTreeMap<String, usize>>>);

impl Answers {
    fn put(&self, what: impl Into<String>) {
        *self.0.lock().expect("not poisoned").entry(what.into()).or_default() += 1;
    }

    fn count(&self) -> usize {
        self.0.lock().expect("not poisoned").values().sum()
    }

    /// The number of answers by outcome.
    fn counts(&self) -> BTreeMap<String, usize> {
        self.0.lock().expect("not poisoned").clone()
    }
}

impl fmt::Display for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answers = self.0.lock().expect("not poisoned");
        f.write_str(&answers.iter().map(|(what, count)| format!("{count} × {what}")).collect::<Vec<_>>().join(", "))
    }
}

/// Runs `count` concurrent attackers, each in a loop until the attack is over.
async fn attack<F: Future<Output = ()>>(
    count: usize,
    over: &AtomicBool,
    answers: &Answers,
    blow: impl Fn(usize, usize, Answers) -> F,
) {
    let blow = &blow;
    let attackers = (0..count).map(async |who| {
        for at in 0.. {
            if over.load(Ordering::SeqCst) {
                break;
            }
            blow(who, at, answers.clone()).await;
        }
    });
    join_all(attackers).await;
}

/// Sends a request and records its outcome.
async fn put(http: &Http, request: RequestSpec, answers: &Answers) -> Option<Value> {
    match http.try_fetch(request).await {
        Ok(answer) => {
            let cached = if answer.is_cached() { " cached" } else { "" };
            let found = serde_json::from_slice::<Value>(&answer.body).ok();
            let why = found.as_ref().filter(|_| answer.status != 200).and_then(|status| status["message"].as_str());
            let why = why.map(|why| format!(" {}", why.chars().take(60).collect::<String>())).unwrap_or_default();
            answers.put(format!("{}{cached}{why}", answer.status.as_u16()));
            found
        }
        Err(_) => {
            answers.put("ended");
            None
        }
    }
}

/// Callers who may read everything. Most of them share a token, the others have a certificate each.
fn callers(plane: &Plane, count: usize) -> Vec<Identity> {
    let authority = bed::Authority::of(plane);
    let name = |at: usize| if at < count / 2 { "mallory".to_owned() } else { bed::unique("mallory") };
    (0..count).map(|at| authority.issue(&name(at), &["system:masters"])).collect()
}

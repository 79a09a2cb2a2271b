//! Leader election of client-go, with the timings of Kubernetes' components, while the proxy is stopped and started.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::body::Incoming;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::bed::{self, Driving, Http, Plan, Plane, Protocol, Proxy, RequestSpec, Target, eventually, log_line};

const LEADERS: &str = "10";
/// The proxy forwards everything except configmaps.
const CONFIG: &str = "feeds: {resources: [configmaps]}\n";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// A lost lease is inconclusive if no server answered for this long. A leader resigns after ten seconds, and retries
/// every two. During a restart no proxy answers for at most two seconds (O1), plus the start of the next one, which
/// takes long on a slow machine.
const SILENCE_MAX: Duration = Duration::from_secs(7);
/// The maximum number of restarts until a conclusive one.
const RUNS_MAX: usize = 3;
/// The interval between requests of a prober, and its timeout.
const PROBE_EVERY: Duration = Duration::from_millis(100);
const PROBE_MAX: Duration = Duration::from_secs(1);

/// Requests a lease repeatedly, like a leader, and measures the longest time without an answer.
struct Prober {
    answered: Arc<Mutex<Answered>>,
    asking: AbortHandle,
}

/// The time of the last answer, and the longest time between two answers.
struct Answered {
    last: Instant,
    longest: Duration,
}

impl Prober {
    fn start(target: &Target, lease: String) -> Self {
        let protocol = if target.ca.is_some() { Protocol::H2 } else { Protocol::H1 };
        let http = Http::new(target.clone(), protocol);
        let answered = Arc::new(Mutex::new(Answered { last: Instant::now(), longest: Duration::ZERO }));
        let noted = answered.clone();
        let asking = tokio::spawn(async move {
            let mut beat = interval(PROBE_EVERY);
            beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                beat.tick().await;
                let answer = timeout(PROBE_MAX, http.try_get(&lease)).await.ok().flatten();
                if answer.is_some_and(|answer| answer.status == 200) {
                    let mut noted = noted.lock().expect("not poisoned");
                    *noted = Answered { last: Instant::now(), longest: noted.longest.max(noted.last.elapsed()) };
                }
            }
        });
        Self { answered, asking: asking.abort_handle() }
    }

    /// The longest time without an answer until now.
    fn silence(&self) -> Duration {
        let answered = self.answered.lock().expect("not poisoned");
        answered.longest.max(answered.last.elapsed())
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

/// A running leader election, until [`Self::end`].
struct Leaders {
    run: Driving,
    end: std::path::PathBuf,
    prober: Prober,
}

impl Leaders {
    async fn start(bed: &Plane, target: &Target, name: &str) -> Self {
        let (ready, end) = (bed.file("ready"), bed.file("end"));
        let run = bed.drive("election").at(target).args(["--count", LEADERS, "--name", name]);
        let mut run = run.file("--ready-file", &ready).file("--end-file", &end).start();
        run.awaits(&ready).await;
        let prober = Prober::start(target, format!("{LEASES}/{name}-0"));
        Self { run, end, prober }
    }

    /// Waits until each leader has renewed its lease once more, or has lost it. Returns whether all have kept theirs. A
    /// lost lease fails the test, unless no server answered for longer than [`SILENCE_MAX`].
    async fn end(self, what: &str) -> bool {
        std::fs::write(&self.end, "").expect("a file");
        let outcome = self.run.finish().await;
        let (summary, silence) = (outcome.summary(), self.prober.silence());
        log_line(&format!("{what}: {summary}; at most {silence:.1?} without any response"));
        let summary_lines: Vec<_> = outcome.lines().collect();
        let are_kept = summary["lost"] == 0;
        assert!(are_kept || silence >= SILENCE_MAX, "{what}: {summary_lines:?}");
        are_kept
    }
}

/// Opens a forwarded watch, which does not end on shutdown, so that a drain takes its maximum time.
async fn hold(proxy: &Proxy) -> http::Response<Incoming> {
    let response = Http::new(proxy.target(), Protocol::H1).send(RequestSpec::get("/api/v1/pods?watch=1")).await;
    assert_eq!(response.status(), 200);
    response
}

async fn restart_the_only_one(bed: &Plane, plan: Plan, what: &str) {
    let plan = plan.config(CONFIG).listen(&bed::free_address());
    let mut proxy = plan.clone().start(bed).await;
    for run in 0..RUNS_MAX {
        let leaders = Leaders::start(bed, &proxy.target(), &format!("{what}-{run}")).await;
        let _held = hold(&proxy).await;
        let began = Instant::now();
        assert!(proxy.terminate().await.success());
        let took = began.elapsed();
        proxy = plan.clone().start(bed).await;
        if leaders.end(&format!("{what}, SIGTERM of the only proxy, which ended after {took:.1?}")).await {
            return;
        }
    }
    panic!("{what}: leases were lost, and no server responded for {SILENCE_MAX:?} or longer, {RUNS_MAX} times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_keep_leases_when_the_only_proxy_restarts() {
    let Some(bed) = bed::own("elections").await else { return };
    let plain = restart_the_only_one(&bed, Plan::plain(), "h1");
    // A restarted proxy has the same certificate.
    tokio::join!(plain, restart_the_only_one(&bed, Plan::tls().lasting(&bed), "h2"));
}

/// One address for several servers: each connection goes to one that is ready, and stays there.
struct Service {
    address: String,
    servers: Arc<Mutex<Vec<String>>>,
}

impl Service {
    async fn start(servers: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let servers = Arc::new(Mutex::new(servers));
        let here = servers.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server =
                    fastrand::choice(here.lock().expect("not poisoned").iter()).cloned().expect("one is ready");
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(server).await else { return };
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { address, servers }
    }

    fn remove(&self, server: &str) {
        self.servers.lock().expect("not poisoned").retain(|one| one != server);
    }

    fn add(&self, server: &str) {
        self.servers.lock().expect("not poisoned").push(server.to_owned());
    }
}

async fn restart_one_of_two(bed: &Plane, plan: Plan, what: &str) {
    let plan = plan.config(CONFIG);
    let plans = [(); 2].map(|()| bed::free_address()).map(|address| (plan.clone().listen(&address), address));
    let mut proxies = Vec::new();
    for (plan, _) in &plans {
        proxies.push(plan.clone().start(bed).await);
    }
    let service = Service::start(plans.iter().map(|(_, address)| address.clone()).collect()).await;
    let mut target = proxies[0].target();
    target.url = format!("{}://{}", if target.ca.is_some() { "https" } else { "http" }, service.address);
    for run in 0..RUNS_MAX {
        let leaders = Leaders::start(bed, &target, &format!("{what}-{run}")).await;
        for (plan, address) in &plans {
            let proxy = proxies.remove(0);
            let (admin, _held) = (proxy.admin(), hold(&proxy).await);
            let ended = proxy.terminate();
            let is_unready =
                async || admin.try_get("/readyz").await.is_none_or(|answer| answer.status != 200).then_some(());
            eventually("it is not ready", is_unready).await;
            service.remove(address);
            assert!(ended.await.success());
            proxies.push(plan.clone().start(bed).await);
            service.add(address);
        }
        let done = format!("{what}, SIGTERM of each of two proxies behind one address, in turn");
        if leaders.end(&done).await {
            return;
        }
    }
    panic!("{what}: leases were lost, and no server responded for {SILENCE_MAX:?} or longer, {RUNS_MAX} times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_keep_leases_when_two_proxies_restart_in_turn() {
    let Some(bed) = bed::own("elections-of-two").await else { return };
    let plain = restart_one_of_two(&bed, Plan::plain(), "two-h1");
    // Both proxies have the same certificate, before and after.
    tokio::join!(plain, restart_one_of_two(&bed, Plan::tls().lasting(&bed), "two-h2"));
}

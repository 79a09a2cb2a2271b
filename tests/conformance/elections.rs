//! Leader election of client-go, with the timings of Kubernetes' components, while the proxy is stopped and started.

use std::sync::{Arc, Mutex};

use hyper::body::Incoming;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::bed::{self, Ask, Driving, Http, Plan, Plane, Protocol, Proxy, Target, eventually, say};

const LEADERS: &str = "10";
/// What is not configmaps passes through.
const CONFIG: &str = "feeds: {resources: [configmaps]}\n";

/// Leaders that are being elected, until [`Self::end`].
struct Leaders {
    run: Driving,
    end: std::path::PathBuf,
}

impl Leaders {
    async fn start(bed: &Plane, target: &Target, name: &str) -> Self {
        let (ready, end) = (bed.file("ready"), bed.file("end"));
        let run = bed.drive("election").at(target).args(["--count", LEADERS, "--name", name]);
        // A proxy that is started again has another certificate.
        let run = if target.ca.is_some() { run.args(["--insecure-skip-tls-verify"]) } else { run };
        let mut run = run.file("--ready-file", &ready).file("--end-file", &end).start();
        run.awaits(&ready).await;
        Self { run, end }
    }

    /// They go on until each has renewed its lease once more, or has lost it.
    async fn end(self, what: &str) {
        std::fs::write(&self.end, "").expect("a file");
        let outcome = self.run.finish().await;
        let summary = outcome.summary();
        say(&format!("{what}: {summary}"));
        let said: Vec<_> = outcome.lines().collect();
        assert_eq!(summary["lost"], 0, "{what}: {said:?}");
    }
}

/// A watch that passes through, and so never ends by itself: a drain takes as long as it may.
async fn hold(proxy: &Proxy) -> http::Response<Incoming> {
    let response = Http::new(proxy.target(), Protocol::H1).send(Ask::get("/api/v1/pods?watch=1")).await;
    assert_eq!(response.status(), 200);
    response
}

async fn restart_the_only_one(bed: &Plane, plan: Plan, what: &str) {
    let plan = plan.config(CONFIG).listen(&bed::free_address());
    let proxy = plan.clone().start(bed).await;
    let leaders = Leaders::start(bed, &proxy.target(), what).await;
    let _held = hold(&proxy).await;
    let began = Instant::now();
    assert!(proxy.terminate().await.success());
    let took = began.elapsed();
    let _again = plan.start(bed).await;
    leaders.end(&format!("{what}, SIGTERM of the only proxy, which ended after {took:.1?}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_leader_resigns_when_the_only_proxy_is_started_again() {
    let Some(bed) = bed::own("elections").await else { return };
    let plain = restart_the_only_one(&bed, Plan::plain(), "h1");
    tokio::join!(plain, restart_the_only_one(&bed, Plan::tls(), "h2"));
}

/// One address with several servers behind it: each connection goes to one of those that are ready, and stays there.
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
    let leaders = Leaders::start(bed, &target, what).await;
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
    leaders.end(&format!("{what}, SIGTERM of each of two proxies behind one address, one after the other")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_leader_resigns_when_each_of_two_proxies_is_started_again() {
    let Some(bed) = bed::own("elections-of-two").await else { return };
    let plain = restart_one_of_two(&bed, Plan::plain(), "two-h1");
    tokio::join!(plain, restart_one_of_two(&bed, Plan::tls(), "two-h2"));
}

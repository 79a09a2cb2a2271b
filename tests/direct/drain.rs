//! What clients see of a proxy that drains, without a successor and with one (O1).

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::Method;
use kube_fanout::app::{Bound, Inherited};
use kube_fanout::config::Serve;
use kube_fanout::demo;
use kube_fanout::net::Address;
use kube_fanout::upstream::CredentialSource;
use tokio::io::AsyncWriteExt as _;

use crate::direct::{
    self, Answer, CONFIGMAPS, Client, Dir, Ended, PODS, Place, Protocol, configmap, eventually, in_time, within,
};
use crate::process::{Process, run_passing};

/// Short enough for a test to wait for it.
const GRACE: Duration = Duration::from_secs(15);
/// Long enough for no test to.
const LONG: &str = "10m";

/// Short requests, until it is told to stop. Four workers open a connection for each. Two more keep one until the proxy
/// tells them to leave it.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU32>,
    workers: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

const WORKERS: u32 = 6;
const OPENING: u32 = 4;
/// How many requests each worker sends.
const REQUESTS_MAX: u32 = 5_000;

impl Load {
    fn start(client: &Client) -> Self {
        let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let worker = |number: u32| {
            let (stop, answered) = (stop.clone(), answered.clone());
            let client = client.over(if number.is_multiple_of(2) { Protocol::Http1 } else { Protocol::Http2 });
            tokio::spawn(async move {
                let mut failed = Vec::new();
                let mut kept = if number < OPENING { None } else { Some(client.multiplexed().await) };
                for request in 0..REQUESTS_MAX {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let name = format!("load-{number}-{request}");
                    let name = request.is_multiple_of(10).then_some(&*name);
                    let began = Instant::now();
                    let mut asked = ask(kept.as_ref().unwrap_or(&client), name).await;
                    // A client sends once more what was not taken from a connection that ends. A write that had been
                    // taken all the same would be refused as a second one. An answer that broke off is a failure.
                    let is_left = |error: &String| !error.starts_with("the body broke off");
                    // Whoever connects during a drain has half a second to ask, and may not run for as long.
                    let is_late = kept.is_none() && began.elapsed() >= Duration::from_millis(500);
                    if (kept.is_some() || is_late) && asked.as_ref().is_err_and(is_left) {
                        if kept.is_some() {
                            kept = Some(client.multiplexed().await);
                        }
                        asked = ask(kept.as_ref().unwrap_or(&client), name).await;
                    }
                    match asked {
                        Ok(answer) if answer.status < 300 => drop(answered.fetch_add(1, Ordering::Relaxed)),
                        Ok(answer) => failed.push(format!("{}: {}", answer.status, answer.text())),
                        Err(error) => failed.push(error),
                    }
                    // As fast as a few clients, not as fast as can be: a port may be used once a minute.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                failed
            })
        };
        let workers = (0..WORKERS).map(worker).collect();
        Self { stop, answered, workers }
    }

    /// Returns when so many more have been answered.
    async fn goes_on(&self, more: u32) {
        let until = self.answered.load(Ordering::Relaxed) + more;
        eventually("requests are answered", || async { self.answered.load(Ordering::Relaxed) >= until }).await;
    }

    async fn stop(self) -> (u32, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let failed = join_all(self.workers).await.into_iter().flat_map(|worker| worker.expect("no panic")).collect();
        (self.answered.load(Ordering::Relaxed), failed)
    }
}

/// Creates an object of this name, or lists.
async fn ask(client: &Client, creates: Option<&str>) -> Result<Answer, String> {
    let Some(name) = creates else {
        return client.request(Method::GET, "/api/v1/pods?resourceVersion=0").try_send().await;
    };
    let create = client.request(Method::POST, "/api/v1/namespaces/default/configmaps");
    create.header("content-type", "application/json").body(configmap("default", name, "x").to_string()).try_send().await
}

#[tokio::test]
async fn whoever_comes_during_a_drain_reads_writes_and_watches_until_it_ends() {
    let up = demo::upstream().pods(3).run().await;
    let mut app = direct::app(&up).drain(GRACE).run().await;
    let from = up.revision();
    let early = join_all((0..6).map(|n| app.watch(PODS).from(from).over(Protocol::ALL[n % 3]).into_future())).await;
    let load = Load::start(&app);
    load.goes_on(20).await;
    app.begin_stop();
    let ready = &app;
    eventually("not ready", || async { ready.admin("/readyz").await.status == 503 }).await;
    let body = configmap("default", "late", "x").to_string();
    let create = app.request(Method::POST, "/api/v1/namespaces/default/configmaps").body(body);
    assert_eq!(create.header("content-type", "application/json").send().await.status, 201);
    assert_eq!(app.get("/api/v1/namespaces/default/configmaps/late").await.status, 200);
    let listed = app.get(CONFIGMAPS).await.items();
    assert!(listed.iter().any(|(key, _)| key == "default/late"), "{listed:?}");
    load.goes_on(100).await;
    let (_, failed) = load.stop().await;
    assert!(failed.is_empty(), "{failed:?}");
    let late = Protocol::ALL.map(|protocol| app.watch(PODS).from(from).bookmarks().over(protocol).into_future());
    let late = join_all(late).await;
    let told = up.create_pod("default", "p");
    for watch in &late {
        watch.reached(told).await;
    }
    for (number, watch) in early.iter().chain(&late).enumerate() {
        assert_eq!(watch.ended_in_time(GRACE).await, Ended::Clean);
        let seen: Vec<_> = watch.changes().iter().map(|event| event.rv).collect();
        // Whoever was there before may have been sent away before that.
        assert!(seen == [told] || seen.is_empty() && number < early.len(), "{seen:?}");
    }
    in_time(GRACE, "the end", app.stop()).await;
}

/// They come until the proxy is gone, and each wants to keep it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_comes_again_and_again_does_not_keep_a_proxy_from_ending() {
    let up = demo::upstream().pods(3).run().await;
    let grace = Duration::from_secs(2);
    let mut app = direct::app(&up).drain(grace).run().await;
    let (client, watch) = ((*app).clone(), app.watch(PODS).from(up.revision()).await);
    app.begin_stop();
    let strangers = tokio::spawn(async move {
        let mut kept = Vec::new();
        for number in 0..20_000 {
            let Ok(mut stranger) = client.connect().await else { break };
            let said: &[u8] = match number % 4 {
                0 => b"",
                1 => b"GET /api/v1/pods?watch=1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
                2 => b"POST /api/v1/namespaces/default/pods HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n",
                _ => b"GET /vers",
            };
            let _ = stranger.write_all(said).await;
            kept.push(stranger);
            if kept.len() > 200 {
                kept.remove(0);
            }
        }
        kept.len()
    });
    in_time(grace, "the end", app.stop()).await;
    assert!(strangers.await.expect("no panic") > 0);
    assert!(!watch.is_open());
}

#[tokio::test]
async fn a_second_signal_ends_a_drain_at_once() {
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let config = dir.file("config.yaml", &format!("drain: {LONG}\n"));
    let config = config.to_str().expect("text");
    for (first, second) in [("TERM", "TERM"), ("INT", "TERM")] {
        let process = Process::serve(&dir, &up.url(), &["--config", config]).await;
        let watch = process.client().watch(PODS).from(up.revision()).await;
        process.signal(first);
        eventually("not ready", || async { !process.is_ready().await }).await;
        assert!(watch.is_open());
        process.signal(second);
        assert_eq!(process.ended_in_time(Duration::ZERO).await.code, Some(0), "{first} {second}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_is_given_over_to_a_process_beside_and_nobody_notices() {
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let config = dir.file("config.yaml", "reusePort: true\ndrain: 3s\n");
    let arguments = ["--config", config.to_str().expect("text")];
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound");
    let mut first = Process::at(free, &dir, &up.url(), &arguments).await;
    let load = Load::start(&Client::to(Place::Tcp(free)));
    load.goes_on(50).await;
    for _ in 0..3 {
        let watch = first.client().watch(PODS).from(up.revision()).await;
        let second = Process::at(free, &dir, &up.url(), &arguments).await;
        eventually("the successor is ready", || async { second.is_ready().await }).await;
        load.goes_on(50).await;
        first.signal("TERM");
        assert_eq!(first.ended_in_time(Duration::from_secs(3)).await.code, Some(0));
        watch.ended().await;
        load.goes_on(50).await;
        first = second;
    }
    let (answered, failed) = load.stop().await;
    assert_eq!(failed, Vec::<String>::new(), "of {answered}");
}

/// As when systemd starts a service again: the next process begins when the one before has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_socket_that_a_parent_keeps_nobody_is_refused_between_two_processes() {
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = socket.local_addr().expect("bound");
    let mut process = Process::on(&socket, &dir, &up.url()).await;
    assert_eq!(process.client().url(), format!("http://{address}"));
    let load = Load::start(&Client::to(Place::Tcp(address)));
    load.goes_on(50).await;
    for _ in 0..2 {
        process.signal("TERM");
        assert_eq!(process.ended().await.code, Some(0));
        process = Process::on(&socket, &dir, &up.url()).await;
        load.goes_on(50).await;
    }
    let (answered, failed) = load.stop().await;
    assert_eq!(failed, Vec::<String>::new(), "of {answered}");
}

#[tokio::test]
async fn sockets_are_taken_only_from_our_parent_and_only_where_we_are_to_listen() {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = socket.local_addr().expect("bound").to_string();
    let (dir, url) = (Dir::new(), "http://127.0.0.1:1");
    let kubeconfig = crate::process::kubeconfig(&dir, url, "");
    let serve = |listen: &'static str| ["serve", "--admin", "off", "--listen", listen].map(str::to_owned);
    let run = |pid: &str, arguments: Vec<String>| {
        let kubeconfig = kubeconfig.to_str().expect("text").to_owned();
        let all: Vec<_> = arguments.into_iter().chain(["--kubeconfig".to_owned(), kubeconfig]).collect();
        run_passing(&socket, pid, &all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let other = run("$$", serve("127.0.0.1:0").to_vec());
    assert_eq!(other.code, Some(78), "{}", other.stderr);
    assert!(other.stderr.contains(&format!("a socket for {address} was passed")), "{}", other.stderr);
    let mut named = serve("127.0.0.1:0").to_vec();
    named[4].clone_from(&address);
    let not_ours = run("1", named);
    assert_eq!(not_ours.code, Some(1), "it is for another process, and the address is in use: {}", not_ours.stderr);
}

#[tokio::test]
async fn a_unix_socket_of_a_parent_is_served_and_left_where_it_is() {
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let path = dir.join("api.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    for _ in 0..2 {
        let mut inherited = Inherited::default();
        inherited.add_unix(listener.try_clone().expect("a descriptor")).expect("it listens");
        let mut config = Serve::in_front_of(CredentialSource::Anonymous(up.url().parse().expect("a URL")));
        (config.listen, config.admin) = (vec![Address::Unix(path.clone())], None);
        let bound = Bound::bind_with(config, inherited).await.expect("it can listen");
        let client = Client::to(Place::Unix(path.clone()));
        // It waits in the queue until it is accepted.
        let asking = tokio::spawn(async move { client.get("/api/v1/pods?resourceVersion=0").await.status });
        let stop = async { drop(within("an answer", asking).await.map(|status| assert_eq!(status, 200))) };
        bound.run(stop, std::future::pending()).await.expect("no needed task panics");
        assert!(path.exists());
    }
    let mut inherited = Inherited::default();
    let quiet = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    quiet.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    let refused = inherited.add_tcp(quiet.into()).expect_err("it does not listen");
    assert!(refused.to_string().contains("does not listen"), "{refused}");
}

//! Clients' view of a proxy that drains, without a successor and with one (O1).

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::Method;
use kube_fanout::app::{BoundApp, InheritedSockets};
use kube_fanout::config::ServeSettings;
use kube_fanout::net::ListenAddress;
use kube_fanout::upstream::CredentialSource;

use crate::direct::{self, Answer, Client, Dir, PATIENCE, PODS, Place, Protocol, Watch, configmap, eventually, within};
use crate::process::{Process, run_passing};

/// Longer than any test takes.
const LONG: &str = "10m";

/// Short requests until the load is stopped. Four workers open a connection for each request. Two more keep one until
/// the proxy asks them to leave it.
pub struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU32>,
    workers: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

const WORKERS: u32 = 6;
const OPENING: u32 = 4;
/// How long a proxy that drains waits for the first request of a new connection.
const LATE_REQUEST_MAX: Duration = Duration::from_millis(500);
/// Maximum number of requests of each worker.
const REQUESTS_MAX: u32 = 5_000;

impl Load {
    pub fn start(client: &Client) -> Self {
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
                    // A client resends a request that the closing connection did not accept. If a write had been
                    // accepted, its repetition would be refused. A truncated response is a failure.
                    let is_left = |error: &String| !error.starts_with("the body broke off");
                    let (mut attempt, mut result) = (began, send_request(kept.as_ref().unwrap_or(&client), name).await);
                    // During a drain, a new connection has half a second for its first request. On a busy machine the
                    // client may not run for that long, more than once.
                    while result.as_ref().is_err_and(is_left)
                        && (kept.is_some() && attempt == began || attempt.elapsed() >= LATE_REQUEST_MAX)
                        && began.elapsed() < PATIENCE
                    {
                        if kept.is_some() {
                            kept = Some(client.multiplexed().await);
                        }
                        attempt = Instant::now();
                        result = send_request(kept.as_ref().unwrap_or(&client), name).await;
                    }
                    match result {
                        Ok(answer) if answer.status < 300 => drop(answered.fetch_add(1, Ordering::Relaxed)),
                        Ok(answer) => failed.push(format!("{}: {}", answer.status, answer.text())),
                        Err(error) => failed.push(error),
                    }
                    // The rate of a few clients, because a local port can be reused only after a minute.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                failed
            })
        };
        let workers = (0..WORKERS).map(worker).collect();
        Self { stop, answered, workers }
    }

    /// Returns when this many more requests have been answered.
    pub async fn goes_on(&self, more: u32) {
        let until = self.answered.load(Ordering::Relaxed) + more;
        eventually("requests are answered", || async { self.answered.load(Ordering::Relaxed) >= until }).await;
    }

    pub async fn stop(self) -> (u32, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let failed = join_all(self.workers).await.into_iter().flat_map(|worker| worker.expect("no panic")).collect();
        (self.answered.load(Ordering::Relaxed), failed)
    }
}

/// Creates an object of this name, or lists.
async fn send_request(client: &Client, creates: Option<&str>) -> Result<Answer, String> {
    let Some(name) = creates else {
        return client.request(Method::GET, "/api/v1/pods?resourceVersion=0").try_send().await;
    };
    let create = client.request(Method::POST, "/api/v1/namespaces/default/configmaps");
    create.header("content-type", "application/json").body(configmap("default", name, "x").to_string()).try_send().await
}

/// No background task of the process delays its exit.
#[tokio::test]
async fn idle_process_drains_in_time() {
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let config = dir.file("config.yaml", "log: {format: json}\n");
    for arguments in [vec![], vec!["--config", config.to_str().expect("text")]] {
        let process = Process::serve(&dir, &up.url(), &arguments).await;
        assert!(direct::proven(&process.client(), || PODS.to_owned()).await.is_cached());
        process.signal("TERM");
        let ended = process.ended().await;
        let drained: Vec<_> = ended.stderr.lines().filter(|line| line.contains("drain finished")).collect();
        assert!(drained.len() == 1 && drained[0].contains("true"), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn second_signal_ends_drain_immediately() {
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let config = dir.file("config.yaml", &format!("drain: {LONG}\n"));
    let config = config.to_str().expect("text");
    for (first, second) in [("TERM", "TERM"), ("INT", "TERM")] {
        let process = Process::serve(&dir, &up.url(), &["--config", config]).await;
        // Each watch ends at a random moment of the drain.
        let watches = (0..8).map(|_| process.client().watch(PODS).from(up.revision()).into_future());
        let watches = join_all(watches).await;
        process.signal(first);
        eventually("not ready", || async { !process.is_ready().await }).await;
        assert!(watches.iter().any(Watch::is_open));
        process.signal(second);
        assert_eq!(process.ended_in_time(Duration::ZERO).await.code, Some(0), "{first} {second}");
    }
}

/// As when systemd restarts a service: the next process starts when the previous one has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_on_inherited_socket_refuses_no_request() {
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
async fn socket_activation_requires_own_pid_and_configured_address() {
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
    assert!(
        other.stderr.contains(&format!("socket activation passed {address}, which is not in `listen`")),
        "{}",
        other.stderr
    );
    let mut named = serve("127.0.0.1:0").to_vec();
    named[4].clone_from(&address);
    let not_ours = run("1", named);
    assert_eq!(not_ours.code, Some(1), "it is for another process, and the address is in use: {}", not_ours.stderr);
}

#[tokio::test]
async fn inherited_unix_socket_is_served_and_not_removed() {
    let up = demo::upstream().pods(3).run().await;
    let dir = Dir::new();
    let path = dir.join("api.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    for _ in 0..2 {
        let mut inherited = InheritedSockets::default();
        inherited.add_unix(listener.try_clone().expect("a descriptor")).expect("it listens");
        let mut config = ServeSettings::for_upstream(CredentialSource::Anonymous(up.url().parse().expect("a URL")));
        (config.listen, config.admin) = (vec![ListenAddress::Unix(path.clone())], None);
        let bound = BoundApp::bind_with(config, inherited).await.expect("it can listen");
        let client = Client::to(Place::Unix(path.clone()));
        // The connection waits in the queue until it is accepted.
        let asking = tokio::spawn(async move { client.get("/api/v1/pods?resourceVersion=0").await.status });
        let stop = async { drop(within("an answer", asking).await.map(|status| assert_eq!(status, 200))) };
        bound.run(stop, std::future::pending()).await.expect("no needed task panics");
        assert!(path.exists());
    }
    let mut inherited = InheritedSockets::default();
    let quiet = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    quiet.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    let refused = inherited.add_tcp(quiet.into()).expect_err("it does not listen");
    assert!(refused.to_string().contains("is not listening"), "{refused}");
}

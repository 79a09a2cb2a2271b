//! A proxy that drains under load and under reconnecting clients (O1). Everything must happen within a drain of
//! seconds, so a machine that stalls may fail these tests.

use std::net::TcpListener;
use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use tokio::io::AsyncWriteExt as _;

use crate::direct::{self, CONFIGMAPS, Client, Dir, Ended, PODS, Place, Protocol, configmap, eventually, in_time};
use crate::drain::Load;
use crate::process::Process;

/// Short enough for a test to wait for it.
const GRACE: Duration = Duration::from_secs(15);

#[tokio::test]
async fn draining_proxy_serves_new_reads_writes_and_watches() {
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
    let version = up.create_pod("default", "p");
    for watch in &late {
        watch.reached(version).await;
    }
    for (number, watch) in early.iter().chain(&late).enumerate() {
        assert_eq!(watch.ended_in_time(GRACE).await, Ended::Clean);
        let seen: Vec<_> = watch.changes().iter().map(|event| event.rv).collect();
        // An early watch may have been ended before that.
        assert!(seen == [version] || seen.is_empty() && number < early.len(), "{seen:?}");
    }
    in_time(GRACE, "the end", app.stop()).await;
}

/// New connections arrive until the proxy has exited, and each would keep it alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_connections_do_not_delay_exit_after_drain() {
    let up = demo::upstream().pods(3).run().await;
    let grace = Duration::from_secs(2);
    let mut app = direct::app(&up).drain(grace).run().await;
    let (client, watch) = ((*app).clone(), app.watch(PODS).from(up.revision()).await);
    app.begin_stop();
    let strangers = tokio::spawn(async move {
        let mut kept = Vec::new();
        for number in 0..20_000 {
            let Ok(mut stranger) = client.connect().await else { break };
            let bytes: &[u8] = match number % 4 {
                0 => b"",
                1 => b"GET /api/v1/pods?watch=1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
                2 => b"POST /api/v1/namespaces/default/pods HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n",
                _ => b"GET /vers",
            };
            let _ = stranger.write_all(bytes).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handover_with_reuse_port_fails_no_request() {
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

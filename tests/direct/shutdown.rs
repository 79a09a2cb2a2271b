//! Four kinds of shutdown: without clients, with live watches, with a client that does not disconnect, and for a
//! restart (O1).

use std::time::Duration;

use futures_util::future::join_all;
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kube_fanout::app::StartError;
use tokio::sync::Semaphore;

use crate::direct::{self, ALLOWANCE, Ended, Event, PATIENCE, PODS, Protocol, Stub, in_time, stub};

#[tokio::test]
async fn idle_proxy_stops_immediately_and_closes_upstream_watches() {
    let up = demo::upstream().pods(3).run().await;
    // A drain longer than any pause of the machine shows that the shutdown does not wait for it.
    let grace = Duration::from_secs(600);
    let app = direct::app(&up).unix().drain(grace).run().await;
    app.get("/api/v1/pods?resourceVersion=0").await;
    // A keep-alive connection without a request is idle too.
    let (kept, client) = (app.multiplexed().await, (*app).clone());
    kept.get(PODS).await;
    let stopped = app.stop().await;
    assert!(stopped.took < grace / 2, "{:?}", stopped.took);
    in_time(Duration::ZERO, "nothing open", up.until(|counts| counts.watches_open.total() == 0)).await;
    let refused = client.request(http::Method::GET, PODS).try_send().await;
    assert!(refused.is_err(), "the port is closed");
}

#[tokio::test]
async fn drained_watch_receives_final_bookmark() {
    let up = demo::upstream().pods(3).run().await;
    let nowhere = "/api/v1/namespaces/nowhere/pods";
    // If the machine stalls until the drain ends, this shows nothing. Then the test retries with a longer drain.
    for grace in [4, 20, 90].map(Duration::from_secs) {
        let app = direct::app(&up).drain(grace).run().await;
        let from = up.revision();
        let with_bookmarks =
            Protocol::ALL.map(|protocol| app.watch(nowhere).from(from).bookmarks().over(protocol).into_future());
        let (with_bookmarks, silent) = (join_all(with_bookmarks).await, app.watch(nowhere).from(from).await);
        let witness = app.watch(PODS).from(from).await;
        let last = up.create_pod("default", "elsewhere");
        witness.reached(last).await;
        if app.stop().await.took >= grace {
            continue;
        }
        for watch in &with_bookmarks {
            assert_eq!(watch.ended().await, Ended::Clean);
            let received: Vec<_> = watch.events().iter().map(|event| (event.is_bookmark(), event.rv)).collect();
            assert_eq!(received, [(true, last)], "so that it resumes there, anywhere, without a list");
        }
        assert_eq!((silent.ended().await, silent.events()), (Ended::Clean, Vec::<Event>::new()));
        return;
    }
    panic!("each drain was over before all had ended");
}

#[tokio::test]
async fn stuck_watches_are_aborted_at_drain_deadline() {
    let up = demo::upstream().pods(100).seed(132).run().await;
    let grace = Duration::from_millis(700);
    let app = direct::app(&up).drain(grace).run().await;
    let from = up.revision();
    let open = (0..3).map(|n| app.watch(PODS).from(from).over(Protocol::ALL[n]).stall_after(1).into_future());
    let stuck = join_all(open).await;
    let last = up.churn(2_500).await;
    app.reached("pods", last).await;
    let stopped = app.stop().await;
    assert!(stopped.took >= grace && stopped.took < grace + ALLOWANCE, "{:?}", stopped.took);
    for watch in &stuck {
        watch.resume();
        let ended = watch.ended().await;
        assert!(matches!(ended, Ended::Broken(_)), "an abort does not look like an end: {ended:?}");
    }
}

#[tokio::test]
async fn drain_completes_requests_in_flight_and_serves_new_ones() {
    let gate: &'static Semaphore = Box::leak(Box::new(Semaphore::new(0)));
    let upstream = stub(move |request: Request<Incoming>| async move {
        if request.uri().path() == "/slow" {
            let _ = request.into_body().collect().await;
            gate.acquire().await?.forget();
        }
        Ok(Stub::reply(200, "at last"))
    })
    .await;
    let drain = Duration::from_secs(600);
    let mut app = direct::in_front_of(&upstream.url()).drain(drain).run().await;
    let client = (*app).clone();
    let slow = tokio::spawn({
        let client = client.clone();
        async move { client.get("/slow").await }
    });
    direct::eventually("the request is under way", || async { !upstream.seen("/slow").is_empty() }).await;
    app.begin_stop();
    let ready = &app;
    direct::eventually("not ready", || async { ready.admin("/readyz").await.status == 503 }).await;
    // Readiness fails first, and the drain starts a moment later.
    let says_close = async || client.over(Protocol::Http1).get("/quick").await.header("connection") == Some("close");
    direct::eventually("the drain has begun", says_close).await;
    for method in [http::Method::GET, http::Method::PUT] {
        for protocol in [Protocol::Http1, Protocol::Http2] {
            let answer = client.over(protocol).request(method.clone(), "/quick").body("x").send().await;
            assert_eq!((answer.status, answer.text().as_str()), (200, "at last"), "{method} {protocol:?}");
            let closes = answer.header("connection") == Some("close");
            assert_eq!(closes, protocol == Protocol::Http1, "a new client must use another connection");
        }
    }
    assert!(!slow.is_finished());
    gate.add_permits(1);
    let answer = slow.await.expect("no panic");
    assert_eq!((answer.status, answer.text().as_str()), (200, "at last"));
    direct::eventually("the door is shut", || async { client.connect().await.is_err() }).await;
    let stopped = app.stop().await;
    assert!(stopped.took < drain / 2, "{:?}", stopped.took);
}

#[tokio::test]
async fn second_proxy_on_live_unix_socket_fails_to_start() {
    let up = demo::upstream().pods(3).run().await;
    let dir = direct::Dir::new();
    let path = dir.join("api.sock");
    let address = kube_fanout::net::ListenAddress::Unix(path.clone());
    let plan = || direct::app(&up).with(|config| config.listen = vec![address.clone()]);
    let first = plan().run().await;
    match plan().try_run().await.err() {
        Some(StartError::Bind { address: named, .. }) => assert_eq!(named, address),
        other => panic!("a socket that answers was taken over: {other:?}"),
    }
    assert_eq!(first.get("/api/v1/pods?resourceVersion=0").await.status, 200, "the first is unharmed");
    first.stop().await;
    assert!(!path.exists(), "it tidies up");
    let second = plan().run().await;
    assert_eq!(second.get("/api/v1/pods?resourceVersion=0").await.status, 200);
    second.stop().await;
    // The socket file that a killed process leaves.
    drop(std::os::unix::net::UnixDatagram::bind(&path).expect("a socket"));
    assert!(path.exists());
    let third = plan().run().await;
    assert_eq!(third.get("/api/v1/pods?resourceVersion=0").await.status, 200);
}

#[tokio::test]
async fn readiness_fails_before_watches_end_on_shutdown() {
    let up = demo::upstream().pods(3).run().await;
    let mut app = direct::app(&up).drain(PATIENCE).run().await;
    let watches = join_all((0..12).map(|_| app.watch(PODS).from(up.revision()).into_future())).await;
    let ready = &app;
    direct::eventually("ready", || async { ready.admin("/readyz").await.status == 200 }).await;
    app.begin_stop();
    let ready = &app;
    let stopping = || async { ready.admin("/readyz").await.text().contains("[-]shutting down") };
    direct::eventually("not ready", stopping).await;
    assert!(watches.iter().any(direct::Watch::is_open), "while watches still run");
    assert_eq!(app.admin("/livez").await.status, 200);
    drop(watches);
    app.stop().await;
}

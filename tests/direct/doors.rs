//! Listeners, the hosts that requests may name on them, and chains and loops of proxies (R-DOWNSTREAM-16, R-THREAT-17).

use std::time::Duration;

use std::net::SocketAddr;

use http::Method;
use kube_fanout::app::StartError;
use kube_fanout::net::ListenAddress;
use tokio::net::TcpListener;
use verify::ApiserverGuarantee;

use crate::direct::{self, Dir, PODS, Protocol, within};

#[tokio::test]
async fn tcp_rejects_unknown_host_and_unix_socket_accepts_any() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).unix().with(|config| config.allowed_hosts.push("proxy.internal".to_owned())).run().await;
    app.discovered().await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let fetch = async |listener: usize, path: &str, host: &str| {
            app.listener(listener).over(protocol).request(Method::GET, path).host(host).send().await
        };
        for path in [PODS, "/version", "/api/v1/pods?resourceVersion=0"] {
            for host in ["evil.example", "evil.example:8001", "127.0.0.1.nip.io", "localhost.evil.example"] {
                assert_eq!(fetch(0, path, host).await.refusal(), (403, "Forbidden".to_owned()), "{path} {host}");
                assert_eq!(fetch(1, path, host).await.status, 200, "{path} {host}");
            }
            for host in ["localhost", "127.0.0.1:1", "[::1]:8001", "proxy.internal", "proxy.internal:443"] {
                assert_eq!(fetch(0, path, host).await.status, 200, "{path} {host}");
            }
        }
    }
    let path = "/api/v1/namespaces/default/configmaps";
    let write = app.request(Method::POST, path).host("evil.example").body("{}");
    assert_eq!(write.send().await.status, 403);
    assert!(up.requests().iter().all(|seen| seen.uri.path() != path), "nothing was sent upstream");
}

/// A port that is free now. Another process may take it before it is bound again.
async fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("a port")
}

#[tokio::test]
async fn proxy_as_its_own_upstream_returns_508() {
    let app = within("a port that is still free", async {
        loop {
            // A port that is free now, for an application that is its own upstream.
            let port = free_port().await;
            let plan = direct::in_front_of(&format!("http://{port}"));
            if let Ok(app) = plan.with(|config| config.listen = vec![ListenAddress::Tcp(port)]).try_run().await {
                break app;
            }
        }
    })
    .await;
    for path in ["/version", PODS, "/api"] {
        let answer = app.get(path).await;
        assert_eq!(answer.status, 508, "{path}: {}", answer.text());
    }
    let write = app.request(Method::POST, "/api/v1/namespaces/default/configmaps").body("{}").send().await;
    assert_eq!(write.status, 508);
}

#[tokio::test]
async fn two_proxy_loop_returns_508_and_chain_works() {
    let up = demo::upstream().pods(3).run().await;
    let near = direct::app(&up).run().await;
    let far = direct::in_front_of(&near.url()).run().await;
    let list = far.get(PODS).await;
    assert_eq!((list.status, list.items().len(), list.is_cached()), (200, 3, true));
    assert_eq!(far.get("/version").await.status, 200);
    let (back, forth) = within("a port that is still free", async {
        loop {
            let port = free_port().await;
            let back = direct::in_front_of(&format!("http://{port}")).run().await;
            let forth = direct::in_front_of(&back.url()).with(|config| config.listen = vec![ListenAddress::Tcp(port)]);
            if let Ok(forth) = forth.try_run().await {
                break (back, forth);
            }
        }
    })
    .await;
    assert_eq!(forth.get("/version").await.status, 508);
    assert_eq!(back.get("/version").await.status, 508);
}

#[tokio::test]
async fn second_tier_delivers_events_bookmarks_and_consistent_lists() {
    // No bookmark but the one of the test.
    let up = demo::upstream().pods(10).seed(121).bookmark_period(Duration::from_secs(600)).run().await;
    let mut history = direct::History::begin(&up, PODS).await;
    let near = direct::app(&up).run().await;
    let far = direct::in_front_of(&near.url()).run().await;
    let watch = far.watch(PODS).initial_events().await;
    watch.listed().await;
    let last = up.churn(30).await;
    watch.reached(last).await;
    history.read_to(last).await.judge(
        [&watch],
        &[ApiserverGuarantee::InitialEvents, ApiserverGuarantee::Continuity, ApiserverGuarantee::Typed],
    );
    let other = up.put("nodes", serde_json::json!({"metadata": {"name": "new"}}));
    let sent = tokio::time::Instant::now();
    up.faults().only("pods").bookmark();
    watch.reached(other).await;
    assert!(sent.elapsed() < Duration::from_secs(2) + direct::ALLOWANCE);
    let mine = up.create_pod("default", "mine");
    assert!(far.get(PODS).await.rv() >= mine, "a consistent list two tiers on");
}

#[tokio::test]
async fn bind_error_names_unavailable_address() {
    let up = demo::upstream().run().await;
    let holder = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let taken = ListenAddress::Tcp(holder.local_addr().expect("a port"));
    let dir = Dir::new();
    let socket = ListenAddress::Unix(dir.join("held.sock"));
    let _held = tokio::net::UnixListener::bind(dir.join("held.sock")).expect("a socket");
    let file = ListenAddress::Unix(dir.file("plain.sock", "not a socket"));
    let nowhere = ListenAddress::Unix(dir.join("no/such/directory.sock"));
    let second = |address: ListenAddress| direct::app(&up).with(|config| config.listen.push(address)).try_run();
    for address in [taken.clone(), socket.clone(), file.clone(), nowhere] {
        match second(address.clone()).await.err() {
            Some(StartError::Bind { address: named, .. }) => assert_eq!(named, address),
            other => panic!("{address}: {other:?}"),
        }
    }
    match direct::app(&up).with(|config| config.admin = Some(taken.clone())).try_run().await.err() {
        Some(StartError::Bind { address: named, .. }) => assert_eq!(named, taken),
        other => panic!("the admin pages: {other:?}"),
    }
    assert!(dir.join("plain.sock").exists(), "a foreign socket file is kept");
    assert!(dir.join("held.sock").exists());
}

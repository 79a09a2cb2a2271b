//! Tests that each fault has its documented effect, on both protocols, and that the upstream recovers.

use http::Method;

use super::super::{FaultInjector, RequestKind, RunningDemoApiserver, upstream};
use super::client::End;
use super::{Client, Lines};

/// A fault that a test orders, and how its watches must end.
type Case = (fn(&FaultInjector), End);

async fn watching(up: &RunningDemoApiserver) -> [Lines; 2] {
    let path = format!("/api/v1/pods?watch=1&resourceVersion={}", up.revision());
    let watches = [Client::of(up).watch(&path).await, Client::of(up).http2().watch(&path).await];
    up.until(|counts| counts.watches_open.total() == 2).await;
    watches
}

async fn is_up(up: &RunningDemoApiserver) -> bool {
    Client::of(up).try_call(Method::GET, "/readyz", "", "").await.is_some()
}

#[tokio::test]
async fn port_refuses_connections_while_down_and_accepts_them_after() {
    let up = upstream().run().await;
    let watches = watching(&up).await;
    up.faults().down().await;
    assert!(!is_up(&up).await);
    for mut watch in watches {
        assert!(matches!(watch.end().await, End::Broken(_)));
    }
    up.until(|counts| counts.watches_open.total() == 0).await;
    up.faults().up().await;
    assert!(is_up(&up).await);
    up.stop().await;
}

#[tokio::test]
async fn watch_faults_end_reset_and_truncate_open_streams() {
    let up = upstream().run().await;
    up.create_pod("t1", "a");

    let cases: [Case; 3] = [
        (|faults| faults.end_watches(), End::Clean),
        (|faults| faults.only("pods").reset_watches(), End::Broken("".into())),
        (|faults| faults.break_frame(20), End::Broken(r#"{"type":"MODIFIED",""#.into())),
    ];
    for (order, end) in cases {
        let watches = watching(&up).await;
        order(&up.faults());
        for mut watch in watches {
            assert_eq!(watch.end().await, end);
        }
        up.until(|counts| counts.watches_open.total() == 0).await;
    }
    let [mut watch, _] = watching(&up).await;
    up.faults().only("nodes").end_watches();
    let revision = up.create_pod("t1", "b");
    assert_eq!(watch.event().await, format!("ADDED b @{revision}"));
    up.stop().await;
}

#[tokio::test]
async fn watch_faults_send_duplicate_stale_and_malformed_events() {
    let up = upstream().run().await;
    let mut watches = watching(&up).await;
    let written = up.create_pod("t1", "a");
    up.faults().duplicate_event();
    up.faults().regress_revision();
    up.faults().send_malformed();
    for watch in &mut watches {
        assert_eq!(watch.event().await, format!("ADDED a @{written}"));
        assert_eq!(watch.event().await, format!("ADDED a @{written}"));
        assert_eq!(watch.event().await, "MODIFIED a @1");
        let line = watch.try_next().await.unwrap();
        assert!(serde_json::from_slice::<serde_json::Value>(&line).is_err());
    }
}

#[tokio::test]
async fn hushed_watches_send_withheld_events_after_unhush() {
    let up = upstream().run().await;
    let watches = watching(&up).await;
    up.faults().hush_watches();
    let written = up.create_pod("t1", "a");
    assert!(is_up(&up).await, "all else goes on");
    up.faults().unhush_watches();
    for mut watch in watches {
        assert_eq!(watch.event().await, format!("ADDED a @{written}"));
    }
    up.stop().await;
}

#[tokio::test]
async fn frozen_server_accepts_connections_but_sends_nothing() {
    let up = upstream().run().await;
    let mut watches = watching(&up).await;
    up.faults().freeze();
    let written = up.create_pod("t1", "a");
    let connections = up.counts().connections;
    let mut waiting = tokio::spawn({
        let client = Client::of(&up);
        async move { client.get("/readyz").await.status }
    });
    up.until(|counts| counts.connections > connections).await;
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    up.faults().thaw();
    assert_eq!((&mut waiting).await.unwrap(), 200);
    for watch in &mut watches {
        assert_eq!(watch.event().await, format!("ADDED a @{written}"));
    }
}

#[tokio::test]
async fn paused_lists_wait_until_released() {
    let up = upstream().run().await;
    up.faults().hold_lists();
    let list = tokio::spawn({
        let client = Client::of(&up);
        async move { client.get("/api/v1/pods").await.names() }
    });
    up.faults().lists_waiting(1).await;
    up.create_pod("t1", "a");
    up.faults().release_lists();
    assert_eq!(list.await.unwrap(), ["a"]);
}

#[tokio::test]
async fn injected_response_is_returned_as_often_as_configured() {
    let up = upstream().run().await;
    up.faults().only("pods").answer(RequestKind::Watch, 2, 503, Some(7));
    let watch = "/api/v1/pods?watch=1&timeoutSeconds=-1";
    for _ in 0..2 {
        let refused = Client::of(&up).get(watch).await;
        assert_eq!((refused.status.as_u16(), refused.headers["retry-after"].to_str().unwrap()), (503, "7"));
    }
    assert_eq!(Client::of(&up).get(watch).await.status, 200);
    up.faults().answer(RequestKind::Any, 1, 401, None);
    assert_eq!(Client::of(&up).get("/version").await.status, 401);
}

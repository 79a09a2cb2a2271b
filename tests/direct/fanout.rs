//! Many clients are served from one upstream watch, and each receives every event in order (W1–W5, W14, W15).

use futures_util::future::join_all;

use crate::direct::{self, CONFIGMAPS, History, PODS, Protocol, WIDGETS, configmap, upstream_client};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_watches_receive_all_events_in_order_from_one_watch() {
    let up = demo::upstream().pods(200).seed(11).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let open = (0..100).map(|n| app.watch(PODS).from(history.from).over(Protocol::ALL[n % 3]).into_future());
    let watches = join_all(open).await;
    let last = up.churn(400).await;
    join_all(watches.iter().map(|watch| watch.reached(last))).await;
    history.assert_delivered(&watches, last).await;
    assert_eq!(direct::whole_lists(&up, PODS), 1, "one list, from the version that the clients had last");
    // Streamed lists that match nothing: one returns upstream's position and the form of its bookmarks, and others
    // prove the state unless an event has done so. A machine that stalls causes more, but not one for each watch.
    let positions = direct::proxy_queries(&up, PODS).iter().filter(|query| query.contains("sendInitialEvents")).count();
    assert!((1..100).contains(&positions), "{positions} position requests");
    direct::within("one watch", up.until(|counts| counts.watches_open.of("pods") == 1)).await;
    drop(app);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_streams_of_one_connection_receive_all_events() {
    let up = demo::upstream().pods(50).seed(12).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let client = app.multiplexed().await;
    let watches = join_all((0..120).map(|_| client.watch(PODS).from(history.from).into_future())).await;
    let last = up.churn(200).await;
    history.assert_delivered(&watches, last).await;
}

#[tokio::test]
async fn tls_and_unix_listeners_deliver_identical_events() {
    let up = demo::upstream().pods(20).seed(13).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).tls().unix().run().await;
    let mut watches = Vec::new();
    for listener in [0, 1] {
        for protocol in Protocol::ALL {
            watches.push(app.listener(listener).watch(PODS).from(history.from).over(protocol).await);
        }
    }
    let last = up.churn(60).await;
    history.assert_delivered(&watches, last).await;
}

#[tokio::test]
async fn custom_resources_arrive_byte_identical() {
    let up = demo::upstream().run().await;
    let mut history = History::begin(&up, WIDGETS).await;
    let app = direct::app(&up).run().await;
    let watch = app.watch(WIDGETS).from(history.from).await;
    let widget = |name: &str, odd: &str| {
        let spec = serde_json::json!({"zeta": odd, "alpha": [1, 2.5]});
        serde_json::json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})
    };
    up.put("widgets", widget("odd", "a<b>&\u{2028}\"\\ \u{1F980}"));
    up.put("widgets", widget("gear", "plain"));
    let last = up.delete("widgets", "default", "odd");
    history.assert_delivered(&[watch], last).await;
    for path in [WIDGETS, "/apis/demo.kube-fanout.io/v1/namespaces/default/widgets"] {
        let (ours, theirs) = (app.get(path).await, upstream_client(&up).get(path).await);
        assert!(ours.is_cached(), "{path}");
        assert_eq!(ours.text(), theirs.text(), "{path}");
    }
}

#[tokio::test]
async fn watches_receive_only_events_of_their_resource() {
    let up = demo::upstream().pods(5).run().await;
    let (mut pods, mut maps) = (History::begin(&up, PODS).await, History::begin(&up, CONFIGMAPS).await);
    let app = direct::app(&up).run().await;
    let pod_watch = app.watch(PODS).from(pods.from).await;
    let map_watch = app.watch(CONFIGMAPS).from(maps.from).await;
    for n in 0..20 {
        up.put("configmaps", configmap("default", &format!("c{n}"), "x"));
        up.update_pod("default", "pod");
    }
    let last_pod = up.update_pod("default", "pod");
    let last_map = up.put("configmaps", configmap("default", "c0", "y"));
    pods.assert_delivered(&[pod_watch], last_pod).await;
    maps.assert_delivered(&[map_watch], last_map).await;
}

#[tokio::test]
async fn special_characters_and_large_values_arrive_unchanged() {
    let up = demo::upstream().run().await;
    let mut history = History::begin(&up, CONFIGMAPS).await;
    let app = direct::app(&up).run().await;
    let watch = app.watch(CONFIGMAPS).from(history.from).await;
    let large = "x".repeat(900_000);
    let values =
        ["", "a<b>&", "\u{0}\u{1f}\"\\/", "{\"type\":\"ERROR\",\"object\":{}}\n", "\u{2028}\u{2029}", "🦀é", &large];
    let mut last = 0;
    for (n, value) in values.iter().enumerate() {
        last = up.put("configmaps", configmap("default", &format!("odd-{n}"), value));
    }
    history.assert_delivered(&[watch], last).await;
    let path = "/api/v1/namespaces/default/configmaps";
    let (ours, theirs) = (app.get(path).await, upstream_client(&up).get(path).await);
    assert!(ours.is_cached());
    assert!(ours.body == theirs.body, "a LIST has the same bytes");
}

//! HTTP/2 by hyper (`http2.codec: hyper`), from the side of ordinary clients. `streams.rs` and `strangers.rs` run with
//! both implementations.

use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use kube_fanout::net::Http2Codec;
use serde_json::json;

use super::frames::{CANCEL, INITIAL_WINDOW_SIZE, get, hello_with};
use super::rows::served_by;
use super::wire::Wire;
use crate::direct::{self, History, PODS, assert_alike, upstream_client};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// All streams that a connection may have, without those of the other requests.
const WATCHES: usize = 240;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_writes_and_many_watches_share_a_connection() {
    let up = demo::upstream().pods(30).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = served_by(Http2Codec::Hyper, direct::app(&up)).run().await;
    let client = app.multiplexed().await;
    assert_alike("a list", &client.get(PODS).await, &upstream_client(&up).get(PODS).await);
    let watches = (0..WATCHES).map(|_| client.watch(PODS).from(history.from).into_future());
    let watches = join_all(watches).await;
    let last = up.churn(20).await;
    history.assert_delivered(&watches, last).await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}}).to_string();
    let made = client.request(Method::POST, MAPS).header("content-type", "application/json").body(map).send().await;
    assert_eq!(made.status, 201, "{}", made.text());
    assert_eq!(client.get(&format!("{MAPS}/made")).await.status, 200);
}

/// The body of such a response is never polled, because its stream has no window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_that_is_not_read_is_reset_in_time() {
    let up = demo::upstream().pods(30).run().await;
    let plan = direct::app(&up).with(|config| config.serve.body_max = Duration::from_millis(200));
    let app = served_by(Http2Codec::Hyper, plan).run().await;
    let mut wire = Wire::to(&app).await;
    wire.send(&[hello_with(&[(INITIAL_WINDOW_SIZE, 0)]), get(1, PODS)].concat()).await;
    wire.wait("a reset", |received| received.reset(1) == Some(CANCEL)).await;
}

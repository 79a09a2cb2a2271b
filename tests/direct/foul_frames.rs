//! An upstream whose HTTP/2 server allows few streams or no bodies. The proxy still serves its clients. The nightly
//! tier floods it with frames (`foul_frames/floods.rs`).

#[allow(dead_code, reason = "the floods of nightly.rs use the rest of it")]
mod relay;

use std::time::Duration;

use demo::{self, RunningDemoApiserver};
use futures_util::future::join_all;
use http::Method;

use self::relay::Manners;
use crate::direct::{self, App, CONFIGMAPS, Front, NODES, PODS, Plan, Signer, WIDGETS, configmap, eventually, in_time};
use crate::http2::frames::INITIAL_WINDOW_SIZE;

/// A proxy in front of a server with these HTTP/2 settings.
async fn behind(up: &RunningDemoApiserver, signer: &Signer, settings: &[(u16, u32)]) -> (Front, Plan) {
    let manners = Manners::new(settings);
    let relay = move |near, far| manners.clone().relay(near, far);
    let front = Front::start(up.address(), &signer.good(), relay).await;
    let plan = direct::by(signer.credentials(&front));
    (front, plan)
}

/// Asserts that all operations on four resources work.
async fn all_is_served(app: &App, up: &RunningDemoApiserver) {
    let paths = [PODS, NODES, CONFIGMAPS, WIDGETS];
    let cached = |path: &'static str| async move {
        eventually(path, || async { app.get(path).await.is_cached() }).await;
    };
    join_all(paths.map(cached)).await;
    let (pods, maps) = (app.watch(PODS).await, app.watch(CONFIGMAPS).await);
    pods.reached(up.create_pod("default", "one-more")).await;
    maps.reached(up.put("configmaps", configmap("default", "one-more", "x"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn low_upstream_stream_limit_opens_more_connections() {
    for streams in [1, 2] {
        let (up, signer) = (demo::upstream().pods(5).streams_max(streams).run().await, Signer::new());
        let front = Front::passing(up.address(), &signer.good()).await;
        let app = direct::by(signer.credentials(&front)).run().await;
        in_time(Duration::from_secs(10), "four feeds", all_is_served(&app, &up)).await;
        app.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zero_upstream_window_blocks_only_requests_with_body() {
    let (up, signer) = (demo::upstream().pods(5).run().await, Signer::new());
    let (_front, plan) = behind(&up, &signer, &[(INITIAL_WINDOW_SIZE, 0)]).await;
    let app = plan.run().await;
    // A new connection does not know the settings yet, and each core has its own connection.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for _ in 0..16.max(4 * cores) {
        eventually("a connection for what passes through", || async { app.get("/livez").await.status == 200 }).await;
    }
    let write = app.request(Method::POST, "/api/v1/namespaces/default/configmaps");
    let write = write.header("content-type", "application/json").body(configmap("default", "a", "x").to_string());
    let written = tokio::spawn(write.try_send());
    all_is_served(&app, &up).await;
    assert_eq!(app.get("/livez").await.status, 200, "what passes through does, if it has no body");
    assert!(!written.is_finished(), "it waits for as long as its client does");
    assert_eq!(up.object("configmaps", "default", "a"), None, "its head may have arrived, its body has not");
    written.abort();
    app.stop().await;
}

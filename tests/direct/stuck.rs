//! Clients that stop reading in the middle of an initial state are cut off in time, so that its memory is released
//! (R-THREAT-11; W16, O1, I1).

use std::time::Duration;

use demo::{self, RunningDemoApiserver};
use http::Method;
use kube_fanout::auth::AuthMode;
use kube_fanout::serve::SlowReaderLimits;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::direct::{self, App, CONFIGMAPS, Client, Ended, Plan, Protocol, Watch, within};

/// More than kernels and codecs buffer for a client.
const OBJECTS: usize = 40;
const OBJECT_BYTES: usize = 512 << 10;

/// Short limits, except for `state_idle_max`, because a busy machine could look like a stalled client.
pub const UNREAD: SlowReaderLimits =
    SlowReaderLimits { grace: Duration::from_millis(100), state_idle_max: Duration::from_secs(60) };

pub async fn large() -> RunningDemoApiserver {
    let up = demo::upstream().run().await;
    let value = "x".repeat(OBJECT_BYTES);
    for n in 0..OBJECTS {
        up.put("configmaps", direct::configmap("default", &format!("c{n:02}"), &value));
    }
    up
}

pub fn impatient(up: &RunningDemoApiserver, unread: SlowReaderLimits) -> Plan {
    direct::app(up).with(|config| config.serve.unread = unread).idle(Duration::from_millis(40))
}

/// One client per protocol that reads one object of the state and then stops.
pub async fn stuck(app: &App, client: &Client, timeout_seconds: i64) -> Vec<Watch> {
    let (stuck, pinned) = open_stuck_watches(app, client, timeout_seconds).await;
    assert_eq!(pinned, Some(stuck.len() as u64));
    stuck
}

/// The same. Also returns how many are receiving a state when each has read its object or has ended.
async fn open_stuck_watches(app: &App, client: &Client, timeout_seconds: i64) -> (Vec<Watch>, Option<u64>) {
    let mut stuck = Vec::new();
    for protocol in Protocol::ALL {
        let plan = client.watch(CONFIGMAPS).initial_events().timeout_seconds(timeout_seconds);
        stuck.push(plan.over(protocol).stall_after(1).await);
    }
    for watch in &stuck {
        within("an object", watch.more_than(0)).await;
    }
    let pinned = app.feed("configmaps").await.and_then(|feed| feed["snapshotsInUse"].as_u64());
    (stuck, pinned)
}

/// Asserts that their memory is released within this time, and that their feed does not stay open for them.
pub async fn nothing_is_kept_behind(app: &App, time: Duration) {
    let gone = || async { app.feed("configmaps").await.is_none() };
    direct::eventually_in_time(time, "the feed is idle and ends", gone).await;
}

/// Asserts that the clients see that they were cut off.
pub async fn were_cut(stuck: &[Watch]) {
    for watch in stuck {
        watch.resume();
        let ended = watch.ended().await;
        assert!(matches!(ended, Ended::Broken(_)), "{ended:?}");
        assert!(watch.events().len() < OBJECTS);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stuck_watches_are_cut_after_timeout_seconds() {
    let up = large().await;
    let app = impatient(&up, UNREAD).run().await;
    let mut were_stuck = false;
    // A machine may stall until their timeout, before all of them receive a state.
    for lasts in [5, 25, 90] {
        let began = Instant::now();
        let (watches, pinned) = open_stuck_watches(&app, &app, lasts).await;
        let took = began.elapsed();
        nothing_is_kept_behind(&app, Duration::from_secs(lasts.unsigned_abs()) + UNREAD.grace).await;
        if pinned == Some(watches.len() as u64) {
            were_cut(&watches).await;
            were_stuck = true;
            break;
        }
        assert!(took.as_secs() >= lasts.unsigned_abs(), "{pinned:?} receive a state");
    }
    assert!(were_stuck, "no client received a state in time");
    let whole = app.watch(CONFIGMAPS).initial_events().await;
    whole.listed().await;
    assert_eq!(whole.changes().len(), up.keys("configmaps").len(), "a client that reads receives everything");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_permission_ends_stuck_watches() {
    let up = large().await;
    up.reviews().give("a", "ada");
    up.reviews().allow("ada", "*");
    let soon = Duration::from_millis(50);
    let app = impatient(&up, UNREAD).with(|config| {
        config.auth = AuthMode::Delegated;
        let auth = &mut config.delegated.auth;
        (auth.token_ttl, auth.allowed_ttl, auth.denied_ttl, auth.recheck) = (soon, soon, soon, soon);
    });
    let app = app.run().await;
    let stuck = stuck(&app, &app.bearing("a"), 3_000).await;
    up.reviews().deny("ada", "*");
    nothing_is_kept_behind(&app, soon + UNREAD.grace).await;
    were_cut(&stuck).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_list_is_cut_after_body_timeout() {
    let up = large().await;
    let body_max = Duration::from_secs(3);
    let app = impatient(&up, UNREAD).with(|config| config.serve.body_max = body_max).run().await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let reader = app.watch(CONFIGMAPS).initial_events().await;
        reader.listed().await;
        let narrow = app.over(protocol).narrow();
        let path = format!("{CONFIGMAPS}?resourceVersion=0");
        let unread = narrow.request(Method::GET, &path).open().await.expect("an answer");
        assert!(unread.headers().contains_key("kube-fanout-served"), "{protocol:?}: it is ours");
        // On a machine that stalls it may end before it is seen.
        let began = Instant::now();
        app.until_feed("configmaps", "it receives a state", |feed| {
            feed["snapshotsInUse"] == 1 || began.elapsed() > body_max
        })
        .await;
        let is_cut = app.until_feed("configmaps", "it was cut", |feed| feed["snapshotsInUse"] == 0);
        direct::in_time(body_max, "it was cut", is_cut).await;
        drop(reader);
        assert!(http_body_util::BodyExt::collect(unread.into_body()).await.is_err(), "{protocol:?}: cut, and it shows");
    }
}

/// A codec that may not send anything never polls the watch either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_watch_without_window_is_reset_after_timeout() {
    let up = large().await;
    let app = impatient(&up, UNREAD).run().await;
    // A machine may stall until their timeout, before they have started. Then they end without events.
    for lasts in [4, 25, 90] {
        if are_reset_in_time(&app, lasts).await {
            return;
        }
    }
    panic!("their time was always up before they had begun");
}

/// Returns `false` if one of them ended before it had started.
async fn are_reset_in_time(app: &App, lasts: u64) -> bool {
    let address = app.url().trim_start_matches("http://").to_owned();
    let io = TcpStream::connect(&address).await.expect("a connection");
    let mut builder = h2::client::Builder::new();
    let (mut sender, connection) = builder.initial_window_size(0).handshake::<_, bytes::Bytes>(io).await.expect("h2");
    drop(tokio::spawn(connection));
    let began = Instant::now();
    let state = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut answers = Vec::new();
    for query in [state, ""] {
        let url = format!("http://{address}{CONFIGMAPS}?watch=true{query}&timeoutSeconds={lasts}");
        let request = http::Request::get(url).body(()).expect("a request");
        let (answer, _) = sender.send_request(request, true).expect("it is open");
        answers.push(within("a head", answer).await.expect("an answer").into_body());
    }
    let is_late = began.elapsed() >= Duration::from_secs(lasts);
    nothing_is_kept_behind(app, Duration::from_secs(lasts) + UNREAD.grace).await;
    for mut body in answers {
        let Some(end) = within("a reset", body.data()).await else {
            assert!(is_late, "it ended as if that were all");
            return false;
        };
        assert_eq!(end.expect_err("no data").reason(), Some(h2::Reason::CANCEL));
    }
    true
}

//! One account, or one stranger, that uses as much as it can: its limits, and that other accounts still get in (I2, I3).

use std::net::SocketAddr;
use std::time::Duration;

use demo::{self, RunningDemoApiserver};
use futures_util::future::{join_all, pending};
use http::{HeaderValue, Method, Request};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use kube_fanout::auth::AuthMode;
use kube_fanout::config::ServeSettings;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use crate::direct::{self, Answer, App, Behind, PODS, Protocol, Stub, Watch, eventually, stub, within};
use crate::silent;

/// The connection limit of the listener.
const PLACES: usize = 32;
/// A version that upstream does not reach within a test.
const FUTURE: &str = "resourceVersion=999999999";

/// Ada uses as much as she can, Bob does not. Both may do everything.
async fn ada_and_bob(up: &RunningDemoApiserver, change: impl FnOnce(&mut ServeSettings)) -> App {
    for (token, user) in [("a", "ada"), ("b", "bob")] {
        up.reviews().give(token, user);
        up.reviews().allow(user, "*");
    }
    direct::app(up).with(|config| config.auth = AuthMode::Delegated).with(change).run().await
}

fn count(answers: &[Answer], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status == status).count()
}

/// The limit on response bytes leaves room for this many waiting requests, half of them for one account.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_future_version_beyond_account_share_get_429() {
    const WAITING: usize = 16;
    /// How long each waits: longer than a machine stalls, because others need a proof in this time.
    const WAIT: Duration = Duration::from_secs(10);
    const ASKED: usize = 60;
    let up = demo::upstream().pods(3).run().await;
    let app = ada_and_bob(&up, |config| {
        config.serve.limits.lists_bytes_max = WAITING * (16 << 10);
        config.serve.fresh_wait_max = WAIT;
    });
    let app = app.await;
    assert!(app.bearing("b").get(PODS).await.is_cached());
    let ada = app.bearing("a").multiplexed().await;
    assert!(ada.get(PODS).await.is_cached());
    let paths = [format!("{PODS}?{FUTURE}"), format!("/api/v1/namespaces/default/pods/one?{FUTURE}")];
    let reads = join_all((0..ASKED).map(|number| ada.get(&paths[number % 2])));
    let bobs = async {
        let bob = app.bearing("b").multiplexed().await;
        join_all((0..2).map(|_| bob.get(PODS))).await
    };
    let (answers, bobs) = tokio::join!(reads, bobs);
    let (refused, late) = (count(&answers, 429), count(&answers, 504));
    assert_eq!(refused + late, ASKED);
    assert!(refused > 0 && late > 0, "{late} waited, {refused} were refused");
    assert!(answers.iter().filter(|answer| answer.status == 429).all(|answer| answer.header("retry-after").is_some()));
    assert!(bobs.iter().all(Answer::is_cached), "others are answered");
}

/// Opens watches of Ada, each on its own connection, up to the connection limit.
async fn watches_everywhere(app: &App) -> Vec<Watch> {
    let mut watches = Vec::new();
    while watches.len() < PLACES {
        let protocol = Protocol::ALL[watches.len() % Protocol::ALL.len()];
        watches.push(app.bearing("a").over(protocol).watch(PODS).await);
    }
    watches
}

async fn open(watches: &[Watch], expected: usize) {
    let count = || watches.iter().filter(|watch| watch.is_open()).count();
    eventually("so many are open", || async { count() <= expected }).await;
    assert_eq!(count(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn account_with_every_connection_does_not_block_new_account() {
    let up = demo::upstream().pods(3).run().await;
    let app = ada_and_bob(&up, |config| config.connections.connections_max = PLACES).await;
    let watches = watches_everywhere(&app).await;
    let bobs = app.bearing("b").watch(PODS).await;
    open(&watches, PLACES - 1).await;
    // The account with the most connections gets no more, and no other connection closes because of it.
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let refused = app.bearing("a").over(protocol).get(PODS).await;
        assert_eq!(refused.refusal(), (429, "TooManyRequests".to_owned()), "{protocol:?}");
        assert!(refused.header("retry-after").is_some());
    }
    let other = app.bearing("b").watch(PODS).await;
    let last = up.create_pod("default", "new");
    for watch in [&bobs, &other] {
        watch.reached(last).await;
    }
    for watch in &watches {
        watch.reached_or_ended(last).await;
    }
    assert!(watches.iter().filter(|watch| watch.is_open()).count() >= PLACES - 2, "one closes for each new one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_lists_on_every_connection_do_not_block_new_account() {
    let up = demo::upstream().pods(100).run().await;
    let app = ada_and_bob(&up, |config| config.connections.connections_max = PLACES).await;
    let mut unread = Vec::new();
    for _ in 0..PLACES {
        let list = Request::get(format!("http://localhost{PODS}?resourceVersion=0"));
        unread.push(silent::unread(&app, list.header("authorization", "Bearer a")).await);
    }
    let bob = app.bearing("b").multiplexed().await;
    let bobs = bob.watch(PODS).await;
    let gone = || unread.iter().filter(|connection| connection.is_finished()).count();
    eventually("one connection closes for him", || async { gone() > 0 }).await;
    assert!(bob.get(PODS).await.is_cached());
    bobs.reached(up.create_pod("default", "new")).await;
    assert_eq!(gone(), 1);
}

/// An upstream that accepts the tokens of Ada and Bob, who may do everything, and never answers reviews of others.
async fn silent_about_guesses(up: &RunningDemoApiserver) -> Stub {
    let behind = Behind::at(&up.url());
    stub(move |request: Request<Incoming>| {
        let behind = behind.clone();
        async move {
            if request.method() != Method::POST || !request.uri().path().ends_with("reviews") {
                return behind.answer(request).await;
            }
            let mut review: Value = serde_json::from_slice(&request.into_body().collect().await?.to_bytes())?;
            let token = review["spec"]["token"].as_str().unwrap_or_default();
            if token.starts_with("guess") {
                return pending().await;
            }
            let user = json!({"username": token});
            review["status"] = json!({"authenticated": true, "user": user, "userInfo": user, "allowed": true});
            let mut reply = Stub::reply(201, review.to_string());
            reply.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
            Ok(reply)
        }
    })
    .await
}

/// The status of a request with a guessed token from another address, on a connection of its own.
async fn guess(address: SocketAddr, number: usize) -> String {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.2:0".parse().expect("an address")).expect("a local address");
    let mut stream = socket.connect(address).await.expect("a connection");
    let head = format!("GET {PODS} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer guess-{number}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.expect("a response");
    String::from_utf8_lossy(&status[9..]).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guessed_tokens_of_one_address_do_not_block_valid_tokens() {
    const WAITING: usize = 16;
    let up = demo::upstream().pods(3).run().await;
    let upstream = silent_about_guesses(&up).await;
    let app = direct::in_front_of(&upstream.url()).with(|config| {
        config.auth = AuthMode::Delegated;
        config.serve.limits.lists_bytes_max = WAITING * (16 << 10);
        let auth = &mut config.delegated.auth;
        // Identities expire before the next request.
        auth.token_ttl = Duration::from_nanos(1);
        (auth.reviews, auth.reviews_per_source, auth.reviews_burst_per_source) = (10_000, 10_000, 10_000);
    });
    let app = app.run().await;
    assert!(app.bearing("ada").get(PODS).await.is_cached());
    let address = app.url().trim_start_matches("http://").parse().expect("an address");
    let mut guesses: JoinSet<_> = (0..2 * WAITING).map(|number| guess(address, number)).collect();
    let refused = within("as many wait as may", guesses.join_next()).await.expect("one of them");
    assert_eq!(refused.expect("no panic"), "429");
    for token in ["ada", "bob"] {
        let answer = app.bearing(token).get(PODS).await;
        assert!(answer.is_cached(), "{token}: {}", answer.text());
    }
}

//! Limits count by user: many tokens of one account, and many encodings of one token, share one limit.

use demo::{self, RunningDemoApiserver};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::{Method, Response};
use hyper::body::Incoming;
use kube_fanout::auth::AuthMode;
use kube_fanout::config::ServeSettings;

use crate::direct::{self, App, PODS, Plan};

/// Limit of one user on the operation under test.
const SHARE: usize = 4;
/// Number of encodings of one token: base64url uses only two bits of a signature's last character.
const SPELLINGS: usize = 16;
const BASE64URL: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn spellings() -> Vec<String> {
    BASE64URL.chars().take(SPELLINGS).map(|last| format!("e30.e30.c2lnbmF0dXJl{last}")).collect()
}

/// Ada has one token in all its encodings, and Bob another. Both may do everything.
async fn ada_and_bob(up: &RunningDemoApiserver, change: impl FnOnce(&mut ServeSettings)) -> App {
    spellings().iter().for_each(|token| up.reviews().give(token, "ada"));
    up.reviews().give("b", "bob");
    ["ada", "bob"].iter().for_each(|user| up.reviews().allow(user, "*"));
    let delegated = |plan: Plan| plan.with(|config| config.auth = AuthMode::Delegated);
    delegated(direct::app(up)).with(change).run().await
}

#[tokio::test]
async fn token_encodings_share_one_watch_limit() {
    let up = demo::upstream().pods(3).run().await;
    let app = ada_and_bob(&up, |config| config.serve.limits.watches_per_caller_max = SHARE).await;
    let mut open = Vec::new();
    for token in spellings() {
        match app.bearing(&token).watch(PODS).open().await {
            Ok(watch) => open.push(watch),
            Err(refused) => assert_eq!(refused.refusal(), (429, "TooManyRequests".to_owned())),
        }
    }
    assert_eq!(open.len(), SHARE);
    app.bearing("b").watch(PODS).await;
    drop(open.pop());
    direct::eventually("a returned permit serves a request with another spelling", || async {
        app.bearing(&spellings()[SPELLINGS - 1]).watch(PODS).open().await.is_ok()
    })
    .await;
}

const AGENT: &str = "system:serviceaccount:agents:agent";

/// All pods of a `DaemonSet` are one user. A runaway pod must not take the permits of the others.
#[tokio::test]
async fn pods_of_one_account_have_separate_limit_per_node() {
    let up = demo::upstream().pods(3).run().await;
    let app = ada_and_bob(&up, |config| config.serve.limits.watches_per_caller_max = SHARE).await;
    for (token, node) in [("n1-old", "n1"), ("n1-new", "n1"), ("n2", "n2")] {
        up.reviews().give_to_pod(token, AGENT, node);
    }
    up.reviews().allow(AGENT, "*");
    let mut open = Vec::new();
    for number in 0..2 * SHARE {
        match app.bearing(["n1-old", "n1-new"][number % 2]).watch(PODS).open().await {
            Ok(watch) => open.push(watch),
            Err(refused) => assert_eq!(refused.refusal(), (429, "TooManyRequests".to_owned())),
        }
    }
    assert_eq!(open.len(), SHARE, "of the pods of one node, whatever their tokens");
    for _ in 0..SHARE {
        open.push(app.bearing("n2").watch(PODS).await);
    }
}

/// An impersonated request counts against the impersonating user.
#[tokio::test]
async fn token_encodings_share_one_forward_limit_when_impersonating() {
    let up = demo::upstream().pods(3).run().await;
    let app = ada_and_bob(&up, |config| config.serve.limits.streams_per_caller_max = SHARE).await;
    let watch = async |token: &str, whom: &str| -> Response<Incoming> {
        let call = app.bearing(token).request(Method::GET, &format!("{PODS}?watch=true&resourceVersion=0"));
        call.header("impersonate-user", whom).open().await.expect("an answer")
    };
    let spellings = spellings();
    let requests: FuturesUnordered<_> =
        spellings.iter().enumerate().map(|(number, token)| watch(token, ["bob", "eve"][number % 2])).collect();
    let answers: Vec<_> = requests.collect().await;
    let open = answers.iter().filter(|answer| answer.status() == 200).count();
    assert_eq!(open, SHARE);
    assert!(answers.iter().all(|answer| matches!(answer.status().as_u16(), 200 | 429)));
    assert_eq!(watch("b", "ada").await.status(), 200, "Bob has a share of his own");
}

/// Decisions are not cached here, so each request costs a review.
#[tokio::test]
async fn tokens_of_one_user_do_not_exhaust_review_budget_of_others() {
    let up = demo::upstream().pods(3).run().await;
    let app = ada_and_bob(&up, |config| {
        let auth = &mut config.delegated.auth;
        auth.token_ttl = std::time::Duration::from_millis(1);
        (auth.reviews, auth.reviews_per_source, auth.reviews_burst_per_source) = (4, 1, 20);
    })
    .await;
    // All tokens are known by now, at the cost of their address.
    assert!(app.bearing("b").get(PODS).await.is_cached());
    let of_ada = &spellings()[..2];
    for token in of_ada {
        assert!(app.bearing(token).get(PODS).await.is_cached());
    }
    // A burst of twenty, then one a second. If a machine stalls until all may be reviewed, this shows nothing.
    for round in 1.. {
        let (began, mut refused) = (std::time::Instant::now(), 0);
        for number in 0..100 {
            refused += u32::from(app.bearing(&of_ada[number % 2]).get(PODS).await.status == 429);
        }
        if refused > 10 {
            break;
        }
        assert!(began.elapsed().as_secs() >= 10 && round < 20, "{refused} refused");
    }
    assert!(app.bearing("b").get(PODS).await.is_cached(), "there is room for others");
}

//! Permissions of callers with `auth: delegated`, and how long they last. The upstream knows only the callers that a
//! test names.

use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use demo::{self, RunningDemoApiserver};
use http::Method;
use kube_fanout::auth::AuthMode;
use kube_fanout::config::ServeSettings;
use serde_json::json;

use crate::direct::{self, App, Client, Ended, PODS, Plan, Protocol, Watch};

/// Cache TTL of decisions and interval of permission rechecks.
const SOON: Duration = Duration::from_millis(50);
/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

fn delegated(up: &RunningDemoApiserver) -> Plan {
    direct::app(up).with(|config| {
        config.auth = AuthMode::Delegated;
        let auth = &mut config.delegated.auth;
        (auth.token_ttl, auth.allowed_ttl, auth.denied_ttl, auth.recheck) = (SOON, SOON, SOON, SOON);
    })
}

/// Ada may do everything, Bob nothing.
async fn ada_and_bob(up: &RunningDemoApiserver, change: impl FnOnce(&mut ServeSettings)) -> (App, Client, Client) {
    up.reviews().give("a", "ada");
    up.reviews().give("b", "bob");
    up.reviews().allow("ada", "*");
    let app = delegated(up).with(change).run().await;
    let (ada, bob) = (app.bearing("a"), app.bearing("b"));
    (app, ada, bob)
}

async fn live_watch(up: &RunningDemoApiserver, client: &Client, protocol: Protocol) -> Watch {
    let watch = client.watch(PODS).initial_events().over(protocol).await;
    watch.listed().await;
    watch.reached(up.create_pod("default", "live")).await;
    watch
}

/// A1: the cache serves a request only with an allow decision for this caller and this request.
#[tokio::test]
async fn cache_serves_nothing_without_allow_decision() {
    let up = demo::upstream().pods(3).run().await;
    let (app, ada, bob) = ada_and_bob(&up, |_| {}).await;
    let answer = ada.get(PODS).await;
    assert!(answer.is_cached() && answer.items().len() == 3, "{}", answer.text());
    let refused = bob.get(PODS).await;
    assert_eq!(refused.refusal(), (403, "Forbidden".to_owned()));
    let message =
        r#"pods is forbidden: User \"bob\" cannot list resource \"pods\" in API group \"\" at the cluster scope"#;
    assert!(refused.text().contains(message), "{}", refused.text());
    assert_eq!(refused.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(refused.header("kube-fanout-refused-by"), Some("apiserver"), "its authorizer has decided");
    let watch = bob.watch(PODS).open().await.err().expect("a refusal");
    assert_eq!(watch.status, 403);
    // Upstream authorizes an invalid request itself, by the caller's own credential.
    for caller in [&bob, &ada] {
        let invalid = caller.get(&format!("{PODS}?labelSelector=(")).await;
        assert_eq!((invalid.status, invalid.header("kube-fanout-reason")), (400, Some("invalid")));
    }
    let credentials = |request: demo::ReceivedRequest| request.headers.get("authorization").cloned();
    let invalid = up.requests().into_iter().filter(|request| request.uri.query() == Some("labelSelector=("));
    assert_eq!(invalid.filter_map(credentials).collect::<Vec<_>>(), ["Bearer b", "Bearer a"]);
    let dear = (0..150).map(|n| format!("!key-{n}")).collect::<Vec<_>>().join(",");
    let watch = bob.watch(PODS).labels(&dear).open().await.err().expect("a refusal");
    assert_eq!(watch.status, 403);
    let unknown = app.bearing("x").get(PODS).await;
    assert_eq!(unknown.refusal(), (401, "Unauthorized".to_owned()));
    assert_eq!(unknown.header("kube-fanout-refused-by"), Some("proxy"));
    up.reviews().allow("bob", "default");
    direct::eventually("a right that is given shows", || async {
        bob.get("/api/v1/namespaces/default/pods").await.is_cached()
    })
    .await;
    assert_eq!(bob.get(PODS).await.status, 403, "a namespace's right is not for all of them");
}

/// A HEAD is refused like any other request, and without a body like any other HEAD.
#[tokio::test]
async fn refused_head_request_has_no_body() {
    let up = demo::upstream().run().await;
    let (app, ..) = ada_and_bob(&up, |_| {}).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let unknown = app.bearing("x").over(protocol);
        let refused = unknown.request(Method::HEAD, PODS).send().await;
        assert_eq!((refused.status, refused.body.len()), (401, 0), "{protocol:?}");
        let ambiguous = unknown.request(Method::HEAD, PODS).header("impersonate_user", "a").send().await;
        assert_eq!((ambiguous.status, ambiguous.body.len()), (400, 0), "{protocol:?}");
    }
}

/// A request without credentials is forwarded as it is, and never on a connection that carries another caller's
/// identity.
#[tokio::test]
async fn anonymous_request_is_forwarded_without_credentials() {
    let up = demo::upstream().pods(3).run().await;
    let (app, ada, _) = ada_and_bob(&up, |_| {}).await;
    ada.get(PODS).await;
    let answer = app.request(Method::GET, PODS).header("x-remote-user", "root").send().await;
    assert_eq!((answer.status, answer.is_cached()), (200, false));
    let seen = up.requests().pop().expect("a request");
    let names: Vec<_> = seen.headers.keys().map(http::HeaderName::as_str).collect();
    assert!(!names.contains(&"authorization") && !names.contains(&"x-remote-user"), "{names:?}");
}

/// P: a forwarded request has the caller's own token and no part of another identity.
#[tokio::test]
async fn forwarded_request_keeps_token_and_drops_remote_headers() {
    let up = demo::upstream().pods(1).run().await;
    let (_app, _, bob) = ada_and_bob(&up, |_| {}).await;
    let path = "/api/v1/namespaces/default/pods/p/log";
    bob.request(Method::GET, path).header("x-remote-group", "system:masters").send().await;
    let seen = up.requests().into_iter().rfind(|seen| seen.uri.path() == path).expect("the request");
    assert_eq!(seen.headers.get("authorization").map(http::HeaderValue::as_bytes), Some(b"Bearer b".as_slice()));
    assert!(!seen.headers.contains_key("x-remote-group"));
}

/// A4: once the permission is revoked, the watch sends only the error.
#[tokio::test]
async fn revoked_permission_or_token_ends_watch() {
    let up = demo::upstream().pods(3).run().await;
    let (_app, ada, _) = ada_and_bob(&up, |_| {}).await;
    for protocol in Protocol::ALL {
        let watch = live_watch(&up, &ada, protocol).await;
        up.reviews().deny("ada", "*");
        // The watch ends in time under constant changes, and nothing follows the error, because it must be the last
        // frame.
        let ended = direct::during_churn(&up, watch.ended_in_time(SOON)).await;
        assert_eq!(ended, Ended::Refused(403), "{protocol:?}");
        up.reviews().allow("ada", "*");
        direct::eventually("the no is forgotten", || async { ada.watch(PODS).open().await.is_ok() }).await;
        let watch = live_watch(&up, &ada, protocol).await;
        up.reviews().take("a");
        assert_eq!(watch.ended_in_time(SOON).await, Ended::Refused(401), "{protocol:?}");
        up.reviews().give("a", "ada");
        direct::eventually("the no is forgotten", || async { ada.watch(PODS).open().await.is_ok() }).await;
    }
}

/// A token's own expiry ends the watch to the second, even if upstream would still accept the token.
#[tokio::test]
async fn expired_token_ends_watch_with_401() {
    let up = demo::upstream().pods(3).run().await;
    let app = delegated(&up).with(|config| config.delegated.auth.recheck = LONG).run().await;
    app.discovered().await;
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    up.reviews().allow("ada", "*");
    // A machine may stall until the token has expired, before the watch has its state.
    for lasts in [4, 20, 90].map(Duration::from_secs) {
        let end = now() + lasts.as_secs();
        let token = format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(format!(r#"{{"exp":{end}}}"#)));
        up.reviews().give(&token, "ada");
        let ada = app.bearing(&token);
        let watch = match ada.watch(PODS).initial_events().open().await {
            Ok(watch) => watch,
            Err(refused) => {
                assert!(refused.status == 401 && now() >= end, "{}", refused.text());
                continue;
            }
        };
        assert_eq!(watch.ended_in_time(lasts).await, Ended::Refused(401));
        assert!(now() >= end, "not before its end");
        assert_eq!(ada.get(PODS).await.status, 401);
        return;
    }
    panic!("each token had ended before its watch was open");
}

/// A4: the proxy observes a change of RBAC for a user and rechecks at once.
#[tokio::test]
async fn rbac_change_triggers_immediate_recheck() {
    let up = demo::upstream().pods(3).run().await;
    let (_app, ada, _) = ada_and_bob(&up, |config| {
        let auth = &mut config.delegated.auth;
        (auth.token_ttl, auth.allowed_ttl, auth.recheck) = (LONG, LONG, LONG);
    })
    .await;
    let subjects = |name: &str| {
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"});
        let subjects = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]);
        json!({"metadata": {"name": "b"}, "subjects": subjects, "roleRef": role})
    };
    up.put("clusterrolebindings", subjects("ada"));
    let watch = live_watch(&up, &ada, Protocol::Http2).await;
    direct::eventually("RBAC is listened to", || async {
        let counts = up.counts();
        counts.watches_open.of("clusterrolebindings") + counts.watches_open.of("roles") >= 2
    })
    .await;
    up.reviews().deny("ada", "*");
    up.put("clusterrolebindings", subjects("somebody else"));
    assert_eq!(watch.ended_in_time(SOON).await, Ended::Refused(403));
    direct::eventually_in_time(SOON, "the yes is forgotten too", || async { ada.get(PODS).await.status == 403 }).await;
}

/// If the authorizer is unreachable, new requests are refused; open watches continue for a while.
#[tokio::test]
async fn review_outage_fails_new_requests_with_503() {
    let up = demo::upstream().pods(3).run().await;
    let (_app, ada, bob) = ada_and_bob(&up, |_| {}).await;
    let watch = live_watch(&up, &ada, Protocol::Http2).await;
    up.reviews().refuse(Some(503));
    direct::eventually_in_time(SOON, "the cached decision expires", || async { ada.get(PODS).await.status == 503 })
        .await;
    let refused = ada.get(PODS).await;
    assert_eq!((refused.refusal().1.as_str(), refused.header("retry-after")), ("ServiceUnavailable", Some("1")));
    assert_eq!(bob.get(PODS).await.status, 503);
    watch.reached(up.create_pod("default", "meanwhile")).await;
    up.reviews().refuse(None);
    direct::eventually("answers are back", || async { ada.get(PODS).await.is_cached() }).await;
    watch.reached(up.create_pod("default", "behind it")).await;
    assert!(watch.is_open());
}

/// An outage has a limit, and so does the loss of the proxy's own permission to create reviews.
#[tokio::test]
async fn watch_ends_with_503_after_review_outage_grace() {
    let up = demo::upstream().pods(3).run().await;
    let grace = Duration::from_millis(300);
    let (_app, ada, _) = ada_and_bob(&up, |config| config.delegated.auth.outage_grace = grace).await;
    for code in [503, 403] {
        let watch = live_watch(&up, &ada, Protocol::Http1).await;
        up.reviews().refuse(Some(code));
        assert_eq!(watch.ended_in_time(SOON + grace).await, Ended::Refused(503), "{code}");
        up.reviews().refuse(None);
        direct::eventually("answers are back", || async { ada.get(PODS).await.is_cached() }).await;
    }
}

/// R-THREAT-13: a thousand callers with the same question cost one review, and unknown tokens are limited.
#[tokio::test]
async fn identical_reviews_coalesce_and_unknown_tokens_are_limited() {
    let up = demo::upstream().pods(3).run().await;
    let (app, ada, _) = ada_and_bob(&up, |config| {
        let auth = &mut config.delegated.auth;
        (auth.token_ttl, auth.allowed_ttl, auth.recheck) = (LONG, LONG, LONG);
        (auth.reviews_per_source, auth.reviews_burst_per_source) = (1, 10);
    })
    .await;
    let before = up.reviews().counts();
    let answers = (0..50).map(|_| ada.get(PODS));
    assert!(futures_util::future::join_all(answers).await.iter().all(direct::Answer::is_cached));
    let counted = up.reviews().counts();
    assert_eq!(counted.tokens - before.tokens, 1);
    // Decisions from before RBAC was synced are dropped a few times.
    assert!(
        (1..=4).contains(&(counted.accesses - before.accesses)),
        "{} questions",
        counted.accesses - before.accesses
    );

    let (began, mut refused) = (Instant::now(), [0; 2]);
    for number in 0..200 {
        let answer = app.bearing(&format!("bad{number}")).get(PODS).await;
        match answer.status {
            401 => refused[0] += 1,
            429 => refused[1] += 1,
            other => panic!("{other}: {}", answer.text()),
        }
        if answer.status == 429 {
            assert_eq!(answer.header("retry-after"), Some("1"));
        }
    }
    let cost = up.reviews().counts().tokens - counted.tokens;
    assert_eq!(cost, refused[0], "{refused:?}");
    // A burst of ten, then one a second. The known callers share the address, and used one of the ten.
    let may = 9..=10 + began.elapsed().as_secs() + 1;
    assert!(may.contains(&cost) && refused[1] + cost == 200, "{cost} questions, {may:?} may be; {refused:?}");
    assert!(ada.get(PODS).await.is_cached(), "a cached identity is unaffected");
}

/// R-THREAT-13: a user with ever new questions is throttled, and no other user is. Lease rechecks do not count against
/// the user.
#[tokio::test]
async fn access_reviews_are_rate_limited_per_user() {
    let up = demo::upstream().pods(3).run().await;
    let (_app, ada, bob) = ada_and_bob(&up, |config| {
        let auth = &mut config.delegated.auth;
        (auth.accesses_per_user, auth.accesses_burst_per_user) = (1, 10);
    })
    .await;
    let watch = live_watch(&up, &ada, Protocol::Http2).await;
    let (began, mut refused) = (Instant::now(), 0);
    for number in 0..100 {
        let answer = ada.get(&format!("{PODS}?labelSelector=a%3D{number}")).await;
        refused += u32::from(answer.status == 429);
    }
    // A burst of ten, then one a second.
    let may = 10 + began.elapsed().as_secs() + 2;
    assert!(u64::from(refused) + may >= 100, "{refused} refused, {may} reviews allowed");
    assert_eq!(bob.get(PODS).await.status, 403, "another user is answered");
    up.reviews().deny("ada", "*");
    assert_eq!(watch.ended_in_time(SOON).await, Ended::Refused(403));
}

/// A decision covers exactly the attributes that it was made for (A3).
#[tokio::test]
async fn requests_with_different_attributes_need_separate_reviews() {
    let up = demo::upstream().pods(3).run().await;
    let (_app, ada, _) = ada_and_bob(&up, |config| {
        let auth = &mut config.delegated.auth;
        (auth.token_ttl, auth.allowed_ttl) = (LONG, LONG);
    })
    .await;
    ada.get(PODS).await;
    let paths = [
        "/api/v1/namespaces/default/pods",
        "/api/v1/namespaces/other/pods",
        "/api/v1/pods?labelSelector=a",
        "/api/v1/pods?labelSelector=b",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1",
        "/api/v1/pods?fieldSelector=metadata.name%3Da",
        "/api/v1/namespaces/default/pods/a?resourceVersion=0",
        "/api/v1/nodes",
    ];
    let asks = async |path: &str| {
        let before = up.reviews().counts().accesses;
        ada.get(path).await;
        up.reviews().counts().accesses - before
    };
    for path in paths {
        assert_eq!(asks(path).await, 1, "{path}");
        // Decisions from before RBAC was synced are dropped a few times.
        direct::eventually("the answer is remembered", || async { asks(path).await == 0 }).await;
    }
}

/// R-THREAT-14: a load balancer has multiplexed unknown callers onto a connection of known ones.
#[tokio::test]
async fn invalid_token_does_not_close_shared_connection() {
    let up = demo::upstream().pods(3).run().await;
    let (app, ..) = ada_and_bob(&up, |_| {}).await;
    let balancer = app.multiplexed().await;
    let ada = balancer.bearing("a");
    assert_eq!(ada.get(PODS).await.status, 200);
    let watch = ada.watch(PODS).from(up.revision()).await;
    for _ in 0..5 {
        assert_eq!(balancer.bearing("x").get(PODS).await.status, 401);
        assert_eq!(balancer.get("/version").await.status, 200, "an anonymous request");
        let ambiguous = balancer.request(Method::GET, PODS).header("impersonate_user", "a").send().await;
        assert_eq!(ambiguous.status, 400);
        assert_eq!(ada.get(PODS).await.status, 200, "by the same connection");
    }
    watch.reached(up.create_pod("default", "after")).await;
    // A connection without any known caller is closed, and so is every HTTP/1.1 connection.
    let stranger = app.multiplexed().await.bearing("x");
    assert_eq!(stranger.get(PODS).await.status, 401);
    let gone = || async { stranger.request(Method::GET, PODS).try_send().await.is_err() };
    direct::eventually("it takes no more requests", gone).await;
    assert_eq!(app.bearing("x").get(PODS).await.header("connection"), Some("close"));
}

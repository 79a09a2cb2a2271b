//! The proxy watches RBAC while open watches need it, at no other cost to upstream (A4, I2).

use std::time::Duration;

use demo::{self, RequestKind, RunningDemoApiserver};
use futures_util::future::join_all;
use kube_fanout::auth::AuthMode;
use serde_json::json;

use crate::direct::{self, App, Ended, PODS, Plan, eventually, in_time};

const RBAC: [&str; 4] = ["roles", "clusterroles", "rolebindings", "clusterrolebindings"];
/// Idle time of feeds, and how long RBAC is watched without leases.
const SOON: Duration = Duration::from_millis(40);
/// Longer than any test takes, so nothing is rechecked by timeout.
const LONG: Duration = Duration::from_secs(600);

/// Ada may do everything.
async fn upstream() -> RunningDemoApiserver {
    let up = demo::upstream().pods(3).run().await;
    up.reviews().give("a", "ada");
    up.reviews().allow("ada", "*");
    up
}

fn delegated(up: &RunningDemoApiserver) -> Plan {
    direct::app(up).idle(SOON).with(|config| {
        config.auth = AuthMode::Delegated;
        let auth = &mut config.delegated.auth;
        (auth.token_ttl, auth.allowed_ttl, auth.recheck) = (LONG, LONG, LONG);
    })
}

fn opened(up: &RunningDemoApiserver) -> Vec<u64> {
    RBAC.iter().map(|plural| up.counts().watches_opened.of(plural)).collect()
}

fn bound(name: &str) -> serde_json::Value {
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"});
    let subjects = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]);
    json!({"metadata": {"name": "b"}, "subjects": subjects, "roleRef": role})
}

#[tokio::test]
async fn rbac_is_watched_only_while_leases_are_open() {
    let up = upstream().await;
    let app = delegated(&up).run().await;
    let ada = app.bearing("a");
    app.discovered().await;
    assert!(ada.get(PODS).await.is_cached(), "a list stands on one answer, and holds no lease");
    assert_eq!(opened(&up), [0; 4]);
    for round in 1..=2 {
        let watch = ada.watch(PODS).initial_events().await;
        watch.listed().await;
        for plural in RBAC {
            direct::within(plural, up.until(|counts| counts.watches_open.of(plural) == 1)).await;
        }
        let another = ada.watch("/api/v1/nodes").initial_events().await;
        another.listed().await;
        assert_eq!(opened(&up), [round; 4], "once, however many leases there are");
        drop(watch);
        drop(another);
        for plural in RBAC {
            in_time(2 * SOON, plural, up.until(|counts| counts.watches_open.of(plural) == 0)).await;
        }
    }
}

/// A4: a change before the first list of RBAC is found when that list arrives.
#[tokio::test]
async fn permission_revoked_before_rbac_list_ends_watch() {
    let up = upstream().await;
    up.put("clusterrolebindings", bound("ada"));
    let app = delegated(&up).with(|config| config.reflect.idle_max = LONG).run().await;
    app.discovered().await;
    let ada = app.bearing("a");
    // The first feed finds that upstream does not stream lists. It is synced, and later ones are not.
    up.faults().only("pods").answer(RequestKind::Watch, 1, 422, None);
    assert!(ada.get(PODS).await.is_cached());
    up.faults().hold_lists();
    let watch = ada.watch(PODS).from(up.revision()).await;
    direct::within("RBAC is listed", up.faults().lists_waiting(RBAC.len())).await;
    let before = up.reviews().counts().accesses;
    watch.reached(up.create_pod("default", "live")).await;
    up.reviews().deny("ada", "*");
    up.put("clusterrolebindings", bound("somebody else"));
    watch.reached(up.create_pod("default", "unobserved")).await;
    assert_eq!(up.reviews().counts().accesses, before);
    up.faults().release_lists();
    assert_eq!(watch.ended_in_time(SOON).await, Ended::Refused(403));
}

/// Whether this proxy has synced all of RBAC. The metric would count every proxy in this process.
async fn has_synced_rbac(app: &App) -> bool {
    let feeds = join_all(RBAC.map(|plural| async move { app.feed(&format!("{plural}.")).await })).await;
    feeds.iter().flatten().filter(|feed| feed["state"] == "live").count() == RBAC.len()
}

/// Completes when the token was reviewed about ten times without any access review.
async fn reviews_tokens_only(up: &RunningDemoApiserver) {
    let counts = || up.reviews().counts();
    let is_quiet = || async {
        let before = counts();
        eventually("ten token reviews", || async { counts().tokens >= before.tokens + 10 }).await;
        counts().accesses == before.accesses
    };
    eventually("no access is reviewed", is_quiet).await;
}

/// R-THREAT-7: permissions from RBAC are revoked by an observed change, so they are not rechecked every minute. While
/// RBAC is not watched, they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rbac_permission_is_rechecked_only_if_unwatched_or_changed() {
    let up = upstream().await;
    up.put("clusterrolebindings", bound("ada"));
    let app = delegated(&up).with(|config| config.delegated.auth.recheck = SOON).run().await;
    app.discovered().await;
    let ada = app.bearing("a");
    let watch = ada.watch(PODS).initial_events().await;
    watch.listed().await;
    eventually("RBAC is synced", || has_synced_rbac(&app)).await;
    let before = up.reviews().counts().accesses;
    eventually("a webhook's right", || async { up.reviews().counts().accesses >= before + 10 }).await;
    up.reviews().because("RBAC: allowed by ClusterRoleBinding \"b\" of ClusterRole \"r\" to User \"ada\"");
    reviews_tokens_only(&up).await;

    up.faults().down().await;
    let is_deaf = || async { !has_synced_rbac(&app).await };
    eventually("RBAC is not synced", is_deaf).await;
    up.faults().up().await;
    eventually("RBAC is synced again", || has_synced_rbac(&app)).await;
    reviews_tokens_only(&up).await;
    assert!(watch.is_open());

    up.reviews().deny("ada", "*");
    up.put("clusterrolebindings", bound("somebody else"));
    assert_eq!(watch.ended_in_time(Duration::from_secs(5)).await, Ended::Refused(403));
}

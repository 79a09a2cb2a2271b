//! `delegated.decide: rbac`: the proxy decides by the RBAC objects that it watches. The upstream's own decisions are
//! those that a test sets, so that they can differ.

use std::time::Duration;

use demo::{self, RunningDemoApiserver};
use kube_fanout::auth::{AccessDecider, AuthMode, TokenIdentification};
use serde_json::{Value, json};

use crate::direct::{self, Client, Ended, PODS, Plan, Trust, eventually};
use crate::front_proxy::Authority;
use crate::process::Process;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);
const STALE_RULES: &str = "kube-fanout-permissions-stale-seconds";

/// Everything is forbidden, except what the rules allow: ada and bob may read pods.
async fn upstream() -> RunningDemoApiserver {
    let up = demo::upstream().pods(3).run().await;
    up.reviews().give("a", "ada");
    up.reviews().give("c", "carl");
    up.put("clusterroles", role(&["get", "list", "watch"]));
    up.put("clusterrolebindings", binding(&["ada", "bob"]));
    up
}

fn role(verbs: &[&str]) -> Value {
    let rule = json!({"verbs": verbs, "apiGroups": [""], "resources": ["pods"]});
    json!({"metadata": {"name": "r"}, "rules": [rule]})
}

fn binding(users: &[&str]) -> Value {
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"});
    let subjects: Vec<_> = users.iter().map(|name| json!({"kind": "User", "name": name})).collect();
    json!({"metadata": {"name": "b"}, "subjects": subjects, "roleRef": role})
}

fn by_rbac(plan: Plan) -> Plan {
    plan.with(|config| {
        config.auth = AuthMode::Delegated;
        let auth = &mut config.delegated.auth;
        (auth.decide, auth.compare_one_in) = (AccessDecider::Rbac, 0);
        (auth.token_ttl, auth.allowed_ttl, auth.recheck) = (LONG, LONG, LONG);
        auth.denied_ttl = Duration::from_millis(20);
    })
}

/// Completes when the rules are known.
async fn decides(client: &Client) {
    eventually("the rules are known", || async { client.get(PODS).await.is_cached() }).await;
}

#[tokio::test]
async fn rules_decide_without_reviews_and_their_change_ends_watches() {
    let up = upstream().await;
    let app = by_rbac(direct::app(&up)).run().await;
    let (ada, carl) = (app.bearing("a"), app.bearing("c"));
    decides(&ada).await;
    for change in ["role", "binding"] {
        let before = up.reviews().counts().accesses;
        let mut watches = Vec::new();
        for namespace in ["default", "other"] {
            let watch = ada.watch(&format!("/api/v1/namespaces/{namespace}/pods")).initial_events().await;
            watch.listed().await;
            watches.push(watch);
        }
        assert!(ada.get("/api/v1/namespaces/default/pods/nobody?resourceVersion=0").await.is_cached());
        assert_eq!(up.reviews().counts().accesses, before, "{change}");
        // Another question in each round: a denial is cached for a while.
        assert_eq!(carl.get(&format!("/api/v1/namespaces/{change}/pods")).await.refusal().0, 403);
        assert!(up.reviews().counts().accesses > before, "upstream decides what no rule allows");
        match change {
            "role" => up.put("clusterroles", role(&["get"])),
            _ => up.delete("clusterrolebindings", "", "b"),
        };
        for watch in watches {
            assert_eq!(watch.ended().await, Ended::Refused(403), "{change}");
        }
        assert_eq!(ada.get(PODS).await.refusal().0, 403, "{change}");
        up.put("clusterroles", role(&["get", "list", "watch"]));
        up.put("clusterrolebindings", binding(&["ada", "bob"]));
        decides(&ada).await;
    }
    let costs = app.admin("/debug/cost").await.json();
    let reviews = costs.as_array().expect("a list").iter().find(|cost| cost["cause"] == "access_review");
    let answered = reviews.and_then(|cost| cost["answeredHere"].as_u64());
    assert!(answered.is_some_and(|count| count >= 6), "{costs}");
}

/// The apiserver is away. A caller whom the proxy has never seen reads what it may, and the answers say that the rules
/// are stale.
#[tokio::test]
async fn new_caller_is_served_during_an_upstream_outage() {
    let up = upstream().await;
    let (dir, clients) = (direct::Dir::new(), Authority::new("clients"));
    let app = by_rbac(direct::app(&up).for_certificates_of(&clients.pem, &dir)).run().await;
    let holder =
        |name: &str| app.listener(0).trusting(Some(Trust::showing(&dir.join("own.pem"), &clients.issue(name))));
    let ada = holder("ada");
    decides(&ada).await;
    let fresh = ada.get(&format!("{PODS}?resourceVersion=0")).await;
    assert!(fresh.is_cached() && fresh.header(STALE_RULES).is_none());
    let open = ada.watch(PODS).initial_events().await;
    open.listed().await;
    up.faults().down().await;
    let stale = || async { ada.get(&format!("{PODS}?resourceVersion=0")).await.header(STALE_RULES).is_some() };
    eventually("the rules are stale", stale).await;
    app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    let (bob, carl) = (holder("bob"), holder("carl"));
    let one = format!("{PODS}?resourceVersion=0&limit=1");
    for path in [&format!("{PODS}?resourceVersion=0"), &one] {
        let answer = bob.get(path).await;
        assert!(answer.is_cached(), "{path}: {}", answer.text());
        assert!(answer.header(STALE_RULES).is_some() && answer.header("kube-fanout-stale-seconds").is_some(), "{path}");
    }
    let absent = bob.get("/api/v1/namespaces/default/pods/nobody?resourceVersion=0").await;
    assert_eq!((absent.status, absent.header(STALE_RULES).is_some()), (404, true));
    let watch = bob.watch(PODS).from(up.revision()).await;
    assert!(watch.headers.contains_key(STALE_RULES));
    let refused = carl.get(&format!("{PODS}?resourceVersion=0")).await;
    assert_eq!((refused.status, refused.header(STALE_RULES).is_some()), (503, true), "upstream cannot be asked");
    up.faults().up().await;
    eventually("the rules are current", || async { !stale().await }).await;
    let last = up.create_pod("default", "after");
    watch.reached(last).await;
    open.reached(last).await;
}

/// Upstream denies what RBAC allows, as a webhook before RBAC would.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_disagreement_asks_upstream_until_a_reload() {
    let up = upstream().await;
    let dir = direct::Dir::new();
    let file = dir.file("config", "delegated: {decide: rbac, compareOneIn: 1, deniedTTL: 20ms, allowedTTL: 20ms}");
    let process =
        Process::serve(&dir, &up.url(), &["--auth", "delegated", "--config", file.to_str().expect("a path")]).await;
    up.reviews().allow("ada", "*");
    let ada = process.client().bearing("a");
    let decided = || async { process.metrics().await.contains("kube_fanout_auth_local_decisions_active 1") };
    eventually("the rules are known", decided).await;
    let watch = ada.watch(PODS).initial_events().await;
    watch.listed().await;
    up.reviews().deny_because("a webhook says no");
    up.reviews().deny("ada", "*");
    let ended = async {
        loop {
            ada.get(PODS).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        never = ended => never,
        end = watch.ended() => assert_eq!(end, Ended::Refused(403)),
    }
    assert_eq!(ada.get(PODS).await.refusal().0, 403);
    process.signal("HUP");
    eventually("the rules decide again", || async { ada.get(PODS).await.is_cached() }).await;
    process.signal("TERM");
    let log = process.ended().await.stderr;
    let line = log.lines().find(|line| line.contains("the apiserver denies what RBAC allows")).expect("a line");
    let reasons = ["ERROR", "RBAC: allowed by ClusterRoleBinding", "a webhook says no"];
    assert!(reasons.iter().all(|part| line.contains(part)), "{line}");
}

/// A proxy that starts while the apiserver is away knows neither keys, nor objects, nor rules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_started_in_an_outage_says_what_it_does_not_know() {
    let up = upstream().await;
    up.reviews().allow("ada", "*");
    up.faults().down().await;
    let (dir, clients) = (direct::Dir::new(), Authority::new("clients"));
    let plan = by_rbac(direct::app(&up).for_certificates_of(&clients.pem, &dir));
    let app = plan.with(|config| config.delegated.auth.identify = TokenIdentification::Local).run().await;
    let tokens =
        "the apiserver has answered no tokenreviews since this proxy started, so tokens that need a review are refused";
    let accesses = "the apiserver has answered no subjectaccessreviews since this proxy started, so no caller's \
                    permissions are known, also not those of certificates";
    let read = format!("{PODS}?resourceVersion=0");
    let token = app.bearing("a");
    let identity = clients.issue("ada");
    let certificate = app.listener(0).trusting(Some(Trust::showing(&dir.join("own.pem"), &identity)));
    let token_status = format!("cannot authenticate: the apiserver is unreachable; {tokens}");
    // The user of a certificate is known, but no resource is.
    let certificate_status = "upstream discovery has not completed yet: upstream cannot be reached";
    for (client, status) in [(&token, token_status.as_str()), (&certificate, certificate_status)] {
        let refused = client.get(&read).await;
        let message = refused.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(refused.status == 503 && message.starts_with(status), "{message}");
    }
    let ready = app.admin("/readyz?verbose").await;
    assert_eq!(ready.status, 503);
    for (resource, what) in [("tokenreviews", tokens), ("subjectaccessreviews", accesses)] {
        assert!(ready.text().contains(&format!("[-]{resource} not ready: {what}\n")), "{}", ready.text());
    }
    let file = dir.file("config", "delegated: {decide: rbac, identify: local}");
    let arguments = ["--auth", "delegated", "--config", file.to_str().expect("a path")];
    let process = Process::serve(&dir, &up.url(), &arguments).await;
    assert!(process.client().bearing("a").get(&read).await.text().contains(tokens));
    up.faults().up().await;
    for client in [&token, &certificate] {
        eventually("it is served", || async { client.get(&read).await.is_cached() }).await;
    }
    eventually("the log has it", || async { process.client().bearing("a").get(&read).await.is_cached() }).await;
    process.signal("TERM");
    let log = process.ended().await.stderr;
    for what in [tokens, accesses] {
        assert!(log.lines().any(|line| line.contains("WARN") && line.contains(what)), "{log}");
    }
}

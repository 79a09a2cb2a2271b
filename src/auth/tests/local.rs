//! Tests of decisions by the RBAC objects that are known here (`decide: rbac`).

mod comparisons;
mod names;

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::*;
use crate::auth::rbac_authorizer::{RbacAuthorizer, RbacChange};
use crate::auth::recheck_schedule::RecheckRequest;
use crate::auth::{AccessDecider, Caller, RbacEvent, RbacKind};

const PODS: &str = "/api/v1/namespaces/t1/pods?watch=1";
const REASON: &str = r#"RBAC: allowed by RoleBinding "b/t1" of Role "r" to User "ada""#;

fn config() -> AuthConfig {
    AuthConfig { decide: AccessDecider::Rbac, compare_one_in: 0, ..AuthConfig::remembering_for_a_day() }
}

/// An authorizer that knows all RBAC objects: Ada and the group `dev` may read pods in t1.
async fn local_scene() -> Scene {
    local_scene_with(config()).await
}

async fn local_scene_with(config: AuthConfig) -> Scene {
    let scene = scene_with(config);
    scene.load();
    scene.set_live(true);
    sleep(seconds(10)).await;
    scene.stub.reviews();
    scene
}

fn event(kind: &str, object: &Value) -> RbacEvent {
    serde_json::from_value(json!({"type": kind, "object": object})).expect("an event")
}

fn role(verbs: &[&str]) -> Value {
    let rule = json!({"verbs": verbs, "apiGroups": [""], "resources": ["pods"]});
    json!({"metadata": {"name": "r", "namespace": "t1", "resourceVersion": "1"}, "rules": [rule]})
}

fn binding(version: &str, subjects: &Value) -> Value {
    json!({
        "metadata": {"name": "b", "namespace": "t1", "resourceVersion": version},
        "roleRef": {"kind": "Role", "name": "r"}, "subjects": subjects,
    })
}

fn subjects() -> Value {
    json!([{"kind": "User", "name": "ada"}, {"kind": "Group", "name": "dev"}])
}

type Stop = fn(&RbacAuthorizer);

/// Such an authorizer, whose rules and configuration let anonymous callers read, too.
async fn anonymous_scene(grace: u64) -> Scene {
    let scene = local_scene_with(AuthConfig { anonymous: true, outage_grace: seconds(grace), ..config() }).await;
    scene.bind("3", &json!([{"kind": "User", "name": "ada"}, {"kind": "User", "name": "system:anonymous"}]));
    sleep(seconds(10)).await;
    scene.stub.reviews();
    scene
}

/// The time until a watch ends, which is at most an hour.
async fn end_of(watch: &ReadPermission) -> Duration {
    timeout(seconds(3_600), time_to_end(&watch.end_token())).await.expect("the watch ends")
}

impl Scene {
    fn load(&self) {
        RbacKind::ALL.into_iter().for_each(|kind| self.load_kind(kind));
    }

    fn load_kind(&self, kind: RbacKind) {
        let object = match kind {
            RbacKind::Role => Some(event("ADDED", &role(&["get", "list", "watch"]))),
            RbacKind::RoleBinding => Some(event("ADDED", &binding("2", &subjects()))),
            _ => None,
        };
        self.authorizer.load_policy(kind, object.map(Some));
    }

    fn set_live(&self, is_live: bool) {
        let stale_since = (!is_live).then(Instant::now);
        RbacKind::ALL.into_iter().for_each(|kind| self.authorizer.set_policy_feed(kind, stale_since));
    }

    fn bind(&self, version: &str, subjects: &Value) {
        let change = event("MODIFIED", &binding(version, subjects));
        self.authorizer.apply_policy_change(RbacKind::RoleBinding, Some(change));
    }

    fn unbind(&self) {
        let change = event("DELETED", &binding("9", &subjects()));
        self.authorizer.apply_policy_change(RbacKind::RoleBinding, Some(change));
    }

    async fn watch_of(&self, caller: &Caller) -> ReadPermission {
        self.authorizer.grant(caller, &info(PODS)).await.expect("it is allowed")
    }

    /// Whether the authorizer decides Ada's access by the rules.
    async fn decides_here(&self) -> bool {
        &**self.watch("ada", PODS).await.reason() == REASON
    }
}

#[tokio::test(start_paused = true)]
async fn access_allowed_by_rules_needs_no_review() {
    let scene = local_scene().await;
    let watch = scene.watch("ada", PODS).await;
    assert_eq!((scene.counted().0, &**watch.reason(), watch.stale_rules()), (0, REASON, None));
    let other = scene.watch("ada", "/api/v1/namespaces/t2/pods?watch=1").await;
    assert_eq!((scene.counted().0, &**other.reason()), (1, ""), "upstream decides what no rule allows");
    let ask = scene_with(AuthConfig { decide: AccessDecider::Ask, ..config() });
    ask.load();
    ask.set_live(true);
    assert!(!ask.decides_here().await);
}

#[tokio::test(start_paused = true)]
async fn decisions_need_all_kinds_live_and_readable() {
    let scene = scene_with(config());
    for kind in RbacKind::ALL {
        assert!(!scene.decides_here().await, "{kind:?} is missing");
        let object = match kind {
            RbacKind::Role => event("ADDED", &role(&["*"])),
            RbacKind::RoleBinding => event("ADDED", &binding("2", &subjects())),
            _ => event("ADDED", &json!({"metadata": {"name": "other"}})),
        };
        scene.authorizer.load_policy(kind, [Some(object)]);
        scene.authorizer.set_policy_feed(kind, None);
    }
    assert!(scene.decides_here().await);
    scene.authorizer.apply_policy_change(RbacKind::ClusterRole, None);
    assert!(!scene.decides_here().await, "an object cannot be read");
    scene.authorizer.load_policy(RbacKind::ClusterRole, [None]);
    assert!(!scene.decides_here().await, "it still cannot");
    scene.authorizer.load_policy(RbacKind::ClusterRole, []);
    assert!(!scene.decides_here().await, "the objects may be those of an old version");
    scene.authorizer.set_policy_feed(RbacKind::ClusterRole, None);
    assert!(scene.decides_here().await);
    scene.authorizer.clear_policy(RbacKind::ClusterRoleBinding);
    assert!(!scene.decides_here().await);
}

#[tokio::test(start_paused = true)]
async fn stale_rules_decide_for_the_outage_grace_and_say_so() {
    let scene = local_scene().await;
    scene.authorizer.set_policy_feed(RbacKind::Role, Some(Instant::now()));
    sleep(seconds(299)).await;
    let watch = scene.watch("ada", PODS).await;
    let stale = [watch.stale_rules(), scene.authorizer.stale_rules()];
    assert_eq!(stale.map(|stale| stale.map(|stale| stale.as_secs())), [Some(299); 2]);
    // Another feed is interrupted, which does not prolong it.
    scene.authorizer.set_policy_feed(RbacKind::ClusterRole, Some(Instant::now()));
    sleep(seconds(1)).await;
    assert!(!scene.decides_here().await);
    assert_eq!(scene.authorizer.stale_rules(), None, "upstream decides");
    scene.set_live(true);
    assert!(scene.decides_here().await);
    assert_eq!(scene.watch("ada", PODS).await.stale_rules(), None);
}

#[tokio::test(start_paused = true)]
async fn local_watch_is_not_reviewed_at_rest() {
    let scene = local_scene().await;
    let mut watches = Vec::new();
    for number in 0..60 {
        watches.push(scene.watch(&format!("ada~{number}"), PODS).await);
    }
    sleep(seconds(2 * 3_600)).await;
    assert_eq!(scene.counted().0, 0);
    assert!(watches.iter().all(|watch| watch.end_reason().is_none()));
}

/// Many watches end together, without a spread, and upstream's authorizer receives the change a little later.
#[tokio::test(start_paused = true)]
async fn rule_change_ends_local_watches_within_100_ms() {
    for (late, is_role) in [(0, false), (50, false), (0, true), (50, true)] {
        let scene = local_scene().await;
        scene.stub.because(REASON);
        let mut watches = Vec::new();
        for number in 0..100 {
            watches.push(scene.watch(&format!("ada~{number}"), PODS).await);
        }
        sleep(seconds(300)).await;
        if is_role {
            let change = event("MODIFIED", &role(&["get"]));
            scene.authorizer.apply_policy_change(RbacKind::Role, Some(change));
        } else {
            scene.unbind();
        }
        let changed = Instant::now();
        sleep(Duration::from_millis(late)).await;
        scene.stub.deny("ada", "t1");
        for watch in &watches {
            end_of(watch).await;
            assert_eq!(watch.end_reason(), Some("denied"));
        }
        assert!(changed.elapsed() <= Duration::from_millis(100), "{late}, {is_role}: {:?}", changed.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn rule_change_reviews_only_watches_that_lose_their_rule() {
    let scene = local_scene().await;
    let _watch = scene.watch("ada", PODS).await;
    scene.stub.reviews();
    scene.bind("3", &json!([{"kind": "User", "name": "ada"}]));
    scene.bind("4", &json!([{"kind": "User", "name": "ada"}, {"kind": "User", "name": "bob"}]));
    sleep(seconds(10)).await;
    assert_eq!(scene.counted().0, 0, "a rule allows it as before");
}

/// A binding may be deleted unseen, before its role is widened.
#[tokio::test(start_paused = true)]
async fn rules_of_different_age_decide_nothing() {
    let scene = local_scene().await;
    scene.authorizer.set_policy_feed(RbacKind::RoleBinding, Some(Instant::now()));
    assert!(scene.decides_here().await);
    scene.authorizer.apply_policy_change(RbacKind::Role, Some(event("MODIFIED", &role(&["*"]))));
    assert!(!scene.decides_here().await);
    scene.set_live(true);
    assert!(scene.decides_here().await);
}

/// Another authorizer allows what the rule allowed: the watch has the timers of other watches from then on.
#[tokio::test(start_paused = true)]
async fn watch_without_rule_is_reviewed_as_others() {
    let scene = local_scene().await;
    let watch = scene.watch("ada", PODS).await;
    scene.unbind();
    sleep(seconds(10)).await;
    assert_eq!(scene.counted().0, 3, "at once, and in the rounds after a change");
    sleep(seconds(1_800)).await;
    assert!((30..=45).contains(&scene.counted().0), "each minute");
    assert_eq!(watch.end_reason(), None);
    // With a rule again, it is local.
    scene.bind("5", &subjects());
    sleep(seconds(70)).await;
    scene.stub.reviews();
    sleep(seconds(1_800)).await;
    assert_eq!(scene.counted().0, 0);
}

/// The rules allowed the groups that the user had before.
#[tokio::test(start_paused = true)]
async fn changed_groups_of_a_token_end_local_watch() {
    let scene = local_scene().await;
    scene.stub.group("eve", &["dev"]);
    let watch = scene.watch("eve", PODS).await;
    sleep(seconds(600)).await;
    assert_eq!((scene.counted().0, watch.end_reason()), (0, None));
    scene.stub.group("eve", &[]);
    scene.stub.deny("eve", "t1");
    assert!(end_of(&watch).await <= seconds(75));
    assert_eq!(watch.end_reason(), Some("denied"));
}

/// The grace of an outage counts once, and not again when local decisions end. An anonymous caller needs no review of
/// its identity, like one with a certificate.
#[tokio::test(start_paused = true)]
async fn local_watch_ends_after_the_same_outage_grace() {
    for (grace, longest) in [(300, 365), (24, 55)] {
        for is_known in [true, false] {
            let scene = anonymous_scene(grace).await;
            let caller =
                if is_known { scene.authorizer.known("ada", [127, 0, 0, 1]).await } else { Ok(Caller::Anonymous) };
            let watch = scene.watch_of(&caller.expect("authenticated")).await;
            sleep(seconds(100)).await;
            scene.stub.silent(true);
            scene.set_live(false);
            let took = end_of(&watch).await;
            assert!(took >= seconds(grace) && took <= seconds(longest), "{grace}, {is_known}: {took:?}");
            assert_eq!(watch.end_reason(), Some("unavailable"));
        }
    }
}

/// A check may find the lease to be local while local decisions end. It does not replace the review that then fails.
#[tokio::test(start_paused = true)]
async fn check_while_local_decisions_end_does_not_replace_the_review() {
    let scene = anonymous_scene(300).await;
    let watch = scene.watch_of(&Caller::Anonymous).await;
    sleep(seconds(100)).await;
    scene.stub.silent(true);
    let before_check = Instant::now().checked_sub(seconds(70)).expect("a time");
    let state = &watch.lease.as_ref().expect("a watch").state;
    state.is_local.store(false, Ordering::SeqCst);
    scene.authorizer.clear_policy(RbacKind::Role);
    state.recheck.add(RecheckRequest::at(before_check));
    assert!(end_of(&watch).await <= seconds(300));
}

/// Reads by stale rules do not make a filtered watch last longer than others.
#[tokio::test(start_paused = true)]
async fn filtered_watch_by_stale_rules_ends_after_the_same_outage_grace() {
    let scene = anonymous_scene(300).await;
    scene.stub.deny("system:anonymous", "");
    let pods = info("/api/v1/pods?watch=1");
    let permission = scene.authorizer.readable(&Caller::Anonymous, &pods, || true).await.expect("it is let in");
    let readable = permission.namespaces().expect("it is not for all");
    readable.review_all(["t1"]).await.expect("reviewed");
    assert_eq!(scene.counted().0, 1, "only the whole collection is reviewed");
    sleep(seconds(100)).await;
    scene.stub.silent(true);
    scene.set_live(false);
    sleep(seconds(200)).await;
    assert_eq!(scene.counted().0, 0, "rules decide");
    let took = time_to_end(&permission.grant_status().end_token().expect("a watch")).await;
    assert!(took >= seconds(95) && took <= seconds(165), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn stopped_decisions_name_their_reason() {
    let stops: [(&str, Stop); 4] = [
        ("stale", |rbac| rbac.set_live(RbacKind::Role, Some(Instant::now()), |_| {})),
        ("history_lost", |rbac| rbac.clear(RbacKind::Role)),
        ("unreadable", |rbac| drop(rbac.apply(RbacKind::Role, None))),
        ("disagreed", |rbac| _ = rbac.disable()),
    ];
    for (expected, stop) in stops {
        let rbac = RbacAuthorizer::new(&config());
        for kind in RbacKind::ALL {
            rbac.load(kind, []);
            rbac.set_live(kind, None, |_| {});
        }
        let changes = [rbac.next_change().await, rbac.next_change().await];
        assert_eq!(changes, [RbacChange::Started, RbacChange::Rules(AffectedUsers::Everyone)]);
        stop(&rbac);
        let change = timeout(seconds(3_600), rbac.next_change()).await;
        let Ok(RbacChange::Stopped { reason, .. }) = change else { panic!("{expected}: {change:?}") };
        assert_eq!(reason, expected);
    }
}

/// Only the feeds are lost. Upstream reviews the permissions again, as of other watches.
#[tokio::test(start_paused = true)]
async fn lost_feeds_return_local_watches_to_timers() {
    let scene = local_scene().await;
    let watch = scene.watch("ada", PODS).await;
    scene.set_live(false);
    sleep(seconds(299)).await;
    assert_eq!(scene.counted().0, 0);
    sleep(seconds(2)).await;
    assert_eq!(scene.counted().0, 1, "when local decisions end");
    sleep(seconds(1_800)).await;
    assert!((30..=45).contains(&scene.counted().0), "each minute");
    scene.stub.deny("ada", "t1");
    assert!(end_of(&watch).await <= seconds(75));
}

/// Upstream's storage was restored, say. The rules that are then known decide most permissions, and upstream the rest.
#[tokio::test(start_paused = true)]
async fn relist_reviews_only_watches_that_lost_their_rule() {
    for (seconds_unknown, seconds_between) in [(5, 0), (25, 0), (5, 5)] {
        let scene = local_scene().await;
        let mut watches = Vec::new();
        for number in 0..200 {
            let name = format!("u{number}");
            scene.stub.group(&name, &["dev"]);
            watches.push(scene.watch(&name, PODS).await);
        }
        let lost = scene.watch("ada", PODS).await;
        sleep(seconds(600)).await;
        assert_eq!(scene.counted().0, 0);
        for kind in RbacKind::ALL {
            scene.authorizer.set_policy_feed(kind, Some(Instant::now()));
            scene.authorizer.clear_policy(kind);
        }
        sleep(seconds(seconds_unknown)).await;
        for kind in RbacKind::ALL {
            scene.load_kind(kind);
            sleep(seconds(seconds_between)).await;
        }
        // Those whose identity was due, too, about once a minute.
        let reviewed = scene.counted().0;
        assert!(reviewed <= 140, "{reviewed} after {seconds_unknown} s");
        scene.stub.deny("ada", "t1");
        scene.bind("5", &json!([{"kind": "Group", "name": "dev"}]));
        scene.set_live(true);
        assert!(end_of(&lost).await <= seconds(1));
        assert_eq!(lost.end_reason(), Some("denied"));
        sleep(seconds(1_800)).await;
        assert!(scene.counted().0 <= 3, "only the lost one");
        assert!(watches.iter().all(|watch| watch.end_reason().is_none()));
    }
}

/// The rules stay unknown. So the permissions are reviewed before they are as old as those of other watches.
#[tokio::test(start_paused = true)]
async fn lost_history_without_relist_reviews_local_watches_within_the_period() {
    let scene = local_scene().await;
    let watch = scene.watch("ada", PODS).await;
    scene.stub.deny("ada", "t1");
    scene.authorizer.set_policy_feed(RbacKind::RoleBinding, Some(Instant::now()));
    scene.authorizer.clear_policy(RbacKind::RoleBinding);
    assert!(end_of(&watch).await <= seconds(60));
    assert_eq!(watch.end_reason(), Some("denied"));
}

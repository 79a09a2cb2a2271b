//! Tests of the objects that rules with `resourceNames` show.

use super::*;
use crate::auth::NamespaceAccess;

fn named_role(names: &[&str]) -> Value {
    let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": names});
    json!({"metadata": {"name": "r", "namespace": "t1", "resourceVersion": "1"}, "rules": [rule]})
}

/// A filtered watch of Ada, whom the rules let get the pods `a` and `b` in t1. Upstream denies everything.
struct Named {
    scene: Scene,
    readable: ReadableNamespaces,
}

const NAMES: [&str; 2] = ["a", "b"];

impl Named {
    async fn new() -> Self {
        let scene = local_scene().await;
        scene.allow(&NAMES);
        ["ada", "eve"].iter().for_each(|user| scene.stub.deny(user, "*"));
        let readable = scene.readable("ada", &["t1".to_owned()]).await.expect("it is let in");
        sleep(seconds(10)).await;
        scene.stub.reviews();
        Self { scene, readable }
    }

    /// The names that are visible, or why nothing is any more.
    fn sees(&self) -> String {
        let status = self.readable.grant_status();
        let ended = status.revoked().map(|revoked| revoked.reason.as_str().to_owned());
        let access = self.readable.access("t1");
        ended.unwrap_or_else(|| ["a", "b", "c"].into_iter().filter(|name| access.allows(name)).collect())
    }

    /// What is visible in this time, without repetitions.
    async fn seen_for(&self, time: Duration) -> Vec<String> {
        let mut seen = vec![self.sees()];
        let _ = timeout(time, async {
            let mut changes = self.readable.subscribe();
            let end = self.readable.grant_status().end_token().expect("a watch");
            loop {
                tokio::select! {
                    next = changes.changed() => changes = next,
                    () = end.cancelled() => break,
                }
                seen.push(self.sees());
            }
        })
        .await;
        seen.push(self.sees());
        seen.dedup();
        seen
    }

    /// Loses the objects of a kind, as the watcher does when upstream no longer has its history.
    fn lose(&self, kind: RbacKind) {
        self.scene.authorizer.set_policy_feed(kind, Some(Instant::now()));
        self.scene.authorizer.clear_policy(kind);
    }

    fn relist(&self, kind: RbacKind, object: Option<Value>) {
        self.scene.authorizer.load_policy(kind, object.map(|object| Some(event("ADDED", &object))));
        self.scene.authorizer.set_policy_feed(kind, None);
    }

    /// The decision on t1 of a LIST, or the reason that there is none.
    async fn lists(&self) -> Result<NamespaceAccess, &'static str> {
        let readable = self.scene.readable_of("ada", "/api/v1/pods", &["t1".to_owned()]).await;
        readable.map(|readable| readable.access("t1")).map_err(|error| error.as_str())
    }
}

impl Scene {
    fn allow(&self, names: &[&str]) {
        self.authorizer.apply_policy_change(RbacKind::Role, Some(event("MODIFIED", &named_role(names))));
    }
}

/// A name that the rules no longer allow is hidden at once, although upstream does not answer.
#[tokio::test(start_paused = true)]
async fn names_follow_rules_without_reviews_of_each() {
    let named = Named::new().await;
    assert_eq!(named.sees(), "ab");
    named.scene.stub.take_answered_here();
    named.scene.allow(&["a", "c"]);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(named.scene.stub.take_answered_here(), 1, "one decision is counted");
    sleep(seconds(1)).await;
    assert_eq!(named.sees(), "ac");
    assert!((1..=3).contains(&named.scene.counted().0), "only t1 is reviewed");
    named.scene.stub.silent(true);
    named.scene.allow(&["c"]);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(named.sees(), "c");
}

/// A watch hides only objects that the relisted rules do not allow, and each once.
#[tokio::test(start_paused = true)]
async fn relisted_rules_hide_only_what_they_no_longer_allow() {
    let role = |names: &[&str]| Some(named_role(names));
    let bound = Some(binding("2", &subjects()));
    for (role, bound, expected) in [
        (role(&NAMES), bound.clone(), vec!["ab"]),
        (role(&["b", "c"]), bound.clone(), vec!["ab", "bc"]),
        (role(&NAMES), None, vec!["ab", ""]),
        (None, bound, vec!["ab", ""]),
    ] {
        for is_silent in [false, true] {
            let named = Named::new().await;
            let relist = async {
                for kind in RbacKind::ALL {
                    named.lose(kind);
                    sleep(seconds(1)).await;
                }
                named.scene.stub.silent(is_silent);
                sleep(seconds(20)).await;
                named.relist(RbacKind::RoleBinding, bound.clone());
                // A second loss before everything is known again.
                named.lose(RbacKind::RoleBinding);
                sleep(seconds(1)).await;
                named.relist(RbacKind::ClusterRole, None);
                named.relist(RbacKind::ClusterRoleBinding, None);
                named.relist(RbacKind::RoleBinding, bound.clone());
                named.relist(RbacKind::Role, role.clone());
                sleep(Duration::from_millis(10)).await;
                assert_eq!(named.sees(), *expected.last().expect("a state"), "at once");
                named.scene.stub.silent(false);
                sleep(seconds(300)).await;
            };
            let (seen, ()) = tokio::join!(named.seen_for(seconds(320)), relist);
            assert_eq!(seen, expected, "{is_silent}");
        }
    }
}

/// In an outage they stay visible for the grace, and otherwise only as long as a decision is valid.
#[tokio::test(start_paused = true)]
async fn watch_ends_with_an_error_if_the_rules_of_its_names_stay_unknown() {
    for (is_silent, stale, earliest, latest) in [(false, 0, 60, 66), (true, 0, 240, 310), (false, 310, 360, 366)] {
        let named = Named::new().await;
        let began = Instant::now();
        if stale > 0 {
            named.scene.set_live(false);
        } else {
            named.scene.stub.silent(is_silent);
            named.lose(RbacKind::Role);
        }
        let took = async {
            named.readable.grant_status().end_token().expect("a watch").cancelled().await;
            began.elapsed()
        };
        let (seen, took) = tokio::join!(named.seen_for(seconds(600)), took);
        assert_eq!(seen, ["ab", "unavailable"], "never hidden: {is_silent}, {stale}");
        assert!(took >= seconds(earliest) && took <= seconds(latest), "{is_silent}, {stale}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn list_that_may_lack_names_is_refused_while_rules_are_unknown() {
    let named = Named::new().await;
    let shown = named.lists().await;
    assert!(matches!(&shown, Ok(NamespaceAccess::Named(names)) if names.len() == 2), "{shown:?}");
    for lost in [RbacKind::Role, RbacKind::RoleBinding] {
        named.lose(lost);
        assert_eq!(named.lists().await, Err("unavailable"), "{lost:?}");
        for is_allowed in [true, false] {
            if is_allowed {
                named.scene.stub.allow("ada", "*");
            } else {
                named.scene.stub.deny("ada", "*");
            }
            named.scene.authorizer.policy_changed(&AffectedUsers::Everyone);
            sleep(seconds(10)).await;
            let expected = if is_allowed { Ok(NamespaceAccess::Allowed) } else { Err("unavailable") };
            assert_eq!(named.lists().await, expected, "what upstream allows needs no rules");
        }
        sleep(seconds(60)).await;
        assert_eq!(named.lists().await, Ok(NamespaceAccess::Denied), "{lost:?}: perhaps it cannot be watched");
        named.relist(lost, Some(if lost == RbacKind::Role { named_role(&NAMES) } else { binding("2", &subjects()) }));
        assert_eq!(named.lists().await, shown, "{lost:?}");
    }
    named.scene.authorizer.apply_policy_change(RbacKind::Role, None);
    assert_eq!(named.lists().await, Ok(NamespaceAccess::Denied), "the rules will not be known again");
}

/// A name that was granted unseen is shown as soon as the rules are known.
#[tokio::test(start_paused = true)]
async fn names_granted_while_rules_were_unknown_are_shown_at_once() {
    let named = Named::new().await;
    named.scene.unbind();
    sleep(seconds(10)).await;
    assert_eq!(named.sees(), "");
    named.lose(RbacKind::RoleBinding);
    sleep(seconds(70)).await;
    assert_eq!(named.sees(), "", "it shows no names, so it goes on");
    named.relist(RbacKind::RoleBinding, Some(binding("10", &subjects())));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(named.sees(), "ab");
}

/// The rules that showed them were for the groups that the user had before.
#[tokio::test(start_paused = true)]
async fn names_of_former_groups_are_hidden_although_rules_are_unknown() {
    let Named { scene, .. } = Named::new().await;
    scene.stub.group("eve", &["dev"]);
    let readable = scene.readable("eve", &["t1".to_owned()]).await.expect("it is let in");
    let named = Named { scene, readable };
    assert_eq!(named.sees(), "ab");
    named.scene.stub.group("eve", &[]);
    named.lose(RbacKind::ClusterRole);
    assert_eq!(named.seen_for(seconds(62)).await, ["ab", ""]);
}

#[tokio::test(start_paused = true)]
async fn names_are_hidden_at_once_if_upstream_denies_what_rules_allow() {
    let named = Named::new().await;
    named.scene.authorizer.rbac().expect("delegated").disable();
    sleep(Duration::from_millis(10)).await;
    assert_eq!((named.sees().as_str(), named.lists().await), ("", Ok(NamespaceAccess::Denied)));
}

#[tokio::test(start_paused = true)]
async fn names_of_all_namespaces_are_limited() {
    let readable = ReadableNamespaces::with_decisions(&[]);
    let named = |count: usize| NamespaceAccess::Named(Arc::new(named(count).into_iter().map(Into::into).collect()));
    readable.set_decision("a", named(1_500));
    readable.set_decision("b", named(501));
    assert_eq!(readable.decision("b"), Some(NamespaceAccess::Denied));
    readable.set_decision("a", named(1_499));
    readable.set_decision("b", named(501));
    assert!(readable.access("b").allows("t500") && readable.has_names());
    for namespace in ["a", "b"] {
        readable.set_decision(namespace, NamespaceAccess::Allowed);
    }
    assert!(!readable.has_names());
}

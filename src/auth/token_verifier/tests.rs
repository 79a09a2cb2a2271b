//! Tokens and objects as a cluster has them, on a paused clock.

mod followed;
mod forged;
pub(in crate::auth) mod issuer;
mod objects;
mod valid;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use super::bound_objects::parse_uid;
use super::keys::PublishedKeys;
use super::*;
use issuer::{ACCOUNT_UID, ISSUER, Issuer, NODE_UID, POD_UID, SECRET_UID, bearer, claims};
use kubeapi::User;

/// A verifier that knows the keys of an issuer and some objects, and has learned the audience of tokens.
pub(in crate::auth) struct Scene {
    pub(in crate::auth) verifier: Arc<TokenVerifier>,
    issuer: Issuer,
    clock: WallClock,
    /// The number of connections to upstream that were tried. None succeeds.
    connections: Arc<AtomicUsize>,
    _tasks: BackgroundTasks,
}

const SOURCE: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));

impl Scene {
    fn new() -> Self {
        Self::with(&AuthConfig { audiences: vec![ISSUER.to_owned()], ..AuthConfig::default() })
    }

    pub(in crate::auth) fn with(config: &AuthConfig) -> Self {
        let (clock, tasks, connections) = (WallClock::default(), BackgroundTasks::new(), Arc::new(AtomicUsize::new(0)));
        let counted = connections.clone();
        let client = UpstreamClient::in_memory(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            None
        });
        let verifier = TokenVerifier::new(client, config, None, clock.clone(), tasks.clone());
        let scene = Self { verifier, issuer: Issuer::new(), clock, connections, _tasks: tasks };
        scene.publish(&scene.issuer.jwks());
        for (kind, key, uid) in OBJECTS {
            scene.objects().put(kind, key.into(), parse_uid(uid), false);
        }
        for kind in BoundKind::ALL {
            scene.objects().end_list(kind);
        }
        scene
    }

    /// Publishes the same keys, as another read of them finds.
    pub(in crate::auth) fn publish_again(&self) {
        self.publish(&self.issuer.jwks());
    }

    /// Begins a read of the keys.
    pub(in crate::auth) fn begin_key_read(&self) {
        self.verifier.keys.begin_read_for_tests();
    }

    /// Ends that read with the same keys. Returns the function that counts the reads that begin afterwards.
    pub(in crate::auth) fn end_key_read(&self) -> impl Fn() -> usize {
        let keys = &self.verifier.keys;
        let same = PublishedKeys::clone(&keys.published(Duration::MAX / 4).expect("keys"));
        keys.publish_for_tests(same, false);
        keys.end_read_for_tests();
        let (connections, before) = (self.connections.clone(), self.connections.load(Ordering::Relaxed));
        move || connections.load(Ordering::Relaxed) - before
    }

    pub(in crate::auth) fn publish_other_keys(&self) {
        self.publish(&Issuer::new().jwks());
    }

    fn publish(&self, jwks: &Value) {
        let configuration = json!({"issuer": ISSUER, "jwks_uri": "https://elsewhere/keys"}).to_string();
        let before = self.verifier.keys.published(Duration::MAX / 4);
        let keys = PublishedKeys::parse(configuration.as_bytes(), jwks.to_string().as_bytes(), before.as_deref());
        let has_just_begun = !self.verifier.keys.begin_read(false);
        let keys = keys.expect("documents in the form of the apiserver");
        self.verifier.keys.publish_for_tests(keys, has_just_begun);
    }

    fn objects(&self) -> &BoundObjects {
        &self.verifier.objects
    }

    fn now(&self) -> u64 {
        self.clock.now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
    }

    /// The claims of a token for an account alone.
    fn claims(&self) -> Value {
        claims(self.now(), &json!({}))
    }

    /// The user of a request's token, if it is proven to be valid.
    fn user(&self, token: &str) -> Option<Arc<User>> {
        self.user_from(token, SOURCE)
    }

    fn user_from(&self, token: &str, source: Option<IpAddr>) -> Option<Arc<User>> {
        let (id, token) = bearer(token);
        self.verifier.identify(id, &token, source).ok().flatten().map(|identity| identity.user)
    }

    /// A token that is bound to a pod.
    pub(in crate::auth) fn pod_token(&self) -> String {
        self.issuer.token(&claims(self.now(), &bound_to(&["pod"])))
    }

    /// A token that is bound to its account only.
    pub(in crate::auth) fn account_token(&self) -> String {
        self.issuer.token(&self.claims())
    }

    /// Learns the audience of such a token from a review.
    pub(in crate::auth) fn learn(&self, account_token: &str) {
        assert!(self.review(account_token, Some(user_of(&[("credential-id", "JTI=4f9a")])), &[ISSUER]));
    }

    pub(in crate::auth) fn step_clock(&self, seconds: i64) {
        self.clock.step(seconds);
    }

    pub(in crate::auth) fn create_pod(&self) {
        self.objects().put(BoundKind::Pod, "t1/web-0".into(), parse_uid(POD_UID), false);
    }

    pub(in crate::auth) fn delete_pod(&self) {
        self.objects().remove(BoundKind::Pod, "t1/web-0");
    }

    pub(in crate::auth) fn set_pods_live(&self, is_live: bool) {
        self.objects().set_live(BoundKind::Pod, (!is_live).then(Instant::now));
    }

    /// Why a token is not proven to be valid, apart from its objects and audiences.
    fn unproven(&self, token: &str) -> Option<Unproven> {
        let (id, token) = bearer(token);
        self.verifier.verify(&id, &token, SOURCE).err()
    }

    /// Passes the result of a review to the verifier: a user, or a rejection, with these audiences.
    fn review(&self, token: &str, user: Option<User>, audiences: &[&str]) -> bool {
        let audiences = audiences.iter().map(|&audience| audience.to_owned()).collect();
        let (id, token) = bearer(token);
        self.verifier.compare(id, &token, &TokenReviewResult { user, audiences, error: String::new() })
    }
}

const OBJECTS: [(BoundKind, &str, &str); 4] = [
    (BoundKind::Account, "t1/agent", ACCOUNT_UID),
    (BoundKind::Pod, "t1/web-0", POD_UID),
    (BoundKind::Node, "/n1", NODE_UID),
    (BoundKind::Secret, "t1/token", SECRET_UID),
];

pub(in crate::auth) fn user_of(extra: &[(&str, &str)]) -> User {
    let groups = ["system:serviceaccounts", "system:serviceaccounts:t1", "system:authenticated"];
    let extra =
        extra.iter().map(|(key, value)| (format!("authentication.kubernetes.io/{key}"), vec![(*value).to_owned()]));
    User {
        name: "system:serviceaccount:t1:agent".to_owned(),
        uid: ACCOUNT_UID.to_owned(),
        groups: groups.map(str::to_owned).to_vec(),
        extra: extra.collect(),
    }
}

fn bound_to(kinds: &[&str]) -> Value {
    let all = [("pod", "web-0", POD_UID), ("node", "n1", NODE_UID), ("secret", "token", SECRET_UID)];
    let chosen = all.into_iter().filter(|(kind, ..)| kinds.contains(kind));
    Value::Object(chosen.map(|(kind, name, uid)| (kind.to_owned(), json!({"name": name, "uid": uid}))).collect())
}

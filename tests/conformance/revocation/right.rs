//! Permissions to watch the configmaps of a namespace, and the ways in which they are revoked.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::Method;
use serde_json::{Value, json};

use crate::bed::rbac::{allow_token_keys, binding, collection, may, subject};
use crate::bed::{Account, Authority, Bed, Http, Identity, Plan, Plane, Proxy, RequestSpec};
use crate::bed::{eventually, unique, write_bundle};

/// The way in which a permission is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    RoleBindingDeleted,
    RoleWithoutWatch,
    ClusterRoleBindingDeleted,
    TokenIsOver,
    AccountDeleted,
    AuthorityRemoved,
    NamespaceDeleted,
    /// These are deleted, and the token is bound to them.
    PodDeleted,
    NodeDeleted,
    SecretDeleted,
}

/// The environment of the trials.
pub struct Bench {
    pub bed: Bed<Box<Plane>>,
    pub proxy: Proxy,
    pub direct: Http,
    /// Whether the proxy verifies tokens and evaluates RBAC.
    pub is_local: bool,
    own: Authority,
    bundle: Bundle,
}

/// A file with the CAs that the proxy trusts.
struct Bundle {
    path: PathBuf,
    certificates: Mutex<Vec<String>>,
}

/// A caller's permission.
pub struct Right {
    pub caller: Identity,
    pub namespace: String,
    loss: Loss,
    name: String,
    account: Option<Account>,
    /// The path of the object that the token is bound to besides the account.
    bound: Option<String>,
    /// The CA of the caller's certificate, if it is not the control plane's.
    authority: Option<String>,
    /// The time at which it expires, if it does.
    over: Option<Instant>,
}

/// The lifetime of a token that expires during the trial, which is long enough to open a watch on a machine that stalls.
const TOKEN_SECONDS: i64 = 30;
/// The interval between checks of identities, if the time is not measured. Permissions are checked as rarely as by
/// default, so that a revocation that the proxy's policy watches miss is noticed.
const OFTEN: &str = "delegated: {recheck: 2s, recheckRbac: 10m}";
/// The proxy verifies tokens and evaluates RBAC. All callers have one address, and each opens several watches.
const LOCAL: &str =
    "delegated: {identify: local, decide: rbac, reviewsPerSecondPerSource: 10000, reviewsBurstPerSource: 10000}";

impl Loss {
    pub const ALL: [Self; 7] = [
        Self::RoleBindingDeleted,
        Self::RoleWithoutWatch,
        Self::ClusterRoleBindingDeleted,
        Self::TokenIsOver,
        Self::AccountDeleted,
        Self::AuthorityRemoved,
        Self::NamespaceDeleted,
    ];

    /// Those that end a watch at once if the proxy verifies tokens and evaluates RBAC.
    pub const LOCAL: [Self; 7] = [
        Self::RoleBindingDeleted,
        Self::ClusterRoleBindingDeleted,
        Self::RoleWithoutWatch,
        Self::AccountDeleted,
        Self::PodDeleted,
        Self::NodeDeleted,
        Self::SecretDeleted,
    ];

    /// The time limit for the end of the watch.
    pub fn bound(self) -> Duration {
        Duration::from_secs(match self {
            Self::RoleBindingDeleted
            | Self::RoleWithoutWatch
            | Self::ClusterRoleBindingDeleted
            | Self::NamespaceDeleted => 5,
            Self::TokenIsOver => 10,
            Self::AccountDeleted | Self::PodDeleted | Self::NodeDeleted | Self::SecretDeleted => 75,
            Self::AuthorityRemoved => 60,
        })
    }

    /// The status code with which the watch ends.
    pub fn code(self) -> u16 {
        match self {
            Self::RoleBindingDeleted
            | Self::RoleWithoutWatch
            | Self::ClusterRoleBindingDeleted
            | Self::NamespaceDeleted => 403,
            Self::TokenIsOver
            | Self::AccountDeleted
            | Self::AuthorityRemoved
            | Self::PodDeleted
            | Self::NodeDeleted
            | Self::SecretDeleted => 401,
        }
    }

    /// The interval between writes.
    pub fn pace(self) -> Duration {
        Duration::from_millis(if self.is_slow() { 500 } else { 50 })
    }

    /// The number of concurrent trials. Slow trials mostly wait, so many can run together.
    pub fn at_once(self) -> usize {
        if self.bound() > Duration::from_secs(5) { 40 } else { 6 }
    }

    fn is_slow(self) -> bool {
        self.bound() > Duration::from_secs(10)
    }
}

impl Bench {
    pub async fn new(bed: Bed<Box<Plane>>, is_local: bool) -> Self {
        let own = std::fs::read_to_string(bed.ca()).expect("the test bed writes it");
        let bundle = Bundle { path: bed.file("client-ca"), certificates: Mutex::new(vec![own]) };
        bundle.change(|_| ());
        let plan = Plan::delegated(&bed).client_ca(&bundle.path);
        let plan = match (is_local, super::is_measured()) {
            (true, _) => plan.config(LOCAL),
            (false, true) => plan,
            (false, false) => plan.config(OFTEN),
        };
        allow_token_keys(&bed.direct()).await;
        let proxy = plan.start(&bed).await;
        let bench = Self { proxy, direct: bed.direct(), is_local, own: Authority::of(&bed), bundle, bed };
        if is_local {
            bench.until_local().await;
        }
        bench
    }

    /// Waits until the proxy verifies tokens and evaluates RBAC.
    async fn until_local(&self) {
        let right = Right::give(self, Loss::AccountDeleted).await;
        let path = format!("/api/v1/namespaces/{}/configmaps", right.namespace);
        eventually("the proxy verifies tokens and decides", async || {
            assert_eq!(self.proxy.client_of(&right.caller).get(&path).await.status, 200);
            let metrics = self.proxy.metrics().await;
            let verified = metrics.sum("kube_fanout_auth_tokens_verified_total", &[("result", "valid")]);
            let decided = metrics.sum("kube_fanout_auth_local_decisions_total", &[("result", "allowed")]);
            (verified > 0 && decided > 0).then_some(())
        })
        .await;
    }
}

impl Bundle {
    fn change(&self, change: impl FnOnce(&mut Vec<String>)) {
        let mut certificates = self.certificates.lock().expect("not poisoned");
        change(&mut certificates);
        write_bundle(&self.path, &certificates);
    }
}

impl Right {
    pub async fn give(bench: &Bench, loss: Loss) -> Self {
        let (name, namespace) = (unique("watcher"), bench.bed.namespace("revoked").await);
        let caller = bench.own.issue(&name, &["watchers"]);
        let user = name.clone();
        let mut right = Self { caller, namespace, loss, name, account: None, bound: None, authority: None, over: None };
        let user = match loss {
            Loss::TokenIsOver | Loss::AccountDeleted | Loss::PodDeleted | Loss::NodeDeleted | Loss::SecretDeleted => {
                right.as_an_account(bench).await
            }
            Loss::AuthorityRemoved => {
                let authority = Authority::foreign(&bench.bed);
                right.caller = authority.issue(&user, &["watchers"]);
                let certificate = authority.pem();
                bench.bundle.change(|certificates| certificates.push(certificate.clone()));
                right.authority = Some(certificate);
                user
            }
            _ => user,
        };
        right.allow(bench, &user).await;
        right
    }

    /// Sets up a service account. Returns its user name.
    async fn as_an_account(&mut self, bench: &Bench) -> String {
        let account = Account::create(&bench.direct, &self.namespace, &self.name).await;
        let bound = self.bound_object(bench).await;
        self.caller = account.token_for(&bench.direct, &bound).await;
        if self.loss == Loss::TokenIsOver {
            let claims = Plane::claims(&account, TOKEN_SECONDS);
            self.over = Some(moment(&claims["exp"]));
            self.caller = bench.bed.sign(&claims);
        }
        bench.bed.knows(&self.caller).await;
        let user = account.user();
        self.account = Some(account);
        user
    }

    /// Creates the object that the token is bound to, if there is one. Returns the `spec` of the `TokenRequest`.
    async fn bound_object(&mut self, bench: &Bench) -> Value {
        let (name, namespace) = (&self.name, format!("/api/v1/namespaces/{}", self.namespace));
        let pod = json!({"serviceAccountName": name, "containers": [{"name": "c", "image": "none"}]});
        let (kind, path, object) = match self.loss {
            Loss::PodDeleted => ("Pod", format!("{namespace}/pods"), json!({"spec": pod})),
            Loss::NodeDeleted => ("Node", "/api/v1/nodes".to_owned(), json!({})),
            Loss::SecretDeleted => ("Secret", format!("{namespace}/secrets"), json!({})),
            _ => return json!({}),
        };
        let mut object = object;
        object["metadata"] = json!({"name": name});
        let created = bench.direct.create(&path, object).await;
        self.bound = Some(format!("{path}/{name}"));
        let uid = &created["metadata"]["uid"];
        json!({"boundObjectRef": {"kind": kind, "apiVersion": "v1", "name": name, "uid": uid}})
    }

    async fn allow(&self, bench: &Bench, user: &str) {
        let (within, kind) = self.scope();
        let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]);
        let role = json!({"metadata": {"name": self.name}, "rules": rules});
        bench.direct.create(&collection(within, "roles"), role).await;
        let bound = binding(&self.name, kind, &self.name, &subject("User", user));
        bench.direct.create(&collection(within, "rolebindings"), bound).await;
        let watch = json!({"verb": "watch", "resource": "configmaps", "namespace": self.namespace});
        may(&bench.direct, json!({"user": user, "resourceAttributes": watch})).await;
    }

    fn scope(&self) -> (Option<&str>, &'static str) {
        match self.loss {
            Loss::ClusterRoleBindingDeleted => (None, "ClusterRole"),
            _ => (Some(&self.namespace), "Role"),
        }
    }

    fn path(&self, kind: &str) -> String {
        format!("{}/{}", collection(self.scope().0, kind), self.name)
    }

    /// Revokes the permission. Returns the time at which it was gone.
    pub async fn take(&self, bench: &Bench) -> Instant {
        match self.loss {
            Loss::RoleBindingDeleted | Loss::ClusterRoleBindingDeleted => {
                bench.direct.delete(&self.path("rolebindings")).await;
            }
            Loss::RoleWithoutWatch => {
                let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]);
                bench.direct.patch(&self.path("roles"), json!({"rules": rules})).await;
            }
            Loss::AccountDeleted => {
                let account = self.account.as_ref().expect("the caller is one");
                bench.direct.delete(&account.path()).await;
            }
            Loss::AuthorityRemoved => bench.bundle.change(|certificates| {
                certificates.retain(|certificate| Some(certificate) != self.authority.as_ref());
            }),
            Loss::PodDeleted | Loss::NodeDeleted | Loss::SecretDeleted => {
                bench.direct.delete(self.bound.as_ref().expect("it is bound")).await;
            }
            Loss::NamespaceDeleted => return self.end_namespace(bench).await,
            Loss::TokenIsOver => {}
        }
        self.over.unwrap_or_else(Instant::now)
    }

    /// Deletes the namespace, and then acts as its controller, which this control plane does not have. It deletes all
    /// objects in the namespace, one kind after the other, and then the namespace. Returns the time at which the
    /// binding was gone.
    async fn end_namespace(&self, bench: &Bench) -> Instant {
        let own = format!("/api/v1/namespaces/{}", self.namespace);
        let ending = bench.direct.delete(&own).await;
        bench.direct.delete(&self.path("rolebindings")).await;
        let gone = Instant::now();
        bench.direct.delete(&self.path("roles")).await;
        bench.direct.delete(&format!("{own}/configmaps")).await;
        let mut ended = ending;
        ended["spec"] = json!({"finalizers": []});
        let finalize =
            RequestSpec::get(&format!("{own}/finalize")).with(Method::PUT, "application/json", ended.to_string());
        let finalized = bench.direct.fetch(finalize).await;
        assert_eq!(finalized.status, 200, "{}", finalized.text());
        gone
    }

    /// Deletes everything that the proxy would have to watch in later trials.
    pub async fn forget(&self, bench: &Bench) {
        if self.loss == Loss::NamespaceDeleted {
            return;
        }
        if !matches!(self.loss, Loss::RoleBindingDeleted | Loss::ClusterRoleBindingDeleted) {
            bench.direct.delete(&self.path("rolebindings")).await;
        }
        bench.direct.delete(&self.path("roles")).await;
    }
}

/// Converts seconds since the epoch to an `Instant`.
fn moment(seconds: &Value) -> Instant {
    let at = UNIX_EPOCH + Duration::from_secs(seconds.as_u64().expect("a time"));
    Instant::now() + at.duration_since(SystemTime::now()).expect("yet to come")
}

//! Permissions: the RBAC objects that grant them, and the wait until the apiserver applies them.

use http::Method;
use serde_json::{Value, json};

use super::eventually;
use super::http::{Http, Protocol, RequestSpec};
use super::identity::Identity;
use super::plane::Plane;

const GROUP: &str = "rbac.authorization.k8s.io";

/// The path of `roles` or `rolebindings` in a namespace; without one, of `clusterroles` or `clusterrolebindings`.
pub fn collection(namespace: Option<&str>, kind: &str) -> String {
    let root = format!("/apis/{GROUP}/v1");
    namespace.map_or_else(|| format!("{root}/cluster{kind}"), |within| format!("{root}/namespaces/{within}/{kind}"))
}

/// A binding of one subject to a `Role` or `ClusterRole`.
pub fn binding(name: &str, kind: &str, role: &str, subject: &Value) -> Value {
    let role = json!({"apiGroup": GROUP, "kind": kind, "name": role});
    json!({"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
}

/// A subject of kind `User` or `Group`. A service account is a `User` with its full name.
pub fn subject(kind: &str, name: &str) -> Value {
    json!({"apiGroup": GROUP, "kind": kind, "name": name})
}

/// Lets the user `proxy` read the keys of tokens. It may read all objects in any case.
pub async fn allow_token_keys(direct: &Http) {
    let rules =
        json!([{"nonResourceURLs": ["/.well-known/openid-configuration", "/openid/v1/jwks"], "verbs": ["get"]}]);
    let role = json!({"metadata": {"name": "token-keys"}, "rules": rules});
    direct.create(&collection(None, "roles"), role).await;
    let bound = binding("token-keys", "ClusterRole", "token-keys", &subject("User", "proxy"));
    direct.create(&collection(None, "rolebindings"), bound).await;
}

/// Waits until the apiserver allows the access in `spec`. Its authorizer receives new rules by watches, with a delay.
pub async fn may(direct: &Http, spec: Value) {
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    eventually(&format!("{spec} is allowed"), async || {
        let request = RequestSpec::get(path).with(Method::POST, "application/json", review.to_string());
        (direct.fetch(request).await.value()["status"]["allowed"] == true).then_some(())
    })
    .await;
}

impl Plane {
    /// Waits until the apiserver authenticates this caller.
    pub async fn knows(&self, identity: &Identity) {
        let http = Http::new(self.target().by(identity), Protocol::H1);
        eventually(&format!("{} is known", identity.name), async || {
            (http.get("/api/v1/namespaces").await.status != 401).then_some(())
        })
        .await;
    }
}

//! Rights: how they are written, and the wait until they count.

use http::Method;
use serde_json::{Value, json};

use super::eventually;
use super::http::{Ask, Http, Protocol};
use super::identity::Identity;
use super::plane::Plane;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Where `roles` and `rolebindings` are: in a namespace, or everywhere.
pub fn collection(namespace: Option<&str>, kind: &str) -> String {
    let root = format!("/apis/{GROUP}/v1");
    namespace.map_or_else(|| format!("{root}/cluster{kind}"), |within| format!("{root}/namespaces/{within}/{kind}"))
}

/// A binding of one subject to a `Role` or `ClusterRole`.
pub fn binding(name: &str, kind: &str, role: &str, subject: &Value) -> Value {
    let role = json!({"apiGroup": GROUP, "kind": kind, "name": role});
    json!({"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
}

/// A `User` or `Group`, service accounts by their full name among them.
pub fn subject(kind: &str, name: &str) -> Value {
    json!({"apiGroup": GROUP, "kind": kind, "name": name})
}

/// Waits until the apiserver allows it. Its authorizer learns of rules from watches, like anybody.
pub async fn may(direct: &Http, spec: Value) {
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    eventually(&format!("{spec} is allowed"), async || {
        let ask = Ask::get(path).with(Method::POST, "application/json", review.to_string());
        (direct.ask(ask).await.value()["status"]["allowed"] == true).then_some(())
    })
    .await;
}

impl Plane {
    /// Waits until the apiserver knows who that is.
    pub async fn knows(&self, identity: &Identity) {
        let http = Http::new(self.target().by(identity), Protocol::H1);
        eventually(&format!("{} is known", identity.name), async || {
            (http.get("/api/v1/namespaces").await.status != 401).then_some(())
        })
        .await;
    }
}

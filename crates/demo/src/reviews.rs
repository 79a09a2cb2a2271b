//! Answers `TokenReviews` and `SubjectAccessReviews` as a test orders. Initially no token is valid and no user has a
//! permission.

use std::collections::{HashMap, HashSet};

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::status::DemoStatus;

/// The demo upstream's responses to token and access reviews.
#[derive(Debug, Default)]
pub struct ReviewResponses {
    rules: Mutex<ReviewResponseRules>,
}

/// The number of reviews that were requested since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReviewCounts {
    pub tokens: u64,
    pub accesses: u64,
}

#[derive(Debug, Default)]
struct ReviewResponseRules {
    /// The users by their tokens, in the form of a review's status.
    holders: HashMap<String, Value>,
    /// The granted permissions: pairs of a user and a namespace, or a path that is not a resource's; `*` means
    /// everything.
    rights: HashSet<(String, String)>,
    /// The verbs and resources that self access reviews deny.
    lacking: HashSet<(String, String)>,
    /// The reason for allowing a request in a review.
    reason: String,
    denial: String,
    refusal: Option<u16>,
    counts: ReviewCounts,
}

const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const OURSELVES: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const OWN_ACCESSES: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const ACCESSES: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// The user name that every caller has, because the demo server does not authenticate callers.
const ASKER: &str = "demo";
const FORBIDDEN: u16 = 403;

impl ReviewResponses {
    /// Makes a token valid for a user.
    pub fn give(&self, token: &str, user: &str) {
        self.rules.lock().holders.insert(token.to_owned(), user_info(user));
    }

    /// Makes a token valid for a pod of a service account that runs on a node.
    pub fn give_to_pod(&self, token: &str, account: &str, node: &str) {
        let mut user = user_info(account);
        user["extra"] = json!({
            "authentication.kubernetes.io/node-name": [node],
            "authentication.kubernetes.io/pod-name": [format!("pod-on-{node}")],
        });
        self.rules.lock().holders.insert(token.to_owned(), user);
    }

    /// Makes a token invalid.
    pub fn take(&self, token: &str) {
        self.rules.lock().holders.remove(token);
    }

    /// Allows a user everything in a namespace or at a path, or in the whole cluster for `*`.
    pub fn allow(&self, user: &str, namespace: &str) {
        self.rules.lock().rights.insert((user.to_owned(), namespace.to_owned()));
    }

    /// Revokes a permission that [`allow`](Self::allow) granted.
    pub fn deny(&self, user: &str, namespace: &str) {
        self.rules.lock().rights.remove(&(user.to_owned(), namespace.to_owned()));
    }

    /// Sets the reason for later denials.
    pub fn deny_because(&self, reason: &str) {
        reason.clone_into(&mut self.rules.lock().denial);
    }

    /// Sets the reason for later allow decisions.
    pub fn because(&self, reason: &str) {
        reason.clone_into(&mut self.rules.lock().reason);
    }

    /// Denies a permission on a resource or a path in self access reviews, or all permissions for two `*`. Nothing else is denied because of
    /// it.
    pub fn lack(&self, verb: &str, resource: &str) {
        self.rules.lock().lacking.insert((verb.to_owned(), resource.to_owned()));
    }

    /// Grants again a permission that [`lack`](Self::lack) removed.
    pub fn unlack(&self, verb: &str, resource: &str) {
        self.rules.lock().lacking.remove(&(verb.to_owned(), resource.to_owned()));
    }

    /// Answers all reviews with this status code; `None` answers them normally again. With 403, a self review says that
    /// the caller may not create reviews of others.
    pub fn refuse(&self, code: Option<u16>) {
        self.rules.lock().refusal = code;
    }

    pub fn counts(&self) -> ReviewCounts {
        self.rules.lock().counts
    }

    /// Whether `path` is the path of a review resource.
    pub(crate) fn are_at(path: &str) -> bool {
        [TOKENS, OURSELVES, ACCESSES, OWN_ACCESSES].contains(&path)
    }

    pub(crate) fn answer(&self, path: &str, body: &[u8]) -> Result<(StatusCode, Vec<u8>), DemoStatus> {
        let mut review: Value =
            serde_json::from_slice(body).map_err(|error| DemoStatus::bad_request(error.to_string()))?;
        let mut rules = self.rules.lock();
        match path {
            TOKENS => rules.counts.tokens += 1,
            ACCESSES => rules.counts.accesses += 1,
            _ => {}
        }
        let is_of_others = [TOKENS, ACCESSES].contains(&path);
        if let Some(code) = rules.refusal.filter(|code| *code != FORBIDDEN || is_of_others) {
            return Err(DemoStatus::ordered(code, None));
        }
        let text = |pointer: &str| review.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let status = match path {
            TOKENS => match rules.holders.get(&text("/spec/token")) {
                Some(user) => json!({"authenticated": true, "user": user}),
                None => json!({"user": {}}),
            },
            ACCESSES => {
                let (user, namespace) = (text("/spec/user"), text("/spec/resourceAttributes/namespace"));
                let path = text("/spec/nonResourceAttributes/path");
                let may = |namespace: &str| rules.rights.contains(&(user.clone(), namespace.to_owned()));
                let allowed = may("*") || [namespace, path].iter().any(|place| !place.is_empty() && may(place));
                let reason = if allowed { &rules.reason } else { &rules.denial };
                json!({"allowed": allowed, "reason": reason})
            }
            OWN_ACCESSES => {
                let of = |name: &str| text(&format!("/spec/resourceAttributes/{name}"));
                let of_path = |name: &str| text(&format!("/spec/nonResourceAttributes/{name}"));
                let lacks = |verb: String, resource: String| rules.lacking.contains(&(verb, resource));
                let is_refused = rules.refusal == Some(FORBIDDEN) && of("resource").ends_with("reviews");
                let lacks = is_refused
                    || lacks(of("verb"), of("resource"))
                    || lacks(of_path("verb"), of_path("path"))
                    || lacks("*".to_owned(), "*".to_owned());
                json!({"allowed": !lacks})
            }
            _ => json!({"userInfo": user_info(ASKER)}),
        };
        review["status"] = status;
        Ok((StatusCode::CREATED, review.to_string().into_bytes()))
    }
}

fn user_info(name: &str) -> Value {
    json!({"username": name, "groups": ["system:authenticated"]})
}

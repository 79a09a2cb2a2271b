//! Impersonation: callers with certificates ask the proxy and the apiserver to act as other users, under permissions
//! with and without constraints. Both must give the same answer, whether it is the new identity or the reason for a
//! refusal. The identity comes from the apiserver's own `SelfSubjectReview`.

use std::collections::BTreeSet;

use http::{HeaderName, HeaderValue, Method};
use serde_json::{Value, json};

use crate::bed::{self, Authority, Http, Plan, Plane, Protocol, RequestSpec, rbac, unique};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// A rule: verb, API group, resources, and resource names if it is limited to them.
type Right = (&'static str, &'static str, &'static [&'static str], &'static [&'static str]);

const ROLES: [(&str, &[Right]); 7] = [
    ("none", &[]),
    (
        "legacy",
        &[
            ("impersonate", "", &["users", "groups", "serviceaccounts"], &[]),
            ("impersonate", AUTHENTICATION, &["*"], &[]),
        ],
    ),
    ("legacy-ada", &[("impersonate", "", &["users"], &["ada"]), ("impersonate", "", &["groups"], &["dev"])]),
    (
        "info",
        &[
            (
                "impersonate:user-info",
                AUTHENTICATION,
                &["users", "groups", "uids", "userextras/example.com/scopes"],
                &[],
            ),
            ("impersonate-on:user-info:create", AUTHENTICATION, &["selfsubjectreviews"], &[]),
        ],
    ),
    ("info-without-on", &[("impersonate:user-info", AUTHENTICATION, &["*"], &[])]),
    (
        "info-ada",
        &[
            ("impersonate:user-info", AUTHENTICATION, &["users"], &["ada"]),
            ("impersonate-on:user-info:create", AUTHENTICATION, &["selfsubjectreviews"], &[]),
        ],
    ),
    (
        "machines",
        &[
            ("impersonate:arbitrary-node", AUTHENTICATION, &["nodes"], &["n1"]),
            ("impersonate-on:arbitrary-node:create", AUTHENTICATION, &["selfsubjectreviews"], &[]),
            ("impersonate:serviceaccount", AUTHENTICATION, &["serviceaccounts"], &["builder"]),
            ("impersonate-on:serviceaccount:create", AUTHENTICATION, &["selfsubjectreviews"], &[]),
        ],
    ),
];

const ADA: (&str, &str) = ("impersonate-user", "ada");
const NODE: (&str, &str) = ("impersonate-user", "system:node:n1");
const ACCOUNT: (&str, &str) = ("impersonate-user", "system:serviceaccount:default:builder");

const WANTED: [&[(&str, &str)]; 21] = [
    &[ADA],
    &[("impersonate-user", "bob <b&b>")],
    &[("impersonate-user", "system:anonymous")],
    &[ADA, ("impersonate-group", "dev")],
    &[ADA, ("impersonate-group", "dev"), ("impersonate-group", "ops")],
    &[
        ADA,
        ("impersonate-group", "a"),
        ("impersonate-group", "b"),
        ("impersonate-group", "c"),
        ("impersonate-group", "d"),
    ],
    &[ADA, ("impersonate-group", "system:masters")],
    &[ADA, ("impersonate-group", "system:unauthenticated")],
    &[ADA, ("impersonate-uid", "7")],
    &[ADA, ("impersonate-extra-example.com%2fscopes", "a"), ("impersonate-extra-example.com%2fscopes", "b")],
    &[ADA, ("impersonate-extra-example.com%2fother", "a")],
    &[ADA, ("impersonate-extra-scopes", "a")],
    &[ADA, ("impersonate-extra-example.com%2f%53copes", "a")],
    &[NODE],
    &[NODE, ("impersonate-group", "system:nodes")],
    &[("impersonate-user", "system:node:n2")],
    &[ACCOUNT],
    &[ACCOUNT, ("impersonate-uid", "7")],
    &[("impersonate-user", "system:serviceaccount:default:other")],
    &[("impersonate-group", "dev")],
    &[("impersonate-user", "")],
];

/// Grants a group its permissions, and waits until they apply.
async fn grant(direct: &Http, name: &str, rights: &[Right]) {
    let list = |name_list: &[&str]| json!(name_list);
    let rule = |(verb, group, resources, names): &Right| {
        let mut rule = json!({"verbs": [verb], "apiGroups": [group], "resources": list(resources)});
        if !names.is_empty() {
            rule["resourceNames"] = list(names);
        }
        rule
    };
    let rules: Vec<Value> = rights.iter().map(rule).collect();
    direct.create(&rbac::collection(None, "roles"), json!({"metadata": {"name": name}, "rules": rules})).await;
    let binding = rbac::binding(name, "ClusterRole", name, &rbac::subject("Group", name));
    direct.create(&rbac::collection(None, "rolebindings"), binding).await;
    for (verb, group, resources, names) in rights {
        let (resource, subresource) = resources[0].split_once('/').unwrap_or((resources[0], ""));
        let resource = if resource == "*" { "uids" } else { resource };
        let attributes = json!({
            "verb": verb, "group": group, "resource": resource, "subresource": subresource,
            "name": names.first().copied().unwrap_or("x"),
        });
        rbac::may(direct, json!({"user": "x", "groups": [name], "resourceAttributes": attributes})).await;
    }
}

fn named(header: &str) -> HeaderName {
    HeaderName::try_from(header).expect("a name")
}

/// The resulting identity, or the reason for the refusal.
async fn review_identity(http: &Http, headers: &[(&str, &str)]) -> (u16, Value) {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let mut request = RequestSpec::get(REVIEWS).with(Method::POST, "application/json", review.to_string());
    for (name, value) in headers {
        request.headers.append(named(name), HeaderValue::from_str(value).expect("a value"));
    }
    let answer = http.fetch(request).await;
    let body = answer.value();
    let what = if answer.status == 201 { body["status"]["userInfo"].clone() } else { body };
    (answer.status.as_u16(), without_credential(what))
}

/// Removes the id of the client certificate, which is the same on both sides and long.
fn without_credential(mut what: Value) -> Value {
    if let Some(extra) = what.get_mut("extra").and_then(Value::as_object_mut) {
        extra.remove("authentication.kubernetes.io/credential-id");
    }
    what
}

/// The differences, and the permissions by which an impersonation succeeded.
async fn compare(plane: &Plane, cases: &[&[(&str, &str)]]) -> (Vec<String>, BTreeSet<&'static str>) {
    let proxy = Plan::delegated(plane).start(plane).await;
    let (direct, authority) = (Http::new(plane.target(), Protocol::H2), Authority::of(plane));
    let (mut differences, mut taking) = (Vec::new(), BTreeSet::new());
    for (role, rights) in ROLES {
        let group = unique(role);
        grant(&direct, &group, rights).await;
        for impersonation in cases {
            // A new caller for each request, because the apiserver first tries the way that worked for a requestor
            // before.
            let holder = authority.issue(&unique("holder"), &[&group]);
            let expected = review_identity(&Http::new(plane.target().by(&holder), Protocol::H2), impersonation).await;
            let actual = review_identity(&proxy.client_of(&holder), impersonation).await;
            let is_taken = expected.0 == 201 && impersonation.iter().any(|(_, name)| expected.1["username"] == *name);
            taking.extend(is_taken.then_some(role));
            if expected != actual {
                differences.push(format!("{role}, {impersonation:?}:\nexpected {expected:?}\n  actual {actual:?}"));
            }
        }
    }
    proxy.assert_sound();
    (differences, taking)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impersonation_by_certificate_matches_the_apiserver() {
    let Some(bed) = bed::shared().await else { return };
    let (differences, taking) = compare(&bed, &WANTED).await;
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    assert_eq!(taking, BTreeSet::from(["info", "info-ada", "legacy", "legacy-ada", "machines"]));
}

/// A server without constrained impersonation must not gain it through the proxy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_adds_no_constrained_impersonation_to_old_upstreams() {
    let Some(bed) = bed::own_with("impersonation-old", &["--emulated-version=1.35"]).await else { return };
    // The last two name no user, and older servers have other messages for that.
    let (differences, taking) = compare(&bed, &WANTED[..WANTED.len() - 2]).await;
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    assert_eq!(taking, BTreeSet::from(["legacy", "legacy-ada"]));
}

/// The apiserver parses the path before it checks impersonation (R-ORDER-1).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_path_fails_before_impersonation_is_checked() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::delegated(&bed).start(&bed).await;
    let holder = Authority::of(&bed).issue(&unique("holder"), &[]);
    let direct = Http::new(bed.target().by(&holder), Protocol::H2);
    let through = proxy.client_of(&holder);
    let impersonation: [&[(&str, &str)]; 4] = [&[], &[ADA], &[("impersonate-group", "g")], &[("impersonate-user", "")]];
    for impersonation in impersonation {
        let headers = impersonation.iter().copied();
        let request = headers
            .fold(RequestSpec::get("/apis/apps/v1/watch"), |request, (name, value)| request.header(named(name), value));
        let (expected, actual) = (direct.fetch(request.clone()).await, through.fetch(request).await);
        assert_eq!(expected.status, 500, "{impersonation:?}: {}", expected.text());
        assert_eq!((actual.status, actual.text()), (expected.status, expected.text()), "{impersonation:?}");
    }
    proxy.assert_sound();
}

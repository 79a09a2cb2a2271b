use http::{HeaderName, HeaderValue};

use super::modes::{ImpersonationMode, ImpersonationStep, modes};
use super::*;
use kubeapi::{AccessAttributes, AccessTarget, RequestInfo, ResourceAccessAttributes, UrlQuery};

fn read(lines: &[(&'static str, &'static str)]) -> Result<Option<User>, InvalidImpersonation> {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    Impersonation::from_headers(&headers).map(|read| read.map(|Impersonation(user)| user))
}

fn request(method: &str, path: &str) -> AccessAttributes {
    AccessAttributes::from_request(&RequestInfo::parse(method, path, &UrlQuery::parse("")).expect("a path"))
}

/// `VERB GROUP RESOURCE/SUBRESOURCE NAMESPACE NAME`, with a dash for an empty part.
fn reported(access: &AccessAttributes) -> String {
    let word = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    match &access.target {
        AccessTarget::Path(path) => format!("{} {path}", access.verb),
        AccessTarget::Resource(target) => {
            let ResourceAccessAttributes { group, resource, subresource, namespace, name, version, .. } = &**target;
            assert_eq!(version, "v1");
            let resource = if subresource.is_empty() { resource.clone() } else { format!("{resource}/{subresource}") };
            format!("{} {} {resource} {} {}", access.verb, word(group), word(namespace), word(name))
        }
    }
}

fn steps(mode: &ImpersonationMode) -> Vec<String> {
    let step = |step: &ImpersonationStep| match step {
        ImpersonationStep::Review(access) => reported(access),
        ImpersonationStep::AllOrEach(all, each) => {
            format!("{} or {}", reported(all), each.iter().map(reported).collect::<Vec<_>>().join(" and "))
        }
        ImpersonationStep::Never(access, reason) => format!("never {}: {reason}", reported(access)),
    };
    mode.steps.iter().map(step).collect()
}

fn user(name: &str) -> User {
    User { name: name.to_owned(), ..User::default() }
}

/// The modes for a request that lists pods, each with its steps.
fn ways(requestor: &User, lines: &[(&'static str, &'static str)]) -> Vec<Vec<String>> {
    let target_user = read(lines).expect("well formed").expect("a user");
    let request = request("GET", "/api/v1/namespaces/t1/pods");
    modes(requestor, &target_user, Some(&request)).iter().map(steps).collect()
}

#[test]
fn impersonation_header_parsing_matches_the_apiserver() {
    let all = read(&[
        ("impersonate-user", "ada"),
        ("impersonate-group", "dev"),
        ("impersonate-group", ""),
        ("impersonate-uid", "7"),
        ("impersonate-extra-example.com%2fscopes", "a"),
        ("impersonate-extra-example.com%2fscopes", "b"),
        ("impersonate-extra-%41cme%2b%zz", "c"),
        ("impersonate-extra-%41cme.io%2f%4bey", "d"),
        ("impersonate-extra-", "e"),
    ]);
    let all = all.expect("well formed").expect("a user");
    assert_eq!((all.name.as_str(), all.uid.as_str()), ("ada", "7"));
    assert_eq!(all.groups, ["dev", ""]);
    let extra: Vec<_> = all.extra.iter().map(|(key, values)| (key.as_str(), values.join(","))).collect();
    let expected = [
        ("", "e".to_owned()),
        ("%41cme%2b%zz", "c".to_owned()),
        ("Acme.io/Key", "d".to_owned()),
        ("example.com/scopes", "a,b".to_owned()),
    ];
    assert_eq!(extra, expected);
}

#[test]
fn impersonation_without_user_fails_with_the_apiserver_message() {
    for no_user in [&[("x-other", "a")][..], &[("impersonate-user", "")], &[("impersonate-else", "a")]] {
        assert_eq!(read(no_user), Ok(None), "{no_user:?}");
    }
    let reason = |lines| read(lines).expect_err("rejected").to_string();
    for (lines, who) in [
        (
            &[("impersonate-group", "system:masters")][..],
            r#"Name:"", UID:"", Groups:[]string{"system:masters"}, Extra:map[string][]string(nil)"#,
        ),
        (
            &[("impersonate-extra-a", "b"), ("impersonate-uid", "7")],
            r#"Name:"", UID:"7", Groups:[]string(nil), Extra:map[string][]string{"a":[]string{"b"}}"#,
        ),
    ] {
        let expected = format!("requested &user.DefaultInfo{{{who}}} without impersonating a user name");
        assert_eq!(reason(lines), expected);
    }
    let mut headers = HeaderMap::new();
    headers.insert(USER, HeaderValue::from_bytes(b"\xff").expect("a value"));
    assert_eq!(
        Impersonation::from_headers(&headers),
        Err(InvalidImpersonation::NotText(HeaderName::from_static(USER)))
    );
}

#[test]
fn constrained_impersonation_is_tried_before_legacy() {
    let ways = ways(
        &user("bob"),
        &[
            ("impersonate-user", "ada"),
            ("impersonate-group", "dev"),
            ("impersonate-group", "ops"),
            ("impersonate-uid", "7"),
            ("impersonate-extra-example.com%2fscopes", "a"),
        ],
    );
    let constrained = [
        "impersonate-on:user-info:list - pods t1 -",
        "impersonate:user-info authentication.k8s.io users - ada",
        "impersonate:user-info authentication.k8s.io uids - 7",
        "impersonate:user-info authentication.k8s.io groups - dev",
        "impersonate:user-info authentication.k8s.io groups - ops",
        "impersonate:user-info authentication.k8s.io userextras/example.com/scopes - a",
    ];
    let legacy = [
        "impersonate - users - ada",
        "impersonate authentication.k8s.io uids - 7",
        "impersonate - groups - dev",
        "impersonate - groups - ops",
        "impersonate authentication.k8s.io userextras/example.com/scopes - a",
    ];
    assert_eq!(ways, [constrained.map(str::to_owned).to_vec(), legacy.map(str::to_owned).to_vec()]);
}

#[test]
fn node_and_service_account_impersonation_use_their_own_verbs() {
    let bob = user("bob");
    let of = |name| ways(&bob, &[("impersonate-user", name)]);
    assert_eq!(
        of("system:node:n1"),
        [
            vec![
                "impersonate-on:arbitrary-node:list - pods t1 -".to_owned(),
                "impersonate:arbitrary-node authentication.k8s.io nodes - n1".to_owned(),
            ],
            vec!["impersonate - users - system:node:n1".to_owned()],
        ]
    );
    assert_eq!(
        of("system:serviceaccount:t1:builder"),
        [
            vec![
                "impersonate-on:serviceaccount:list - pods t1 -".to_owned(),
                "impersonate:serviceaccount authentication.k8s.io serviceaccounts t1 builder".to_owned(),
            ],
            vec!["impersonate - serviceaccounts t1 builder".to_owned()],
        ]
    );
    for name in ["system:node:n1", "system:serviceaccount:t1:builder"] {
        let more = ways(&bob, &[("impersonate-user", name), ("impersonate-group", "dev")]);
        assert_eq!(more.len(), 1, "{name}: with more than a name there is no way under constraints");
        assert!(more[0].iter().all(|step| step.starts_with("impersonate ")), "{more:?}");
    }
}

#[test]
fn service_account_impersonates_its_associated_node() {
    let mut agent = user("system:serviceaccount:t1:agent");
    agent.extra.insert("authentication.kubernetes.io/node-name".into(), vec!["n1".into()]);
    agent.extra.insert("authentication.kubernetes.io/pod-name".into(), vec!["p".into()]);
    let request = request("GET", "/api/v1/pods");
    let own = modes(&agent, &user("system:node:n1"), Some(&request));
    let associated = [
        "impersonate-on:associated-node:list - pods - -",
        "impersonate:associated-node authentication.k8s.io nodes - *",
    ];
    assert_eq!((own.len(), steps(&own[0])), (3, associated.map(str::to_owned).to_vec()));
    let keys = ["authentication.kubernetes.io/node-name", "authentication.kubernetes.io/pod-name"];
    let subject = own[0].subject.as_ref().expect("another than the requestor as it is");
    assert_eq!(subject.extra["authentication.kubernetes.io/associated-node-keys"], keys);
    assert_eq!((subject.name.as_str(), subject.extra.len()), (agent.name.as_str(), 1));
    assert_eq!(
        (own[0].user.groups.as_slice(), own[1].user.groups.as_slice()),
        (&["system:nodes".into()][..], &["system:nodes".into()][..])
    );
    assert!(own[2].user.groups.is_empty(), "the way without constraints adds nothing");
    assert_eq!(modes(&agent, &user("system:node:n2"), Some(&request)).len(), 2, "another node");
    agent.name = "bob".into();
    assert_eq!(modes(&agent, &user("system:node:n1"), Some(&request)).len(), 2, "no service account");
}

#[test]
fn constrained_impersonation_rejects_forbidden_groups_and_extras() {
    let bob = user("bob");
    let constrained = |lines: &[(&'static str, &'static str)]| ways(&bob, lines).swap_remove(0).pop().expect("a step");
    let ada = ("impersonate-user", "ada");
    for (part, step) in [
        (
            ("impersonate-group", "system:masters"),
            "groups - system:masters: impersonating the system:masters group is not allowed",
        ),
        (("impersonate-group", ""), "groups - -: impersonating the empty string group is not allowed"),
        (("impersonate-extra-", "a"), "userextras - -: impersonating the empty string key in extra is not allowed"),
        (
            ("impersonate-extra-a.b%2fc", ""),
            "userextras - -: impersonating the empty string value in extra is not allowed",
        ),
        (
            ("impersonate-extra-a.b%2f%43", "a"),
            "userextras - -: impersonating a non-lowercase key in extra is not allowed: \"a.b/C\"",
        ),
        (
            ("impersonate-extra-scopes", "a"),
            "userextras - -: impersonating an invalid key in extra is not allowed: extra.key: Invalid value: \
             \"scopes\": must be a domain-prefixed path (such as \"acme.io/foo\")",
        ),
    ] {
        assert_eq!(constrained(&[ada, part]), format!("never impersonate:user-info authentication.k8s.io {step}"));
    }
}

#[test]
fn many_groups_or_extras_try_one_wildcard_review_first() {
    let bob = user("bob");
    let groups = ["a", "b", "c", "d"].map(|group| ("impersonate-group", group));
    let lines = [&[("impersonate-user", "ada")][..], &groups].concat();
    let ways = ways(&bob, &lines);
    let group = |name| format!("impersonate:user-info authentication.k8s.io groups - {name}");
    let each = ["a", "b", "c", "d"].map(group).join(" and ");
    assert_eq!(ways[0].last(), Some(&format!("{} or {each}", group("*"))));
    assert_eq!(ways[1].len(), 5, "not without constraints");
    let extras = ["a.b/a", "a.b/b"].map(|key| (key.to_owned(), vec!["1".to_owned(), "2".to_owned()]));
    let target_user = User { extra: extras.into_iter().collect(), ..user("ada") };
    let ways = modes(&bob, &target_user, Some(&request("GET", "/api/v1/pods")));
    assert!(steps(&ways[0]).last().expect("a step").contains("userextras/* - * or "), "{:?}", steps(&ways[0]));
}

#[test]
fn non_resource_impersonation_uses_path_or_legacy_verb_only() {
    let (bob, ada) = (user("bob"), user("ada"));
    let ways = modes(&bob, &ada, Some(&request("GET", "/healthz")));
    assert_eq!(steps(&ways[0])[0], "impersonate-on:user-info:get /healthz");
    let ways = modes(&bob, &ada, None);
    assert_eq!(ways.iter().map(steps).collect::<Vec<_>>(), [["impersonate - users - ada".to_owned()]]);
}

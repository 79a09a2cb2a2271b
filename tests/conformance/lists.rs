//! Observable behaviour of lists and gets, each compared between the apiserver and the proxy.

use futures_util::future::join;
use kubeapi::{Gvr, SelectableFieldTable};
use serde_json::{Value, json};

use crate::bed::{self, Pair, RequestSpec, log_line, version_of};

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("items");
    items.iter().filter_map(|item| item["metadata"]["name"].as_str()).collect()
}

#[tokio::test]
async fn list_items_are_in_storage_key_order() {
    let Some(pair) = Pair::new().await else { return };
    pair.maps().await;
    for selector in ["", "&labelSelector=app%3Dx"] {
        let list = pair.through.json(&format!("/api/v1/configmaps?resourceVersion=0{selector}")).await;
        let items = list["items"].as_array().expect("items");
        let spaces = items.iter().filter_map(|item| item["metadata"]["namespace"].as_str());
        let ours: Vec<_> = spaces.filter(|space| space.starts_with(&pair.namespace)).collect();
        let expected = [&pair.next, &pair.next, &pair.namespace, &pair.namespace].map(String::as_str);
        assert_eq!(ours, expected, "a dash comes before a slash");
    }
}

#[tokio::test]
async fn limit_with_resource_version_matches_the_apiserver() {
    let Some(pair) = Pair::new().await else { return };
    pair.maps().await;
    let version = pair.direct.version(&pair.path("")).await;
    pair.create_map(&pair.namespace, "cm-aa").await;
    let any = pair.same(RequestSpec::get(&pair.path("?limit=1&resourceVersion=0"))).await.value();
    assert_eq!((names(&any).len(), &any["metadata"]["continue"]), (3, &Value::Null), "limit is ignored");
    for form in ["application/json", "application/vnd.kubernetes.protobuf"] {
        for query in ["limit=1&", "limit=1&resourceVersionMatch=Exact&", "resourceVersionMatch=Exact&"] {
            let path = pair.path(&format!("?{query}resourceVersion={version}"));
            let answer = pair.same(RequestSpec::get(&path).accept(form)).await;
            if form == "application/json" {
                let list = answer.value();
                assert_eq!(version_of(&list), version, "{query}: exactly that version");
                assert!(!names(&list).contains(&"cm-aa"), "{query}: as of then");
            }
        }
        let path = pair.path(&format!("?resourceVersion={version}"));
        let answer = pair.same(RequestSpec::get(&path).accept(form)).await;
        assert!(answer.is_cached());
    }
    let newer = pair.through.json(&pair.path(&format!("?resourceVersion={version}"))).await;
    assert!(version_of(&newer) >= version);
}

#[tokio::test]
async fn pages_share_one_version_and_tokens_work_on_both_servers() {
    // The first page of all namespaces contains objects of other tests, so this test runs alone.
    let Some(bed) = bed::alone().await else { return };
    let pair = Pair::on(bed).await;
    pair.maps().await;
    let collections = [pair.path(""), "/api/v1/configmaps".to_owned()];
    for (at, collection) in collections.iter().enumerate() {
        let first = |http: &bed::Http| {
            let http = http.clone();
            let path = format!("{collection}?limit=1");
            async move { http.json(&path).await }
        };
        let (ours, theirs) = (first(&pair.through).await, first(&pair.direct).await);
        assert_eq!(names(&ours), names(&theirs));
        let added = format!("cm-a{at}");
        pair.create_map(&pair.namespace, &added).await;
        for (page, from) in [(&ours, "proxy"), (&theirs, "apiserver")] {
            let token = page["metadata"]["continue"].as_str().expect("there is more");
            for (http, at) in [(&pair.through, "proxy"), (&pair.direct, "apiserver")] {
                let rest = http.json(&format!("{collection}?limit=5000&continue={token}")).await;
                let what = format!("{collection}: a token of the {from} at the {at}");
                assert_eq!(version_of(&rest), version_of(page), "{what}");
                assert!(!names(&rest).contains(&added.as_str()), "{what}");
                let remaining = page["metadata"]["remainingItemCount"].as_u64();
                assert_eq!(remaining, Some(names(&rest).len() as u64), "{what}");
            }
        }
        pair.direct.delete(&pair.path(&format!("/{added}"))).await;
    }
}

/// Compares tokens of the same page at the same version, in one namespace and in all, of built-in and custom resources.
/// Upstream reads some of them from its watch cache, and events from etcd.
#[tokio::test]
async fn continue_tokens_match_the_apiserver_byte_for_byte() {
    // On the shared control plane Events expire during the test, and other tests write.
    let Some(bed) = bed::quiet("tokens").await else { return };
    let pair = Pair::on(bed).await;
    pair.maps().await;
    let events = format!("/api/v1/namespaces/{}/events", pair.namespace);
    for name in ["e1", "e2", "e3"] {
        let involved = json!({"kind": "Pod", "name": "p", "namespace": pair.namespace});
        pair.direct.create(&events, json!({"metadata": {"name": name}, "involvedObject": involved})).await;
    }
    let mut compared = 0;
    for collection in [pair.path(""), "/api/v1/configmaps".to_owned(), "/api/v1/namespaces".to_owned(), events] {
        let version = pair.direct.version(&collection).await;
        let there = format!("{collection}?resourceVersion={version}&labelSelector=none");
        pair.through.until_ok("the feed is there", RequestSpec::get(&there)).await;
        let queries = [
            format!("limit=1&resourceVersion={version}&resourceVersionMatch=Exact"),
            "limit=1".to_owned(),
            format!("limit=1&resourceVersion={version}&labelSelector=kubernetes.io/metadata.name"),
        ];
        for query in queries {
            let mut rest = query;
            for page in 0..2 {
                let path = format!("{collection}?{rest}");
                let [ours, theirs] = [&pair.through, &pair.direct].map(|http| http.json(&path));
                let (ours, theirs) = tokio::join!(ours, theirs);
                let token = |list: &Value| list["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
                assert_eq!(spelled(&token(&ours)), spelled(&token(&theirs)), "{path}");
                if version_of(&ours) == version_of(&theirs) {
                    assert_eq!(token(&ours), token(&theirs), "{path}");
                    compared += usize::from(!token(&ours).is_empty());
                }
                if token(&theirs).is_empty() {
                    break;
                }
                // Requests the next page from both, with either server's token.
                rest = format!("limit=1&continue={}", if page == 0 { token(&ours) } else { token(&theirs) });
            }
        }
    }
    assert!(compared >= 8, "{compared} tokens of the same version");
    log_line(&format!("{compared} tokens are equal"));
}

/// A token without its version.
fn spelled(token: &str) -> String {
    use base64::Engine;
    let decoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(token).expect("base64");
    if decoded.is_empty() {
        return String::new();
    }
    let mut decoded: Value = serde_json::from_slice(&decoded).expect("JSON");
    decoded.as_object_mut().expect("an object").remove("rv");
    decoded.to_string()
}

/// A list with a name selector reads one key, for which a version with a limit does not mean "exact".
#[tokio::test]
async fn list_by_name_with_limit_is_not_treated_as_exact() {
    let Some(pair) = Pair::new().await else { return };
    let version = pair.maps().await;
    pair.direct.patch(&pair.path("/cm-a"), json!({"data": {"later": "1"}})).await;
    pair.settle(pair.direct.version(&pair.path("")).await).await;
    for query in
        ["limit=1", "limit=500", "resourceVersionMatch=NotOlderThan", "resourceVersionMatch=NotOlderThan&limit=1"]
    {
        let named = format!("?fieldSelector=metadata.name%3Dcm-a&resourceVersion={version}&{query}");
        let list = pair.same(RequestSpec::get(&pair.path(&named))).await;
        assert_eq!(list.value()["items"][0]["data"]["later"], "1", "{query}: not older, not exactly");
    }
    let exact = format!("?fieldSelector=metadata.name%3Dcm-a&resourceVersion={version}&resourceVersionMatch=Exact");
    let list = pair.same(RequestSpec::get(&pair.path(&exact))).await.value();
    assert!(list["items"][0]["data"]["later"].is_null());
}

/// A selector filters the scanned objects: there is a token as long as objects remain to be scanned, and the last page
/// may be empty. If an index finds the objects, only these are scanned.
#[tokio::test]
async fn paging_with_a_selector_ends_where_the_apiservers_does() {
    let Some(pair) = Pair::new().await else { return };
    pair.maps().await;
    let pods = format!("/api/v1/namespaces/{}/pods", pair.namespace);
    for (name, node) in [("p1", "n1"), ("p2", "n1"), ("p3", "n2")] {
        let spec = json!({"nodeName": node, "containers": [{"name": "c", "image": "i"}]});
        pair.direct.create(&pods, json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": spec})).await;
    }
    let version = pair.direct.version(&pods).await;
    let maps = pair.path("");
    pair.settle(version).await;
    let there = format!("{pods}?resourceVersion={version}&labelSelector=none");
    pair.through.until_ok("the feed of pods is there", RequestSpec::get(&there)).await;
    let selections = [
        (&maps, "labelSelector=app%3Dx"),
        (&maps, "fieldSelector=metadata.name%3Dcm-a"),
        (&maps, "fieldSelector=metadata.name!%3Dcm-b"),
        (&pods, "labelSelector=app%3Dp1"),
        (&pods, "labelSelector=app%3Dp3"),
        (&pods, "fieldSelector=spec.nodeName%3Dn1"),
        (&pods, "fieldSelector=spec.nodeName%3Dn2"),
        (&pods, "fieldSelector=spec.nodeName%3Dn1&labelSelector=app%3Dp1"),
    ];
    let at = format!("&resourceVersion={version}");
    let mut pages = 0;
    for (collection, selection) in selections {
        for how in [String::new(), at.clone(), format!("{at}&resourceVersionMatch=NotOlderThan")] {
            let mut rest = how;
            loop {
                let path = format!("{collection}?limit=1&{selection}{rest}");
                let page = pair.same(RequestSpec::get(&path)).await.value();
                pages += 1;
                match page["metadata"]["continue"].as_str() {
                    Some(next) => rest = format!("&continue={next}"),
                    None => break,
                }
            }
        }
    }
    log_line(&format!("{pages} pages alike; forwarded: {:?}", pair.proxy.forwarded().await));
}

#[tokio::test]
async fn list_and_get_bodies_match_the_apiserver_byte_for_byte() {
    let Some(pair) = Pair::new().await else { return };
    pair.maps().await;
    let list = pair.same(RequestSpec::get(&pair.path("?resourceVersion=0"))).await;
    assert!(list.is_cached());
    assert!(list.value()["items"][0]["kind"].is_null(), "items of built-in lists have no kind");
    assert!(list.text().contains(r#""k":"a\u003cb\u003e\u0026\u2028""#), "escaped as Go does");
    for path in [
        "/cm-a?resourceVersion=0",
        "/cm-a",
        "?watch=0",
        "?labelSelector=app%3Dx",
        "?fieldSelector=metadata.name%3Dcm-a",
    ] {
        for form in ["application/json", "application/vnd.kubernetes.protobuf"] {
            pair.same(RequestSpec::get(&pair.path(path)).accept(form)).await;
        }
    }
    let object = pair.through.json(&pair.path("/cm-a?resourceVersion=0")).await;
    assert_eq!((&object["kind"], &object["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    let nowhere = pair.same(RequestSpec::get("/api/v1/namespaces/nope/configmaps?resourceVersion=0")).await.value();
    assert_eq!(nowhere["items"], json!([]), "an array, and no 404");
    let missing = pair.same(RequestSpec::get(&pair.path("/missing?resourceVersion=0"))).await;
    assert_eq!(missing.status, 404);
    assert!(missing.is_cached());
}

#[tokio::test]
async fn field_selector_treats_absent_field_as_empty() {
    let Some(pair) = Pair::new().await else { return };
    let pods = format!("/api/v1/namespaces/{}/pods", pair.namespace);
    for (name, node) in [("free", None), ("bound", Some("n1"))] {
        let spec = json!({"containers": [{"name": "c", "image": "i"}], "nodeName": node});
        pair.direct.create(&pods, json!({"metadata": {"name": name}, "spec": spec})).await;
    }
    let version = pair.direct.version(&pods).await;
    for http in [&pair.direct, &pair.through] {
        let there = format!("{pods}?resourceVersion={version}&labelSelector=none");
        http.until_ok("both have them", RequestSpec::get(&there)).await;
    }
    let list = async |selector: &str| {
        let path = format!("{pods}?resourceVersion=0&fieldSelector={selector}");
        let answer = pair.same(RequestSpec::get(&path)).await;
        (answer.status.as_u16(), answer.value())
    };
    let (code, free) = list("spec.nodeName%3D").await;
    assert_eq!((code, names(&free)), (200, vec!["free"]));
    let (_, bound) = list("spec.nodeName!%3D").await;
    assert_eq!(names(&bound), ["bound"]);
    let (_, alias) = list("spec.host%3Dn1").await;
    assert_eq!(names(&alias), ["bound"]);
    let (code, none) = list("status.podIPs%3D1.2.3.4").await;
    assert_eq!((code, names(&none).len()), (200, 0));
    let (code, refused) = list("status.foo%3D1").await;
    assert_eq!((code, &refused["message"]), (400, &json!("field label not supported: status.foo")));
    log_line(&format!("forwarded: {:?}", pair.proxy.forwarded().await));
}

/// Resources with additional selectable fields, in each version that any minor of the matrix has.
const SELECTABLE: [(&str, &[&str], &str); 13] = [
    ("", &["v1"], "pods"),
    ("", &["v1"], "nodes"),
    ("", &["v1"], "namespaces"),
    ("", &["v1"], "secrets"),
    ("", &["v1"], "services"),
    ("", &["v1"], "replicationcontrollers"),
    ("", &["v1"], "events"),
    ("events.k8s.io", &["v1"], "events"),
    ("batch", &["v1"], "jobs"),
    ("certificates.k8s.io", &["v1"], "certificatesigningrequests"),
    ("certificates.k8s.io", &["v1alpha1", "v1beta1", "v1"], "clustertrustbundles"),
    ("certificates.k8s.io", &["v1alpha1", "v1beta1", "v1"], "podcertificaterequests"),
    ("resource.k8s.io", &["v1beta1", "v1beta2", "v1"], "resourceslices"),
];
/// Field keys that only some resources support, or only from some minor on.
const CONTESTED: [&str; 8] =
    ["metadata.namespace", "spec.pool.name", "spec.driver", "spec.nodeName", "status.phase", "type", "source", "foo"];

/// No published type lists the field keys that a minor accepts. This test sends each key that is answered from memory
/// to the apiserver. `make matrix` tests every minor.
#[tokio::test]
async fn cached_field_selector_keys_are_accepted_by_the_apiserver() {
    let Some(pair) = Pair::new().await else { return };
    let (mut key_count, mut passed) = (0, 0);
    for (group, versions, plural) in SELECTABLE {
        for version in versions {
            let gvr = Gvr::new(group, version, plural);
            if pair.direct.get(&gvr.path()).await.status == 404 {
                continue;
            }
            let table = SelectableFieldTable::of_builtin(&gvr);
            let keys = table.fields.iter().map(|field| &field.key).chain(table.aliases.iter().map(|(alias, _)| alias));
            let keys = keys.chain(&table.absent).map(String::as_str).chain(["metadata.name"]).chain(CONTESTED);
            for key in keys {
                let path = format!("{}?resourceVersion=0&fieldSelector={key}%3Dx", gvr.path());
                let (ours, theirs) = join(pair.through.get(&path), pair.direct.get(&path)).await;
                assert_eq!(ours.status, theirs.status, "{path}: {}", theirs.text());
                if ours.status != 200 {
                    assert_eq!(ours.text(), theirs.text(), "{path}");
                }
                (key_count, passed) = (key_count + 1, passed + usize::from(!ours.is_cached()));
            }
        }
    }
    assert!(key_count > 100 && passed < key_count, "{passed} of {key_count} forwarded");
    log_line(&format!("{key_count} keys, {passed} of them forwarded"));
}

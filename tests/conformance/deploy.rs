//! A central proxy that has the rights of deploy/rbac.yaml and no others.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::bed::{self, Ask, Bed, Http, Identity, Plan, Plane, Protocol, eventually, say};

const NAMESPACE: &str = "kube-fanout";
/// Every service account may read these, by a role that Kubernetes comes with.
const ANYBODYS: &str = "clustertrustbundles";

/// Creates what is in deploy/rbac.yaml; the names of resources that the proxy may list, by their group.
async fn give_rights(direct: &Http) -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(bed::repository().join("deploy/rbac.yaml")).expect("the file is there");
    let mut listed = BTreeMap::<String, Vec<String>>::new();
    for document in text.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(document).expect("YAML");
        let kind = object["kind"].as_str().expect("a kind").to_lowercase();
        direct.create(&format!("/apis/rbac.authorization.k8s.io/v1/{kind}s"), object.clone()).await;
        for rule in object["rules"].as_array().into_iter().flatten() {
            let all = |key: &str| {
                let names = rule[key].as_array().into_iter().flatten().filter_map(Value::as_str);
                names.map(str::to_owned).collect::<Vec<_>>()
            };
            if all("verbs").contains(&"list".to_owned()) {
                for group in all("apiGroups") {
                    listed.entry(group).or_default().extend(all("resources"));
                }
            }
        }
    }
    listed
}

/// A service account's token, and a kubeconfig with it.
async fn account(bed: &Bed<Box<Plane>>, name: &str) -> (Identity, std::path::PathBuf) {
    let direct = bed.direct();
    let account = bed::Account::create(&direct, NAMESPACE, name).await;
    let identity = account.token(&direct).await;
    let path = bed.file(&format!("{name}.kubeconfig"));
    let cluster = json!({"server": bed.url(), "certificate-authority": bed.ca()});
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": identity.token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    fs::write(&path, config.to_string()).expect("a file");
    (identity, path)
}

/// Resources that can be watched, with their paths, of the groups' preferred versions.
async fn served(direct: &Http) -> Vec<(String, String, String)> {
    let groups = direct.json("/apis").await;
    let preferred = groups["groups"].as_array().expect("groups").iter().map(|group| {
        let version = group["preferredVersion"]["groupVersion"].as_str().expect("a version");
        (group["name"].as_str().expect("a name").to_owned(), format!("/apis/{version}"))
    });
    let mut found = Vec::new();
    for (group, prefix) in preferred.chain([(String::new(), "/api/v1".to_owned())]) {
        for resource in direct.json(&prefix).await["resources"].as_array().expect("resources") {
            let name = resource["name"].as_str().expect("a name").to_owned();
            let watched = resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("watch")));
            if watched && !name.contains('/') {
                found.push((group.clone(), name.clone(), format!("{prefix}/{name}")));
            }
        }
    }
    found
}

#[tokio::test]
async fn a_central_proxy_holds_what_deploy_gives_it_and_may_do_nothing_else() {
    let Some(bed) = bed::own("deploy").await else { return };
    let direct = bed.direct();
    direct.create("/api/v1/namespaces", json!({"metadata": {"name": NAMESPACE}})).await;
    let listed = give_rights(&direct).await;
    let (identity, kubeconfig) = account(&bed, "kube-fanout").await;
    let itself = Http::new(bed.target().by(&identity), Protocol::H2);
    eventually("the rights count", async || (itself.get("/api/v1/pods").await.status == 200).then_some(())).await;
    let proxy = Plan::delegated(&bed).upstream(&kubeconfig).start(&bed).await;
    let admin = proxy.client();
    let (mut held, mut passed) = (0, Vec::new());
    for (group, name, path) in served(&direct).await {
        let gives = listed.get(&group).is_some_and(|names| names.contains(&name)) || name == ANYBODYS;
        let answer = admin.ask(Ask::get(&path)).await;
        assert_eq!((answer.status.as_u16(), answer.is_cached()), (200, gives), "{path}: {}", answer.text());
        assert_eq!(itself.get(&path).await.status == 200, gives, "{path}");
        held += usize::from(gives);
        passed.extend((!gives).then_some(path));
    }
    assert!(held > 50, "{held} resources are held");
    assert!(passed.contains(&"/api/v1/secrets".to_owned()), "{passed:?}");
    // RBAC is watched while an open watch needs it.
    let open = admin.watch(Ask::get("/api/v1/pods?watch=true&resourceVersion=0")).await;
    let watched = async || (proxy.metrics().await.sum("kube_fanout_auth_policy_watched", &[]) == 1).then_some(());
    eventually("changes of RBAC are heard", watched).await;
    drop(open);
    let inside = format!("/api/v1/namespaces/{NAMESPACE}");
    for path in [
        format!("{inside}/pods/p/exec?command=id"),
        format!("{inside}/pods/p/log"),
        format!("{inside}/pods/p/proxy/"),
        format!("{inside}/pods/p/portforward"),
        format!("{inside}/services/s/proxy/"),
        "/api/v1/nodes/n/proxy/pods".to_owned(),
        format!("{inside}/secrets/s"),
        format!("{inside}/pods/p"),
    ] {
        assert_eq!(itself.get(&path).await.status, 403, "{path}");
    }
    say(&format!("{held} resources held, {} passed through: {}", passed.len(), passed.join(" ")));
}

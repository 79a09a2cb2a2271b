//! The manifests of deploy/ on a real control plane: the apiserver accepts each of them, and proxies run with exactly
//! the permissions that they grant.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use http::{HeaderName, Method};
use serde_json::{Value, json};

use crate::bed::{
    self, Account, Bed, Http, Identity, Plan, Plane, Protocol, RequestSpec, eventually, kube_fanout, log_line,
};

const NAMESPACE: &str = "kube-fanout";
const RBAC: &str = "rbac.authorization.k8s.io";
/// Every service account may read these, by a built-in role of Kubernetes.
const ANYBODYS: &str = "clustertrustbundles";
/// A kind that exists only in clusters with the Prometheus operator.
const OPTIONAL: &str = "ServiceMonitor";

fn documents(text: &str) -> Vec<Value> {
    text.split("\n---\n").map(|document| serde_saphyr::from_str(document).expect("YAML")).collect()
}

fn manifest(name: &str) -> Vec<Value> {
    documents(&fs::read_to_string(bed::repository().join("deploy").join(name)).expect("the file is there"))
}

/// The output of `kubectl kustomize` for a directory in deploy/kustomize.
fn rendered(plane: &Plane, folder: &str) -> Vec<Value> {
    let path = bed::repository().join("deploy/kustomize").join(folder);
    let path = path.to_str().expect("a path");
    let output = bed::kubectl(plane, &plane.target(), &["kustomize", path]).output().expect("kubectl runs");
    assert!(output.status.success(), "{folder}: {}", String::from_utf8_lossy(&output.stderr));
    documents(&String::from_utf8(output.stdout).expect("text"))
}

/// The path of an object; `None` if its kind is not served here.
async fn path_of(direct: &Http, object: &Value) -> Option<String> {
    let (version, kind) = (object["apiVersion"].as_str().expect("a version"), &object["kind"]);
    let prefix = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let answer = direct.get(&prefix).await;
    if answer.status == 404 {
        return None;
    }
    let served = answer.value();
    let of_kind = |resource: &&Value| {
        resource["kind"] == *kind && resource["name"].as_str().is_some_and(|name| !name.contains('/'))
    };
    let resource = served["resources"].as_array().expect("resources").iter().find(of_kind)?;
    let (plural, name) = (resource["name"].as_str()?, object["metadata"]["name"].as_str().expect("a name"));
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let inside = if resource["namespaced"] == true { format!("/namespaces/{namespace}") } else { String::new() };
    Some(format!("{prefix}{inside}/{plural}/{name}"))
}

/// Applies objects like `kubectl apply --server-side --validate=strict`. An unknown field is an error, and so is a
/// warning, because violations of the namespace's pod security are warnings. Returns the kinds that were accepted.
async fn apply(direct: &Http, objects: &[Value], query: &str) -> BTreeSet<String> {
    let mut taken = BTreeSet::new();
    for object in objects {
        let kind = object["kind"].as_str().expect("a kind");
        let Some(path) = path_of(direct, object).await else {
            assert_eq!(kind, OPTIONAL, "it is not served");
            log_line(&format!("not applied: {kind}, whose definition is not in this cluster"));
            continue;
        };
        let path = format!("{path}?fieldManager=deploy&force=true&fieldValidation=Strict{query}");
        let request = RequestSpec::get(&path).with(Method::PATCH, "application/apply-patch+yaml", object.to_string());
        let answer = direct.fetch(request).await;
        assert!(answer.status.is_success(), "{path}: {} {}", answer.status, answer.text());
        assert_eq!(answer.header("warning"), "", "{path}");
        taken.insert(kind.to_owned());
    }
    taken
}

/// The names of resources that roles allow a proxy to list, by group.
fn listed(objects: &[Value]) -> BTreeMap<String, Vec<String>> {
    let mut listed = BTreeMap::<String, Vec<String>>::new();
    for rule in objects.iter().flat_map(|object| object["rules"].as_array().into_iter().flatten()) {
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
    listed
}

/// The token of an applied service account, and a kubeconfig with it.
async fn account(bed: &Bed<Box<Plane>>, name: &str) -> (Identity, std::path::PathBuf) {
    let direct = bed.direct();
    let account = Account { namespace: NAMESPACE.to_owned(), name: name.to_owned(), uid: String::new() };
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

/// A client of an account, once the apiserver applies its permissions.
async fn itself(bed: &Bed<Box<Plane>>, identity: &Identity) -> Http {
    let itself = Http::new(bed.target().by(identity), Protocol::H2);
    itself.until_ok("the rights count", RequestSpec::get("/api/v1/pods")).await;
    itself
}

/// Checks that access into pods, services and nodes is forbidden, and so are secrets and requests that a proxy never
/// sends.
async fn may_do_nothing_else(itself: &Http) {
    let inside = format!("/api/v1/namespaces/{NAMESPACE}");
    for path in [
        format!("{inside}/pods/p/exec?command=id"),
        format!("{inside}/pods/p/log"),
        format!("{inside}/pods/p/proxy/"),
        format!("{inside}/pods/p/portforward"),
        format!("{inside}/services/s/proxy/"),
        "/api/v1/nodes/n/proxy/pods".to_owned(),
        format!("{inside}/secrets"),
        format!("{inside}/secrets/s"),
        format!("{inside}/pods/p"),
    ] {
        assert_eq!(itself.get(&path).await.status, 403, "{path}");
    }
}

/// The exit code and output of `kube-fanout check` for an account and these resources.
fn checked(kubeconfig: &std::path::Path, resources: &[String]) -> (Option<i32>, String) {
    let mut command = kube_fanout("check");
    let config = kubeconfig.with_extension("check.yaml");
    std::fs::write(&config, json!({"feeds": {"resources": resources}}).to_string()).expect("a file");
    command.args(["--auth", "delegated", "--tls-self-signed", "--strict", "--config"]).arg(config);
    let output = command.arg("--kubeconfig").arg(kubeconfig).output().expect("it runs");
    let report = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.code(), report)
}

/// With the rules of the manifests every check passes, and each removed rule is named.
async fn check_names_what_is_missing(
    direct: &Http,
    kubeconfig: &std::path::Path,
    listed: &BTreeMap<String, Vec<String>>,
) {
    let named = |(group, names): (&String, &Vec<String>)| {
        let name = |name: &String| if group.is_empty() { name.clone() } else { format!("{name}.{group}") };
        names.iter().map(name).collect::<Vec<_>>()
    };
    let served: BTreeSet<_> = direct.watchable().await.into_iter().map(|(group, name, _)| (group, name)).collect();
    let is_served = |name: &String| {
        let (plural, group) = name.split_once('.').unwrap_or((name, ""));
        served.contains(&(group.to_owned(), plural.to_owned()))
    };
    let resources: Vec<_> = listed.iter().flat_map(named).filter(is_served).collect();
    // The check also fails if upstream does not answer in time.
    eventually("the check passes with the rights of the manifests", async || {
        let (code, report) = checked(kubeconfig, &resources);
        log_line(&format!("check with the rights of the manifests:\n{report}"));
        (code == Some(0)).then_some(())
    })
    .await;
    for (role, lost) in [("read", "discovery.k8s.io"), ("review", "authentication.k8s.io"), ("review", RBAC)] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/kube-fanout-{role}");
        let whole = direct.json(&path).await["rules"].clone();
        let rules = whole.as_array().expect("rules").iter().filter(|rule| rule["apiGroups"] != json!([lost]));
        direct.patch(&path, json!({"rules": rules.collect::<Vec<_>>()})).await;
        let remedies = eventually(&format!("{lost} is missed"), async || {
            let (code, report) = checked(kubeconfig, &resources);
            let remedies = report.lines().filter(|line| line.contains("fix: add the ClusterRole rule"));
            let remedies: Vec<_> = remedies.map(str::to_owned).collect();
            (code == Some(1) && !remedies.is_empty()).then_some(remedies)
        })
        .await;
        assert!(remedies.iter().all(|line| line.contains(lost)), "{remedies:?}");
        direct.patch(&path, json!({"rules": whole})).await;
        eventually("the right is back", async || (checked(kubeconfig, &resources).0 == Some(0)).then_some(())).await;
    }
}

#[tokio::test]
async fn central_proxy_caches_exactly_what_its_rbac_manifest_allows() {
    let Some(bed) = bed::own("deploy").await else { return };
    let direct = bed.direct();
    let objects = rendered(&bed, "example");
    apply(&direct, &objects, "").await;
    let listed = listed(&objects);
    let (identity, kubeconfig) = account(&bed, "kube-fanout").await;
    let itself = itself(&bed, &identity).await;
    check_names_what_is_missing(&direct, &kubeconfig, &listed).await;
    let proxy = Plan::delegated(&bed).upstream(&kubeconfig).start(&bed).await;
    let admin = proxy.client();
    let (mut cached, mut passed) = (0, Vec::new());
    for (group, name, path) in direct.watchable().await {
        let gives = listed.get(&group).is_some_and(|names| names.contains(&name)) || name == ANYBODYS;
        let answer = admin.list_now(RequestSpec::get(&path)).await;
        assert_eq!((answer.status.as_u16(), answer.is_cached()), (200, gives), "{path}: {}", answer.text());
        assert_eq!(itself.get(&path).await.status == 200, gives, "{path}");
        cached += usize::from(gives);
        passed.extend((!gives).then_some(path));
    }
    assert!(cached > 50, "{cached} resources are cached");
    assert!(passed.contains(&"/api/v1/secrets".to_owned()), "{passed:?}");
    // The proxy watches RBAC while an open watch needs it.
    let open = admin.watch(RequestSpec::get("/api/v1/pods?watch=true&resourceVersion=0")).await;
    let watched = async || (proxy.metrics().await.sum("kube_fanout_auth_policy_watched", &[]) == 1).then_some(());
    eventually("the proxy watches RBAC", watched).await;
    drop(open);
    may_do_nothing_else(&itself).await;
    let (impersonator, _) = account(&bed, "kube-fanout-impersonator").await;
    let impersonator = Http::new(bed.target().by(&impersonator), Protocol::H2);
    assert_eq!(impersonator.get("/api/v1/pods").await.status, 403, "nothing as itself");
    let header = HeaderName::from_static;
    let as_admin = RequestSpec::get("/api/v1/pods").header(header("impersonate-user"), "somebody");
    let as_admin = as_admin.header(header("impersonate-group"), "system:masters");
    assert_eq!(impersonator.fetch(as_admin).await.status, 200, "it may do anything by impersonation");
    log_line(&format!("{cached} resources cached, {} forwarded: {}", passed.len(), passed.join(" ")));
}

/// Includes a node's proxy, which caches only that node's pods.
#[tokio::test]
async fn manifests_apply_and_node_proxy_runs_with_their_rbac() {
    let Some(bed) = bed::own("manifests").await else { return };
    let direct = bed.direct();
    // Without its namespace, a namespaced object is refused even in a dry run.
    apply(&direct, &rendered(&bed, "namespace"), "").await;
    let folders = ["example", "zone", "example-node"].map(|folder| rendered(&bed, folder));
    let files = ["static-pod.yaml", "manifests/sidecar.yaml"].map(manifest);
    let objects: Vec<Value> = folders.into_iter().chain(files).flatten().collect();
    let tried = apply(&direct, &objects, "&dryRun=All").await;
    let kept = apply(&direct, &objects, "").await;
    assert_eq!(tried, kept);
    for kind in ["DaemonSet", "Deployment", "NetworkPolicy", "Pod", "PodDisruptionBudget", "Secret", "Service"] {
        assert!(kept.contains(kind), "{kind}: {kept:?}");
    }
    log_line(&format!("{} objects of {} kinds are taken", objects.len(), kept.len()));

    for node in ["n1", "n2"] {
        direct.create("/api/v1/nodes", json!({"metadata": {"name": node}})).await;
        let spec = json!({"nodeName": node, "containers": [{"name": "c", "image": "i"}]});
        let pod = json!({"metadata": {"name": format!("on-{node}")}, "spec": spec});
        direct.create("/api/v1/namespaces/default/pods", pod).await;
    }
    let (identity, kubeconfig) = account(&bed, "kube-fanout-node").await;
    let itself = itself(&bed, &identity).await;
    let proxy = Plan::node(&bed).upstream(&kubeconfig).start(&bed).await;
    let admin = proxy.client();
    for (path, is_held) in [
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", true),
        ("/api/v1/nodes?fieldSelector=metadata.name%3Dn1", true),
        ("/api/v1/services", true),
        ("/api/v1/namespaces", true),
        ("/apis/discovery.k8s.io/v1/endpointslices", true),
        ("/api/v1/pods", false),
        ("/api/v1/configmaps", false),
        ("/api/v1/secrets", false),
        ("/apis/apps/v1/deployments", false),
    ] {
        let answer = admin.list_now(RequestSpec::get(path)).await;
        assert_eq!((answer.status.as_u16(), answer.is_cached()), (200, is_held), "{path}: {}", answer.text());
    }
    let own = admin.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await.value();
    let names: Vec<_> = own["items"].as_array().expect("items").iter().map(|pod| &pod["metadata"]["name"]).collect();
    assert_eq!(names, ["on-n1"]);
    may_do_nothing_else(&itself).await;
    proxy.assert_sound();
}

//! `delegated.decide: rbac` on a real apiserver: no reviews at rest, watches that end with their rules, and answers to
//! new callers while the apiserver is away.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::bed::rbac::{binding, collection, may, subject};
use crate::bed::{
    self, Account, Authority, Http, Identity, Plan, Plane, Proxy, RequestSpec, Times, Watch, eventually, kube_fanout,
    log_line, scratch_file,
};

const COUNT: usize = 60;
/// Identities are reviewed so often that several rounds of timers pass in the test.
const CONFIG: &str = "delegated: {decide: rbac, compareOneIn: 0, recheck: 2s, recheckRbac: 2s}";
/// The callers with a client certificate.
const HOLDERS: [&str; 3] = ["known", "newcomer", "former"];
const STALE_RULES: &str = "kube-fanout-permissions-stale-seconds";

/// A caller who may read the configmaps of a namespace by a role and a binding with its name.
struct Reader {
    identity: Identity,
    name: String,
}

/// Lets a user read the configmaps of a namespace.
async fn allow(direct: &Http, namespace: &str, name: &str, user: &str) {
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]);
    let role = json!({"metadata": {"name": name}, "rules": rules});
    direct.create(&collection(Some(namespace), "roles"), role).await;
    let bound = binding(name, "Role", name, &subject("User", user));
    direct.create(&collection(Some(namespace), "rolebindings"), bound).await;
}

async fn readers(bed: &Plane, namespace: &str) -> Vec<Reader> {
    let (direct, mut readers) = (bed.direct(), Vec::new());
    for number in 0..COUNT {
        let name = format!("reader-{number}");
        let account = Account::create(&direct, namespace, &name).await;
        allow(&direct, namespace, &name, &account.user()).await;
        readers.push(Reader { identity: account.token(&direct).await, name });
    }
    let user = format!("system:serviceaccount:{namespace}:reader-{}", COUNT - 1);
    let access = json!({"verb": "watch", "resource": "configmaps", "namespace": namespace});
    may(&direct, json!({"user": user, "resourceAttributes": access})).await;
    readers
}

/// The SubjectAccessReviews that this apiserver has answered since its start.
async fn access_reviews(bed: &Plane) -> i64 {
    bed.metrics().await.sum("apiserver_request_total", &[("verb", "POST"), ("resource", "subjectaccessreviews")])
}

/// Completes when the proxy has reviewed this many more tokens.
async fn tokens_reviewed(proxy: &Proxy, more: i64) {
    let labels = [("kind", "token"), ("result", "authenticated")];
    let count = async || proxy.metrics().await.sum("kube_fanout_auth_reviews_total", &labels);
    let before = count().await;
    eventually("tokens are reviewed", async || (count().await >= before + more).then_some(())).await;
}

async fn decides(proxy: &Proxy) {
    let is_active = async || proxy.metrics().await.sum("kube_fanout_auth_local_decisions_active", &[]) == 1;
    eventually("the rules are known", async || is_active().await.then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_decide_at_rest_at_revocation_and_in_an_outage() {
    let Some(bed) = bed::own("local-decisions").await else { return };
    let (direct, namespace) = (bed.direct(), bed.namespace("ruled").await);
    let readers = readers(&bed, &namespace).await;
    let own = Authority::of(&bed);
    for name in HOLDERS {
        allow(&direct, &namespace, name, name).await;
    }
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    direct.create(&path, json!({"metadata": {"name": "before"}})).await;
    let proxy = Plan::delegated(&bed).config(CONFIG).start(&bed).await;
    decides(&proxy).await;
    let [known, newcomer, former] = HOLDERS.map(|name| proxy.client_of(&own.issue(name, &[])));
    let cached = async || known.get(&path).await.is_cached().then_some(());
    eventually("configmaps are cached", cached).await;

    let watches = at_rest(&bed, &proxy, &readers, &path).await;
    revoked(&bed, &proxy, &namespace, &readers, watches).await;
    former_binding_is_gone(&direct, &namespace, &former, &path).await;
    bed.kill_apiserver().await;
    let read = format!("{path}?resourceVersion=0");
    let stale = async || (!known.get(&read).await.header(STALE_RULES).is_empty()).then_some(());
    eventually("the rules are stale", stale).await;
    let list = newcomer.get(&read).await;
    assert!(list.is_cached() && !list.header(STALE_RULES).is_empty(), "{}: {}", list.status, list.text());
    let one = newcomer.get(&format!("{path}/before?resourceVersion=0")).await;
    assert!(
        one.status == 200 && one.is_cached() && !one.header(STALE_RULES).is_empty(),
        "{}: {}",
        one.status,
        one.text()
    );
    let mut watch = newcomer.watch(RequestSpec::get(&format!("{path}?watch=1&resourceVersion=0"))).await;
    assert_eq!(watch.change().await.name(), "before");
    // Its rule was gone before. The refusal from then is kept for some seconds; later, the apiserver cannot be asked.
    let refused = former.get(&read).await;
    assert!(matches!(refused.status.as_u16(), 403 | 503), "{}: {}", refused.status, refused.text());
    bed.start_apiserver().await;
    let current = async || known.get(&read).await.header(STALE_RULES).is_empty().then_some(());
    eventually("the rules are current", current).await;
    direct.create(&path, json!({"metadata": {"name": "after"}})).await;
    assert_eq!(watch.change().await.name(), "after");
    assert_eq!(former.get(&read).await.status, 403);
}

/// Sixty tokens watch for several periods of rechecks.
async fn at_rest(bed: &Plane, proxy: &Proxy, readers: &[Reader], path: &str) -> Vec<Watch> {
    let before = access_reviews(bed).await;
    let mut watches = Vec::new();
    for reader in readers {
        let client = proxy.client_of(&reader.identity);
        watches.push(client.watch(RequestSpec::get(&format!("{path}?watch=1&resourceVersion=0"))).await);
    }
    tokens_reviewed(proxy, 4 * i64::try_from(COUNT).expect("a small number")).await;
    assert_eq!(access_reviews(bed).await - before, 0, "SubjectAccessReviews");
    watches
}

/// Half of the watches lose their binding, the others a verb of their role.
async fn revoked(bed: &Plane, proxy: &Proxy, namespace: &str, readers: &[Reader], watches: Vec<Watch>) {
    let (direct, mut lasted) = (bed.direct(), [Vec::new(), Vec::new()]);
    for (number, (reader, mut watch)) in readers.iter().zip(watches).enumerate() {
        let began = Instant::now();
        if number % 2 == 0 {
            direct.delete(&format!("{}/{}", collection(Some(namespace), "rolebindings"), reader.name)).await;
        } else {
            let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]);
            direct
                .patch(&format!("{}/{}", collection(Some(namespace), "roles"), reader.name), json!({"rules": rules}))
                .await;
        }
        let (events, _) = bed::within("the end of the watch", watch.rest()).await;
        lasted[number % 2].push(began.elapsed());
        let last = events.last().expect("an event");
        assert_eq!((last.kind.as_str(), &last.object["code"]), ("ERROR", &json!(403)), "{}", reader.name);
    }
    let [bindings, roles] = lasted.map(Times::of);
    log_line(&format!("from the write to the end of the watch: bindings {bindings}, roles {roles}"));
    assert!(proxy.metrics().await.sum("kube_fanout_auth_local_decisions_active", &[]) == 1);
}

/// The proxy has seen that a binding was deleted.
async fn former_binding_is_gone(direct: &Http, namespace: &str, former: &Http, path: &str) {
    let read = format!("{path}?resourceVersion=0");
    assert!(former.get(&read).await.is_cached());
    direct.delete(&format!("{}/former", collection(Some(namespace), "rolebindings"))).await;
    let refused = async || (former.get(&read).await.status == 403).then_some(());
    bed::promised(Duration::from_secs(5), "it is refused", refused).await;
}

/// `check` asks about a sample of the bindings that every cluster has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_finds_that_rbac_decides_what_it_allows() {
    let Some(bed) = bed::shared().await else { return };
    let config = scratch_file("check-rbac.yaml");
    std::fs::write(&config, "delegated: {decide: rbac}").expect("a file");
    let mut command = kube_fanout("check");
    command.args(["--auth", "delegated", "--tls-self-signed", "--config"]).arg(&config);
    let output = command.arg("--kubeconfig").arg(bed.kubeconfig()).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.contains(" authorizers: ")).unwrap_or_default();
    log_line(line);
    let decided: Vec<_> = line.split_whitespace().filter_map(|word| word.parse::<u32>().ok()).collect();
    assert!(line.starts_with("ok ") && decided[0] == decided[1] && decided[0] >= 10, "{text}");
}

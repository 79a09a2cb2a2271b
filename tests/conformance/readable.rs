//! Collections across namespaces for callers who may read only some of the namespaces. The apiserver would refuse such
//! a request. The proxy's lists and watches contain the same as the caller's own lists of the single namespaces, also
//! while permissions are granted and revoked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::bed::rbac::{binding, collection, may, subject};
use crate::bed::{
    self, Account, Authority, Bed, Event, Http, Plan, Protocol, Proxy, RequestSpec, Watch, eventually, unique,
};

/// A caller with permissions in some of five namespaces, each with two configmaps.
struct Scene {
    bed: Bed,
    proxy: Proxy,
    direct: Http,
    /// The caller's clients of the proxy and of the apiserver.
    through: Http,
    own: Http,
    user: String,
    role: String,
    namespaces: Vec<String>,
}

const ALL: &str = "/api/v1/configmaps";
const FILTER: &str = "reads: {filter: {groups: [readers, \"system:serviceaccounts\"]}}";
/// The time within which a revoked permission no longer applies anywhere.
const BOUND: Duration = Duration::from_secs(5);

impl Scene {
    async fn new() -> Option<Self> {
        let bed = bed::shared().await?;
        let (direct, proxy) = (bed.direct(), Plan::delegated(&bed).config(FILTER).start(&bed).await);
        let (user, role) = (unique("reader"), unique("maps"));
        let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}]);
        direct.create(&collection(None, "roles"), json!({"metadata": {"name": role}, "rules": rules})).await;
        let caller = Authority::of(&bed).issue(&user, &["readers"]);
        let through = proxy.client_of(&caller);
        let own = Http::new(bed.target().by(&caller), Protocol::H2);
        let mut scene = Self { bed, proxy, direct, through, own, user, role, namespaces: Vec::new() };
        for _ in 0..5 {
            scene.add_namespace().await;
        }
        Some(scene)
    }

    async fn add_namespace(&mut self) -> String {
        let namespace = self.bed.namespace("readable").await;
        for map in ["a", "b"] {
            self.write(&namespace, map).await;
        }
        self.namespaces.push(namespace.clone());
        namespace
    }

    async fn write(&self, namespace: &str, map: &str) {
        let map = json!({"metadata": {"name": map, "labels": {"map": map}}, "data": {"at": "0"}});
        self.direct.create(&maps(namespace), map).await;
    }

    /// Grants the caller read access to a namespace, and waits until the apiserver applies it.
    async fn allow(&self, namespace: &str) {
        let bound = binding("maps", "ClusterRole", &self.role, &subject("User", &self.user));
        self.direct.create(&collection(Some(namespace), "rolebindings"), bound).await;
        let attributes = json!({"namespace": namespace, "verb": "watch", "resource": "configmaps"});
        may(&self.direct, json!({"user": self.user, "resourceAttributes": attributes})).await;
    }

    async fn deny(&self, namespace: &str) {
        self.direct.delete(&format!("{}/maps", collection(Some(namespace), "rolebindings"))).await;
    }

    /// The union of the caller's own lists of single namespaces, keyed by namespace and name.
    async fn union(&self, query: &str) -> BTreeMap<String, Value> {
        let mut union = BTreeMap::new();
        for namespace in &self.namespaces {
            let answer = self.own.get(&format!("{}{query}", maps(namespace))).await;
            if answer.status == 200 {
                union.extend(items(&answer.value()));
            }
        }
        union
    }

    /// Compares a filtered Table, read in pages of three rows, with the caller's own Tables of single namespaces.
    async fn compare_table(&self, include: &str) {
        let table = async |http: &Http, path: &str| {
            let request = RequestSpec::get(path).accept("application/json;as=Table;v=v1;g=meta.k8s.io");
            http.fetch(request).await
        };
        let rows = |table: &Value| table["rows"].as_array().cloned().unwrap_or_default();
        // Ages differ from one second to the next.
        let ageless = |mut row: Value| {
            row["cells"].as_array_mut().expect("cells").pop();
            row
        };
        let (mut expected, mut columns) = (Vec::new(), Value::Null);
        let mut namespaces = self.namespaces.clone();
        namespaces.sort_unstable();
        for namespace in &namespaces {
            let own = table(&self.own, &format!("{}?includeObject={include}", maps(namespace))).await;
            if own.status == 200 {
                columns = own.value()["columnDefinitions"].clone();
                expected.extend(rows(&own.value()));
            }
        }
        let (mut shown, mut token) = (Vec::new(), String::new());
        loop {
            let page = table(&self.through, &format!("{ALL}?includeObject={include}&limit=3&continue={token}")).await;
            assert_eq!((page.status.as_u16(), page.header("kube-fanout-filtered")), (200, "true"), "{}", page.text());
            let page = page.value();
            assert_eq!((page["kind"].as_str(), &page["columnDefinitions"]), (Some("Table"), &columns));
            assert!(page["metadata"].get("remainingItemCount").is_none());
            shown.extend(rows(&page));
            page["metadata"]["continue"].as_str().unwrap_or_default().clone_into(&mut token);
            if token.is_empty() {
                break;
            }
            let last: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(&token).expect("base64")).expect("JSON");
            let start = last["start"].as_str().expect("a key").trim_start_matches('/');
            assert!(namespaces.iter().any(|namespace| start.starts_with(&format!("{namespace}/"))), "{start}");
        }
        let [shown, expected] = [shown, expected].map(|rows| rows.into_iter().map(ageless).collect::<Vec<_>>());
        assert_eq!(shown, expected, "{include}");
    }

    async fn watch(&self) -> Watch {
        let options = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        self.through.watch(RequestSpec::get(&format!("{ALL}?{options}"))).await
    }
}

fn maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn key(object: &Value) -> String {
    let of = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", of("namespace"), of("name"))
}

fn namespace_of(event: &Event) -> &str {
    event.object["metadata"]["namespace"].as_str().unwrap_or_default()
}

fn items(list: &Value) -> impl Iterator<Item = (String, Value)> {
    list["items"].as_array().expect("items").iter().map(|item| (key(item), item.clone()))
}

#[tokio::test]
async fn readable_list_equals_union_of_permitted_namespaces() {
    let Some(scene) = Scene::new().await else { return };
    for namespace in &scene.namespaces[..2] {
        scene.allow(namespace).await;
    }
    for query in ["", "labelSelector=map%3Da", "fieldSelector=metadata.name%3Db", "resourceVersion=0"] {
        let answer = scene.through.list_now(RequestSpec::get(&format!("{ALL}?{query}"))).await;
        assert_eq!((answer.status.as_u16(), answer.is_cached()), (200, true), "{query}: {}", answer.text());
        assert_eq!(answer.header("kube-fanout-filtered"), "true");
        let listed: BTreeMap<_, _> = items(&answer.value()).collect();
        assert_eq!(listed, scene.union(&format!("?{query}")).await, "{query}");
        assert!(!listed.is_empty(), "{query}");
    }
    // Reads page by page. No page reveals hidden objects.
    let (mut token, mut paged) = (String::new(), BTreeMap::new());
    loop {
        let page = RequestSpec::get(&format!("{ALL}?limit=3&continue={token}"));
        let page = scene.through.list_now(page).await.value();
        assert!(page["metadata"].get("remainingItemCount").is_none());
        paged.extend(items(&page));
        token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(paged, scene.union("").await);
    // Forwarded requests have the caller's own permissions.
    assert_eq!(scene.through.fetch(RequestSpec::get(ALL).accept("application/yaml")).await.status, 403);
    for include in ["Object", "Metadata", "None"] {
        scene.compare_table(include).await;
    }
    // A caller who may read all namespaces receives everything.
    let viewer = scene.proxy.client_of(&Authority::of(&scene.bed).issue("admin", &["system:masters"]));
    let whole = viewer.list_now(RequestSpec::get(ALL)).await;
    assert_eq!((whole.status.as_u16(), whole.headers.contains_key("kube-fanout-filtered")), (200, false));
    // A caller without permissions receives an empty list, and one whom no policy names the apiserver's own answer.
    let stranger =
        |groups: &[&str]| scene.proxy.client_of(&Authority::of(&scene.bed).issue(&unique("stranger"), groups));
    let nothing = stranger(&["readers"]).list_now(RequestSpec::get(ALL)).await.value();
    assert_eq!(items(&nothing).count(), 0);
    for path in [ALL, "/api/v1/namespaces"] {
        assert_eq!(stranger(&[]).get(path).await.status, 403, "{path}");
    }
}

/// A store that applies events like an informer.
#[derive(Default)]
struct Store(BTreeMap<String, Value>);

impl Store {
    fn take(&mut self, event: &Event) {
        let key = key(&event.object);
        match event.kind.as_str() {
            "ADDED" | "MODIFIED" => drop(self.0.insert(key, event.object.clone())),
            "DELETED" => assert!(self.0.remove(&key).is_some(), "{key} is deleted, but was never added"),
            "BOOKMARK" => {}
            _ => panic!("{}", event.line),
        }
    }

    fn namespaces(&self) -> BTreeSet<&str> {
        self.0.keys().filter_map(|key| key.split_once('/')).map(|(namespace, _)| namespace).collect()
    }

    /// Applies events until the condition holds.
    async fn until(&mut self, watch: &mut Watch, what: &str, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            let event = watch.event().await.unwrap_or_else(|| panic!("{what}: the watch ended"));
            self.take(&event);
        }
    }
}

/// Namespaces are those that single GETs show: by a `RoleBinding` that grants `get` of its `Namespace`, or by name.
#[tokio::test]
async fn filtered_namespaces_equal_single_gets() {
    let Some(scene) = Scene::new().await else { return };
    let role = unique("namespaces");
    let rules = json!([{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}]);
    scene.direct.create(&collection(None, "roles"), json!({"metadata": {"name": role}, "rules": rules})).await;
    let named = unique("named");
    let rules = json!([{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"],
        "resourceNames": [scene.namespaces[1]]}]);
    scene.direct.create(&collection(None, "roles"), json!({"metadata": {"name": named}, "rules": rules})).await;
    let user = subject("User", &scene.user);
    scene.direct.create(&collection(None, "rolebindings"), binding(&named, "ClusterRole", &named, &user)).await;
    // It grants configmaps, and not the Namespace.
    scene.allow(&scene.namespaces[2]).await;
    let get = async |namespace: &str, grant: bool| {
        let at = collection(Some(namespace), "rolebindings");
        if grant {
            scene.direct.create(&at, binding("namespace", "ClusterRole", &role, &user)).await;
        } else {
            scene.direct.delete(&format!("{at}/namespace")).await;
        }
    };
    get(&scene.namespaces[0], true).await;
    let options = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = scene.through.watch(RequestSpec::get(&format!("/api/v1/namespaces?{options}"))).await;
    let mut store = Store::default();
    let gets = async || {
        let mut found = BTreeSet::new();
        for namespace in &scene.namespaces {
            let one = scene.own.get(&format!("/api/v1/namespaces/{namespace}")).await;
            found.extend((one.status == 200).then(|| format!("/{namespace}")));
        }
        found
    };
    let listed = async || {
        let answer = scene.through.list_now(RequestSpec::get("/api/v1/namespaces")).await;
        assert_eq!((answer.status.as_u16(), answer.is_cached()), (200, true), "{}", answer.text());
        items(&answer.value()).map(|(key, _)| key).collect::<BTreeSet<_>>()
    };
    let [first, second, fourth] = [0, 1, 3].map(|at| format!("/{}", scene.namespaces[at]));
    for (change, expected) in [
        (None, BTreeSet::from([first.clone(), second.clone()])),
        (Some((3, true)), BTreeSet::from([first, second.clone(), fourth.clone()])),
        (Some((0, false)), BTreeSet::from([second, fourth])),
    ] {
        if let Some((at, grant)) = change {
            get(&scene.namespaces[at], grant).await;
        }
        eventually("single GETs", async || (gets().await == expected).then_some(())).await;
        eventually("the list", async || (listed().await == expected).then_some(())).await;
        let shows = |store: &Store| store.0.keys().cloned().collect::<BTreeSet<_>>() == expected;
        store.until(&mut watch, "the watch", shows).await;
    }
}

#[tokio::test]
async fn readable_watch_follows_granted_and_revoked_permissions() {
    let Some(mut scene) = Scene::new().await else { return };
    let [first, second, third, hidden] = [0, 1, 2, 3].map(|at| scene.namespaces[at].clone());
    scene.allow(&first).await;
    scene.allow(&second).await;
    let mut watch = scene.watch().await;
    let mut store = Store::default();
    for event in watch.initial().await {
        assert!(event.kind == "ADDED" || event.ends_initial(), "{}", event.line);
        store.take(&event);
    }
    let kinds = |object: &mut Value| {
        object.as_object_mut().map(|object| (object.remove("kind"), object.remove("apiVersion")));
    };
    let bare = |store: &Store| {
        let mut objects = store.0.clone();
        objects.values_mut().for_each(kinds);
        objects
    };
    assert_eq!(bare(&store), scene.union("").await);

    // Changes in readable and in other namespaces.
    scene.write(&hidden, "c").await;
    scene.write(&first, "c").await;
    store.until(&mut watch, "a change", |store| store.0.contains_key(&format!("{first}/c"))).await;

    // A permission is granted, and the watch receives the existing objects.
    scene.allow(&third).await;
    store.until(&mut watch, "a namespace is added", |store| store.0.contains_key(&format!("{third}/b"))).await;
    // A namespace is created and readable.
    let fresh = scene.add_namespace().await;
    scene.allow(&fresh).await;
    store.until(&mut watch, "a new namespace is added", |store| store.0.contains_key(&format!("{fresh}/b"))).await;

    // A permission is revoked: the watch receives deletions of the known objects, and no later change.
    scene.deny(&first).await;
    let lost = Instant::now();
    let mut written = vec![lost];
    let map = format!("{}/a", maps(&first));
    while !store.namespaces().is_disjoint(&BTreeSet::from([first.as_str()])) {
        assert!(lost.elapsed() < BOUND + bed::ALLOWANCE, "the right is still there");
        written.push(Instant::now());
        scene.direct.patch(&map, json!({"data": {"at": (written.len() - 1).to_string()}})).await;
        while let Ok(event) = tokio::time::timeout(Duration::from_millis(50), watch.event()).await {
            let event = event.expect("the watch continues");
            let at = event.object["data"]["at"].as_str().and_then(|at| at.parse::<usize>().ok());
            let late =
                namespace_of(&event) == first && at.is_some_and(|at| written[at] > lost + BOUND + bed::ALLOWANCE);
            assert!(!late, "{}", event.line);
            store.take(&event);
        }
    }
    bed::log_line(&format!("taken back after {:.2?}", lost.elapsed()));
    scene.direct.patch(&map, json!({"data": {"at": "later"}})).await;
    scene.write(&second, "last").await;
    store.until(&mut watch, "the others go on", |store| store.0.contains_key(&format!("{second}/last"))).await;

    assert_eq!(bare(&store), scene.union("").await, "it has converged");
    let expected = BTreeSet::from([second.as_str(), third.as_str(), fresh.as_str()]);
    assert_eq!(store.namespaces(), expected);
    eventually("one stream upstream", async || (scene.proxy.streams("configmaps.v1").await == 1).then_some(())).await;
}

/// client-go's informers, which start by WatchList or by a list, hold what the caller's own lists contain.
#[tokio::test]
async fn tenant_informers_converge_under_grants_and_revocations() {
    let Some(mut scene) = Scene::new().await else { return };
    let [first, second, hidden] = [0, 1, 2].map(|at| scene.namespaces[at].clone());
    let account = Account::create(&scene.direct, &first, "tenant").await;
    let tenant = account.token(&scene.direct).await;
    scene.user = account.user();
    scene.own = Http::new(scene.bed.target().by(&tenant), Protocol::H2);
    scene.through = scene.proxy.client_of(&tenant);
    scene.allow(&first).await;
    let (kubeconfig, until) = (scene.bed.file("tenant"), scene.bed.file("until"));
    let user = json!({"name": "tenant", "user": {"token": tenant.token}});
    let config = json!({"apiVersion": "v1", "kind": "Config", "users": [user], "current-context": "tenant",
        "clusters": [{"name": "c", "cluster": {"server": scene.bed.url()}}],
        "contexts": [{"name": "tenant", "context": {"cluster": "c", "user": "tenant"}}]});
    std::fs::write(&kubeconfig, config.to_string()).expect("a file");
    let mut informers = Vec::new();
    for (watchlist, encoding) in [("on", "protobuf"), ("on", "json"), ("off", "protobuf"), ("off", "json")] {
        let ready = scene.bed.file("ready");
        let run = scene.bed.drive("informers").args(["--resource", "configmaps", "--watchlist", watchlist]);
        let run = run.args(["--encoding", encoding]).file("--kubeconfig", &kubeconfig).at(&scene.proxy.target());
        let mut run = run.until(&until).file("--ready-file", &ready).start();
        run.awaits(&ready).await;
        informers.push(run);
    }
    // All watches of the credential share its decisions, so this one shows when they have changed.
    let (mut watch, mut store) = (scene.watch().await, Store::default());
    scene.allow(&second).await;
    store.until(&mut watch, "a grant", |store| store.0.contains_key(&format!("{second}/b"))).await;
    scene.deny(&first).await;
    store.until(&mut watch, "a revocation", |store| !store.namespaces().contains(first.as_str())).await;
    scene.write(&first, "late").await;
    scene.write(&hidden, "late").await;
    scene.write(&second, "last").await;
    let last = scene.direct.get(&format!("{}/last", maps(&second))).await.value();
    std::fs::write(&until, last["metadata"]["resourceVersion"].as_str().expect("a version")).expect("a file");
    let versions = |union: BTreeMap<String, Value>| -> BTreeMap<String, u64> {
        let version =
            |object: &Value| object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        union.into_iter().map(|(key, object)| (key, version(&object).expect("a version"))).collect()
    };
    let expected = versions(scene.union("").await);
    assert!(expected.len() >= 3 && expected.keys().all(|key| key.starts_with(&format!("{second}/"))), "{expected:?}");
    for run in informers {
        let outcome = run.finish().await;
        let stores: Vec<_> = outcome.lines().filter(|line| line["kind"] == "store").collect();
        assert_eq!((stores.len(), &stores[0]["objects"]), (1, &json!(expected)));
    }
}

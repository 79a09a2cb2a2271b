//! Collections across namespaces for callers who may read only some of the namespaces. The apiserver would refuse such
//! a request. The proxy's lists and watches contain the same as the caller's own lists of the single namespaces, also
//! while permissions are granted and revoked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use http::HeaderName;
use serde_json::{Value, json};

use crate::bed::rbac::{binding, collection, may, subject};
use crate::bed::{self, Authority, Bed, Event, Http, Plan, Protocol, Proxy, RequestSpec, Watch, eventually, unique};

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
/// The time within which a revoked permission no longer applies anywhere.
const BOUND: Duration = Duration::from_secs(5);

impl Scene {
    async fn new() -> Option<Self> {
        let bed = bed::shared().await?;
        let (direct, proxy) = (bed.direct(), Plan::delegated(&bed).start(&bed).await);
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

    async fn watch(&self) -> Watch {
        let options = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        self.through.watch(RequestSpec::get(&format!("{ALL}?{options}&kubeFanoutReadable=true"))).await
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
    assert_eq!(scene.through.get(ALL).await.status, 403, "unasked, the apiserver's own answer");
    for query in ["", "labelSelector=map%3Da", "fieldSelector=metadata.name%3Db", "resourceVersion=0"] {
        let answer = scene.through.list_now(RequestSpec::get(&format!("{ALL}?{query}&kubeFanoutReadable=true"))).await;
        assert_eq!((answer.status.as_u16(), answer.is_cached()), (200, true), "{query}: {}", answer.text());
        assert_eq!(answer.header("kube-fanout-readable"), "some");
        let listed: BTreeMap<_, _> = items(&answer.value()).collect();
        assert_eq!(listed, scene.union(&format!("?{query}")).await, "{query}");
        assert!(!listed.is_empty(), "{query}");
    }
    let by_header = RequestSpec::get(ALL).header(HeaderName::from_static("kube-fanout-readable"), "true");
    assert_eq!(items(&scene.through.list_now(by_header).await.value()).count(), 4);
    // Reads page by page. No page reveals hidden objects.
    let (mut token, mut paged) = (String::new(), BTreeMap::new());
    loop {
        let page = RequestSpec::get(&format!("{ALL}?limit=3&kubeFanoutReadable=1&continue={token}"));
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
    for accept in ["application/yaml", "application/json;as=Table;v=v1;g=meta.k8s.io"] {
        let request = RequestSpec::get(&format!("{ALL}?kubeFanoutReadable=true")).accept(accept);
        assert_eq!(scene.through.fetch(request).await.status, 403, "{accept}");
    }
    // A caller who may read all namespaces receives everything.
    let viewer = scene.proxy.client_of(&Authority::of(&scene.bed).issue("admin", &["system:masters"]));
    let readable = RequestSpec::get(&format!("{ALL}?kubeFanoutReadable=true"));
    let whole = viewer.list_now(readable.clone()).await;
    assert_eq!((whole.status.as_u16(), whole.header("kube-fanout-readable")), (200, "all"));
    // A caller without permissions receives an empty list.
    let stranger = Authority::of(&scene.bed).issue(&unique("stranger"), &[]);
    let nothing = scene.proxy.client_of(&stranger).list_now(readable).await.value();
    assert_eq!(items(&nothing).count(), 0);
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

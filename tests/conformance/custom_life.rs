//! Custom resources that are defined, changed, deleted and defined again, and resources of an aggregated apiserver.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::bed::{
    self, Answer, Ended, Event, Http, Pair, Plan, RequestSpec, Times, eventually, log_line, outline, promised, unique,
    version_of,
};
use crate::custom::FOLLOWS;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// The number of definitions that are created and changed to measure the delay until the proxy serves the change.
const TRIALS: usize = 6;
/// The number of definitions that are deleted while [`LISTING`] clients list their objects.
const DELETIONS: usize = 2;
const LISTING: usize = 20;
/// The longest backoff of a feed (docs/CONFIG.md, "Fixed limits").
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A definition that only this test uses, in its own group.
struct Defined {
    pair: Pair,
    group: String,
}

/// One version of the definition.
fn version(name: &str, rest: Value) -> Value {
    let mut version = json!({
        "name": name, "served": true, "storage": false,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
    });
    let Value::Object(rest) = rest else { panic!("not an object: {rest}") };
    version.as_object_mut().expect("an object").extend(rest);
    version
}

fn stored(name: &str) -> Value {
    version(name, json!({"storage": true}))
}

fn scoped(scope: &str, versions: &[Value]) -> Value {
    let names = json!({"plural": "mice", "singular": "mouse", "kind": "Mouse", "listKind": "Mischief"});
    json!({"scope": scope, "names": names, "versions": versions})
}

fn namespaced(versions: &[Value]) -> Value {
    scoped("Namespaced", versions)
}

impl Defined {
    async fn new(spec: Value) -> Option<Self> {
        Self::with(Plan::tls(), spec).await
    }

    async fn with(plan: Plan, spec: Value) -> Option<Self> {
        let pair = Pair::with(plan, bed::shared().await?).await;
        let defined = Self { pair, group: format!("{}.example.com", unique("life")) };
        defined.define(spec).await;
        Some(defined)
    }

    /// Creates the definition, without waiting.
    async fn define(&self, mut spec: Value) {
        spec["group"] = json!(self.group);
        let manifest = json!({"metadata": {"name": format!("mice.{}", self.group)}, "spec": spec});
        self.pair.direct.create(DEFINITIONS, manifest).await;
    }

    fn definition(&self) -> String {
        format!("{DEFINITIONS}/mice.{}", self.group)
    }

    async fn change(&self, spec: Value) {
        self.pair.direct.patch(&self.definition(), json!({"spec": spec})).await;
    }

    fn path(&self, version: &str, rest: &str) -> String {
        format!("/apis/{}/{version}/namespaces/{}/mice{rest}", self.group, self.pair.namespace)
    }

    /// Waits until both answers fulfil the condition, and the proxy's, if successful, comes from its cache. Panics if
    /// they differ.
    async fn agree(&self, path: &str, is_so: impl Fn(&Answer) -> bool) -> Answer {
        self.agree_within(FOLLOWS, path, is_so).await
    }

    async fn agree_within(&self, within: Duration, path: &str, is_so: impl Fn(&Answer) -> bool) -> Answer {
        eventually(path, async || is_so(&self.pair.direct.get(path).await).then_some(())).await;
        promised(within, path, async || {
            let answer = self.pair.through.get(path).await;
            (is_so(&answer) && (answer.status != 200 || answer.is_cached())).then_some(())
        })
        .await;
        self.pair.same(RequestSpec::get(path)).await
    }

    async fn is_served(&self, version: &str) {
        self.agree(&self.path(version, "?resourceVersion=0"), |answer| answer.status == 200).await;
    }

    async fn is_unknown(&self, version: &str) {
        self.agree(&self.path(version, "?resourceVersion=0"), |answer| answer.status == 404).await;
    }

    /// Creates an object at the apiserver, and waits until both servers have it.
    async fn mouse(&self, version: &str, name: &str) -> u64 {
        let api_version = format!("{}/{version}", self.group);
        let mouse = json!({"apiVersion": api_version, "kind": "Mouse", "metadata": {"name": name}, "spec": {"a": 1}});
        let at = version_of(&self.pair.direct.create(&self.path(version, ""), mouse).await);
        for http in [&self.pair.direct, &self.pair.through] {
            self.has(http, version, at).await;
        }
        at
    }

    /// Waits until a server has reached a version. Before that it may answer with 504.
    async fn has(&self, http: &Http, version: &str, at: u64) {
        let path = self.path(version, &format!("?resourceVersion={at}"));
        http.until_ok("it has it", RequestSpec::get(&path)).await;
    }

    /// Watches both from `at`, does something that ends the watches, and checks that both sent the same until then.
    async fn same_until_the_end(&self, path: &str, what: impl AsyncFnOnce()) -> Vec<String> {
        let request = || RequestSpec::get(path);
        let mut direct = self.pair.direct.watch(request()).await;
        let mut through = self.pair.through.watch(request()).await;
        what().await;
        let ((expected, end), (received, ended)) = tokio::join!(direct.rest(), through.rest());
        assert_eq!((end, ended), (Ended::Clean, Ended::Clean), "{path}");
        let lines = |events: &[Event]| events.iter().map(|event| event.line.clone()).collect::<Vec<_>>();
        assert_eq!(lines(&received), lines(&expected), "{path}");
        outline(&received).into()
    }
}

fn names(answer: &Answer) -> Vec<String> {
    let items = answer.value()["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn new_crd_is_cached_promptly_and_crd_change_takes_effect() {
    let Some(pair) = Pair::new().await else { return };
    let mut defined = Defined { pair, group: String::new() };
    let (mut created, mut changed) = (Vec::new(), Vec::new());
    for trial in 0..TRIALS {
        defined.group = format!("{}.example.com", unique("trial"));
        let fields = |path: &str| {
            [version(
                "v1",
                json!({"storage": true, "selectableFields": [{"jsonPath": path}],
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties":
                {"a": {"type": "string"}, "b": {"type": "string"}}}}}}}),
            )]
        };
        defined.define(namespaced(&fields(".spec.a"))).await;
        let (since, path) = (Instant::now(), defined.path("v1", "?resourceVersion=0"));
        // Half of the requests come before the object can exist, the other half when upstream has it.
        if trial % 2 == 0 {
            let direct = &defined.pair.direct;
            direct.until_ok("upstream serves it", RequestSpec::get(&path)).await;
        }
        let through = &defined.pair.through;
        eventually("it is served from the cache", async || through.get(&path).await.is_cached().then_some(())).await;
        created.push(since.elapsed());
        defined.change(json!({"versions": fields(".spec.b")})).await;
        let (since, path) = (Instant::now(), defined.path("v1", "?resourceVersion=0&fieldSelector=spec.b%3Dx"));
        let is_new = async || {
            let answer = defined.pair.through.get(&path).await;
            (answer.status == 200 && answer.is_cached()).then_some(())
        };
        eventually("the new field selects", is_new).await;
        changed.push(since.elapsed());
    }
    log_line(&format!("from a definition's creation to its first cached answer: {}", Times::of(created)));
    log_line(&format!("from a definition's change to an answer by it: {}", Times::of(changed)));
}

#[tokio::test]
async fn crd_watch_shares_the_proxys_own_upstream_watch() {
    let Some(pair) = Pair::new().await else { return };
    let request = RequestSpec::get(&format!("{DEFINITIONS}?watch=1")).accept("application/vnd.kubernetes.protobuf");
    let watch = pair.through.watch(request).await;
    let labels = [("resource", "customresourcedefinitions.v1.apiextensions.k8s.io")];
    eventually("one watch here is one watch upstream", async || {
        let metrics = pair.proxy.metrics().await;
        let [here, upstream] =
            ["kube_fanout_watches_open", "kube_fanout_upstream_watches"].map(|name| metrics.sum(name, &labels));
        ([here, upstream] == [1, 1]).then_some(())
    })
    .await;
    drop(watch);
}

/// Each proxy of a fleet receives the change from its own watch, without another request.
#[tokio::test]
async fn crd_label_change_causes_no_upstream_list() {
    let Some(bed) = bed::own("label").await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let (direct, through) = (bed.direct(), proxy.client());
    let names = json!({"plural": "mice", "singular": "mouse", "kind": "Mouse", "listKind": "Mischief"});
    let spec = json!({"group": "label.example.com", "scope": "Cluster", "names": names, "versions": [stored("v1")]});
    let definition = format!("{DEFINITIONS}/mice.label.example.com");
    let manifest = json!({"metadata": {"name": "mice.label.example.com"}, "spec": spec});
    direct.create(DEFINITIONS, manifest).await;
    let is_held = async || through.get("/apis/label.example.com/v1/mice?resourceVersion=0").await.is_cached();
    eventually("the new resource is cached", async || is_held().await.then_some(())).await;
    let labels = [("verb", "LIST"), ("resource", "customresourcedefinitions")];
    let lists = async || bed.metrics().await.sum("apiserver_request_total", &labels);
    let before = lists().await;
    assert!(before > 0, "they were listed once");
    direct.patch(&definition, json!({"metadata": {"labels": {"seen": "yes"}}})).await;
    // The proxy notices a relevant change, and the label change came before it in the same stream.
    direct.delete(&definition).await;
    eventually("the resource is gone", async || (!is_held().await).then_some(())).await;
    assert_eq!(lists().await, before);
    proxy.assert_sound();
}

#[tokio::test]
async fn custom_resource_list_uses_list_kind_of_the_crd() {
    let Some(defined) = Defined::new(namespaced(&[stored("v1")])).await else { return };
    defined.is_served("v1").await;
    defined.mouse("v1", "m").await;
    for query in ["?resourceVersion=0", "", "?limit=1", "?labelSelector=none"] {
        let request = RequestSpec::get(&defined.path("v1", query));
        assert!(defined.pair.through.list_now(request.clone()).await.is_cached());
        let list = defined.pair.same(request).await;
        assert_eq!(list.value()["kind"], "Mischief");
    }
    let watch = defined.path(
        "v1",
        "?watch=1&timeoutSeconds=3&sendInitialEvents=true\
        &allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan",
    );
    defined.pair.same_watch(RequestSpec::get(&watch)).await;
}

#[tokio::test]
async fn crd_versions_can_be_added_and_removed() {
    let Some(defined) = Defined::new(namespaced(&[stored("v1"), version("v3", json!({"served": false}))])).await else {
        return;
    };
    defined.is_served("v1").await;
    defined.mouse("v1", "old").await;
    for unserved in ["v2", "v3"] {
        defined.is_unknown(unserved).await;
    }
    let last = defined.mouse("v1", "last").await;
    let watch = |version: &str, at: u64| defined.path(version, &format!("?watch=1&resourceVersion={at}"));
    // A changed definition also ends the watches of versions that remain.
    let path = watch("v1", last);
    let outlined = defined.same_until_the_end(&path, async || {
        defined.change(json!({"versions": [stored("v1"), version("v2", json!({}))]})).await;
    });
    assert_eq!(outlined.await, [""; 0]);
    defined.is_served("v2").await;
    defined.is_served("v1").await;
    // Both list the same objects, each in its own version. Upstream has dropped its history from before the change.
    let last = defined.mouse("v1", "later").await;
    defined.has(&defined.pair.direct, "v2", last).await;
    let mut watches = Vec::new();
    for of in ["v1", "v2"] {
        for http in [&defined.pair.direct, &defined.pair.through] {
            watches.push(http.watch(RequestSpec::get(&watch(of, last))).await);
        }
    }
    let newest = defined.mouse("v2", "new").await;
    let mut lines = Vec::new();
    for watch in &mut watches {
        let event = watch.change().await;
        assert_eq!((event.kind.as_str(), event.name(), event.version()), ("ADDED", "new", newest));
        lines.push(event.line);
    }
    assert_eq!((&lines[0], &lines[2]), (&lines[1], &lines[3]));
    assert_ne!(lines[0], lines[2], "each in its own version");
    for of in ["v1", "v2"] {
        let list = defined.agree(&defined.path(of, "?resourceVersion=0"), |answer| names(answer).len() == 4).await;
        assert_eq!(names(&list), ["last", "later", "new", "old"]);
    }
    let path = watch("v1", newest);
    let outlined = defined.same_until_the_end(&path, async || {
        let unserved = version("v1", json!({"served": false, "storage": true}));
        defined.change(json!({"versions": [unserved, version("v2", json!({}))]})).await;
    });
    assert_eq!(outlined.await, [""; 0]);
    defined.is_unknown("v1").await;
    let list = defined.agree(&defined.path("v2", "?resourceVersion=0"), |answer| names(answer).len() == 4).await;
    assert_eq!(list.value()["items"][0]["apiVersion"], format!("{}/v2", defined.group));
}

/// Neither the objects nor their versions change, but their served content does.
#[tokio::test]
async fn new_crd_default_appears_in_cached_objects() {
    let Some(defined) = Defined::new(namespaced(&[stored("v1")])).await else { return };
    defined.is_served("v1").await;
    let at = defined.mouse("v1", "m").await;
    let spec = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties":
        {"color": {"type": "string", "default": "grey"}}});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}});
    defined.change(json!({"versions": [version("v1", json!({"storage": true, "schema": schema}))]})).await;
    let is_new = |answer: &Answer| answer.text().contains("grey");
    let list = defined.agree(&defined.path("v1", "?resourceVersion=0"), is_new).await;
    assert_eq!(version_of(&list.value()["items"][0]), at);
    defined.agree(&defined.path("v1", "/m?resourceVersion=0"), is_new).await;
}

#[tokio::test]
async fn recreated_crd_serves_no_objects_of_the_deleted_one() {
    let Some(defined) = Defined::new(namespaced(&[stored("v1")])).await else { return };
    defined.is_served("v1").await;
    defined.mouse("v1", "one").await;
    let mut last = defined.mouse("v1", "two").await;
    for scope in ["Namespaced", "Cluster"] {
        let watch = defined.path("v1", &format!("?watch=1&resourceVersion={last}"));
        let outlined = defined.same_until_the_end(&watch, async || {
            defined.pair.direct.delete(&defined.definition()).await;
        });
        let mut outlined = outlined.await;
        outlined.sort();
        assert_eq!(outlined, ["DELETED one", "DELETED two"]);
        let gone = async || (defined.pair.direct.get(&defined.definition()).await.status == 404).then_some(());
        eventually("the definition is gone", gone).await;
        // The proxy has no time to notice.
        defined.define(scoped(scope, &[stored("v1")])).await;
        if scope == "Cluster" {
            break;
        }
        let path = defined.path("v1", "?resourceVersion=0");
        let list = defined.agree(&path, |answer| {
            answer.status == 200 && names(answer).is_empty() && version_of(&answer.value()) > last
        });
        assert!(version_of(&list.await.value()) > last, "versions go on");
        defined.mouse("v1", "one").await;
        last = defined.mouse("v1", "two").await;
    }
    let cluster = format!("/apis/{}/v1/mice", defined.group);
    let is_empty = |answer: &Answer| answer.status == 200 && names(answer).is_empty();
    defined.agree(&format!("{cluster}?resourceVersion=0"), is_empty).await;
    let mouse = json!({"apiVersion": format!("{}/v1", defined.group), "kind": "Mouse", "metadata": {"name": "wide"}});
    let at = version_of(&defined.pair.direct.create(&cluster, mouse).await);
    assert!(at > last);
    let list = defined.agree(&format!("{cluster}?resourceVersion={at}"), |answer| answer.status == 200).await;
    assert_eq!((names(&list), list.is_cached()), (vec!["wide".to_owned()], true));
    defined.agree(&defined.path("v1", "?resourceVersion=0"), |answer| answer.status == 404).await;
}

/// Lists until the resource no longer exists. Returns every status.
async fn listed_until_gone(http: &Http, path: &str) -> Vec<u16> {
    let mut statuses = Vec::new();
    while statuses.last() != Some(&404) {
        statuses.push(http.get(path).await.status.as_u16());
    }
    statuses
}

/// A list during the deletion of the definition gets the same answer as from upstream. The direct test
/// `list_in_flight_is_forwarded_when_crd_version_is_unserved` shows that no request hangs.
#[tokio::test]
async fn list_in_flight_during_crd_deletion_returns_200_or_404() {
    let Some(pair) = Pair::new().await else { return };
    let mut defined = Defined { pair, group: String::new() };
    for _ in 0..DELETIONS {
        defined.group = format!("{}.example.com", unique("going"));
        defined.define(namespaced(&[stored("v1")])).await;
        defined.is_served("v1").await;
        defined.mouse("v1", "m").await;
        let path = defined.path("v1", "");
        let Pair { direct, through, .. } = &defined.pair;
        let listing = join_all((0..LISTING).map(|_| listed_until_gone(through, &path)));
        let definition = defined.definition();
        let (clients, _) = tokio::join!(listing, direct.delete(&definition));
        let other = clients.concat().into_iter().find(|status| !matches!(status, 200 | 404));
        assert_eq!(other, None, "upstream answers with 200 or with 404");
        let gone = async || (direct.get(&definition).await.status == 404).then_some(());
        eventually("the definition is gone", gone).await;
        defined.pair.same(RequestSpec::get(&path)).await;
    }
}

#[tokio::test]
async fn failed_crd_conversion_returns_the_upstream_error() {
    let spec = namespaced(&[stored("v1"), version("v2", json!({}))]);
    // A watch of objects that cannot be converted is answered after that time.
    let plan = Plan::tls().config("feeds: {syncWait: 3s}");
    let Some(defined) = Defined::with(plan, spec).await else { return };
    for of in ["v1", "v2"] {
        defined.is_served(of).await;
    }
    let last = defined.mouse("v1", "m").await;
    let watch = defined.path("v2", &format!("?watch=1&resourceVersion={last}"));
    let outlined = defined.same_until_the_end(&watch, async || {
        let unreachable = json!({"url": "https://127.0.0.1:1/convert"});
        let webhook = json!({"clientConfig": unreachable, "conversionReviewVersions": ["v1"]});
        defined.change(json!({"conversion": {"strategy": "Webhook", "webhook": webhook}})).await;
    });
    assert_eq!(outlined.await, [""; 0]);
    let Pair { direct, through, .. } = &defined.pair;
    let list = defined.path("v2", "?resourceVersion=0");
    let fails = async || direct.get(&list).await.text().contains("conversion webhook").then_some(());
    eventually("upstream cannot convert", fails).await;
    let watch = defined.path("v2", "?watch=1");
    let get = defined.path("v2", "/m");
    let (_, _, watched) = tokio::join!(
        defined.pair.same(RequestSpec::get(&list)),
        defined.pair.same(RequestSpec::get(&get)),
        through.get(&watch)
    );
    assert_eq!((watched.status.as_u16(), watched.header("retry-after")), (429, "1"));
    assert!(watched.text().contains("storage is (re)initializing"), "{}", watched.text());
    assert_eq!(direct.get(&watch).await.status, watched.status);
    // Objects that need no conversion remain readable.
    let list = defined.agree(&defined.path("v1", "?resourceVersion=0"), |answer| names(answer) == ["m"]).await;
    assert!(list.is_cached());
    defined.change(json!({"conversion": {"strategy": "None", "webhook": null}})).await;
    let path = defined.path("v2", "?resourceVersion=0");
    defined.agree_within(LONGEST_WAIT, &path, |answer| names(answer) == ["m"]).await;
}

#[tokio::test]
async fn aggregated_api_is_forwarded_and_never_cached() {
    let Some(pair) = Pair::new().await else { return };
    let group = format!("{}.example.com", unique("aggregated"));
    let name = format!("v1.{group}");
    let service = json!({"namespace": pair.namespace, "name": "nobody"});
    let spec = json!({"group": group, "version": "v1", "service": service, "insecureSkipTLSVerify": true,
        "groupPriorityMinimum": 100, "versionPriority": 100});
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    pair.direct.create(services, json!({"metadata": {"name": name}, "spec": spec})).await;
    let things = format!("/apis/{group}/v1/things");
    eventually("upstream knows it", async || (pair.direct.get(&things).await.status == 503).then_some(())).await;
    for query in ["", "?resourceVersion=0", "?watch=1", "/one", "?watch=1&resourceVersion=1"] {
        let answer = pair.same(RequestSpec::get(&format!("{things}{query}"))).await;
        assert_eq!((answer.status.as_u16(), answer.is_cached()), (503, false), "{query}");
    }
    let metrics = pair.proxy.metrics().await;
    let feeds = metrics.series("kube_fanout_feed_state", &[]).filter(|(labels, _)| labels.contains(&group)).count();
    assert_eq!(feeds, 0);
    pair.direct.delete(&format!("{services}/{name}")).await;
    eventually("upstream forgets it", async || (pair.direct.get(&things).await.status == 404).then_some(())).await;
    pair.same(RequestSpec::get(&things)).await;
}

//! Derived representations in hard cases: a field that the proxy does not know, a server that does not report its
//! release, or a resource that is quiet for longer than upstream keeps its history.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};

use crate::bed::{
    self, Answer, Ended, Event, Frame, Http, Pair, Plan, Planter, RequestSpec, eventually, log_line, normal, version_of,
};
use crate::expired;
use crate::refused_json::{self, Derived, PROTOBUF, mode};

fn map(name: &str, app: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": app}}, "data": {"k": "v"}})
}

/// A client that acts like an informer, starting at `version`: it resumes when its watch ends, and relists when an
/// error demands it. It ends with the event of the object `last`.
struct Informer {
    client: Http,
    path: String,
    query: String,
    version: u64,
    events: Vec<(String, String, u64)>,
    planted: Vec<bool>,
    watches: usize,
    lists: usize,
}

impl Informer {
    async fn run(mut self, last: &str) -> Self {
        loop {
            let request =
                RequestSpec::get(&format!("{}?watch=1&resourceVersion={}{}", self.path, self.version, self.query));
            let mut watch = self.client.watch(request).await;
            self.watches += 1;
            while let Some(event) = watch.event().await {
                if event.kind == "ERROR" {
                    assert_eq!(event.object["code"], 410, "{}", event.line);
                    self.list().await;
                    break;
                }
                self.take(&event);
                if event.name() == last {
                    return self;
                }
            }
        }
    }

    fn take(&mut self, event: &Event) {
        assert!(event.version() > self.version || event.kind == "BOOKMARK", "{} after {}", event.line, self.version);
        self.version = self.version.max(event.version());
        if event.kind != "BOOKMARK" {
            self.events.push((event.kind.clone(), event.name().to_owned(), event.version()));
            self.planted.push(event.object["planted"] == "yes");
        }
    }

    async fn list(&mut self) {
        self.lists += 1;
        let path = format!("{}?resourceVersion={}&resourceVersionMatch=NotOlderThan", self.path, self.version);
        let list = self.client.json(&path).await;
        assert!(version_of(&list) >= self.version, "a list that is older: {list}");
        self.version = version_of(&list);
    }
}

/// Creates, changes and deletes objects, which enter and leave the selection. Halfway, they get the unknown field.
/// Returns the version from which they have it.
async fn churn(direct: &Http, path: &str, planter: &Planter) -> u64 {
    let mut planted_from = 0;
    for at in 0..300 {
        if at == 160 {
            planter.plant();
        }
        let (name, one) = (format!("m{}", at % 20), format!("{path}/m{}", at % 20));
        let labelled = |app: &str| json!({"metadata": {"labels": {"app": app}}});
        let changed = match at / 20 % 4 {
            0 => direct.create(path, map(&name, if at % 3 == 0 { "y" } else { "x" })).await,
            1 => direct.patch(&one, labelled("y")).await,
            2 => direct.patch(&one, labelled("x")).await,
            _ => direct.delete(&one).await,
        };
        if at == 160 {
            planted_from = version_of(&changed);
        }
    }
    planted_from
}

/// The number of informers.
const INFORMERS: usize = 60;

/// Informers with two selectors, while objects are created, changed, removed from the selection and deleted.
#[tokio::test]
async fn informers_lose_no_event_when_derived_json_is_disabled() {
    let Some(bed) = bed::shared().await else { return };
    let planter = Planter::start(&bed).await;
    let proxy = Plan::plain().upstream(&planter.kubeconfig()).start(&bed).await;
    let (namespace, direct) = (bed.namespace("flip").await, bed.direct());
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let start = version_of(&direct.create(&path, map("first", "x")).await);
    let queries = ["", "&labelSelector=app%3Dx", "&allowWatchBookmarks=true"];
    // The reference events from the apiserver for each selector. These watches open before its window has passed.
    let mut references = Vec::new();
    for query in queries {
        let mut watch = direct.watch(RequestSpec::get(&format!("{path}?watch=1&resourceVersion={start}{query}"))).await;
        references.push(tokio::spawn(async move {
            let mut expected = Vec::new();
            while expected.last().is_none_or(|(_, name, _): &(String, String, u64)| name != "last") {
                let event = watch.change().await;
                expected.push((event.kind.clone(), event.name().to_owned(), event.version()));
            }
            expected
        }));
    }
    let informers: Vec<_> = (0..INFORMERS)
        .map(|at| {
            let informer = Informer {
                client: proxy.client(),
                path: path.clone(),
                query: queries[at % queries.len()].to_owned(),
                version: start,
                events: Vec::new(),
                planted: Vec::new(),
                watches: 0,
                lists: 0,
            };
            tokio::spawn(informer.run("last"))
        })
        .collect();
    eventually("all watch", async || {
        let open = proxy.metrics().await.sum("kube_fanout_watches_open", &[("resource", "configmaps.v1")]);
        (open >= i64::try_from(INFORMERS).expect("few")).then_some(())
    })
    .await;
    let planted_from = churn(&direct, &path, &planter).await;
    direct.create(&path, map("last", "x")).await;
    let done: Vec<Informer> = join_all(informers).await.into_iter().map(|done| done.expect("no panic")).collect();
    for ((at, query), reference) in queries.iter().enumerate().zip(references) {
        let expected = reference.await.expect("no panic");
        for informer in done.iter().skip(at).step_by(queries.len()) {
            if informer.lists == 0 {
                assert_eq!(informer.events, expected, "{query}");
            }
        }
    }
    for informer in &done {
        for ((kind, name, version), planted) in informer.events.iter().zip(&informer.planted) {
            // An object that leaves a selection is sent in its previous form.
            let before = *version < planted_from || kind == "DELETED";
            assert!(*planted || before, "{name} at {version} without its field");
        }
    }
    let sum = |of: fn(&Informer) -> usize| done.iter().map(of).sum::<usize>();
    log_line(&format!("{} watches, {} lists", sum(|one| one.watches), sum(|one| one.lists)));
    assert_eq!(sum(|one| one.lists), 0, "all of them could go on");
    // The events may arrive before the gauge of the feed that sends them.
    eventually("JSON is no longer derived", async || {
        (mode(&proxy, "configmaps.v1", "unsupported_object").await == 1).then_some(())
    })
    .await;
}

/// The replacing feed starts at the slowest client's version, and a list must not show that.
#[tokio::test]
async fn lists_do_not_go_back_when_a_feed_is_replaced() {
    let Some(bed) = bed::shared().await else { return };
    let planter = Planter::start(&bed).await;
    let proxy = Plan::plain().upstream(&planter.kubeconfig()).start(&bed).await;
    let (namespace, direct, through) = (bed.namespace("travel").await, bed.direct(), proxy.client());
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let first = version_of(&direct.create(&path, map("first", "x")).await);
    let slow = RequestSpec::get(&format!("{path}?watch=1&resourceVersion={first}&labelSelector=app%3Dx"));
    let mut watch = through.watch(slow.clone()).await;
    for at in 0..30 {
        direct.create(&path, map(&format!("m{at}"), "y")).await;
    }
    let seen = version_of(&through.json(&path).await);
    let mut all = through.watch(RequestSpec::get(&format!("{path}?watch=1&resourceVersion={seen}"))).await;
    planter.plant();
    direct.create(&path, map("last", "y")).await;
    assert_eq!(all.event().await, None, "no event without the field");
    assert_eq!(watch.event().await, None, "nothing of its own");
    let any = format!("{path}?resourceVersion=0");
    let lists = (0..8).map(|_| {
        let (client, any) = (proxy.client(), any.clone());
        async move { version_of(&client.json(&any).await) }
    });
    let ((), versions) = tokio::join!(
        async {
            let _open = through.watch(slow).await;
        },
        join_all(lists)
    );
    log_line(&format!("seen {seen}, then {versions:?}; the slowest was at {first}"));
    assert!(versions.iter().all(|version| *version >= seen), "older than before: {versions:?} after {seen}");
}

/// The field exists before the proxy's start, in a namespace that no client requests. It does not affect metadata
/// clients.
#[tokio::test]
async fn unknown_field_disables_derived_json_but_not_metadata() {
    let Some(bed) = bed::shared().await else { return };
    let planter = Planter::start(&bed).await;
    planter.plant();
    let (elsewhere, here) = (bed.namespace("elsewhere").await, bed.namespace("here").await);
    let at = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");
    bed.direct().create(&at(&elsewhere), map("a", "x")).await;
    let version = version_of(&bed.direct().create(&at(&here), map("b", "x")).await);
    let proxy = Plan::plain().upstream(&planter.kubeconfig()).start(&bed).await;
    let through = proxy.client();
    let there = format!("{}?resourceVersion={version}", at(&here));
    through.until_ok("the feed has it", RequestSpec::get(&there)).await;
    let list = through.json(&there).await;
    assert_eq!(list["items"][0]["planted"], "yes", "{list}");
    let one = through.json(&format!("{}/b?resourceVersion={version}", at(&here))).await;
    assert_eq!(one["planted"], "yes", "{one}");
    let metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let request = RequestSpec::get(&format!("{}?resourceVersion={version}", at(&here))).accept(metadata);
    let ours = eventually("metadata is served from the cache", async || {
        Some(through.fetch(request.clone()).await).filter(Answer::is_cached)
    })
    .await;
    let theirs = bed.direct().fetch(request).await;
    assert_eq!(ours.value()["items"], theirs.value()["items"]);
    let modes: BTreeMap<_, _> = [
        ("unsupported_object", mode(&proxy, "configmaps.v1", "unsupported_object").await),
        ("derived", mode(&proxy, "configmaps.v1", "derived").await),
    ]
    .into();
    assert_eq!(modes, [("derived", 0), ("unsupported_object", 1)].into());
}

/// Upstream has no watch cache of events, so the version of a quiet stream remains unknown. The state is compacted
/// after a while, so that there is nothing of its version to compare with.
#[tokio::test]
async fn json_is_verified_on_quiet_resource_after_compaction() {
    let Some(bed) = bed::quiet("quiet-events").await else { return };
    let proxy = Plan::plain().start(&bed).await;
    let (direct, through) = (bed.direct(), proxy.client());
    let path = "/api/v1/namespaces/default/events";
    let event = json!({
        "metadata": {"name": "one"}, "reason": "Tested", "type": "Normal",
        "involvedObject": {"kind": "Namespace", "name": "default", "namespace": "default"},
    });
    direct.create(path, event).await;
    let watch = through.watch(RequestSpec::get("/api/v1/events?watch=1").accept(PROTOBUF));
    let mut watch = watch.await;
    assert!(matches!(watch.frame().await, Some(Frame::Protobuf(_))));
    for name in ["a", "b", "c"] {
        bed.namespace(name).await;
    }
    expired::compact(&bed, direct.version("/api/v1/namespaces").await).await;
    let list = eventually("the list is served from the cache", async || {
        Some(through.get(&format!("{path}?resourceVersion=0")).await).filter(Answer::is_cached)
    })
    .await;
    // The apiserver may have created its own events.
    let events = list.value()["items"].as_array().cloned().unwrap_or_default();
    assert!(events.iter().any(|event| event["metadata"]["name"] == "one"), "{}", list.text());
    assert_eq!(mode(&proxy, "events.v1", "derived").await, 1);
}

/// The mismatch is found by comparison after clients have received wrong data, so they must relist.
#[tokio::test]
async fn watch_that_received_wrong_json_ends_with_410() {
    // While it has compared fewer than 20 objects, the proxy compares one every five seconds instead of every minute.
    // No other test of this control plane creates many objects of this resource.
    let Some(bed) = bed::shared().await else { return };
    let planter = Planter::start(&bed).await;
    let proxy = Plan::plain().upstream(&planter.kubeconfig()).start(&bed).await;
    let (namespace, direct, through) = (bed.namespace("wrong").await, bed.direct(), proxy.client());
    let path = format!("/api/v1/namespaces/{namespace}/limitranges");
    let version = version_of(
        &direct.create(&path, json!({"metadata": {"name": "a"}, "spec": {"limits": [{"type": "Pod"}]}})).await,
    );
    let mut watch = through.watch(RequestSpec::get(&format!("{path}?watch=1&resourceVersion={version}"))).await;
    planter.plant_json();
    let (events, ended) = watch.rest().await;
    let codes: Vec<_> = events.iter().map(|event| (event.kind.as_str(), event.object["code"].clone())).collect();
    assert_eq!((codes, ended), (vec![("ERROR", json!(410))], Ended::Clean));
    let list = through.json(&path).await;
    assert_eq!(list["items"][0]["planted"], "yes", "{list}");
}

/// Some builds do not report their release. Then the proxy derives nothing, and fetches JSON from upstream.
#[tokio::test]
async fn upstream_without_release_is_cached_without_derived_json() {
    let Some(bed) = bed::shared().await else { return };
    let planter = Planter::start(&bed).await;
    planter.say_release(Planter::UNKNOWN);
    let proxy = Plan::plain().upstream(&planter.kubeconfig()).start(&bed).await;
    let path = format!("/api/v1/namespaces/{}/configmaps", bed.namespace("unsaid").await);
    let version = version_of(&bed.direct().create(&path, map("a", "x")).await);
    let (through, list) = (proxy.client(), format!("{path}?resourceVersion={version}"));
    eventually("JSON is served from the cache", async || through.get(&list).await.is_cached().then_some(())).await;
    assert_eq!(mode(&proxy, "configmaps.v1", "not_comparable").await, 1);
}

/// Two servers share an address during an upgrade: the old one reports its release, and the new one writes the objects.
#[tokio::test]
async fn derived_json_is_retried_after_upstream_release_changes() {
    refused_json::is_retried_after_release_change(Derived::Metadata).await;
}

/// Metadata watches apply selectors like object watches, whatever upstream hides. Compressed lists of changing objects
/// equal uncompressed ones.
#[tokio::test]
async fn metadata_watches_and_gzip_lists_are_correct_under_churn() {
    let Some(pair) = Pair::new().await else { return };
    let path = format!("/apis/apps/v1/namespaces/{}/daemonsets", pair.namespace);
    let daemon = |name: &str| {
        let template =
            json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let spec = json!({"selector": {"matchLabels": {"app": "x"}}, "template": template});
        let long = json!({"a": "b".repeat(9000)});
        json!({"metadata": {"name": name, "labels": {"app": "x"}, "annotations": long}, "spec": spec})
    };
    let start = version_of(&pair.direct.create(&path, daemon("d0")).await);
    let watch = |accept: &str| {
        RequestSpec::get(&format!("{path}?watch=1&resourceVersion={start}&labelSelector=app%3Dx")).accept(accept)
    };
    let metadata = "as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let accepts =
        [format!("application/json;{metadata}"), format!("{PROTOBUF};{metadata}"), "application/json".to_owned()];
    let mut watches = Vec::new();
    for accept in &accepts {
        watches.push((pair.through.watch(watch(accept)).await, pair.direct.watch(watch(accept)).await, 0));
    }
    for at in 1..40 {
        pair.direct.create(&path, daemon(&format!("d{at}"))).await;
        for app in ["y", "x"] {
            let body = json!({"metadata": {"labels": {"app": app}, "annotations": {"n": at.to_string()}}});
            pair.direct.patch(&format!("{path}/d{}", at / 2), body).await;
        }
        if at % 4 == 0 {
            pair.direct.delete(&format!("{path}/d{}", at / 4)).await;
            pair.direct.create(&path, daemon(&format!("d{}", at / 4))).await;
        }
        let version = pair.direct.version(&path).await;
        let exact = format!("{path}?resourceVersion={version}&resourceVersionMatch=NotOlderThan");
        pair.through.until_ok("the feed has it", RequestSpec::get(&exact)).await;
        for accept in ["application/json", PROTOBUF] {
            let request = RequestSpec::get(&exact).accept(accept);
            let plain = pair.same(request.clone()).await;
            let mut compressed = pair.through.fetch(request.header(http::header::ACCEPT_ENCODING, "gzip")).await;
            if compressed.header("content-encoding") == "gzip" {
                compressed.body = bed::gunzip(&compressed.body);
            }
            let [compressed, plain] = [&compressed, &plain].map(|answer| normal::body(answer, false).text);
            assert!(compressed == plain, "{accept} at {version}");
        }
    }
    pair.direct.create(&path, daemon("last")).await;
    for ((mut ours, mut theirs, mut seen), accept) in watches.into_iter().zip(&accepts) {
        loop {
            let frames = (ours.frame().await, theirs.frame().await);
            assert_eq!(frames.0, frames.1, "{accept}, after {seen}");
            let Some(Frame::Json(bytes) | Frame::Protobuf(bytes)) = frames.0 else { panic!("it continues") };
            seen += 1;
            if bytes.windows(4).any(|part| part == b"last") {
                break;
            }
        }
        log_line(&format!("{seen} events equal as {accept}"));
    }
}

/// Go's protobuf decoder accepts any bytes as text, and the apiserver validates few fields: a user can store a pod
/// whose scheduler's name is not UTF-8. Everybody's reads of pods are still served from memory.
#[tokio::test]
async fn object_with_text_that_is_not_utf8_is_served_from_cache() {
    let Some(bed) = bed::alone().await else { return };
    let (direct, proxy) = (bed.direct(), Plan::tls().start(&bed).await);
    let path = format!("/api/v1/namespaces/{}/pods", bed.namespace("not-utf8").await);
    let pod = json!({
        "metadata": {"name": "stranger", "annotations": {"note": "QQQQ"}},
        "spec": {"schedulerName": "QQQQ", "containers": [{"name": "c", "image": "i"}]},
    });
    let dry = RequestSpec::get(&format!("{path}?dryRun=All")).with(Method::POST, "application/json", pod.to_string());
    let mut body = direct.fetch(dry.accept(PROTOBUF)).await.body.to_vec();
    while let Some(at) = body.windows(4).position(|window| window == b"QQQQ") {
        body[at..at + 4].copy_from_slice(b"\xff\xfe\xfd\xff");
    }
    let mut create = RequestSpec::get(&path).with(Method::POST, PROTOBUF, String::new()).accept(PROTOBUF);
    create.body = body.into();
    let created = direct.fetch(create).await;
    assert_eq!(created.status, 201, "{}", created.text());

    let client = proxy.client();
    for selector in ["", "?fieldSelector=spec.schedulerName!%3Dx", "?fieldSelector=spec.schedulerName%3D%EF%BF%BD"] {
        for accept in ["application/json", PROTOBUF] {
            let request = RequestSpec::get(&format!("{path}{selector}")).accept(accept);
            // The control plane renews leases, so the version of a list may rise between two requests.
            let (ours, theirs) = loop {
                let theirs = direct.fetch(request.clone()).await;
                let ours = client.list_now(request.clone()).await;
                if direct.fetch(request.clone()).await.body == theirs.body {
                    break (ours, theirs);
                }
            };
            // What a selector with U+FFFD means depends on the bytes that it stands for.
            assert_eq!(ours.is_cached(), !selector.ends_with("%BD"), "{selector} {accept}");
            assert!(ours.body == theirs.body, "{selector} {accept}: {} and {}", ours.text(), theirs.text());
        }
    }
    let mut watch = client.watch(RequestSpec::get(&format!("{path}?watch=1&resourceVersion=0"))).await;
    assert_eq!(watch.change().await.name(), "stranger");
    direct.delete(&format!("{path}/stranger?gracePeriodSeconds=0")).await;
    assert_eq!(watch.change().await.name(), "stranger");
    proxy.assert_sound();
}

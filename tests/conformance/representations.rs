//! The proxy needs one stream per built-in resource, whichever representations its clients request. Also the cases in
//! which one stream is not enough.

use futures_util::future::{join, join_all};
use serde_json::{Value, json};

use crate::bed::{
    self, Frame, Metrics, Pair, Plan, Plane, Planter, RequestSpec, Watch, eventually, log_line, version_of,
};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const WATCH_LIST: &str =
    "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=0";

const WATCH_LIST_AT: &str = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

/// A resource that supports list and watch.
pub struct Resource {
    group: String,
    version: String,
    name: String,
}

impl Resource {
    pub fn path(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/{}/{}", self.version, self.name),
            group => format!("/apis/{group}/{}/{}", self.version, self.name),
        }
    }

    /// The number of open watches, as the apiserver counts them.
    fn watches(&self, metrics: &Metrics) -> i64 {
        let (group, version) = (self.group.as_str(), self.version.as_str());
        let labels = [("group", group), ("version", version), ("resource", self.name.as_str()), ("verb", "WATCH")];
        metrics.sum("apiserver_longrunning_requests", &labels)
    }
}

/// The apiserver's built-in resources, from its discovery.
pub async fn built_ins(plane: &Plane) -> Vec<Resource> {
    let direct = plane.direct();
    let groups = direct.json("/apis").await;
    let listed = groups["groups"].as_array().cloned().unwrap_or_default();
    let versions = listed.iter().flat_map(|group| group["versions"].as_array().cloned().unwrap_or_default());
    let versions = versions.filter_map(|version| version["groupVersion"].as_str().map(str::to_owned));
    // Resources that other tests define are custom ones.
    let built_in = versions.filter(|version| version.contains(".k8s.io/") || !version.contains('.'));
    let mut resources = Vec::new();
    for (root, group_version) in std::iter::once(("/api", "v1".to_owned())).chain(built_in.map(|v| ("/apis", v))) {
        let (group, version) = group_version.split_once('/').unwrap_or(("", &group_version));
        let served = direct.json(&format!("{root}/{group_version}")).await;
        let watched = |resource: &&Value| {
            resource["verbs"]
                .as_array()
                .is_some_and(|verbs| verbs.contains(&json!("watch")) && verbs.contains(&json!("list")))
        };
        for resource in served["resources"].as_array().into_iter().flatten().filter(watched) {
            let name = resource["name"].as_str().unwrap_or_default().to_owned();
            resources.push(Resource { group: group.to_owned(), version: version.to_owned(), name });
        }
    }
    resources
}

fn metadata(media_type: &str, list: bool) -> String {
    let list = if list { "List" } else { "" };
    format!("{media_type};as=PartialObjectMetadata{list};g=meta.k8s.io;v=v1")
}

/// The initial events, and the watch after them.
async fn begun(what: &str, mut watch: Watch) -> (Vec<Frame>, Watch) {
    let mut frames = Vec::new();
    loop {
        let Some(frame) = watch.frame().await else { panic!("{what} ended after {:?}", frames.last()) };
        let (Frame::Json(bytes) | Frame::Protobuf(bytes)) = &frame;
        let is_end = bytes.windows(29).any(|part| {
            part == b"k8s.io/initial-events-end\":\"t" || part.ends_with(b"initial-events-end\x12\x04true")
        });
        if is_end {
            return (frames, watch);
        }
        frames.push(frame);
    }
}

#[tokio::test]
async fn built_in_resources_share_one_stream_across_encodings() {
    // On this control plane no lease is renewed, no event expires and no other client watches.
    let Some(bed) = bed::quiet("representations").await else { return };
    let pair = Pair::on(bed).await;
    let resources = built_ins(&pair.bed).await;
    let counts = async || {
        let metrics = pair.bed.metrics().await;
        resources.iter().map(|resource| resource.watches(&metrics)).collect::<Vec<_>>()
    };
    let before = bed::settled("the apiserver's watches", &counts).await;
    pair.maps().await;
    let (mut open, mut compared) = (Vec::new(), 0);
    let of = |list: &bed::Answer| {
        let headers = [list.content_type(), list.header("retry-after")].map(str::to_owned);
        (list.status, headers, bed::normal::body(list, false).text)
    };
    for resource in &resources {
        let path = resource.path();
        // One connection each, because a connection has a limited number of watches.
        let through = pair.proxy.client();
        for media_type in [JSON, PROTOBUF] {
            for accept in [media_type.to_owned(), metadata(media_type, true)] {
                let request = RequestSpec::get(&format!("{path}?resourceVersion=0")).accept(&accept);
                let (ours, theirs) = join(pair.through.fetch(request.clone()), pair.direct.fetch(request)).await;
                assert_eq!(of(&ours), of(&theirs), "{path} as {accept}");
            }
            for accept in [media_type.to_owned(), metadata(media_type, false)] {
                let request = RequestSpec::get(&format!("{path}?{WATCH_LIST}")).accept(&accept);
                let what = format!("{path} as {accept}");
                let (ours, theirs) = (through.watch(request.clone()).await, pair.direct.watch(request).await);
                let ((ours, watch), (theirs, _)) =
                    (begun(&what, ours).await, begun(&format!("{what}, directly,"), theirs).await);
                assert_eq!(ours, theirs, "{what}");
                compared += ours.len();
                open.push(watch);
            }
        }
    }
    let forwarded = pair.proxy.forwarded().await;
    assert_eq!(forwarded, [], "everything is served from the cache");
    eventually("one stream for each", async || {
        let counts = counts().await;
        let more = |(at, count): (usize, &i64)| {
            (*count != before[at] + 1).then(|| (resources[at].path(), *count - before[at]))
        };
        let other: Vec<_> = counts.iter().enumerate().filter_map(more).collect();
        // Excludes the proxy's own two watches, which were open before.
        let other: Vec<_> = other.into_iter().filter(|(path, more)| *more != 0 || !is_followed(path)).collect();
        if !other.is_empty() {
            log_line(&format!("not one more: {other:?}"));
        }
        other.is_empty().then_some(())
    })
    .await;
    log_line(&format!("{} resources, {} watches, {compared} initial events equal", resources.len(), open.len()));
    let metrics = pair.proxy.metrics().await;
    let modes = |mode| metrics.sum("kube_fanout_representation_mode", &[("mode", mode)]);
    log_line(&format!("derived: {}, of {} expected", modes("derived"), 3 * resources.len()));
    for reason in ["unsupported_object", "mismatch", "not_comparable", "unknown_type"] {
        assert_eq!(modes(reason), 0, "{reason}");
    }
}

/// A feed that starts at a client's version is listed, and a list does not show the form of the kind's bookmarks: how
/// zero values are printed, and what upstream's conversions add.
#[tokio::test]
async fn first_bookmark_of_each_built_in_resource_matches_upstream() {
    let Some(pair) = Pair::new().await else { return };
    let resources = built_ins(&pair.bed).await;
    let same = async |resource: &Resource| {
        let path = resource.path();
        let version = pair.direct.version(&path).await;
        let open_watch =
            pair.through.watch(RequestSpec::get(&format!("{path}?watch=1&resourceVersion={version}"))).await;
        for media_type in [JSON, PROTOBUF] {
            let there =
                RequestSpec::get(&format!("{path}?resourceVersion={version}&labelSelector=none")).accept(media_type);
            for http in [&pair.through, &pair.direct] {
                http.until_ok("it has that version", there.clone()).await;
            }
            for accept in [media_type.to_owned(), metadata(media_type, false)] {
                let query = format!("{WATCH_LIST_AT}&resourceVersion={version}");
                let request = RequestSpec::get(&format!("{path}?{query}&labelSelector=none")).accept(&accept);
                let (mut ours, mut theirs) =
                    (pair.through.watch(request.clone()).await, pair.direct.watch(request).await);
                let (actual, expected) = (ours.normalized_event().await, theirs.normalized_event().await);
                assert_eq!(actual, expected, "{path} as {accept}");
                assert!(actual.contains("BOOKMARK"), "{path} as {accept}: {actual}");
            }
        }
        drop(open_watch);
    };
    for some in resources.chunks(8) {
        join_all(some.iter().map(same)).await;
    }
    log_line(&format!("{} resources, in two forms, whole and as metadata", resources.len()));
}

/// Whether the proxy watches this resource for itself.
fn is_followed(path: &str) -> bool {
    path.ends_with("/customresourcedefinitions") || path.ends_with("/apiservices")
}

/// An apiserver that is newer than the field table, or a fork: its objects have an unknown field.
#[tokio::test]
async fn unknown_field_is_kept_by_opening_a_json_stream_and_logged() {
    let Some(bed) = bed::shared().await else { return };
    let planter = Planter::start(&bed).await;
    let proxy = Plan::plain().upstream(&planter.kubeconfig()).start(&bed).await;
    let (through, direct) = (proxy.client(), bed.direct());
    let namespace = bed.namespace("planted").await;
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let map = |name: &str| json!({"metadata": {"name": name}, "data": {"k": "v"}});
    let first = version_of(&direct.create(&path, map("a")).await);

    let watch = RequestSpec::get(&format!("{path}?watch=1&resourceVersion={first}"));
    let mut derived = through.watch(watch.clone()).await;
    let mut verbatim = through.watch(watch.accept(PROTOBUF)).await;
    let second = version_of(&direct.create(&path, map("b")).await);
    assert_eq!(derived.change().await.version(), second);
    let of = |mode: &'static str| [("resource", "configmaps.v1"), ("representation", "json"), ("mode", mode)];
    let is_derived = async || {
        let modes = proxy.metrics().await.sum("kube_fanout_representation_mode", &of("derived"));
        (modes == 1).then_some(())
    };
    eventually("JSON is derived", is_derived).await;

    planter.plant();
    let third = version_of(&direct.create(&path, map("c")).await);
    // The watch ends between two events, and the client resumes where it was.
    assert_eq!(derived.event().await, None, "no event without the field");
    let mut again = through.watch(RequestSpec::get(&format!("{path}?watch=1&resourceVersion={second}"))).await;
    let event = again.change().await;
    assert_eq!((event.version(), &event.object["planted"]), (third, &json!("yes")), "{}", event.line);
    let list = through.json(&format!("{path}?resourceVersion={third}&resourceVersionMatch=NotOlderThan")).await;
    let planted: Vec<_> = list["items"].as_array().into_iter().flatten().map(|item| item["planted"].clone()).collect();
    assert_eq!(planted.last(), Some(&json!("yes")), "{list}");
    // The protobuf watch continues and contains the field.
    let bytes = loop {
        let Some(Frame::Protobuf(bytes)) = verbatim.frame().await else { panic!("it is protobuf, and continues") };
        if bytes.windows(6).any(|part| part == b"\x12\x01c\x1a\x00\x22" || part.starts_with(b"\x0a\x01c")) {
            break bytes;
        }
    };
    assert!(bytes.windows(Planter::FIELD.len()).any(|part| part == Planter::FIELD), "the field is in it");

    let metrics = proxy.metrics().await;
    assert_eq!(metrics.sum("kube_fanout_representation_mode", &of("unsupported_object")), 1);
    let are_two = async || (proxy.streams("configmaps.v1").await == 2).then_some(());
    eventually("a stream for protobuf and one for JSON", are_two).await;
    let log = proxy.log();
    let line =
        log.lines().find(|line| line.contains("stopped converting cached objects")).expect("a line that says so");
    assert!(line.contains("configmaps") && line.contains("unknown protobuf field number 5000"), "{line}");
    log_line(line);
}

/// Upstream derives metadata from the object before its conversion, which adds some annotations. The metadata does not
/// have these, and the annotations that it has must not disable derived metadata for all clients (R-DERIVE-8).
#[tokio::test]
async fn derived_metadata_has_the_annotations_of_upstream() {
    /// An annotation without a conversion, whose name resembles one with a conversion.
    const SHOWN: &str = "deprecated.deployment.rollback.revision";
    let Some(pair) = Pair::new().await else { return };
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let workload = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    let scaler =
        json!({"scaleTargetRef": {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"}, "maxReplicas": 2});
    let metrics = r#"[{"type":"Resource","resource":{"name":"memory","targetAverageUtilization":50}}]"#;
    for (resource, spec, hidden, value) in [
        ("apps/v1/deployments", &workload, "deprecated.deployment.rollback.to", "3"),
        ("apps/v1/daemonsets", &workload, "deprecated.daemonset.template.generation", "3"),
        ("autoscaling/v1/horizontalpodautoscalers", &scaler, "autoscaling.alpha.kubernetes.io/metrics", metrics),
    ] {
        let (version, resource) = resource.rsplit_once('/').expect("a version and a resource");
        let path = format!("/apis/{version}/namespaces/{}/{resource}", pair.namespace);
        let annotations = json!({hidden: value, SHOWN: "3", "b": "c"});
        let object = json!({"metadata": {"name": "x", "annotations": annotations}, "spec": spec});
        // A feed that started before the object's creation and contains it has that version, regardless of other
        // writes.
        pair.through.json(&format!("{path}?resourceVersion=0")).await;
        let created = pair.direct.create(&path, object).await;
        assert_ne!(created["metadata"]["annotations"][hidden], json!(null), "the object has it");
        let version = version_of(&created);
        pair.through.until_ok("the feed has it", RequestSpec::get(&format!("{path}?resourceVersion={version}"))).await;
        let path = format!("{path}?resourceVersion={version}&resourceVersionMatch=Exact");
        for media_type in [JSON, PROTOBUF] {
            let request = RequestSpec::get(&path).accept(&metadata(media_type, true));
            // A request is forwarded while the feed's metadata is still being compared with upstream's.
            eventually(&format!("{path} as {media_type} is served from the cache"), async || {
                pair.through.fetch(request.clone()).await.is_cached().then_some(())
            })
            .await;
            let answer = pair.same(request).await;
            if media_type == JSON {
                let annotations = &answer.value()["items"][0]["metadata"]["annotations"];
                assert_eq!([hidden, SHOWN].map(|name| annotations.get(name).is_some()), [false, true], "{path}");
            }
        }
    }
}

/// Above 128 KiB, responses are compressed for clients that accept gzip, in one member that every client can read. The
/// lists are not of an exact version, because after another configmap write the feed no longer has that state and
/// forwards the request.
#[tokio::test]
async fn large_responses_are_gzipped_if_the_client_accepts_gzip() {
    let Some(pair) = Pair::new().await else { return };
    let mut version = 0;
    for at in 0..60 {
        let filler = format!("{at} {}", "abc <&> ".repeat(600));
        let map = json!({"metadata": {"name": format!("m{at:02}")}, "data": {"k": filler}});
        version = version_of(&pair.direct.create(&pair.path(""), map).await);
    }
    let large = json!({"metadata": {"name": "large"}, "data": {"k": "x".repeat(200 << 10)}});
    version = version.max(version_of(&pair.direct.create(&pair.path(""), large).await));
    pair.settle(version).await;
    let list = pair.path(&format!("?resourceVersion={version}"));
    for (path, encoding, compressed) in [
        (list.as_str(), "gzip", true),
        (&list, "br, gzip", true),
        (&list, "gzip;q=1.0", false),
        (&list, "*", false),
        (&format!("{list}&fieldSelector=metadata.name%3Dm00"), "gzip", false),
        (&format!("{list}&fieldSelector=metadata.name%3Dlarge"), "gzip", true),
        (&pair.path("/large?resourceVersion=0"), "gzip", true),
        (&pair.path("/m00?resourceVersion=0"), "gzip", false),
    ] {
        for accept in [JSON, PROTOBUF] {
            let request = RequestSpec::get(path).accept(accept).header(http::header::ACCEPT_ENCODING, encoding);
            let (ours, theirs) = (pair.through.fetch(request.clone()).await, pair.direct.fetch(request).await);
            let of = |answer: &bed::Answer| {
                let plain = if compressed { gunzipped(&answer.body).into() } else { answer.body.clone() };
                let plain = bed::normal::body(&bed::Answer { body: plain, ..answer.clone() }, false).text;
                let headers = ["content-encoding", "vary", "content-type"].map(|name| answer.header(name).to_owned());
                (answer.status, headers, plain)
            };
            assert!(ours.is_cached(), "{path}");
            assert_eq!(ours.header("content-encoding") == "gzip", compressed, "{path} {encoding}");
            let (ours, theirs) = (of(&ours), of(&theirs));
            assert_eq!((ours.0, &ours.1), (theirs.0, &theirs.1), "{path} {encoding}");
            assert!(ours.2 == theirs.2, "{path} {encoding} {accept}: another body");
        }
    }
}

/// The content of one gzip member, after which nothing may follow.
fn gunzipped(member: &[u8]) -> Vec<u8> {
    let (mut plain, mut decoder) = (Vec::new(), flate2::bufread::GzDecoder::new(member));
    std::io::Read::read_to_end(&mut decoder, &mut plain).expect("a gzip member");
    assert!(decoder.into_inner().is_empty(), "one member");
    plain
}

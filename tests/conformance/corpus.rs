//! The corpus of the fuzz targets (tests/fuzz): data that a real apiserver sends. `make corpus` rewrites it. As a test,
//! this checks that each new input is accepted or refused like the stored one.

mod callers;

use std::collections::BTreeMap;
use std::path::Path;

use kube_fanout::wire::{FeedEncoding, JsonLayout, ObjectReader, WatchItem};
use kubeapi::SelectableFieldTable;
use serde_json::{Value, json};

use crate::bed::{self, Frame, Http, Plane, RequestSpec};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// The contents of the files, by directory and name.
type Corpus = BTreeMap<(&'static str, String), Vec<u8>>;

/// A feed's resource, by the number that the fuzz targets use for it.
struct Feed {
    number: u8,
    accept: &'static str,
    is_custom: bool,
}

const FEEDS: [Feed; 5] = [
    Feed { number: 0, accept: JSON, is_custom: false },
    Feed { number: 1, accept: JSON, is_custom: true },
    Feed { number: 2, accept: PROTOBUF, is_custom: false },
    Feed { number: 3, accept: TABLE, is_custom: false },
    Feed { number: 4, accept: TABLE, is_custom: true },
];

impl Feed {
    fn collection(&self, namespace: &str) -> String {
        if self.is_custom {
            format!("/apis/verify.kube-fanout.io/v1/namespaces/{namespace}/samples")
        } else {
            format!("/api/v1/namespaces/{namespace}/pods")
        }
    }

    fn object(&self, name: &str) -> Value {
        let metadata =
            json!({"name": name, "labels": {"app": "web", "tier": "front"}, "annotations": {"a": "b\"\u{e4}"}});
        if self.is_custom {
            let spec = json!({"color": "red", "size": 1.5, "list": [1, null, {"x": "<&>"}]});
            let api_version = "verify.kube-fanout.io/v1";
            return json!({"apiVersion": api_version, "kind": "Sample", "metadata": metadata, "spec": spec});
        }
        let container = json!({"name": "c", "image": "i", "resources": {"limits": {"cpu": "100m", "memory": "1Gi"}}});
        json!({"metadata": metadata, "spec": {"nodeName": "n", "containers": [container]}})
    }

    /// The events of an object's life, a bookmark and an error, followed by a page of a list.
    async fn capture(&self, http: &Http, namespace: &str, corpus: &mut Corpus) {
        let collection = self.collection(namespace);
        let named = |what: &str| format!("{}-{what}", self.number);
        http.create(&collection, self.object("one")).await;
        http.create(&collection, self.object("two")).await;
        let page = http.fetch(RequestSpec::get(&format!("{collection}?limit=1")).accept(self.accept)).await;
        let all = http.fetch(RequestSpec::get(&collection).accept(self.accept)).await;
        for (what, page) in [("page", page), ("all", all)] {
            corpus.insert(("pages", named(what)), numbered(self.number, &page.body));
        }
        http.delete(&format!("{collection}/two")).await;
        let version = http.version(&collection).await;
        let there = format!("{collection}?resourceVersion={version}");
        http.until_ok("the cache of upstream has it", RequestSpec::get(&there).accept(self.accept)).await;
        let initial = "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
        let initial = format!("watch=true&resourceVersion={version}&{initial}");
        let mut watch = http.watch(RequestSpec::get(&format!("{collection}?{initial}")).accept(self.accept)).await;
        let mut frames = vec![bytes(watch.frame().await), bytes(watch.frame().await)];
        let path = format!("{collection}/one");
        http.patch(&path, json!({"metadata": {"labels": {"tier": null, "x": ""}}})).await;
        http.delete(&path).await;
        frames.extend([bytes(watch.frame().await), bytes(watch.frame().await)]);
        let mut old = http
            .watch(RequestSpec::get(&format!("{collection}?watch=true&resourceVersion=1")).accept(self.accept))
            .await;
        frames.push(bytes(old.frame().await));
        for (what, frame) in ["added", "bookmark", "modified", "deleted", "expired"].into_iter().zip(&frames) {
            corpus.insert(("events", named(what)), numbered(self.number, frame));
        }
        if self.accept != TABLE {
            let first = u8::from(self.accept == PROTOBUF) | 2;
            corpus.insert(("frames", named("stream")), numbered(first, &frames.concat()));
            corpus.insert(("frames", named("short")), numbered(first ^ 2, &frames.concat()));
        }
        assert!(self.accept != PROTOBUF || frames.iter().all(|frame| is_read(frame)));
    }
}

/// Whether the protobuf reader of pods accepts a frame.
fn is_read(frame: &[u8]) -> bool {
    let reader = ObjectReader::new(FeedEncoding::Protobuf, JsonLayout::BuiltIn, SelectableFieldTable::default().into());
    let read = reader.watch_event(frame.to_vec().into());
    matches!(read, Ok(WatchItem::Change { .. } | WatchItem::Bookmark { .. } | WatchItem::Error { .. }))
}

fn bytes(frame: Option<Frame>) -> Vec<u8> {
    match frame.expect("the watch continues") {
        Frame::Json(bytes) | Frame::Protobuf(bytes) => bytes.to_vec(),
    }
}

fn numbered(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number], bytes].concat()
}

/// Objects of those kinds that both the target of bodies and every control plane have.
async fn bodies(http: &Http, namespace: &str, corpus: &mut Corpus) {
    let map = json!({"metadata": {"name": "m"}, "data": {"k": "v"}, "binaryData": {"b": "AAEC"}});
    http.create(&format!("/api/v1/namespaces/{namespace}/configmaps"), map).await;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    http.create(&pods, FEEDS[0].object("body")).await;
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let spec = json!({"holderIdentity": "h", "renewTime": "2024-01-02T03:04:05.678901Z", "leaseDurationSeconds": 15});
    http.create(&leases, json!({"metadata": {"name": "l"}, "spec": spec})).await;
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/samples.verify.kube-fanout.io".to_owned();
    let paths = [
        (0, format!("{pods}/body")),
        (1, format!("/api/v1/namespaces/{namespace}/configmaps/m")),
        (5, format!("{leases}/l")),
        (7, definition),
    ];
    let reader = ObjectReader::new(FeedEncoding::Protobuf, JsonLayout::BuiltIn, SelectableFieldTable::default().into());
    for (kind, path) in paths {
        let answer = http.fetch(RequestSpec::get(&path).accept(PROTOBUF)).await;
        let object = reader.object(&answer.body).unwrap_or_else(|error| panic!("{path}: {error}"));
        corpus.insert(("bodies", kind.to_string()), numbered(kind, object.body()));
    }
    let samples = FEEDS[1].collection(namespace);
    http.create(&samples, FEEDS[1].object("body")).await;
    let answer = http.get(&format!("{samples}/body")).await;
    corpus.insert(("bodies", "custom".to_owned()), numbered(0, answer.body.trim_ascii_end()));
}

/// Error Statuses and continue tokens.
async fn documents(plane: &Plane, http: &Http, namespace: &str, corpus: &mut Corpus) {
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let paths = [
        ("missing", format!("{pods}/none")),
        ("selector", format!("{pods}?labelSelector=a%3D%3D%3D")),
        ("future", format!("{pods}?resourceVersion=9999999&resourceVersionMatch=Exact")),
        ("token", format!("{pods}?continue=x&limit=1")),
    ];
    for (what, path) in paths {
        for accept in [JSON, PROTOBUF] {
            let answer = http.fetch(RequestSpec::get(&path).accept(accept)).await;
            assert!(!answer.status.is_success(), "{path}");
            corpus.insert(("statuses", format!("{what}-{}", accept.len())), answer.body.to_vec());
        }
    }
    let namespaces = http.json("/api/v1/namespaces?limit=1").await;
    let roles = http.json("/apis/rbac.authorization.k8s.io/v1/clusterroles?limit=1").await;
    let configs = http.json("/api/v1/configmaps?limit=1").await;
    for (what, list) in [("namespaces", namespaces), ("roles", roles), ("configmaps", configs)] {
        let token = list["metadata"]["continue"].as_str().expect("there is more").to_owned();
        corpus.insert(("tokens", what.to_owned()), token.into_bytes());
    }
    for (what, file) in [("ca", "ca.crt"), ("server", "apiserver.crt"), ("both", "apiserver.key")] {
        let text = std::fs::read_to_string(plane.dir.join(file)).expect("the test bed keeps it");
        // The corpus must contain no private key; a broken one is as useful.
        let text = if what == "both" { text.lines().take(2).collect::<Vec<_>>().join("\n") } else { text };
        corpus.insert(("authorities", what.to_owned()), text.into_bytes());
    }
}

/// Handwritten client requests, one per line.
fn requests(corpus: &mut Corpus) {
    let mut put = |target: &'static str, inputs: &[&str]| {
        for (nth, input) in inputs.iter().enumerate() {
            corpus.insert((target, format!("{nth:02}")), input.as_bytes().to_vec());
        }
    };
    put(
        "selectors",
        &[
            "app=web,tier!=back",
            "a in (x,y),b notin (z),c,!d",
            "a==1,b>5,c<9",
            "x/y.z=,k",
            "metadata.name=a",
            r"metadata.name!=a,spec.nodeName=n\,m,status.phase=Running",
            "spec.host=,metadata.namespace=b",
        ],
    );
    put(
        "requests",
        &[
            "\0/api/v1/namespaces/default/pods?limit=500\n\
                application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
            "\0/api/v1/pods?watch=true&resourceVersion=5&allowWatchBookmarks=true&timeoutSeconds=300\n\
            application/vnd.kubernetes.protobuf;stream=watch",
            "\0/apis/apps/v1/deployments?sendInitialEvents=true&watch=1&resourceVersionMatch=NotOlderThan\n*/*;q=0.5",
            "\0/api/v1/watch/namespaces/a/pods/b?fieldSelector=metadata.name%3Db&labelSelector=a+in+%28b%29\n",
            "\x01/api/v1/namespaces/a/pods/b/exec?command=sh&stdin=true\n",
            "\0/apis/x.io/v1/namespaces/a/proxy/b/proxy/c%2Fd?pretty=true&timeout=1m30s\napplication/yaml",
            "\x04/api/v1/namespaces/a/pods?continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ&propagationPolicy=Orphan\n",
        ],
    );
    put(
        "headers",
        &[
            "/api/v1/pods\nhost: localhost:8001\nuser-agent: kubectl/v1.34\naccept-encoding: gzip",
            "/\nhost: 127.0.0.1\nImpersonate-User: jane\nImpersonate-Group: a\nImpersonate-Extra-a%2fb: c\n\
                Impersonate-Uid: 1",
            "http://example.com/\nhost: example.com\norigin: https://example.com\nsec-fetch-site: cross-site",
            "/\nconnection: keep-alive, x-y, TE\nx-y: 1\nte: trailers\ntransfer-encoding: chunked\nkeep-alive: 5",
            "/\nconnection: Upgrade\nupgrade: websocket\n\
                sec-websocket-protocol: base64url.bearer.authorization.k8s.io.YQ",
            "/\nx-remote-user: a\nx-remote-group: b\nx-remote-extra-c: d\nauthorization: Bearer x",
        ],
    );
    put("credentials", &callers::HEADS);
    put(
        "configurations",
        &[
            kube_fanout::config::defaults(),
            "kind: Configuration\napiVersion: kube-fanout.io/v1alpha1\nlisten: [127.0.0.1:0]\nfeeds: {idle: 5m}\n",
            "auth: delegated\ndelegated:\n  clientCa: [x]\nlimits: &l {watches: 5}\nwindow: *l\n",
            "node: \"a\"\nlisten:\n- unix:/x\nunknown: 1\nadmin: off\n",
        ],
    );
}

#[tokio::test]
async fn fuzz_corpus_contains_every_captured_apiserver_response() {
    let Some(bed) = bed::shared().await else { return };
    let (http, mut corpus) = (bed.direct(), Corpus::new());
    let names = json!({"plural": "samples", "singular": "sample", "kind": "Sample"});
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": schema}]);
    let spec = json!({"group": "verify.kube-fanout.io", "scope": "Namespaced", "names": names, "versions": versions});
    let definition = json!({"metadata": {"name": "samples.verify.kube-fanout.io"}, "spec": spec});
    http.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    let namespace = bed.namespace("corpus").await;
    bed::eventually("the definition is served", async || {
        let answer = http.get(&FEEDS[1].collection(&namespace)).await;
        (answer.status == 200).then_some(())
    })
    .await;
    for feed in &FEEDS {
        feed.capture(&http, &namespace, &mut corpus).await;
    }
    bodies(&http, &namespace, &mut corpus).await;
    documents(&bed, &http, &namespace, &mut corpus).await;
    callers::capture(&bed, &http, &namespace, &mut corpus).await;
    requests(&mut corpus);
    http.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/samples.verify.kube-fanout.io").await;
    let bytes: usize = corpus.values().map(Vec::len).sum();
    assert!(bytes < 150_000, "{bytes} bytes");
    let folder = bed::repository().join("tests/fuzz/corpus");
    for ((target, name), input) in &corpus {
        let file = folder.join(target).join(name);
        if std::env::var_os("CORPUS_WRITE").is_some() {
            write(&file, input);
        }
        assert!(file.is_file(), "{} is missing: `make corpus` writes it", file.display());
    }
}

fn write(file: &Path, input: &[u8]) {
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
    std::fs::write(file, input).expect("a file");
}

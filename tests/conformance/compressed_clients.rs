//! Clients that read compressed watches: each event reaches each of them before the next one is written.

use std::collections::BTreeMap;
use std::fs::File;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use http::header::ACCEPT_ENCODING;
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::api::WatchEvent;
use kube_client::{Api, Client};
use kube_runtime::watcher::{self, Event, InitialListStrategy};
use serde_json::json;

use crate::bed::{
    self, Driving, Http, Plan, Plane, Process, Target, eventually, kubectl, log_line, repository, unique, version_of,
    within,
};
use crate::clients;

/// A client that prints the name and the value of each `ConfigMap` that it receives.
struct Reader {
    client: &'static str,
    process: Process,
    out: PathBuf,
    log: PathBuf,
    /// The number of bytes of the output that were compared.
    seen: usize,
}

/// The size of the values that the clients receive; the last one is near the limit of an object.
const VALUE_BYTES: [usize; 5] = [1, 3, 10_000, 3, 1_000_000];

const PYTHON: [&str; 5] = ["requests", "urllib3", "httpx", "aiohttp", "kubernetes"];
const JAVA: [(&str, &str); 6] = [
    ("GzipWatch", "jdk"),
    ("GzipWatch", "okhttp"),
    ("LibraryWatch", "client-java"),
    ("LibraryWatch", "fabric8-okhttp"),
    ("LibraryWatch", "fabric8-jdk"),
    ("LibraryWatch", "fabric8-vertx"),
];
/// The clients that do not ask for gzip. The Python client does not decompress watches, so the header would break it.
const PLAIN: [&str; 3] = ["kubernetes", "fabric8-jdk", "fabric8-vertx"];
/// client-go's informers, by their initial list and their encoding.
const INFORMERS: [(&str, &str); 3] = [("on", "json"), ("on", "protobuf"), ("off", "protobuf")];

fn reader(plane: &Plane, client: &'static str, mut command: Command) -> Reader {
    let name = unique(client);
    let (out, log) = (plane.file(&format!("{name}.out")), plane.file(&format!("{name}.log")));
    let file = |path: &PathBuf| File::create(path).expect("a file");
    command.stdout(file(&out)).stderr(file(&log));
    Reader { client, process: Process::start(client, &mut command), out, log, seen: 0 }
}

impl Reader {
    /// Waits until the client has printed these lines, and nothing else.
    async fn prints(&mut self, expected: &str) {
        let what = format!("{} receives the event before the next one", self.client);
        let end = self.seen + expected.len();
        let printed = eventually(&what, async || {
            assert!(self.process.ended().is_none(), "{}: {}", self.client, self.complaint());
            std::fs::read_to_string(&self.out).ok().filter(|printed| printed.len() >= end)
        });
        let printed = printed.await;
        assert!(printed[self.seen..] == *expected, "{}: {:.100}", self.client, &printed[self.seen..]);
        self.seen = end;
    }

    fn complaint(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Starts all clients that are installed.
fn readers(bed: &Plane, target: &Target, namespace: &str, version: u64) -> Vec<Reader> {
    let (url, ca) = (&target.url, target.ca.as_ref().expect("TLS"));
    let token = &target.identity.token;
    let url = format!(
        "{url}/api/v1/namespaces/{namespace}/configmaps?watch=true&allowWatchBookmarks=true&resourceVersion={version}"
    );
    let with = |mut command: Command, client: &str| {
        command.arg(client).arg(&url).arg(ca).arg(token);
        command
    };
    let template = "{{with .data}}{{$.metadata.name}} {{.value}}{{\"\\n\"}}{{end}}";
    let arguments =
        ["get", "configmaps", "-w", "-n", namespace, "-o", &format!("go-template={template}")].map(str::to_owned);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let mut readers = vec![reader(bed, "kubectl", kubectl(bed, target, &arguments))];
    // jq would be another program to install.
    let show = "import json, sys\nfor line in sys.stdin:\n o = json.loads(line)['object']\n \
                if 'data' in o: print(o['metadata']['name'], o['data']['value'], flush=True)";
    let mut curl = Command::new("sh");
    let pipe = "curl -sSN --compressed --cacert \"$2\" -H \"Authorization: Bearer $3\" \"$1\" | python3 -c \"$0\"";
    curl.args(["-c", pipe, show]).arg(&url).arg(ca).arg(token);
    readers.push(reader(bed, "curl", curl));
    let python = repository().join("target/venv/bin/python");
    if python.exists() {
        for client in PYTHON {
            let mut command = Command::new(&python);
            command.arg(repository().join("tests/python/gzip_watch.py"));
            readers.push(reader(bed, client, with(command, client)));
        }
    } else {
        bed::skip("no Python clients (tests/run.sh makes target/venv)");
    }
    let node = repository().join("target/node");
    if node.join("node_modules").exists() {
        for (name, client) in [("node fetch", "fetch"), ("client-node", "client")] {
            let mut command = Command::new("sh");
            command.args(["-c", "exec node --input-type=module - \"$@\" <\"$0\""]);
            command.arg(repository().join("tests/node/gzip_watch.js"));
            command.env("NODE_EXTRA_CA_CERTS", ca).current_dir(&node);
            readers.push(reader(bed, name, with(command, client)));
        }
    } else {
        bed::skip("no JavaScript clients (tests/run.sh makes target/node)");
    }
    let java = repository().join("target/java");
    if java.exists() {
        for (class, client) in JAVA {
            let mut command = Command::new("java");
            command.arg("-cp").arg(java.join("*")).arg(repository().join(format!("tests/java/{class}.java")));
            readers.push(reader(bed, client, with(command, client)));
        }
    } else {
        log_line("no Java clients (tests/run.sh makes target/java where there are java and mvn)");
    }
    readers
}

/// Starts client-go's informers, which write a line for each event that a handler receives.
async fn informers(bed: &Plane, target: &Target, namespace: &str, until: &Path) -> Vec<Driving> {
    join_all(INFORMERS.map(async |(watchlist, encoding)| {
        let ready = bed.file("ready");
        let run = bed.drive("informers").args(["--resource", "configmaps", "--namespace", namespace]);
        let run = run.args(["--watchlist", watchlist, "--encoding", encoding, "--reference-server", bed.url()]);
        let mut run = run.at(target).until(until).file("--ready-file", &ready).start();
        run.awaits(&ready).await;
        run
    }))
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_reads_each_compressed_event_before_the_next() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::tls().config("reads:\n  compressWatches: all\n").start(&bed).await;
    let namespace = bed.namespace("compressed-clients").await;
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let version = proxy.client().version(&maps).await;
    let until = bed.file("until");
    let informers = informers(&bed, &proxy.target(), &namespace, &until).await;
    let mut readers = readers(&bed, &proxy.target(), &namespace, version);
    let mut last = version;
    let mut random = fastrand::Rng::with_seed(42);
    for (n, bytes) in VALUE_BYTES.into_iter().enumerate() {
        let value: String = std::iter::repeat_with(|| random.alphanumeric()).take(bytes).collect();
        let name = format!("event-{n}");
        last = create(&bed.direct(), &maps, &name, &value).await;
        for informer in &informers {
            informer.wrote(n + 1).await;
        }
        for reader in &mut readers {
            reader.prints(&format!("{name} {value}\n")).await;
        }
    }
    std::fs::write(&until, last.to_string()).expect("a file");
    for informer in informers {
        assert_eq!(informer.finish().await.summary()["reference"], "equal");
    }
    let compressed = INFORMERS.len() + readers.iter().filter(|reader| !PLAIN.contains(&reader.client)).count();
    let counted = proxy.metrics().await.sum("kube_fanout_watch_gzip_bytes_total", &[("stage", "before")]);
    let sent: i64 = VALUE_BYTES.iter().map(|bytes| i64::try_from(*bytes).expect("small")).sum();
    // What surrounds the values is much shorter.
    assert_eq!(counted / sent, i64::try_from(compressed).expect("a few"), "clients that asked for gzip");
    let clients: Vec<_> = readers.iter().map(|reader| reader.client).collect();
    log_line(&format!("each of {} events before the next: client-go, {}", VALUE_BYTES.len(), clients.join(", ")));
}

/// Creates a `ConfigMap` with one value. Returns its version.
async fn create(client: &Http, maps: &str, name: &str, value: &str) -> u64 {
    version_of(&client.create(maps, json!({"metadata": {"name": name}, "data": {"value": value}})).await)
}

/// Returns the name and the value.
fn contents(map: ConfigMap) -> (String, String) {
    let value = map.data.and_then(|mut data| data.remove("value"));
    (map.metadata.name.expect("a name"), value.expect("a value"))
}

/// Starts a kube-rs watcher. Returns its initial state, and the objects of its later events.
async fn watched(
    api: Api<ConfigMap>,
    strategy: InitialListStrategy,
) -> (BTreeMap<String, String>, BoxStream<'static, (String, String)>) {
    let config = watcher::Config { initial_list_strategy: strategy, ..watcher::Config::default() };
    let (mut events, mut state) = (watcher::watcher(api, config).boxed(), BTreeMap::new());
    loop {
        match within("an initial event of a kube-rs watcher", events.next()).await.expect("a watcher has no end") {
            Ok(Event::InitApply(map)) => state.extend([contents(map)]),
            Ok(Event::InitDone) => break,
            Ok(Event::Init) => {}
            Ok(Event::Apply(_) | Event::Delete(_)) => panic!("kube-rs: the state is not complete"),
            Err(error) => assert!(clients::is_early(&error), "kube-rs: {error}"),
        }
    }
    let applied = |event| match event {
        Ok(Event::Apply(map)) => contents(map),
        Ok(_) => panic!("kube-rs: another kind of event"),
        Err(error) => panic!("kube-rs: {error}"),
    };
    (state, events.map(applied).boxed())
}

/// Opens a watch that accepts gzip. Returns the objects of its events.
async fn compressed(client: &Client, path: &str) -> BoxStream<'static, (String, String)> {
    let request = http::Request::get(path).header(ACCEPT_ENCODING, "gzip").body(Vec::new()).expect("a request");
    let events = client.request_events(request).await.expect("kube-rs watches");
    let added = |event| {
        ready(match event {
            Ok(WatchEvent::Added(map)) => Some(contents(map)),
            Ok(WatchEvent::Bookmark(_)) => None,
            Ok(_) => panic!("kube-rs: another kind of event"),
            Err(error) => panic!("kube-rs: {error}"),
        })
    };
    events.filter_map(added).boxed()
}

/// With its feature `gzip`, kube-rs sends `Accept-Encoding: gzip` with lists. Watches decline it, because the decoder
/// stops after a first member, and apiservers send several. If a watch asks for gzip nevertheless, the decoder reads
/// the one member of a proxy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kube_rs_reads_each_compressed_event_before_the_next() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::tls().config("reads:\n  compressWatches: all\n").start(&bed).await;
    let namespace = bed.namespace("compressed-kube-rs").await;
    let (direct, maps) = (bed.direct(), format!("/api/v1/namespaces/{namespace}/configmaps"));
    let mut random = fastrand::Rng::with_seed(43);
    // A long run of one letter inflates to a thousand times its length, so that a few bytes fill the decoder's buffer.
    let mut texts = |bytes| [std::iter::repeat_with(|| random.alphanumeric()).take(bytes).collect(), "a".repeat(bytes)];
    let (mut expected, mut version) = (BTreeMap::new(), 0);
    for (n, value) in [texts(1_000_000), texts(1_000_000)].concat().into_iter().enumerate() {
        let name = format!("state-{n}");
        version = create(&direct, &maps, &name, &value).await;
        expected.insert(name, value);
    }
    let (api, client) = (clients::kube_rs(&proxy.target(), &namespace, true), proxy.client());
    let is_cached = async || client.get(&format!("{maps}?resourceVersion=0")).await.is_cached().then_some(());
    eventually("the proxy responds from its cache", is_cached).await;
    let mut readers = Vec::new();
    for strategy in [InitialListStrategy::ListWatch, InitialListStrategy::StreamingList] {
        let (state, events) = watched(api.clone(), strategy.clone()).await;
        assert!(state == expected, "{strategy:?}");
        readers.push(events);
    }
    let client = api.into_client();
    let streamed = format!(
        "{maps}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true\
         &resourceVersion={version}"
    );
    let mut streamed = compressed(&client, &streamed).await;
    let state = within("the initial state", streamed.by_ref().take(expected.len()).collect::<BTreeMap<_, _>>()).await;
    assert!(state == expected);
    readers.push(streamed);
    let values = VALUE_BYTES.map(texts).concat();
    for (n, value) in values.iter().enumerate() {
        let name = format!("event-{n}");
        create(&direct, &maps, &name, value).await;
        for events in &mut readers {
            let received = within("the event before the next one", events.next()).await.expect("it goes on");
            assert!(received == (name.clone(), value.clone()), "{n}");
        }
    }
    let mut resumed = compressed(&client, &format!("{maps}?watch=true&resourceVersion={version}")).await;
    for (n, value) in values.iter().enumerate() {
        let received = within("an earlier event", resumed.next()).await.expect("it goes on");
        assert!(received == (format!("event-{n}"), value.clone()), "{n}");
    }
    readers.push(resumed);
    create(&direct, &maps, "last", "value").await;
    for events in &mut readers {
        let received = within("the last event", events.next()).await.expect("it goes on");
        assert_eq!(received, ("last".to_owned(), "value".to_owned()));
    }
    let counted = proxy.metrics().await.sum("kube_fanout_watch_gzip_bytes_total", &[("stage", "before")]);
    let bytes = |values: usize| i64::try_from(values).expect("small");
    let state = bytes(expected.values().map(String::len).sum());
    let sent = state + 2 * bytes(values.iter().map(String::len).sum());
    // What surrounds the values is much shorter.
    assert!((sent..sent + 100_000).contains(&counted), "{counted} bytes compressed for {sent}");
}

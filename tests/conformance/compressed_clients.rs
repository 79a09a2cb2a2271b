//! Clients that read compressed watches: each event reaches each of them before the next one is written.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures_util::future::join_all;
use serde_json::json;

use crate::bed::{
    self, Driving, Plan, Plane, Process, Target, eventually, kubectl, log_line, repository, unique, version_of,
};

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
        let map = json!({"metadata": {"name": name}, "data": {"value": value}});
        last = version_of(&bed.direct().create(&maps, map).await);
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

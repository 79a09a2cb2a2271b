//! The files in config/ run as they are, except for paths of certificates and sockets, and port numbers.

use std::collections::BTreeSet;
use std::path::Path;

use demo::{self, RunningDemoApiserver};

use crate::direct::{self, Dir, PODS, Trust, eventually, pair};
use crate::process::{Process, kubeconfig, run};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config");
/// Ports in the files; a test replaces them with free ones.
const PORTS: [&str; 4] = [":8001", ":8443", ":10249", ":10256"];
/// Flags that the manifests add for client certificates (deploy/kustomize/components/certificate-holders).
const OF_HOLDERS: [&str; 4] = [
    "--client-ca",
    "/etc/kube-fanout/client-ca/ca.crt",
    "--impersonator-kubeconfig",
    "/etc/kube-fanout/impersonator/kubeconfig",
];

/// Flags that the manifests add for authenticated scrapes (deploy/kustomize/components/metrics-auth).
const OF_SCRAPES: [&str; 1] = ["--metrics-auth=delegated"];

/// A file of the folder, and its flags. Port numbers and file paths are filled in.
struct Sample {
    name: &'static str,
    flags: &'static [&'static str],
    /// A path that clients read.
    read: &'static str,
}

const SAMPLES: [Sample; 8] = [
    Sample { name: "sidecar", flags: &[], read: PODS },
    Sample {
        name: "node",
        flags: &["--node-name", "node-1"],
        read: "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1",
    },
    Sample { name: "zone", flags: &[], read: PODS },
    Sample { name: "central", flags: &[], read: PODS },
    Sample { name: "central", flags: &OF_HOLDERS, read: PODS },
    Sample { name: "central", flags: &OF_SCRAPES, read: PODS },
    Sample { name: "edge", flags: &[], read: PODS },
    Sample { name: "demo", flags: &[], read: PODS },
];

/// Creates the files that configurations name.
fn equip(dir: &Dir, up: &RunningDemoApiserver) {
    for folder in ["tls", "client-ca", "impersonator"] {
        std::fs::create_dir(dir.join(folder)).expect("a folder");
    }
    let own = pair();
    dir.file("tls/tls.crt", &own.cert.pem());
    dir.file("tls/tls.key", &own.signing_key.serialize_pem());
    dir.file("client-ca/ca.crt", &pair().cert.pem());
    let upstream = kubeconfig(dir, &up.url(), "");
    std::fs::copy(upstream, dir.join("impersonator/kubeconfig")).expect("a copy");
}

fn here(text: &str, dir: &Dir) -> String {
    let folder = dir.join("").display().to_string();
    let placed = text.replace("/etc/kube-fanout/", &folder).replace("/run/kube-fanout/", &folder);
    // The certificate is for the loopback address.
    let placed = placed.replace("0.0.0.0:", "127.0.0.1:");
    PORTS.iter().fold(placed, |text, port| text.replace(port, ":0"))
}

async fn serves(sample: &Sample, up: &RunningDemoApiserver) {
    let Sample { name, flags, read } = sample;
    let dir = Dir::new();
    equip(&dir, up);
    let text = std::fs::read_to_string(Path::new(FOLDER).join(format!("{name}.yaml"))).expect("a sample");
    let config = dir.file("config.yaml", &here(&text, &dir)).display().to_string();
    let upstream = dir.join("kubeconfig").display().to_string();
    let flags: Vec<_> = flags.iter().map(|flag| here(flag, &dir)).collect();
    let mut arguments = vec!["--config", &config, "--kubeconfig", &upstream, "--admin", "127.0.0.1:0"];
    arguments.extend(flags.iter().map(String::as_str));
    let checked = run(&[&["config", "check"][..], &arguments].concat());
    assert_eq!(checked.code, Some(0), "{name}: {}", checked.stderr);
    // One serving address, the admin address, and those for health and metrics.
    let addresses = 2 + text.lines().filter(|line| line.contains("BindAddress: ")).count();
    let process = Process::as_configured(addresses, &arguments).await;
    eventually(&format!("{name} is ready"), || async { process.is_ready().await }).await;
    let mut client = process.client();
    if text.lines().any(|line| line.starts_with("auth: delegated")) {
        client = client.trusting(Some(Trust::in_file(&dir.join("tls/tls.crt"))));
        assert_eq!(client.bearing("nobody's").get(read).await.status, 401, "{name}");
        client = client.bearing("ada's");
    }
    let answer = direct::proven(&client, || (*read).to_owned()).await;
    assert!(answer.status == 200 && answer.is_cached(), "{name}: {} {}", answer.status, answer.text());
    assert!(!answer.items().is_empty(), "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_sample_configuration_becomes_ready_and_serves_from_cache() {
    let up = demo::upstream().pods(30).run().await;
    up.reviews().give("ada's", "ada");
    up.reviews().allow("ada", "*");
    let of_folder = std::fs::read_dir(FOLDER).expect("a folder").flatten();
    let files: BTreeSet<_> = of_folder.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let named = SAMPLES.iter().map(|sample| format!("{}.yaml", sample.name));
    assert_eq!(files, named.chain(["example.yaml".to_owned()]).collect(), "each is tried");
    for sample in &SAMPLES {
        direct::within(sample.name, Box::pin(serves(sample, &up))).await;
    }
}

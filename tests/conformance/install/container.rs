//! Containers of pods without a kubelet: volumes become directories, and the binary runs with the container's arguments
//! and its account's token. In the text of volumes and arguments, only what [`Root::placed`] replaces changes.

use std::fs::{self, File};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::bed::{
    Account, Http, Identity, Plane, Process, Protocol, Target, eventually, kube_fanout, write_kubeconfig,
};

/// Directories of a container, which are mapped below a directory of the test.
const PLACES: [&str; 3] = ["/etc/kube-fanout", "/etc/fanout", TOKENS];
const TOKENS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Ports in manifests, which are replaced by free ones.
const PORTS: [&str; 6] = [":8001", ":8443", ":9091", ":10249", ":10256", ":10356"];
/// The address of the apiserver inside pods.
const INSIDE: &str = "https://kubernetes.default.svc";

/// The root directory of one container.
pub struct Root<'a> {
    plane: &'a Plane,
    folder: PathBuf,
}

/// A proxy that runs with its container's arguments.
pub struct Running {
    pub url: String,
    admin: String,
    pub metrics: String,
    _process: Process,
}

impl<'a> Root<'a> {
    pub fn new(plane: &'a Plane, name: &str) -> Self {
        Self { plane, folder: plane.file(name) }
    }

    /// The path of a container's file on this machine.
    pub fn path(&self, place: &str) -> PathBuf {
        self.folder.join(place.trim_start_matches('/'))
    }

    /// Replaces the container's paths, ports and addresses with those of this machine.
    pub fn placed(&self, text: &str) -> String {
        let text = PLACES
            .iter()
            .fold(text.to_owned(), |text, place| text.replace(place, &self.path(place).display().to_string()));
        let text = text.replace(INSIDE, self.plane.url()).replace("0.0.0.0:", "127.0.0.1:");
        PORTS.iter().fold(text, |text, port| text.replace(port, ":0"))
    }

    pub fn write(&self, place: &str, text: &str) -> PathBuf {
        let path = self.path(place);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, self.placed(text)).expect("a file");
        path
    }

    /// Writes the account's token to its usual place in pods. Returns a kubeconfig with it, because pods have the
    /// apiserver's address from the environment.
    pub async fn account(&self, namespace: &str, name: &str) -> PathBuf {
        let account = Account { namespace: namespace.to_owned(), name: name.to_owned(), uid: String::new() };
        let identity = account.token(&self.plane.direct()).await;
        let authority = fs::read_to_string(self.plane.ca()).expect("its authority");
        let file = |name: &str, text: &str| self.write(&format!("{TOKENS}/{name}"), text);
        let (token, authority) = (file("token", &identity.token), file("ca.crt", &authority));
        let path = self.path("kubeconfig");
        write_kubeconfig(&path, self.plane.url(), &authority, &serde_json::json!({"tokenFile": token}));
        path
    }

    /// Writes the files of the container's volumes, except those of its node.
    pub async fn mount(&self, namespace: &str, pod: &Value, container: &Value) {
        let direct = self.plane.direct();
        for mount in list(&container["volumeMounts"]) {
            let volume = list(&pod["volumes"]).find(|volume| volume["name"] == mount["name"]).expect("a volume");
            let maps = volume["configMap"]["name"].as_str().map(|name| ("configmaps", name));
            let secrets = volume["secret"]["secretName"].as_str().map(|name| ("secrets", name));
            let Some((resource, name)) = maps.or(secrets) else { continue };
            let object = direct.json(&format!("/api/v1/namespaces/{namespace}/{resource}/{name}")).await;
            let place = mount["mountPath"].as_str().expect("a path");
            for (key, data) in object["data"].as_object().expect("it has data") {
                let text = data.as_str().expect("text");
                let plain = || String::from_utf8(STANDARD.decode(text).expect("base64")).expect("text");
                let text = if resource == "secrets" { plain() } else { text.to_owned() };
                match mount["subPath"].as_str() {
                    Some(part) if part == key => drop(self.write(place, &text)),
                    Some(_) => {}
                    None => drop(self.write(&format!("{place}/{key}"), &text)),
                }
            }
        }
    }

    /// Runs the container, and returns when its probes succeed.
    pub async fn run(&self, container: &Value, kubeconfig: Option<&PathBuf>) -> Running {
        let mut command = kube_fanout("serve");
        let given_args = list(&container["args"]).skip(1).filter_map(Value::as_str).map(|text| self.placed(text));
        let given_args: Vec<_> = given_args.collect();
        command.args(&given_args).env_remove("KUBECONFIG").env_remove("RUST_LOG").env_remove("NODE_NAME");
        if list(&container["env"]).any(|variable| variable["name"] == "NODE_NAME") {
            command.env("NODE_NAME", "n1");
        }
        if let Some(path) = kubeconfig {
            command.arg("--kubeconfig").arg(path);
        }
        if !given_args.iter().any(|argument| argument.starts_with("--admin")) {
            command.args(["--admin", "127.0.0.1:0"]);
        }
        let (out, log) = (self.path("out"), self.path("log"));
        command.stdout(File::create(&out).expect("a file")).stderr(File::create(&log).expect("a file"));
        let mut process = Process::start("kube-fanout", &mut command);
        let [url, admin, health, metrics] = eventually("it says where it listens", async || {
            assert!(process.ended().is_none(), "{}", fs::read_to_string(&log).unwrap_or_default());
            let stdout = fs::read_to_string(&out).unwrap_or_default();
            let after = |prefix: &str| stdout.lines().find_map(|line| line.strip_prefix(prefix).map(str::to_owned));
            let admin = after("metrics and health on ")?;
            let metrics = after("metrics on ").unwrap_or_else(|| admin.clone());
            Some([after("serving on ")?, admin, after("health on ")?, metrics])
        })
        .await;
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let Some(path) = container[probe]["httpGet"]["path"].as_str() else { continue };
            eventually(probe, async || is_well(&health, path).await.then_some(())).await;
        }
        eventually("its feeds are filled", async || is_well(&health, "/readyz").await.then_some(())).await;
        Running { url, admin, metrics, _process: process }
    }
}

impl Running {
    /// The status of an admin page for the holder of a token.
    pub async fn status_of(&self, path: &str, token: &str) -> u16 {
        let target = Target { url: self.admin.clone(), ca: None, identity: Identity::token("", token) };
        Http::new(target, Protocol::H1).get(path).await.status.as_u16()
    }

    /// The sum of a metric over all labels, as Prometheus reads it.
    pub async fn sum(&self, metric: &str) -> i64 {
        let text = http(&self.metrics).get("/metrics").await.text();
        let of = |line: &&str| line.split(['{', ' ']).next() == Some(metric);
        let numbers = text.lines().filter(of).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        #[expect(clippy::cast_possible_truncation, reason = "a count")]
        let sum = numbers.sum::<f64>() as i64;
        sum
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn http(url: &str) -> Http {
    Http::new(Target { url: url.to_owned(), ca: None, identity: Identity::anonymous() }, Protocol::H1)
}

async fn is_well(url: &str, path: &str) -> bool {
    http(url).try_get(path).await.is_some_and(|answer| answer.status == 200)
}

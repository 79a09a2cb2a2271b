use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use super::http::{Http, Protocol, Target};
use super::identity::Identity;
use super::metrics::Metrics;
use super::plane::Plane;
use super::process::{Process, kube_fanout};
use super::{ALLOWANCE, eventually, free_address, unique};

/// The longest drain of the configurations in these tests, which is the default.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// The configuration of a proxy that has not been started.
#[derive(Debug, Clone)]
pub struct Plan {
    tls: bool,
    listen: String,
    /// The files of a certificate and its key. If absent, the proxy gets a new pair.
    pair: Option<(PathBuf, PathBuf)>,
    config: String,
    /// The interval between comparisons of feeds with upstream, if it is neither configured nor the default.
    self_check: Option<&'static str>,
    /// The kubeconfig for upstream, if it is not the control plane's own.
    kubeconfig: Option<PathBuf>,
    /// A bundle of CAs. With it, `auth` is `delegated`, and callers present certificates from these CAs, or tokens.
    client_ca: Option<PathBuf>,
    /// Whether the proxy may forward the requests of callers with certificates.
    impersonates: bool,
    /// Whether the proxy has an admin address.
    admin: bool,
}

/// The proxy under test, in its own process.
pub struct Proxy {
    target: Target,
    admin: Target,
    /// The address at which other machines read metrics, if there is one.
    metrics: Option<Target>,
    log: PathBuf,
    process: Mutex<Process>,
}

impl Plan {
    /// Serves HTTP/2 and HTTP/1.1 over TLS.
    pub fn tls() -> Self {
        Self {
            tls: true,
            listen: "127.0.0.1:0".to_owned(),
            pair: None,
            config: String::new(),
            self_check: Some("0s"),
            kubeconfig: None,
            client_ca: None,
            impersonates: true,
            admin: true,
        }
    }

    /// Serves without TLS.
    pub fn plain() -> Self {
        Self { tls: false, ..Self::tls() }
    }

    pub fn listen(self, address: &str) -> Self {
        Self { listen: address.to_owned(), ..self }
    }

    /// Keeps the address and the certificate over restarts.
    pub fn lasting(self, plane: &Plane) -> Self {
        let pair = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
        let file = |end: &str, text: String| {
            let path = plane.file(&format!("lasting-{end}"));
            fs::write(&path, text).expect("a file");
            path
        };
        let pair = (file("crt", pair.cert.pem()), file("key", pair.signing_key.serialize_pem()));
        Self { listen: free_address(), pair: Some(pair), ..self }
    }

    /// The certificate of a lasting plan.
    pub fn certificate(&self) -> Option<PathBuf> {
        self.pair.as_ref().map(|(certificate, _)| certificate.clone())
    }

    /// Uses this configuration file.
    pub fn config(self, yaml: &str) -> Self {
        Self { config: yaml.to_owned(), ..self }
    }

    /// Compares feeds with upstream as often as by default. Other plans compare only if configured, because a
    /// comparison would disturb tests that count upstream requests.
    pub fn comparing(self) -> Self {
        Self { self_check: None, ..self }
    }

    /// Disables metrics and health. Such a proxy counts as ready when it answers `/version`.
    pub fn without_admin(self) -> Self {
        Self { admin: false, ..self }
    }

    /// Uses the server of this kubeconfig as upstream.
    pub fn upstream(self, kubeconfig: &Path) -> Self {
        Self { kubeconfig: Some(kubeconfig.to_owned()), ..self }
    }

    /// Uses `auth: delegated`: callers present credentials, and the apiserver decides what they may read. Client
    /// certificates come from the control plane's CA.
    pub fn delegated(plane: &Plane) -> Self {
        Self { client_ca: Some(plane.ca()), ..Self::tls().upstream(&plane.dir.join("proxy.kubeconfig")) }
    }

    /// Runs on the node `n1` with its credentials. The apiserver decides what callers may read.
    pub fn node(plane: &Plane) -> Self {
        Self::on_node(plane, "n1", &plane.dir.join("node-n1.kubeconfig"))
    }

    /// Runs on a node with the node's credentials, which are in this kubeconfig.
    pub fn on_node(plane: &Plane, name: &str, kubeconfig: &Path) -> Self {
        let node = Self::delegated(plane).upstream(kubeconfig).config(&format!("node: {name}\n"));
        Self { impersonates: false, ..node }
    }

    /// Accepts client certificates from the CAs in this bundle.
    pub fn client_ca(self, bundle: &Path) -> Self {
        Self { client_ca: Some(bundle.to_owned()), ..self }
    }

    pub async fn start(self, plane: &Plane) -> Proxy {
        let has_admin = self.admin;
        let proxy = self.start_unready(plane).await;
        eventually("the proxy is ready", async || {
            let (of, path) = if has_admin { (&proxy.admin, "/readyz") } else { (&proxy.target, "/version") };
            let answer = Http::new(of.clone(), Protocol::H1).try_get(path).await?;
            (answer.status == 200).then_some(())
        })
        .await;
        proxy
    }

    /// Like [`Self::start`], without waiting until the proxy is ready.
    pub async fn start_unready(self, plane: &Plane) -> Proxy {
        let name = unique("proxy");
        let file = |end: &str| plane.dir.join(format!("{name}.{end}"));
        let (ca, out, log) = (file("pem"), file("out"), file("log"));
        let mut command = kube_fanout("serve");
        command.arg("--kubeconfig").arg(self.kubeconfig.clone().unwrap_or_else(|| plane.kubeconfig()));
        let admin = if self.admin { "127.0.0.1:0" } else { "off" };
        command.args(["--admin", admin, "--listen", &self.listen]);
        let ca = match &self.pair {
            Some((certificate, key)) => {
                command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
                certificate.clone()
            }
            None if self.tls => {
                command.arg("--tls-self-signed").arg("--tls-self-signed-out").arg(&ca);
                ca
            }
            None => ca,
        };
        fs::write(file("yaml"), self.configuration().to_string()).expect("a file");
        command.arg("--config").arg(file("yaml"));
        if let Some(bundle) = &self.client_ca {
            command.args(["--auth", "delegated", "--client-ca"]).arg(bundle);
            if self.impersonates {
                command.arg("--impersonator-kubeconfig").arg(plane.dir.join("impersonator.kubeconfig"));
            }
        }
        let create = |path: &PathBuf| File::create(path).expect("a file");
        let log_level = std::env::var("RUST_LOG").unwrap_or_else(|_| "info,kube_fanout=debug".to_owned());
        command.env("RUST_LOG", log_level).env_remove("KUBECONFIG").env_remove("NODE_NAME");
        command.stdout(create(&out)).stderr(create(&log));
        let mut process = Process::start("kube-fanout", &mut command);
        let (url, admin, metrics) = eventually("the proxy listens", async || {
            assert!(process.ended().is_none(), "the proxy: {}", fs::read_to_string(&log).unwrap_or_default());
            let printed = fs::read_to_string(&out).unwrap_or_default();
            let after = |prefix: &str| printed.lines().find_map(|line| line.strip_prefix(prefix).map(str::to_owned));
            let admin = if self.admin { after("metrics and health on ")? } else { String::new() };
            let serving = after("serving on ")?;
            let named = self.config.contains("metricsBindAddress");
            Some((serving, admin, if named { Some(after("metrics on ")?) } else { None }))
        })
        .await;
        let to = |url: String, ca: Option<PathBuf>| Target { url, ca, identity: plane.user("admin") };
        let metrics = metrics.map(|url| to(url, self.tls.then(|| ca.clone())));
        let target = to(url, self.tls.then_some(ca));
        Proxy { target, admin: to(admin, None), metrics, log, process: Mutex::new(process) }
    }

    /// The configuration file as JSON, which is also YAML.
    fn configuration(&self) -> Value {
        let mut config = match self.config.trim() {
            "" => json!({}),
            yaml => serde_saphyr::from_str(yaml).expect("a configuration in YAML"),
        };
        if let Some(every) = self.self_check.filter(|_| config["feeds"]["selfCheck"].is_null()) {
            config["feeds"]["selfCheck"] = json!(every);
        }
        if config["feeds"]["syncWait"].is_null() {
            config["feeds"]["syncWait"] = json!(crate::SYNC_WAIT);
        }
        config
    }
}

impl Proxy {
    pub fn target(&self) -> Target {
        self.target.clone()
    }

    pub fn client(&self) -> Http {
        Http::new(self.target(), if self.target.ca.is_some() { Protocol::H2 } else { Protocol::H1 })
    }

    /// A client with this caller's credentials instead of the administrator's.
    pub fn client_of(&self, identity: &Identity) -> Http {
        Http::new(self.target().by(identity), Protocol::H2)
    }

    /// A client of the metrics address for other machines, with this caller's credentials.
    pub fn scraped_by(&self, identity: &Identity) -> Http {
        Http::new(self.metrics.as_ref().expect("it is in the configuration").by(identity), Protocol::H1)
    }

    /// A client of the proxy's admin address.
    pub fn admin(&self) -> Http {
        Http::new(self.admin.clone(), Protocol::H1)
    }

    /// The host and the port of its admin address.
    pub fn admin_address(&self) -> &str {
        self.admin.host()
    }

    pub async fn metrics(&self) -> Metrics {
        Metrics::new(self.admin().get("/metrics").await.text())
    }

    /// The proxy's log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("a log")
    }

    pub fn resident_bytes(&self) -> u64 {
        self.process.lock().expect("not poisoned").resident_bytes()
    }

    pub fn cpu_seconds(&self) -> f64 {
        self.process.lock().expect("not poisoned").cpu_seconds()
    }

    /// Panics if the proxy has ended, or if its log contains a panic.
    pub fn assert_sound(&self) {
        assert!(self.process.lock().expect("not poisoned").ended().is_none(), "the proxy has ended: {}", self.log());
        let log = self.log();
        let panicked: Vec<_> = log.lines().filter(|line| line.contains("panicked")).collect();
        assert!(panicked.is_empty(), "{panicked:?}");
    }

    /// The number of upstream watches that the proxy has open for one resource, for example `pods.v1`.
    pub async fn streams(&self, resource: &str) -> i64 {
        self.metrics().await.sum("kube_fanout_upstream_watches", &[("resource", resource)])
    }

    /// How many requests of one purpose feeds have sent upstream besides their watches.
    pub async fn feed_requests(&self, purpose: &str) -> i64 {
        self.metrics().await.sum("kube_fanout_feed_requests_total", &[("purpose", purpose)])
    }

    /// The number of forwarded requests, by labels. Requests that no cache could answer are excluded.
    pub async fn forwarded(&self) -> Vec<(String, i64)> {
        let metrics = self.metrics().await;
        let all = metrics.series("kube_fanout_forwarded_total", &[]).map(|(labels, count)| (labels.to_owned(), count));
        all.filter(|(labels, _)| !labels.contains("non_resource") && !labels.contains("verb")).collect()
    }

    /// Sends SIGSTOP: pauses the process until [`Self::go_on`].
    pub fn stop(&self) {
        self.process.lock().expect("not poisoned").signal("STOP");
    }

    pub fn go_on(&self) {
        self.process.lock().expect("not poisoned").signal("CONT");
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&self) {
        self.process.lock().expect("not poisoned").kill();
    }

    /// Sends SIGTERM at once. The future waits for the end, which must come in time (O1), and returns the exit status.
    pub fn terminate(self) -> impl Future<Output = ExitStatus> {
        let process = self.process.into_inner().expect("not poisoned");
        process.signal("TERM");
        process.wait(DRAIN_MAX + ALLOWANCE)
    }
}

//! `fanoutctl fanout --pods`: the released kubectl forwards ports to two proxies through the apiserver and a kubelet's
//! own library (`kube-testbed portforward`). The proxies run here as if each were in a pod.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::bed::{self, Bed, Plan, Process, Proxy, eventually, kube_fanout, log_line, rbac, unique};
use crate::blocks::{blocks, with};
use crate::install::reader;

const SELECTOR: &str = "app.kubernetes.io/name=kube-fanout";
/// The kubelet itself unwraps kubectl's stream if its node declares the feature. Otherwise the apiserver translates it
/// to plain SPDY.
const NODES: [(&str, &[&str]); 2] = [("tunnels", &["ExtendWebSocketsToKubelet"]), ("translated", &[])];
const PODS: [&str; 2] = ["one", "two"];
/// Runs the real kubectl.
const REAL: &str = "exec \"$KUBECTL\" \"$@\"";
/// Makes kubectl start with SPDY, as it did before 1.31.
const BY_SPDY: &str = "export KUBECTL_PORT_FORWARD_WEBSOCKETS=false";

/// Two pods on different nodes, whose ports lead to proxies.
struct Stage {
    bed: Bed,
    namespace: String,
    proxies: [Proxy; 2],
    kubelet_log: PathBuf,
    _kubelet: Process,
}

/// The output and exit code of a command.
#[derive(Debug)]
struct CommandOutput {
    out: String,
    errors: String,
    code: Option<i32>,
}

impl Stage {
    async fn new() -> Option<Self> {
        let bed = bed::shared().await?;
        let namespace = bed.namespace("fanout").await;
        let proxies = [Plan::tls().start(&bed).await, Plan::tls().start(&bed).await];
        let kubelet_log = bed.file("kubelet");
        let mut command = Command::new(&bed.binary);
        let log = || File::options().create(true).append(true).open(&kubelet_log).expect("a log");
        command.args(["portforward", "--dir"]).arg(&bed.dir).stdout(log()).stderr(log());
        for (pod, proxy) in PODS.iter().zip(&proxies) {
            command.args(["--pod", &format!("{namespace}/{pod}:9090={}", proxy.admin_address())]);
        }
        let kubelet = Process::start("kube-testbed portforward", &mut command);
        let port = eventually("the kubelet listens", async || {
            let log = fs::read_to_string(&kubelet_log).ok()?;
            let address = log.lines().find_map(|line| line.strip_prefix("serving on "))?;
            address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok())
        })
        .await;
        let direct = bed.direct();
        for ((node, features), pod) in NODES.map(|(node, features)| (unique(node), features)).iter().zip(PODS) {
            let status = json!({
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "declaredFeatures": features,
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            });
            direct.create("/api/v1/nodes", json!({"metadata": {"name": node}, "status": status})).await;
            let labels = json!({"app.kubernetes.io/name": "kube-fanout"});
            let spec = json!({"nodeName": node, "containers": [{"name": "c", "image": "i"}]});
            let pods = format!("/api/v1/namespaces/{namespace}/pods");
            direct.create(&pods, json!({"metadata": {"name": pod, "labels": labels}, "spec": spec})).await;
            direct.patch(&format!("{pods}/{pod}/status"), json!({"status": {"phase": "Running"}})).await;
        }
        Some(Self { bed, namespace, proxies, kubelet_log, _kubelet: kubelet })
    }

    /// A directory with a `kubectl` that runs this script, in which `$KUBECTL` is the real one.
    fn kubectl(&self, script: &str) -> PathBuf {
        let dir = self.bed.file("bin");
        fs::create_dir(&dir).expect("a directory");
        let real = dir.join("real");
        let write = |name: &str, text: String| {
            fs::write(dir.join(name), text).expect("a file");
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755)).expect("it is ours");
        };
        let cache = self.bed.dir.join("kubectl-cache");
        let (binary, cache) = (self.bed.binary.display(), cache.display());
        write("real", format!("#!/bin/sh\nexec '{binary}' kubectl --cache-dir '{cache}' \"$@\"\n"));
        write("kubectl", format!("#!/bin/sh\nKUBECTL='{}'\n{script}\n", real.display()));
        dir
    }

    /// `fanoutctl fanout` with this `kubectl` in the `PATH`, as a user of the test bed.
    fn fanout(&self, user: &str, script: &str, arguments: &[&str]) -> Command {
        let mut command = kube_fanout("fanout");
        let path = std::env::var("PATH").expect("there is one");
        command.env("PATH", format!("{}:{path}", self.kubectl(script).display()));
        command.env("KUBECONFIG", self.bed.dir.join(format!("{user}.kubeconfig"))).env("HOME", &self.bed.dir);
        command.args(arguments).args(["--pods", SELECTOR, "-n", &self.namespace]);
        command
    }

    async fn status(&self, user: &str, script: &str) -> CommandOutput {
        run(self.fanout(user, script, &["status", "-o", "json"])).await
    }

    /// The kinds of upgrade that the kubelet has received so far, for each pod.
    fn upgrades(&self) -> BTreeSet<String> {
        let log = fs::read_to_string(&self.kubelet_log).expect("a log");
        let address = log.lines().filter_map(|line| line.strip_prefix("port-forward to "));
        address.map(|address| address.replace(&format!("{}/", self.namespace), "")).collect()
    }

    /// Allows a user to get and list pods here, but not to forward their ports.
    async fn let_read_pods(&self, user: &str) {
        let direct = self.bed.direct();
        let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]);
        let within = Some(self.namespace.as_str());
        let role = json!({"metadata": {"name": "reads"}, "rules": rules});
        direct.create(&rbac::collection(within, "roles"), role).await;
        let binding = rbac::binding("reads", "Role", "reads", &rbac::subject("User", user));
        direct.create(&rbac::collection(within, "rolebindings"), binding).await;
        for verb in ["get", "list"] {
            let attributes = json!({"namespace": self.namespace, "verb": verb, "resource": "pods"});
            rbac::may(&direct, json!({"user": user, "resourceAttributes": attributes})).await;
        }
    }
}

async fn run(mut command: Command) -> CommandOutput {
    let output = tokio::task::spawn_blocking(move || command.output().expect("it runs")).await.expect("no panic");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    CommandOutput { out: text(output.stdout), errors: text(output.stderr), code: output.status.code() }
}

fn by_spdy() -> String {
    format!("{BY_SPDY}; {REAL}")
}

#[tokio::test]
async fn status_reads_pod_proxies_through_port_forward() {
    let Some(stage) = Stage::new().await else { return };
    // The proxies differ in their cached resources.
    let read = ["configmaps", "services"];
    for (proxy, resource) in stage.proxies.iter().zip(read) {
        proxy.client().get(&format!("/api/v1/{resource}?resourceVersion=0")).await;
        eventually("all of its feeds are live", async || {
            let feeds = proxy.admin().json("/debug/feeds").await;
            feeds.as_array()?.iter().all(|feed| feed["state"] == "live").then_some(())
        })
        .await;
    }
    for script in [REAL, &by_spdy()] {
        let output = stage.status("admin", script).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        let document: Value = serde_json::from_str(&output.out).expect("JSON");
        assert_eq!(document.as_array().map(Vec::len), Some(PODS.len()), "{document:#}");
        for (at, pod) in PODS.iter().enumerate() {
            let status = &document[at];
            assert_eq!(
                (&status["proxy"], &status["ready"]),
                (&format!("pod/{pod}").into(), &true.into()),
                "{status:#}"
            );
            let feeds = status["feeds"].as_array().expect("feeds");
            let has = read.map(|resource| feeds.iter().any(|feed| feed["resource"] == format!("{resource}.v1")));
            assert_eq!(has, [at == 0, at == 1], "{status:#}");
        }
        log_line(&format!("{:?}", stage.upgrades()));
    }
    let expected = ["one, upgrade to SPDY/3.1", "one, upgrade to websocket", "two, upgrade to SPDY/3.1"];
    assert_eq!(stage.upgrades(), expected.map(str::to_owned).into(), "each way has been gone");

    let [block] = blocks("docs/OPERATING.md", "status_reads_pod_proxies_through_port_forward");
    let shell = reader(&stage.bed);
    shell.link("bin/kubectl-fanout", &shell.home.join("bin/fanoutctl"));
    let output = shell.run(&with(&block, &[("-n kube-fanout", &format!("-n {}", stage.namespace))]));
    assert!(PODS.iter().all(|pod| output.contains(&format!("pod/{pod}"))), "{output}");

    // One port forward serves many connections.
    let top = stage.fanout("admin", REAL, &["top", "--every", "1ms", "--times", "20"]);
    let output = run(top).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    // If a machine stalls, a late answer is shown as such.
    let lines_in = |state: &str| output.out.matches(&format!("pod/two: {state}")).count();
    assert!(lines_in("") == 20 && lines_in("ready") > 0, "{}", output.out);
}

/// The same, with a proxy between kubectl and the apiserver.
#[tokio::test]
async fn port_forward_works_through_a_proxy() {
    let Some(stage) = Stage::new().await else { return };
    let between = Plan::tls().config("execOnLoopback: true").start(&stage.bed).await;
    let target = between.target();
    let authority = target.ca.expect("it serves TLS");
    let through = format!("--server '{}' --certificate-authority '{}'", target.url, authority.display());
    for before in [":", BY_SPDY] {
        let output = stage.status("admin", &format!("{before}; exec \"$KUBECTL\" {through} \"$@\"")).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        let document: Value = serde_json::from_str(&output.out).expect("JSON");
        assert_eq!([&document[0]["proxy"], &document[1]["proxy"]], ["pod/one", "pod/two"], "{document:#}");
    }
    let expected = ["one, upgrade to SPDY/3.1", "one, upgrade to websocket", "two, upgrade to SPDY/3.1"];
    assert_eq!(stage.upgrades(), expected.map(str::to_owned).into(), "each way has been gone");
    let tunnels = between.metrics().await.sum("kube_fanout_forwarded_total", &[("reason", "subresource")]);
    assert_eq!(tunnels, 2, "the WebSockets; what is posted is counted as that");
    between.assert_sound();
}

#[tokio::test]
async fn status_without_port_forward_permission_reports_forbidden() {
    let Some(stage) = Stage::new().await else { return };
    let nothing = stage.status("bob", REAL).await;
    assert_eq!((nothing.code, nothing.out.as_str()), (Some(2), ""), "{nothing:?}");
    let why = "kubectl get pods: Error from server (Forbidden): pods is forbidden: User \"bob\" cannot list resource";
    assert!(nothing.errors.contains(why), "{}", nothing.errors);

    stage.let_read_pods("bob").await;
    for script in [REAL, &by_spdy()] {
        let refused = stage.status("bob", script).await;
        log_line(&refused.errors);
        assert_eq!((refused.code, refused.out.as_str()), (Some(2), "[]\n"), "{refused:?}");
        for part in ["kubectl port-forward pod/one: ", "User \"bob\" cannot create resource \"pods/portforward\""] {
            assert!(refused.errors.contains(part), "{part}: {}", refused.errors);
        }
    }
}

#[tokio::test]
async fn status_command_names_pod_deleted_or_down_during_query() {
    let Some(stage) = Stage::new().await else { return };
    let top_output = stage.bed.file("top");
    let mut top = stage.fanout("admin", REAL, &["top", "--every", "10ms"]);
    let file = Stdio::from(File::create(&top_output).expect("a file"));
    let _top = Process::start("fanoutctl fanout top", top.stdout(file));
    let both = |ones: &'static str, twos: &'static str| {
        let top_output = top_output.clone();
        eventually("both are printed", async move || {
            let top_output = fs::read_to_string(&top_output).expect("a file");
            let last = top_output.rsplit_once("pod/one: ")?.1;
            (last.starts_with(ones) && last.contains(&format!("\npod/two: {twos}"))).then_some(())
        })
    };
    both("ready", "ready").await;
    // The pod is running, but its process is not.
    stage.proxies[1].kill();
    both("ready", "no response").await;

    let dead = stage.status("admin", REAL).await;
    log_line(&dead.errors);
    let shows_the_other = |output: &CommandOutput| {
        let document: Value = serde_json::from_str(&output.out).unwrap_or_default();
        document.as_array().is_some_and(|all| all.len() == 1 && all[0]["proxy"] == "pod/one")
    };
    assert!(dead.code == Some(2) && shows_the_other(&dead), "{dead:?}");
    assert!(dead.errors.contains("pod/two: "), "{}", dead.errors);

    // The pod is deleted between its list and the connection.
    let delete = format!("delete pod two -n {} --force --grace-period=0 >/dev/null 2>&1", stage.namespace);
    let script = format!("case \" $* \" in *' get '*) \"$KUBECTL\" \"$@\"; \"$KUBECTL\" {delete} ;; *) {REAL} ;; esac");
    let gone = stage.status("admin", &script).await;
    log_line(&gone.errors);
    assert!(gone.code == Some(2) && shows_the_other(&gone), "{gone:?}");
    assert!(gone.errors.contains("kubectl port-forward pod/two: "), "{}", gone.errors);
    assert!(gone.errors.contains("pods \"two\" not found"), "{}", gone.errors);

    let left = run(stage.fanout("admin", REAL, &["status"])).await;
    assert!(left.code == Some(0) && left.out.starts_with("pod/one: ready") && !left.out.contains("two"), "{left:?}");
}

//! The commands of README.md, docs/QUICKSTART.md, docs/FORMS.md, docs/INSTALL.md and docs/GUIDES.md on a real control
//! plane. They run verbatim, except where a test says otherwise. The containers of the manifests run with their own
//! arguments.

pub mod container;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::bed::{
    self, Account, Bed, Http, Plane, Process, eventually, free_address, log_line, rbac, write_kubeconfig,
};
use crate::blocks::{Shell, blocks, commands, has, repository, with};
use container::{Root, Running};

const NAMESPACE: &str = "kube-fanout";
const PODS: &str = "/api/v1/pods?limit=1&resourceVersion=0";

/// A user's shell in a checkout, with the test bed's kubectl and the administrator's kubeconfig.
pub fn reader(plane: &Plane) -> Shell {
    let shell = Shell::in_checkout(plane.file("reader"));
    shell.program("kubectl", &format!("exec '{}' kubectl \"$@\"", plane.binary.display()));
    shell.file(".kube/config", &fs::read_to_string(plane.kubeconfig()).expect("the administrator's"));
    shell
}

/// The pod template of a workload, and its first container.
async fn template(direct: &Http, workload: &str) -> (Value, Value) {
    let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/{workload}");
    let pod = direct.json(&path).await["spec"]["template"]["spec"].clone();
    let container = pod["containers"][0].clone();
    (pod, container)
}

/// Runs a proxy from the template of a workload.
pub async fn run(root: &Root<'_>, direct: &Http, workload: &str, kubeconfig: Option<&PathBuf>) -> Running {
    let (pod, container) = template(direct, workload).await;
    let own = root.account(NAMESPACE, pod["serviceAccountName"].as_str().expect("an account")).await;
    root.mount(NAMESPACE, &pod, &container).await;
    root.run(&container, Some(kubeconfig.unwrap_or(&own))).await
}

/// A guide's kubeconfig for the proxy's Service. The Service name is replaced by the address of the proxy that runs
/// here.
fn through(root: &Root<'_>, settings: &str, service: &str, proxy: &Running, authority: &str) -> PathBuf {
    let server = format!("server: \"https://{service}.{NAMESPACE}.svc\"");
    let here = format!("server: \"{}\", tls-server-name: {service}.{NAMESPACE}.svc", proxy.url);
    let place = settings.lines().find_map(|line| line.split_once("certificate-authority: ")).expect("it trusts it").1;
    root.write(place.trim_end_matches('}'), authority);
    root.write("/etc/fanout/kubeconfig", &with(settings, &[(&server, &here)]))
}

/// Creates an agents' account that may read everything except secrets. Its token is at the usual place in pods.
async fn agents(bed: &Bed<Box<Plane>>, root: &Root<'_>) {
    let direct = bed.direct();
    direct.create("/api/v1/namespaces", json!({"metadata": {"name": "agents"}})).await;
    let account = Account::create(&direct, "agents", "agent").await;
    let subject = json!({"kind": "ServiceAccount", "namespace": "agents", "name": "agent"});
    let binding = rbac::binding("agents", "ClusterRole", "view", &subject);
    direct.create(&rbac::collection(None, "rolebindings"), binding).await;
    let attributes = json!({"verb": "list", "resource": "pods"});
    rbac::may(&direct, json!({"user": account.user(), "resourceAttributes": attributes})).await;
    root.account("agents", "agent").await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    for (resource, name) in [("daemonsets", "agent"), ("deployments", "controller")] {
        let object = json!({"metadata": {"name": name}, "spec": spec});
        direct.create(&format!("/apis/apps/v1/namespaces/agents/{resource}"), object).await;
    }
}

/// The environment variables of a client.
async fn variables(direct: &Http, workload: &str) -> Value {
    let client = direct.json(&format!("/apis/apps/v1/namespaces/agents/{workload}")).await;
    client["spec"]["template"]["spec"]["containers"][0]["env"].clone()
}

/// Points an agent and a controller to the proxy, and the agent back to the apiserver.
async fn clients_are_pointed(shell: &Shell, direct: &Http, [agent, controller, back]: [&str; 3]) {
    let expected = json!([{"name": "KUBECONFIG", "value": "/etc/fanout/kubeconfig"}]);
    shell.run(agent);
    assert_eq!(variables(direct, "daemonsets/agent").await, expected);
    shell.run(back);
    assert_eq!(variables(direct, "daemonsets/agent").await, Value::Null);
    shell.run(controller);
    assert_eq!(variables(direct, "deployments/controller").await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn install_guide_deploys_central_proxy_and_redirects_clients() {
    let Some(bed) = bed::own("install-central").await.filter(|_| has(&["openssl"])) else { return };
    let shell = reader(&bed).set("NAMESPACE", "agents").set("CONTROLLER", "controller");
    let (direct, root) = (bed.direct(), Root::new(&bed, "central"));
    let [check, central, holders, scrapers, self_signed] =
        blocks("docs/INSTALL.md", "install_guide_deploys_central_proxy_and_redirects_clients");
    let [pointing, agent, controller, back] =
        blocks("docs/GUIDES.md", "install_guide_deploys_central_proxy_and_redirects_clients");
    shell.run(&self_signed);
    shell.run(&central);
    let proxy = run(&root, &direct, "deployments/kube-fanout", None).await;

    let (config, own) = (root.path("/etc/kube-fanout/config.yaml"), root.path("kubeconfig"));
    fs::copy(config, shell.home.join("central.yaml")).expect("a copy");
    fs::copy(own, shell.home.join("proxy.kubeconfig")).expect("a copy");
    let printed = shell.run(&check);
    assert!(printed.contains("all checks passed"), "{printed}");

    let client = Root::new(&bed, "agent");
    agents(&bed, &client).await;
    let authority = fs::read_to_string(shell.home.join("tls.crt")).expect("it was made");
    let kubeconfig = through(&client, &pointing, "kube-fanout", &proxy, &authority);
    clients_are_pointed(&shell, &direct, [&agent, &controller, &back]).await;
    let before = proxy.sum("kube_fanout_served_total").await;
    let list = format!("kubectl --kubeconfig '{}' get --raw", kubeconfig.display());
    let printed = shell.run(&format!("{list} '{PODS}'"));
    assert!(printed.contains("\"kind\":\"PodList\""), "{printed}");
    let refused = shell.output(&format!("{list} /api/v1/secrets"));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is forbidden"), "as the apiserver says: {refused:?}");
    eventually("it is counted", async || (proxy.sum("kube_fanout_served_total").await > before).then_some(())).await;
    agents_may_look(&bed, &shell, &proxy, &client).await;

    holders_of_certificates_are_let_in(&bed, &shell, &holders).await;
    scrapes_are_asked_about(&bed, &shell, &scrapers).await;
    beside_an_application(&bed, &shell).await;
}

/// The role of docs/OPERATING.md grants access to the admin pages, and only to its subjects.
async fn agents_may_look(bed: &Plane, shell: &Shell, proxy: &Running, agent: &Root<'_>) {
    let [role] = blocks("docs/OPERATING.md", "install_guide_deploys_central_proxy_and_redirects_clients");
    shell.file("role.yaml", &role);
    shell.run("kubectl apply -f role.yaml");
    let bind = "kubectl create clusterrolebinding activity-readers --clusterrole kube-fanout-activity-reader";
    shell.run(&format!("{bind} --serviceaccount agents:agent"));
    let attributes = json!({"verb": "get", "path": "/debug/watches"});
    let user = "system:serviceaccount:agents:agent";
    rbac::may(&bed.direct(), json!({"user": user, "nonResourceAttributes": attributes})).await;
    let token = fs::read_to_string(agent.path("/var/run/secrets/kubernetes.io/serviceaccount/token")).expect("a token");
    assert_eq!(proxy.status_of("/debug/watches", &token).await, 200);
    assert_eq!(proxy.status_of("/debug/watches", &bed.user("bob").token).await, 403);
}

/// Uses the component of the example, without the Prometheus operator.
async fn holders_of_certificates_are_let_in(bed: &Bed<Box<Plane>>, shell: &Shell, block: &str) {
    let (direct, root) = (bed.direct(), Root::new(bed, "with-holders"));
    shell.run(block);
    let base = "resources: [../deploy/kustomize/central]\n";
    let overlay = format!("{base}components: [../deploy/kustomize/components/certificate-holders]\n");
    shell.file("overlay/kustomization.yaml", &overlay);
    shell.run("kubectl apply -k overlay");
    // The control plane fills in this Secret, but the test bed has no controllers.
    let account = Account { namespace: NAMESPACE.into(), name: "kube-fanout-impersonator".into(), uid: String::new() };
    let token = account.token(&direct).await.token;
    let secret = format!("/api/v1/namespaces/{NAMESPACE}/secrets/kube-fanout-impersonator");
    direct.patch(&secret, json!({"stringData": {"token": token}})).await;
    let proxy = run(&root, &direct, "deployments/kube-fanout", None).await;
    let pair = ["crt", "key"].map(|end| bed.dir.join(format!("admin.{end}")).display().to_string());
    let cluster = format!(
        "--server '{}' --tls-server-name kube-fanout.kube-fanout.svc --certificate-authority tls.crt",
        proxy.url
    );
    let holder = format!("--client-certificate '{}' --client-key '{}'", pair[0], pair[1]);
    let kubectl = format!("kubectl --kubeconfig /dev/null {cluster} {holder}");
    let printed =
        shell.run(&format!("{kubectl} get --raw '{PODS}'; {kubectl} -n default create configmap by-certificate"));
    assert!(printed.contains("\"kind\":\"PodList\"") && printed.contains("by-certificate created"), "{printed}");
}

/// Uses the component whose binding is for the account of the Prometheus operator.
async fn scrapes_are_asked_about(bed: &Bed<Box<Plane>>, shell: &Shell, block: &str) {
    let (direct, root) = (bed.direct(), Root::new(bed, "with-scrapes"));
    direct.create("/api/v1/namespaces", json!({"metadata": {"name": "monitoring"}})).await;
    let mut tokens = Vec::new();
    for name in ["prometheus-k8s", "prometheus", "other"] {
        tokens.push(Account::create(&direct, "monitoring", name).await.token(&direct).await);
    }
    let base = "resources: [../deploy/kustomize/central]\n";
    let overlay = format!("{base}components: [../deploy/kustomize/components/metrics-auth]\n");
    shell.file("overlay/kustomization.yaml", &overlay);
    shell.run("kubectl apply -k overlay");
    shell.run(block);
    for account in ["prometheus-k8s", "prometheus"] {
        let user = format!("system:serviceaccount:monitoring:{account}");
        let attributes = json!({"verb": "get", "path": "/metrics"});
        rbac::may(&direct, json!({"user": user, "nonResourceAttributes": attributes})).await;
    }
    let proxy = run(&root, &direct, "deployments/kube-fanout", None).await;
    let server = format!("--server '{}' --tls-server-name kube-fanout.kube-fanout.svc", proxy.metrics);
    let server = format!("kubectl --kubeconfig /dev/null {server} --certificate-authority tls.crt");
    let scraped = tokens.iter().map(|of| shell.output(&format!("{server} --token '{}' get --raw /metrics", of.token)));
    let [by_component, by_hand, other] = scraped.collect::<Vec<_>>().try_into().expect("three accounts");
    for allowed in [by_component, by_hand] {
        assert!(String::from_utf8_lossy(&allowed.stdout).contains("kube_fanout_build_info"), "{allowed:?}");
    }
    let denied = "User \"system:serviceaccount:monitoring:other\" cannot get path \"/metrics\"";
    assert!(other.stdout.is_empty() && String::from_utf8_lossy(&other.stderr).contains(denied), "{other:?}");
}

/// Runs the sidecar of the example, and reads through it like its application.
async fn beside_an_application(bed: &Bed<Box<Plane>>, shell: &Shell) {
    shell.run("kubectl apply -f deploy/manifests/sidecar.yaml");
    let (direct, root) = (bed.direct(), Root::new(bed, "sidecar"));
    let pod = direct.json("/api/v1/namespaces/default/pods/fanout-example").await["spec"].clone();
    let own = root.account("default", pod["serviceAccountName"].as_str().expect("an account")).await;
    let proxy = root.run(&pod["initContainers"][0], Some(&own)).await;
    let map = direct.json("/api/v1/namespaces/default/configmaps/fanout-example").await;
    let settings = map["data"]["kubeconfig"].as_str().expect("text");
    shell.file("application", &with(settings, &[("http://127.0.0.1:8001", &proxy.url)]));
    let arguments = &pod["containers"][0]["command"];
    assert_eq!(arguments[0], "kubectl", "{arguments}");
    let arguments: Vec<_> = arguments.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let command = format!("{} --kubeconfig application", arguments.join(" "));
    drop(Ongoing::start(shell, "application", &command, "\"name\": \"fanout-example\"").await);
    assert!(proxy.sum("kube_fanout_served_total").await > 0, "from its memory");
}

/// Uses Helm instead of Kustomize, with the chart of `make chart`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn helm_chart_installs_and_its_proxy_runs() {
    let Some(helm) = std::env::var_os("HELM") else { return log_line("only with Helm (run `make chart`)") };
    let Some(bed) = bed::own("install-chart").await else { return };
    let (shell, root) = (reader(&bed), Root::new(&bed, "chart"));
    shell.link("bin/helm", helm.as_ref());
    let [install, self_signed] = blocks("docs/INSTALL.md", "helm_chart_installs_and_its_proxy_runs");
    let printed = shell.run(&install);
    // Helm's notes list the remaining steps.
    let secret = printed.lines().find(|line| line.contains("create secret tls ")).expect("the certificate").trim();
    shell.run(&self_signed);
    shell.run(secret);
    let proxy = run(&root, &bed.direct(), "deployments/kube-fanout", None).await;
    let server = format!("--server '{}' --tls-server-name kube-fanout.kube-fanout.svc", proxy.url);
    let printed = shell.run(&format!("kubectl {server} --certificate-authority tls.crt get --raw '{PODS}'"));
    assert!(printed.contains("\"kind\":\"PodList\""), "{printed}");
    let (pod, _) = template(&bed.direct(), "deployments/kube-fanout").await;
    assert_eq!(pod["containers"][0]["image"], "registry.example/kube-fanout:latest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn install_guide_chains_node_proxies_to_zone_proxies() {
    let Some(bed) = bed::own("install-nodes").await.filter(|_| has(&["openssl"])) else { return };
    let (shell, direct) = (reader(&bed), bed.direct());
    let [nodes, zones, self_signed] = blocks("docs/INSTALL.md", "install_guide_chains_node_proxies_to_zone_proxies");
    let [pointing] = blocks("docs/GUIDES.md", "install_guide_chains_node_proxies_to_zone_proxies");
    let behind = with(&pointing, &[("kube-fanout.kube-fanout", "kube-fanout-zone.kube-fanout")]);
    let pair_for = |service: &str| {
        let name = format!("DNS:{service}.{NAMESPACE}.svc");
        shell.run(&with(&self_signed, &[("DNS:kube-fanout.kube-fanout.svc", &name)]));
        fs::read_to_string(shell.home.join("tls.crt")).expect("it was made")
    };
    let authority = pair_for("kube-fanout-zone");
    shell.run(&zones);
    let zone = run(&Root::new(&bed, "zone"), &direct, "deployments/kube-fanout-zone", None).await;

    let spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]});
    direct.create("/api/v1/namespaces/default/pods", json!({"metadata": {"name": "own"}, "spec": spec})).await;
    let authority_of_node = pair_for("kube-fanout-node");
    shell.run(&nodes);
    let root = Root::new(&bed, "node");
    let upstream = through(&root, &behind, "kube-fanout-zone", &zone, &authority);
    let node = run(&root, &direct, "daemonsets/kube-fanout-node", Some(&upstream)).await;

    let server = format!("--server '{}' --tls-server-name kube-fanout-node.kube-fanout.svc", node.url);
    let own = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0";
    let printed = shell.run(&format!("kubectl {server} --certificate-authority tls.crt get --raw '{own}'"));
    assert!(printed.contains("\"name\":\"own\""), "{printed}");
    assert!(!authority_of_node.is_empty() && authority_of_node != authority, "each has its own");
    assert!(node.sum("kube_fanout_served_total").await > 0, "from its memory");
    assert!(zone.sum("kube_fanout_watches_open").await > 0, "which the zone fills");
}

/// Starts a signer of approved requests: kube-controller-manager itself, if `make cluster` has built it. Otherwise signs
/// the one whose name begins with `name`, for this usage.
pub async fn signer(bed: &Plane, name: &str, usage: &str) -> Option<Process> {
    if let Some(binary) = std::env::var_os("KUBE_CLUSTER") {
        let mut command = Command::new(binary);
        command.args(["controllers", "--controllers=certificatesigningrequest-signing-controller", "--secure-port=0"]);
        command.args(["--leader-elect=false", "--profiling=false", "--kubeconfig"]).arg(bed.kubeconfig());
        command.arg("--cluster-signing-cert-file").arg(bed.ca());
        command.arg("--cluster-signing-key-file").arg(bed.dir.join("ca.key"));
        let log = || File::options().create(true).append(true).open(bed.dir.join("signer.log")).expect("a log");
        return Some(Process::start("kube-controller-manager", command.stdout(log()).stderr(log())));
    }
    log_line("signed as kube-controller-manager would, which is not here");
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let (direct, shell) = (bed.direct(), Shell::new(bed.file("signer")));
    let request = eventually("the request is approved", async || {
        let approved = |object: &&Value| {
            let conditions = object["status"]["conditions"].as_array();
            conditions.is_some_and(|conditions| conditions.iter().any(|of| of["type"] == "Approved"))
                && object["metadata"]["name"].as_str().is_some_and(|of| of.starts_with(name))
        };
        direct.json(path).await["items"].as_array()?.iter().find(approved).cloned()
    })
    .await;
    // Signing is delayed, so a client that does not wait has no certificate.
    let waited = async || (bed.open_watches("certificatesigningrequests").await > 0).then_some(());
    eventually("a request waits for the certificate", waited).await;
    let [authority, key] = ["ca.crt", "ca.key"].map(|file| bed.dir.join(file).display().to_string());
    let signed = shell.run(&format!(
        "echo '{}' | base64 -d > request
        printf 'extendedKeyUsage={usage}' > extensions
        openssl x509 -req -in request -CA '{authority}' -CAkey '{key}' -days 1 -extfile extensions \
          -copy_extensions copyall -out signed.crt 2>errors
        base64 -w0 signed.crt",
        request["spec"]["request"].as_str().expect("base64")
    ));
    let path = format!("{path}/{}/status", request["metadata"]["name"].as_str().expect("a name"));
    direct.patch(&path, json!({"status": {"certificate": signed}})).await;
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn install_guide_issues_node_certificate_and_proxies_node() {
    let Some(bed) = bed::shared().await.filter(|_| has(&["openssl", "curl"])) else { return };
    let shell = reader(&bed).set("NODE_NAME", "n1");
    let [request] = blocks("docs/INSTALL.md", "install_guide_issues_node_certificate_and_proxies_node");
    let [socket] = blocks("docs/FORMS.md", "install_guide_issues_node_certificate_and_proxies_node");
    let mut asking = shell.command(&request);
    let done = tokio::task::spawn_blocking(move || asking.output().expect("a shell"));
    let _signer = signer(&bed, "kube-fanout-n1", "clientAuth").await;
    let done = done.await.expect("no panic");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let files = ["crt", "key"].map(|end| shell.home.join(format!("client.{end}")));
    let user = json!({"client-certificate": files[0], "client-key": files[1]});
    let kubeconfig = shell.home.join("node.kubeconfig");
    write_kubeconfig(&kubeconfig, bed.url(), &bed.ca(), &user);
    let direct = bed.direct();
    let spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]});
    let namespace = bed.namespace("on-node").await;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    direct.create(&pods, json!({"metadata": {"name": "own"}, "spec": spec})).await;

    // A process of the node listens on loopback or a socket.
    let table = [
        ("/etc/kubernetes/kubelet.conf", kubeconfig.to_str().expect("a path")),
        ("/run/kube-fanout/", "./"),
        ("--node-name", "--admin 127.0.0.1:0 --node-name"),
    ];
    let [serve, curl] = commands(&with(&with(&socket, &table[1..2]), &[table[0], table[2]])).try_into().expect("two");
    let _serving = Ongoing::start(&shell, "serve", &serve, "serving on unix:").await;
    // The list is forwarded while the feed is syncing, or if no proof arrives in time.
    let printed = eventually("the list is served from the cache", async || {
        Some(shell.run(&curl)).filter(|printed| printed.contains("kube-fanout-served: cache"))
    })
    .await;
    assert!(printed.contains("\"name\":\"own\""), "{printed}");
    as_a_static_pod(&bed, &shell, &files).await;
}

/// Runs with the same identity as a static pod.
async fn as_a_static_pod(bed: &Bed, shell: &Shell, files: &[PathBuf; 2]) {
    let root = Root::new(bed, "static");
    let text = fs::read_to_string(repository().join("deploy/static-pod.yaml")).expect("the manifest");
    let pod: Value = serde_saphyr::from_str(&text).expect("YAML");
    let read = |path: &PathBuf| fs::read_to_string(path).expect("it is there");
    root.write("/etc/kube-fanout/config.yaml", &read(&repository().join("config/node.yaml")));
    let pair = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    let authority = root.write("/etc/kube-fanout/tls/tls.crt", &pair.cert.pem());
    root.write("/etc/kube-fanout/tls/tls.key", &pair.signing_key.serialize_pem());
    let user = json!({"client-certificate": files[0], "client-key": files[1]});
    write_kubeconfig(&root.path("/etc/kube-fanout/kubeconfig"), bed.url(), &bed.ca(), &user);
    let proxy = root.run(&pod["spec"]["containers"][0], None).await;
    let own = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0";
    let server = format!("--server '{}' --certificate-authority '{}'", proxy.url, authority.display());
    let printed = shell.run(&format!("kubectl {server} get --raw '{own}'"));
    assert!(printed.contains("\"name\":\"own\""), "{printed}");
    assert!(proxy.sum("kube_fanout_served_total").await > 0, "from its memory");
}

/// A running command of a block, until it is ended.
struct Ongoing {
    out: PathBuf,
    _process: Process,
}

impl Ongoing {
    /// Starts the command, and returns when its output contains `prefix`.
    async fn start(shell: &Shell, name: &str, command: &str, prefix: &str) -> Self {
        let (out, log) = (shell.home.join(format!("{name}.out")), shell.home.join(format!("{name}.log")));
        let mut running = shell.command(&format!("exec {command}"));
        running.stdout(File::create(&out).expect("a file")).stderr(File::create(&log).expect("a file"));
        let mut process = Process::start(name, &mut running);
        eventually(&format!("{name} says {prefix}"), async || {
            let is_printed = fs::read_to_string(&out).unwrap_or_default().contains(prefix);
            assert!(
                is_printed || process.ended().is_none(),
                "{command}: {}",
                fs::read_to_string(&log).unwrap_or_default()
            );
            is_printed.then_some(())
        })
        .await;
        Self { out, _process: process }
    }

    /// The rest of the output line that begins with `prefix`.
    fn after(&self, prefix: &str) -> String {
        let stdout = fs::read_to_string(&self.out).expect("its output");
        stdout.lines().find_map(|line| line.strip_prefix(prefix)).expect("the line was printed").to_owned()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readme_and_quickstart_commands_work_against_a_cluster() {
    let Some(bed) = bed::shared().await.filter(|_| has(&["openssl", "curl"])) else { return };
    let shell = reader(&bed);
    let path = format!("{0}/.local/bin:{0}/bin:{1}", shell.home.display(), std::env::var("PATH").expect("a path"));
    let shell = shell.set("PATH", &path);
    let direct = bed.direct();
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    let pods = format!("/api/v1/namespaces/{}/pods", bed.namespace("readme").await);
    direct.create(&pods, json!({"metadata": {"name": "seen"}, "spec": spec})).await;
    let [first_two] = blocks("README.md", "readme_and_quickstart_commands_work_against_a_cluster");
    let [workstation] = blocks("docs/QUICKSTART.md", "readme_and_quickstart_commands_work_against_a_cluster");
    assert!(workstation.starts_with(&first_two), "the README begins as the quick start does: {first_two}");
    let [central] = blocks("docs/FORMS.md", "readme_and_quickstart_commands_work_against_a_cluster");
    let address = free_address();
    let listen = format!("--listen {address} --admin 127.0.0.1:0");
    let workstation = with(&workstation, &[("--listen 127.0.0.1:8001", &listen), ("127.0.0.1:8001", &address)]);
    let [serve, kubectl, curl] = commands(&workstation).try_into().expect("three");
    let serving = Ongoing::start(&shell, "serve", &serve, "metrics and health on ").await;
    drop(Ongoing::start(&shell, "kubectl", &kubectl, "\"name\": \"seen\"").await);
    drop(Ongoing::start(&shell, "curl", &curl, "\"type\":\"ADDED\"").await);

    let [plugin] = blocks("docs/OPERATING.md", "readme_and_quickstart_commands_work_against_a_cluster");
    fs::create_dir_all(shell.home.join(".local/bin")).expect("a folder");
    let arguments = format!("status --address {}", serving.after("metrics and health on "));
    let printed = shell.run(&with(&plugin, &[("status", &arguments)]));
    assert!(printed.contains("pods"), "{printed}");

    let [self_signed] = blocks("docs/INSTALL.md", "readme_and_quickstart_commands_work_against_a_cluster");
    shell.run(&with(&self_signed, &[("DNS:kube-fanout.kube-fanout.svc", "IP:127.0.0.1")]));
    for (name, of) in [("ca.crt", "ca.crt"), ("proxy.kubeconfig", "proxy.kubeconfig")] {
        shell.link(name, &bed.dir.join(of));
    }
    shell.link("impersonator.kubeconfig", &bed.dir.join("impersonator.kubeconfig"));
    let central = with(&central, &[("--listen 0.0.0.0:8443", "--listen 127.0.0.1:0 --admin 127.0.0.1:0")]);
    let [central] = commands(&central).try_into().expect("one");
    let central = Ongoing::start(&shell, "central", &central, "serving on ").await;
    let server = format!("--server {} --certificate-authority tls.crt", central.after("serving on "));
    let printed = shell.run(&format!("kubectl {server} get --raw '{PODS}'"));
    assert!(printed.contains("\"kind\":\"PodList\""), "{printed}");
    let [both] = blocks("docs/RUNBOOK.md", "readme_and_quickstart_commands_work_against_a_cluster");
    let target = bed.target();
    let (apiserver, proxy) = (target.host(), central.after("serving on https://"));
    let table = [("APISERVER", apiserver), ("PROXY", &proxy), ("--cacert CA ", "--cacert tls.crt ")];
    let shell = shell.set("TOKEN", &target.identity.token);
    let both = with(&both, &table);
    let printed = eventually("the list is served from the cache", async || {
        Some(shell.run(&both).to_lowercase()).filter(|printed| printed.contains("\nkube-fanout-served: cache"))
    })
    .await;
    assert!(printed.contains("\"kind\":\"podlist\""), "{printed}");
    let anonymous = shell.output(&format!("kubectl --kubeconfig /dev/null {server} --token nobody get --raw '{PODS}'"));
    assert!(!anonymous.status.success(), "it authenticates callers");
}

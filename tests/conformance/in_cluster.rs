//! The label that sends pods to a proxy (docs/GUIDES.md, "Pods"): what the apiserver stores and refuses, and where the
//! client libraries of such pods connect.

#[allow(dead_code, reason = "the tests of nightly.rs use the rest of it")]
mod pod;
mod service;

use std::path::PathBuf;

use http::Method;
use serde_json::{Value, json};

use crate::bed::{self, Account, Answer, Http, Plane, RequestSpec, eventually, log_line, rbac, version_of};
use crate::blocks::{blocks, commands, has};
use crate::install::container::{Root, Running};
use crate::install::{self, reader};
use pod::{Container, Program, placing};
use service::Service;

const NAMESPACE: &str = "agents";
const PODS: &str = "/api/v1/namespaces/agents/pods";
const LABEL: &str = "kube-fanout.io/use";
const OVERRIDE: &str = "kube-fanout.io/use-critical";

/// Service addresses that are this machine's.
const ADDRESSES: &str = "--service-cluster-ip-range=127.43.0.0/16";

/// Creates the namespace, and a `DaemonSet` whose account may read it.
async fn agents(direct: &Http) {
    direct.create("/api/v1/namespaces", json!({"metadata": {"name": NAMESPACE}})).await;
    let account = Account::create(direct, NAMESPACE, "agent").await;
    let subject = json!({"kind": "ServiceAccount", "namespace": NAMESPACE, "name": "agent"});
    let binding = rbac::binding("agent", "ClusterRole", "view", &subject);
    direct.create(&rbac::collection(Some(NAMESPACE), "rolebindings"), binding).await;
    let attributes = json!({"verb": "watch", "resource": "services", "namespace": NAMESPACE});
    rbac::may(direct, json!({"user": account.user(), "resourceAttributes": attributes})).await;
    let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets");
    direct.create(&path, workload("DaemonSet", "agent", json!({}), json!({"serviceAccountName": "agent"}))).await;
    let before = workload("Deployment", "before", json!({"labels": {LABEL: "node"}}), json!({}));
    direct.create("/apis/apps/v1/namespaces/kube-system/deployments", before).await;
}

/// A workload whose pods have these fields besides those that they need.
fn workload(kind: &str, name: &str, metadata: Value, spec: Value) -> Value {
    let mut template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    merge(&mut template["metadata"], metadata);
    merge(&mut template["spec"], spec);
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn merge(into: &mut Value, more: Value) {
    match more {
        Value::Object(more) => more.into_iter().for_each(|(key, value)| merge(&mut into[key], value)),
        other => *into = other,
    }
}

/// Sends a pod, or only tries it, and returns the apiserver's answer.
async fn pod_of(direct: &Http, metadata: Value, spec: Value, query: &str) -> Answer {
    let mut pod = workload("", "", metadata, spec)["spec"]["template"].take();
    pod["metadata"]["generateName"] = json!("agent-");
    direct
        .fetch(RequestSpec::get(&format!("{PODS}{query}")).with(Method::POST, "application/json", pod.to_string()))
        .await
}

/// A pod of the `DaemonSet`, as its controller creates it.
async fn pod_of_agent(direct: &Http, query: &str) -> Value {
    let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/agent");
    let template = direct.json(&path).await["spec"]["template"].clone();
    let mut spec = template["spec"].clone();
    spec["nodeName"] = json!("n1");
    let stored = pod_of(direct, template["metadata"].clone(), spec, query).await;
    assert_eq!(stored.status, 201, "{}", stored.text());
    stored.value()
}

/// Waits until new pods have these variables, or none. The apiserver applies policies and labels with a delay.
async fn until_pods_have(direct: &Http, expected: &[(String, String)]) {
    eventually("the label counts", async || {
        (pod::variables(&pod_of_agent(direct, "?dryRun=All").await) == expected).then_some(())
    })
    .await;
}

/// What the policies make of pods in a namespace with the label `node`.
async fn pods_are_changed_as_they_say(direct: &Http, host: &str) {
    let (both, own) = (
        json!([{"name": "KUBERNETES_SERVICE_HOST", "value": host},
        {"name": "KUBERNETES_SERVICE_PORT", "value": "443"}]),
        json!([{"name": "KUBERNETES_SERVICE_HOST", "value": "own"}]),
    );
    let label = |value: &str| json!({"labels": {LABEL: value}});
    let critical = json!({"priorityClassName": "system-node-critical"});
    for (metadata, spec, expected) in [
        (json!({}), json!({}), both.clone()),
        (label("node"), json!({}), both.clone()),
        (label("none"), json!({}), Value::Null),
        // There is no such proxy.
        (label("zone"), json!({}), Value::Null),
        (json!({}), critical.clone(), Value::Null),
        (json!({"annotations": {OVERRIDE: "true"}}), critical, both.clone()),
        (json!({"labels": {"app.kubernetes.io/name": "kube-fanout"}}), json!({}), Value::Null),
        (json!({}), json!({"containers": [{"name": "c", "image": "i", "env": own}]}), own.clone()),
    ] {
        let stored = pod_of(direct, metadata.clone(), spec.clone(), "?dryRun=All").await;
        assert_eq!(stored.status, 201, "{metadata} {spec}: {}", stored.text());
        assert_eq!(stored.value()["spec"]["containers"][0]["env"], expected, "{metadata} {spec}");
    }
    let source = json!({"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]});
    let spec = json!({
        "initContainers": [{"name": "first", "image": "i", "env": [{"name": "A", "value": "b"}]}],
        "volumes": [{"name": "none", "emptyDir": {}}, {"name": "kube-api-access", "projected": source}],
    });
    let stored = pod_of(direct, json!({}), spec.clone(), "?dryRun=All").await.value()["spec"].clone();
    let names = stored["initContainers"][0]["env"].as_array().into_iter().flatten().map(|of| of["name"].clone());
    assert_eq!(names.collect::<Vec<_>>(), ["A", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"]);
    let named = |stored: &Value| stored["volumes"][1]["projected"]["sources"][0]["configMap"]["name"].clone();
    assert_eq!(named(&stored), "kube-root-ca.crt");
    // Where another authority signs the proxy's certificate.
    let service = "/api/v1/namespaces/kube-fanout/services/kube-fanout-node";
    let annotate = |name: Value| json!({"metadata": {"annotations": {"kube-fanout.io/ca-config-map": name}}});
    direct.patch(service, annotate(json!("fanout-ca"))).await;
    eventually("the annotation counts", async || {
        let stored = pod_of(direct, json!({}), spec.clone(), "?dryRun=All").await.value()["spec"].clone();
        (named(&stored) == "fanout-ca").then_some(())
    })
    .await;
    let mut keeps = spec;
    keeps["initContainers"][0]["env"] = json!([{"name": "KUBERNETES_SERVICE_HOST", "value": "own"}]);
    let stored = pod_of(direct, json!({}), keeps, "?dryRun=All").await.value()["spec"].clone();
    assert_eq!(named(&stored), "kube-root-ca.crt", "a container keeps another server");
    direct.patch(service, annotate(Value::Null)).await;
}

/// The label is refused, with a reason, on what the proxy depends on, wherever it is written.
async fn dependencies_are_refused(direct: &Http) {
    let label = |value: &str| json!({"labels": {LABEL: value}});
    let critical = || json!({"priorityClassName": "system-cluster-critical"});
    let overridden = json!({"labels": {LABEL: "node"}, "annotations": {OVERRIDE: "true"}});
    let proxy = json!({"labels": {LABEL: "node", "app.kubernetes.io/name": "kube-fanout"}});
    let namespace = |name: &str| json!({"metadata": {"name": name, "labels": {LABEL: "node"}}});
    let daemon = |metadata, spec| workload("DaemonSet", "d", metadata, spec);
    let (own, system) =
        ("/apis/apps/v1/namespaces/agents/daemonsets", "/apis/apps/v1/namespaces/kube-system/daemonsets");
    let deployments = "/apis/apps/v1/namespaces/kube-system/deployments";
    for (path, object, refusal) in [
        (own, daemon(label("node"), json!({})), ""),
        (own, daemon(label("nodes"), json!({})), "must be one of node, zone, central, none"),
        (own, daemon(label("node"), critical()), "may depend on this pod"),
        (own, daemon(label("none"), critical()), ""),
        (own, daemon(overridden.clone(), critical()), ""),
        (own, daemon(proxy, json!({})), "cannot be its own upstream"),
        (system, daemon(json!({}), critical()), ""),
        (system, daemon(label("node"), json!({})), "may depend on this pod"),
        (system, daemon(overridden, critical()), ""),
        (deployments, workload("Deployment", "dns", label("central"), json!({})), "may depend on this pod"),
        ("/api/v1/namespaces", namespace("labelled"), ""),
    ] {
        let request = RequestSpec::get(&format!("{path}?dryRun=All"));
        let answer = direct.fetch(request.with(Method::POST, "application/json", object.to_string())).await;
        let text = answer.text();
        assert!((answer.status == 201) == refusal.is_empty() && text.contains(refusal), "{path} {object}: {text}");
    }
    for name in ["kube-system", "kube-fanout"] {
        let request = RequestSpec::get(&format!("/api/v1/namespaces/{name}?dryRun=All"));
        let patch = namespace(name).to_string();
        let answer = direct.fetch(request.with(Method::PATCH, "application/merge-patch+json", patch)).await;
        assert!(answer.status == 422 && answer.text().contains("label workloads"), "{name}: {}", answer.text());
    }
    let stored = pod_of(direct, label("node"), critical(), "?dryRun=All").await;
    assert_eq!(stored.status, 201, "a controller's pod is left alone: {}", stored.text());
    assert_eq!(stored.value()["spec"]["containers"][0]["env"], Value::Null);
    for (patch, status) in [
        (json!({"metadata": {"annotations": {"a": "b"}}}), 200),
        (json!({"spec": {"template": {"metadata": {"labels": {LABEL: "central"}}}}}), 422),
    ] {
        let request = RequestSpec::get(&format!("{deployments}/before?dryRun=All"));
        let request = request.with(Method::PATCH, "application/merge-patch+json", patch.to_string());
        assert_eq!(direct.fetch(request).await.status, status, "stored before the policy: {patch}");
    }
}

/// Starts the programs, and returns when each has received an object that is created now.
async fn watching(bed: &Plane, pod: &Value, programs: &[Program]) -> Vec<Container> {
    let mut running = Vec::new();
    for program in programs {
        running.push(Container::start(bed, pod, *program, &bed.ca()).await);
    }
    for container in &mut running {
        let what = format!("{:?} has listed", container.program);
        eventually(&what, async || {
            container.assert_runs();
            container.has_listed().then_some(())
        })
        .await;
    }
    let version = create_service(&bed.direct()).await;
    for container in &mut running {
        eventually(&format!("{:?} watches", container.program), async || {
            container.assert_runs();
            container.received().iter().any(|received| received.version == version).then_some(())
        })
        .await;
    }
    running
}

async fn create_service(direct: &Http) -> u64 {
    let service = json!({"metadata": {"generateName": "s-"}, "spec": {"ports": [{"port": 80}]}});
    version_of(&direct.create(&format!("/api/v1/namespaces/{NAMESPACE}/services"), service).await)
}

/// Has the certificate signed, and starts the node's proxy behind the Service's address.
async fn proxy(root: &Root<'_>, bed: &Plane, certify: &str) -> (Running, Service, String) {
    let (direct, shell) = (bed.direct(), reader(bed));
    // A controller writes it in each namespace.
    let authority = std::fs::read_to_string(bed.ca()).expect("its authority");
    let map = json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": authority}});
    direct.create("/api/v1/namespaces/kube-fanout/configmaps", map).await;
    let mut certifying = shell.command(certify);
    let certified = tokio::task::spawn_blocking(move || certifying.output().expect("a shell"));
    let _signer = install::signer(bed, "kube-fanout-kube-fanout-node", "serverAuth").await;
    let certified = certified.await.expect("no panic");
    assert!(certified.status.success(), "{}", String::from_utf8_lossy(&certified.stderr));
    let proxy = install::run(root, &direct, "daemonsets/kube-fanout-node", None).await;
    let service = direct.json("/api/v1/namespaces/kube-fanout/services/kube-fanout-node").await;
    let host = service["spec"]["clusterIP"].as_str().expect("an address").to_owned();
    let listening = Service::listen(format!("{host}:443").parse().expect("an address")).await;
    let listening = listening.expect("root may listen on port 443");
    listening.ready(&[proxy.url.trim_start_matches("https://").parse().expect("an address")]);
    (proxy, listening, host)
}

/// `check` says that pods accept the certificate, and names a host for which it is not valid.
fn certificate_is_checked(root: &Root<'_>, host: &str) {
    let file = |place: &str| -> PathBuf { root.path(place) };
    for (other, outcome, expected) in [
        (host, true, format!("tls.certificate is valid for {host}")),
        ("127.43.255.254", false, "tls.certificate is not valid for 127.43.255.254".to_owned()),
    ] {
        let mut command = bed::kube_fanout("check");
        command.arg("--config").arg(file("/etc/kube-fanout/config.yaml")).arg("--kubeconfig").arg(file("kubeconfig"));
        let output = command.args(["--node-name", "n1", "--client-host", other]).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("as pods have it, trust tls.certificate"), "{text}");
        assert!(output.status.success() == outcome && text.contains(&expected), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn labelled_pods_use_node_proxy_until_label_is_removed() {
    let Some(bed) = bed::own_with("in-cluster", &[ADDRESSES]).await.filter(|_| has(&["openssl"])) else { return };
    if placing().is_none() {
        return bed::skip("no process can have its own /var/run here: that needs user namespaces, or root");
    }
    let (shell, direct, root) = (reader(&bed), bed.direct(), Root::new(&bed, "node"));
    let [there, back] = blocks("docs/GUIDES.md", "labelled_pods_use_node_proxy_until_label_is_removed");
    let [apply, certify, label, restart] = commands(&there).try_into().expect("four");
    agents(&direct).await;
    create_service(&direct).await;
    let before = pod_of_agent(&direct, "").await;
    shell.run(&apply);
    let (proxy, _service, host) = proxy(&root, &bed, &certify).await;
    certificate_is_checked(&root, &host);
    let open = async || proxy.sum("kube_fanout_watches_open").await;
    let _unlabelled = watching(&bed, &before, &[Program::ClientGo]).await;
    assert_eq!(open().await, 0, "it was created before");

    shell.run(&label);
    shell.run(&restart);
    let of_proxy = [("KUBERNETES_SERVICE_HOST", host.as_str()), ("KUBERNETES_SERVICE_PORT", "443")];
    let of_proxy = of_proxy.map(|(name, value)| (name.to_owned(), value.to_owned()));
    until_pods_have(&direct, &of_proxy).await;
    pods_are_changed_as_they_say(&direct, &host).await;
    dependencies_are_refused(&direct).await;
    let labelled = pod_of_agent(&direct, "").await;
    let programs = [Program::ClientGo, Program::KubeRs, Program::Python].into_iter().filter(|of| of.is_here());
    let programs: Vec<_> = programs.collect();
    let running = watching(&bed, &labelled, &programs).await;
    let expected = i64::try_from(programs.len()).expect("three");
    // Metrics are at most a second old.
    eventually("each has its watch here", async || (open().await == expected).then_some(())).await;
    assert_eq!(proxy.sum("kube_fanout_upstream_watches").await, 1 + 1, "Services for all of them, and the node's pods");
    drop(running);
    eventually("their watches end", async || (open().await == 0).then_some(())).await;

    shell.run(&back);
    until_pods_have(&direct, &[]).await;
    let unlabelled = pod_of_agent(&direct, "").await;
    let _running = watching(&bed, &unlabelled, &[Program::ClientGo]).await;
    assert_eq!(open().await, 0, "the label is gone");
    let served = proxy.sum("kube_fanout_served_total").await;
    log_line(&format!("{programs:?} in labelled pods; {served} requests served from memory"));
}

//! The steps of the scenario, and how long each takes.

use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::components::Cluster;
use super::errors::{Logs, Phase};
use crate::bed::{Http, RequestSpec, eventually, log_line};

const NAMESPACE: &str = "shop";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/shop/deployments";
const WEB: &str = "/apis/apps/v1/namespaces/shop/deployments/web";
const PODS_OF_WEB: &str = "/api/v1/namespaces/shop/pods?labelSelector=app%3Dweb";
const SLICES_OF_WEB: &str =
    "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dweb";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
/// The number of objects with one owner.
const OWNED: usize = 100;

/// A step, and its duration.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub name: &'static str,
    pub took: Duration,
    /// Whether servers were killed in it, so that its duration depends on their downtime.
    pub killed: bool,
}

/// The step in which each node renews its lease once.
pub const RENEWED: &str = "every node renews its lease";

/// A run of the scenario.
pub struct Scenario<'a> {
    cluster: Cluster<'a>,
    direct: Http,
    started: Instant,
    pub steps: Vec<Step>,
    pub logs: Logs,
}

fn number(object: &Value, pointer: &str) -> u64 {
    object.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

/// A pod template with the mounts that a kubelet reads one by one: a configmap, a secret, and a token of its account.
fn template(app: &str, round: u32) -> Value {
    let token = json!([
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "kube-root-ca.crt"}},
    ]);
    json!({
        "metadata": {"labels": {"app": app}, "annotations": {"round": round.to_string()}},
        "spec": {
            "serviceAccountName": "default", "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10"}],
            "volumes": [
                {"name": "c", "configMap": {"name": "settings"}}, {"name": "s", "secret": {"secretName": "password"}},
                {"name": "t", "projected": {"sources": token}},
            ],
        },
    })
}

fn workload(app: &str, more: &Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"app": app}}, "template": template(app, 0)});
    let fields = spec.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    json!({"metadata": {"name": app}, "spec": spec})
}

impl<'a> Scenario<'a> {
    pub fn new(cluster: Cluster<'a>) -> Self {
        let (direct, started, logs) = (cluster.plane.direct(), cluster.started, Logs::of(&cluster));
        Self { cluster, direct, started, logs, steps: Vec::new() }
    }

    /// Runs all steps. `kill_proxies` selects what is killed first: the proxies, or without proxies the apiserver.
    pub async fn run(mut self, kill_proxies: bool) -> Self {
        let nodes = self.cluster.nodes.len();
        let (some, many) = (2 * nodes, 4 * nodes);
        self.nodes_are_ready().await;
        self.namespace_is_usable().await;
        self.deployment_is_created(some).await;
        self.done("a Deployment with a Service is created", false);
        self.patch_web(json!({"spec": {"replicas": many}})).await;
        self.web_is(many).await;
        self.done("it is scaled up", false);
        self.roll(1).await;
        self.web_is(many).await;
        self.done("it is rolled", false);
        self.others_run(nodes).await;
        self.roll(2).await;
        self.kill_the_server(kill_proxies).await;
        self.web_is(many).await;
        self.done("it is rolled, the components' server is killed", true);
        self.leases_are_renewed().await;
        self.roll(3).await;
        self.kill_the_server(false).await;
        self.web_is(many).await;
        self.done("it is rolled, the apiserver is killed", true);
        self.leases_are_renewed().await;
        self.patch_web(json!({"spec": {"replicas": some}})).await;
        self.web_is(some).await;
        self.done("it is scaled down", false);
        self.delete(WEB).await;
        self.web_is_gone().await;
        self.done("it is deleted", false);
        self.owner_is_deleted().await;
        self.namespace_is_deleted().await;
        self.nodes_have_stayed().await;
        self
    }

    /// Ends a step that began at the end of the previous one.
    fn done(&mut self, name: &'static str, killed: bool) {
        let took = self.started.elapsed();
        log_line(&format!("{name}: {:.2} s", took.as_secs_f64()));
        self.steps.push(Step { name, took, killed });
        self.cluster.assert_alive();
        self.logs.read(&self.cluster, if killed { Phase::Killed } else { Phase::Calm });
        self.started = Instant::now();
    }

    /// Waits until the object at a path fulfils a condition.
    async fn until(&self, what: &str, path: &str, mut is: impl FnMut(&Value) -> bool) {
        eventually(what, async || {
            let answer = self.direct.try_get(path).await.filter(|answer| answer.status == 200)?;
            is(&answer.value()).then_some(())
        })
        .await;
    }

    async fn until_gone(&self, path: &str) {
        let is_gone = async || self.direct.try_get(path).await.and_then(|answer| (answer.status == 404).then_some(()));
        eventually(&format!("{path} is gone"), is_gone).await;
    }

    async fn delete(&self, path: &str) {
        let options = r#"{"propagationPolicy":"Background"}"#.to_owned();
        let answer = self.direct.fetch(RequestSpec::get(path).with(Method::DELETE, "application/json", options)).await;
        assert!(answer.status.is_success(), "{path}: {}", answer.text());
    }

    async fn patch_web(&self, patch: Value) {
        self.direct.patch(WEB, patch).await;
    }

    async fn roll(&self, round: u32) {
        self.patch_web(json!({"spec": {"template": template("web", round)}})).await;
    }

    async fn kill_the_server(&mut self, proxies: bool) {
        if proxies {
            self.cluster.kill_proxies().await;
        } else {
            self.cluster.plane.kill_apiserver().await;
            self.cluster.plane.start_apiserver().await;
        }
    }

    async fn nodes_are_ready(&mut self) {
        let expected = self.cluster.nodes.len();
        self.until("all nodes are ready", "/api/v1/nodes", |list| {
            let is_ready = |node: &&Value| {
                let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
                let untainted = node["spec"]["taints"].as_array().is_none_or(Vec::is_empty);
                untainted && conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
            };
            items(list).iter().filter(is_ready).count() == expected
        })
        .await;
        self.done("all nodes are ready", false);
    }

    async fn namespace_is_usable(&mut self) {
        self.direct.create("/api/v1/namespaces", json!({"metadata": {"name": NAMESPACE}})).await;
        let path = |rest: &str| format!("/api/v1/namespaces/{NAMESPACE}/{rest}");
        self.until("it has an account", &path("serviceaccounts/default"), |_| true).await;
        self.until("it has the authority", &path("configmaps/kube-root-ca.crt"), |_| true).await;
        self.done("a namespace has its account", false);
        let data = json!({"metadata": {"name": "settings"}, "data": {"a": "b"}});
        self.direct.create(&path("configmaps"), data).await;
        let data = json!({"metadata": {"name": "password"}, "data": {"a": "Yg=="}});
        self.direct.create(&path("secrets"), data).await;
        self.started = Instant::now();
    }

    async fn deployment_is_created(&self, replicas: usize) {
        let service = json!({
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
        });
        self.direct.create(&format!("/api/v1/namespaces/{NAMESPACE}/services"), service).await;
        self.direct.create(DEPLOYMENTS, workload("web", &json!({"replicas": replicas}))).await;
        self.web_is(replicas).await;
    }

    /// Waits until all replicas are new and available, no other pod is left, and the service has their addresses.
    async fn web_is(&self, replicas: usize) {
        let expected = replicas as u64;
        self.until("the Deployment is complete", WEB, |web| {
            let seen = number(web, "/status/observedGeneration") == number(web, "/metadata/generation");
            let counts = ["replicas", "updatedReplicas", "availableReplicas"];
            seen && counts.iter().all(|name| number(web, &format!("/status/{name}")) == expected)
        })
        .await;
        self.until("old pods are gone", PODS_OF_WEB, |list| items(list).len() == replicas).await;
        self.until("the service has all addresses", SLICES_OF_WEB, |slices| {
            let all = items(slices).iter().flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
            all.filter(|endpoint| endpoint["conditions"]["ready"] == true).count() == replicas
        })
        .await;
    }

    async fn web_is_gone(&self) {
        self.until("all pods are gone", PODS_OF_WEB, |list| items(list).is_empty()).await;
        let sets = "/apis/apps/v1/namespaces/shop/replicasets";
        self.until("all ReplicaSets are gone", sets, |list| items(list).is_empty()).await;
    }

    async fn others_run(&mut self, nodes: usize) {
        let apps = |rest: &str| format!("/apis/apps/v1/namespaces/{NAMESPACE}/{rest}");
        self.started = Instant::now();
        self.direct.create(&apps("daemonsets"), workload("agent", &json!({}))).await;
        self.until("a pod on each node", &apps("daemonsets/agent"), |set| {
            number(set, "/status/numberAvailable") == nodes as u64
        })
        .await;
        self.done("a DaemonSet is created", false);
        let set = workload("store", &json!({"replicas": 3, "serviceName": "store"}));
        self.direct.create(&apps("statefulsets"), set).await;
        self.until("one after the other", &apps("statefulsets/store"), |set| {
            number(set, "/status/availableReplicas") == 3
        })
        .await;
        self.done("a StatefulSet of 3 is created", false);
        let jobs = format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs");
        let mut template = template("once", 0);
        template["spec"]["restartPolicy"] = json!("Never");
        let job = json!({"metadata": {"name": "once"}, "spec": {"parallelism": 3, "template": template}});
        self.direct.create(&jobs, job).await;
        let job = format!("{jobs}/once");
        self.until("its pods are ready", &job, |job| number(job, "/status/ready") == 3).await;
        self.done("a Job of 3 is created", false);
    }

    /// Waits until every node has renewed its lease once.
    async fn leases_are_renewed(&mut self) {
        self.started = Instant::now();
        let times = |list: &Value| -> Vec<String> {
            items(list).iter().map(|lease| lease["spec"]["renewTime"].to_string()).collect()
        };
        let before = times(&self.direct.json(LEASES).await);
        assert_eq!(before.len(), self.cluster.nodes.len(), "a lease each");
        self.until("all leases are renewed", LEASES, |list| {
            times(list).iter().zip(&before).all(|(now, before)| now != before)
        })
        .await;
        self.done(RENEWED, false);
    }

    async fn owner_is_deleted(&mut self) {
        let maps = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
        let owner = self.direct.create(&maps, json!({"metadata": {"name": "owner"}})).await;
        let by = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}]);
        let all = (0..OWNED).map(async |n| {
            let meta = json!({"name": format!("owned-{n}"), "labels": {"owned": ""}, "ownerReferences": by});
            self.direct.create(&maps, json!({"metadata": meta})).await
        });
        join_all(all).await;
        self.started = Instant::now();
        self.delete(&format!("{maps}/owner")).await;
        let owned = format!("{maps}?labelSelector=owned");
        self.until("what it owned is gone", &owned, |list| items(list).is_empty()).await;
        self.done("100 objects of a deleted owner are gone", false);
    }

    async fn namespace_is_deleted(&mut self) {
        let path = format!("/api/v1/namespaces/{NAMESPACE}");
        self.delete(&path).await;
        self.until_gone(&path).await;
        self.done("a namespace with all its content is gone", false);
    }

    /// Checks that every node is ready at the end, and prints the errors in the proxies' logs.
    async fn nodes_have_stayed(&self) {
        for node in items(&self.direct.json("/api/v1/nodes").await) {
            let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
            let ready = conditions.filter(|one| one["type"] == "Ready").collect::<Vec<_>>();
            assert!(ready.len() == 1 && ready[0]["status"] == "True", "{}: {ready:?}", node["metadata"]["name"]);
        }
        log_line(&format!("errors in the logs of proxies: {:?}", self.cluster.errors_of_proxies()));
    }
}

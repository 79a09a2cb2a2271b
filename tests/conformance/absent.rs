//! What the clients of labelled pods notice while their node's proxy is killed, updated or not there yet, by the two
//! ways to reach it: the Service, and a port of the node (docs/GUIDES.md, "Pods"). `make label` prints the figures.

#[allow(dead_code, reason = "the tests of main.rs use the rest of it")]
#[path = "in_cluster/pod.rs"]
mod pod;
#[path = "in_cluster/service.rs"]
mod service;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::bed::{self, Account, Plan, Plane, Proxy, eventually, free_address, log_line, rbac, version_of};
use pod::{Container, Program, now, placing};
use service::Service;

/// Between two changes of the watched object.
const EVERY: Duration = Duration::from_millis(100);
/// From the death of a container until kube-proxy stops to use it: the kubelet's notice, the `EndpointSlice`, the rules.
const NOTICED: Duration = Duration::from_secs(2);
/// From then until the kubelet has started the container again.
const RESTARTED: Duration = Duration::from_secs(3);
/// How long a proxy is missing when the node boots.
const BOOT: Duration = Duration::from_secs(15);
/// `preStop` of the manifests.
const PRE_STOP: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Service,
    HostPort,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outage {
    Killed,
    Updated,
    Absent,
}

/// The proxies of two nodes, and what leads to them.
struct Site<'a> {
    bed: &'a Plane,
    plan: Plan,
    own: Option<Proxy>,
    other: Option<Proxy>,
    service: Option<(Service, SocketAddr)>,
    address: SocketAddr,
}

fn address_of(proxy: &Proxy) -> SocketAddr {
    proxy.target().host().parse().expect("an address")
}

impl<'a> Site<'a> {
    async fn new(bed: &'a Plane, way: Way, outage: Outage) -> Self {
        let address = free_address();
        let plan = Plan::delegated(bed).lasting(bed).listen(&address);
        let mut site =
            Self { bed, plan, own: None, other: None, service: None, address: address.parse().expect("one") };
        if way == Way::Service {
            site.other = Some(site.plan.clone().listen(&free_address()).start(bed).await);
            let address = free_address().parse().expect("an address");
            site.service = Some((Service::listen(address).await.expect("it is free"), address));
        }
        if outage != Outage::Absent {
            site.own = Some(site.plan.clone().start(bed).await);
        }
        site.route();
        site
    }

    /// Sends new connections to the ready proxies, the own one first.
    fn route(&self) {
        let ready: Vec<_> = [&self.own, &self.other].into_iter().flatten().map(address_of).collect();
        if let Some((service, _)) = &self.service {
            service.ready(&ready);
        }
    }

    /// The variables of a pod's container.
    fn variables(&self) -> Value {
        let (host, port) = match &self.service {
            Some((_, address)) => (json!({"value": address.ip().to_string()}), address.port()),
            None => (json!({"valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}), self.address.port()),
        };
        let mut host = host;
        host["name"] = json!("KUBERNETES_SERVICE_HOST");
        json!([host, {"name": "KUBERNETES_SERVICE_PORT", "value": port.to_string()}])
    }

    async fn suffer(&mut self, outage: Outage) {
        match outage {
            Outage::Killed => {
                self.own.take().expect("it runs").kill();
                sleep(NOTICED).await;
                self.route();
                sleep(RESTARTED).await;
                self.own = Some(self.plan.clone().start(self.bed).await);
            }
            Outage::Absent => {
                sleep(BOOT).await;
                self.own = Some(self.plan.clone().start(self.bed).await);
            }
            Outage::Updated if self.service.is_some() => {
                let next = self.plan.clone().listen(&free_address()).start(self.bed).await;
                let old = self.own.replace(next).expect("it runs");
                self.route();
                sleep(PRE_STOP).await;
                old.terminate().await;
            }
            // Two pods cannot have the same port of the node.
            Outage::Updated => {
                sleep(PRE_STOP).await;
                self.own.take().expect("it runs").terminate().await;
                self.own = Some(self.plan.clone().start(self.bed).await);
            }
        }
        self.route();
    }
}

/// Changes the object until `stop`, and returns the versions.
async fn changes(bed: &Plane, path: String, stop: Arc<AtomicBool>) -> Vec<u64> {
    let (direct, mut versions) = (bed.direct(), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let at = versions.len().to_string();
        versions.push(version_of(&direct.patch(&path, json!({"metadata": {"annotations": {"at": at}}})).await));
        sleep(EVERY).await;
    }
    versions
}

/// What a program missed: milliseconds between two of its changes, at most, and changes.
fn missed(container: &Container, started: u64, outage: Outage, written: &[u64]) -> (u64, usize) {
    let received = container.received();
    let first = received.first().expect("it has received something").at - started;
    let between = received.windows(2).map(|pair| pair[1].at - pair[0].at).max().unwrap_or_default();
    let seen: BTreeSet<_> = received.iter().map(|of| of.version).collect();
    let since = *seen.first().expect("one");
    let lost = written.iter().filter(|version| **version > since && !seen.contains(version)).count();
    (if outage == Outage::Absent { first } else { between }, lost)
}

async fn measure(bed: &Plane, way: Way, outage: Outage, programs: &[Program]) -> Vec<(u64, usize)> {
    let (direct, namespace) = (bed.direct(), bed.namespace("absent").await);
    let account = Account::create(&direct, &namespace, "agent").await;
    let subject = json!({"kind": "ServiceAccount", "namespace": namespace, "name": "agent"});
    let binding = rbac::binding("agent", "ClusterRole", "view", &subject);
    direct.create(&rbac::collection(Some(&namespace), "rolebindings"), binding).await;
    let attributes = json!({"verb": "watch", "resource": "services", "namespace": namespace});
    rbac::may(&direct, json!({"user": account.user(), "resourceAttributes": attributes})).await;
    let services = format!("/api/v1/namespaces/{namespace}/services");
    direct.create(&services, json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}})).await;

    let mut site = Site::new(bed, way, outage).await;
    let container = json!({"name": "c", "image": "i", "env": site.variables()});
    let spec = json!({"serviceAccountName": "agent", "nodeName": "n1", "containers": [container]});
    let pod = json!({"metadata": {"name": "agent"}, "spec": spec});
    let pod = direct.create(&format!("/api/v1/namespaces/{namespace}/pods"), pod).await;
    let authority = site.own.as_ref().or(site.other.as_ref()).map(|proxy| proxy.target().ca.expect("TLS"));
    let authority = authority.unwrap_or_else(|| site.plan.certificate().expect("it is lasting"));
    let started = now();
    let mut running = Vec::new();
    for program in programs {
        running.push(Container::start(bed, &pod, *program, &authority).await);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writing = changes(bed, format!("{services}/s"), stop.clone());
    let outages = async {
        if outage != Outage::Absent {
            all_receive(&mut running, 20).await;
        }
        site.suffer(outage).await;
        let before = running.iter().map(|container| container.received().len()).max().unwrap_or_default();
        all_receive(&mut running, before + 50).await;
        stop.store(true, Ordering::Relaxed);
    };
    let (written, ()) = tokio::join!(writing, outages);
    let last = *written.last().expect("it wrote");
    eventually("all programs have received the last change", async || {
        let has_last = |container: &Container| container.received().last().is_some_and(|of| of.version >= last);
        running.iter().all(has_last).then_some(())
    })
    .await;
    running.iter().map(|container| missed(container, started, outage, &written)).collect()
}

/// Waits until each program has received so many changes.
async fn all_receive(running: &mut [Container], count: usize) {
    eventually("all programs receive changes", async || {
        running.iter_mut().for_each(Container::assert_runs);
        running.iter().all(|container| container.received().len() >= count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_resume_while_their_proxy_is_not_there() {
    let Some(bed) = bed::own("absent").await else { return };
    if placing().is_none() {
        return bed::skip("no process can have its own /var/run here: that needs user namespaces, or root");
    }
    let all = [Program::ClientGo, Program::KubeRs, Program::Python, Program::Java, Program::Fabric8];
    let programs: Vec<_> = all.into_iter().filter(|program| program.is_here()).collect();
    for way in [Way::Service, Way::HostPort] {
        for outage in [Outage::Killed, Outage::Updated, Outage::Absent] {
            let missed = measure(&bed, way, outage, &programs).await;
            let line = programs.iter().zip(&missed).map(|(program, (silent, lost))| {
                #[expect(clippy::cast_precision_loss, reason = "seconds")]
                let seconds = *silent as f64 / 1000.0;
                format!("{program:?} {seconds:.1} s, {lost} lost")
            });
            log_line(&format!("{way:?} {outage:?}: {}", line.collect::<Vec<_>>().join("; ")));
            for (program, (_, lost)) in programs.iter().zip(missed).filter(|(program, _)| program.resumes()) {
                assert_eq!(lost, 0, "{program:?} {way:?} {outage:?}");
            }
        }
    }
}

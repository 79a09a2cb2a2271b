//! A whole cluster through proxies, compared with the same cluster without them. It has kube-controller-manager,
//! kube-scheduler, and nodes whose kubelets and kube-proxies run no containers (tests/cluster). Workloads are created,
//! scaled, replaced and deleted, while the proxies and the apiserver are killed. `make cluster` runs it.

mod compared;
mod components;
mod errors;
mod scenario;

use crate::bed::{self, Plane, log_line};
use compared::{Requests, Run};
use components::Cluster;
use scenario::Scenario;

/// How the components reach the apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Directly.
    Direct,
    /// Through a proxy on each node, with the node's credentials, and one for all other components.
    Proxies,
    /// Through the same proxies, where those on nodes use the other one as upstream.
    Tree,
}

/// The setting of clusters made with kubeadm. The test bed's default has no controllers.
const FLAGS: [&str; 1] = ["--enable-admission-plugins=NodeRestriction"];

async fn run(layout: Layout, name: &str, nodes: usize) -> Option<Run> {
    let binary = components::binary()?;
    let bed = bed::audited_with(name, &FLAGS).await?;
    let plane: &Plane = &bed;
    log_line(&format!("{layout:?}, {nodes} nodes"));
    let cluster = Cluster::start(plane, binary, layout, nodes).await;
    let done = Scenario::new(cluster).run(layout != Layout::Direct).await;
    Some(Run { layout, steps: done.steps, logs: done.logs, requests: Requests::of(plane) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_using_proxies_behaves_like_one_without() {
    let nodes = usize::try_from(bed::number("CLUSTER_NODES", 10)).expect("a small number");
    let layouts = [Layout::Direct, Layout::Proxies, Layout::Tree];
    let mut runs = layouts.map(|_| Vec::new());
    for round in 1..=bed::number("CLUSTER_ROUNDS", 1) {
        for (layout, runs) in layouts.into_iter().zip(&mut runs) {
            let Some(done) = run(layout, &format!("{layout:?}-{round}").to_lowercase(), nodes).await else { return };
            runs.push(done);
        }
    }
    let runs = runs.map(Run::in_all);
    compared::print(&runs);
    let [direct, others @ ..] = &runs;
    let wrong: Vec<_> = others.iter().flat_map(|other| compared::judge(direct, other)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

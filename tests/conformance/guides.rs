//! The commands of docs/GUIDES.md, verbatim.

use crate::bed::{self, Plan, Proxy};
use crate::blocks::blocks;
use crate::install::reader;

/// The number of requests that the proxy has answered.
async fn answered(proxy: &Proxy) -> i64 {
    let metrics = proxy.metrics().await;
    metrics.sum("kube_fanout_served_total", &[]) + metrics.sum("kube_fanout_forwarded_total", &[])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guide_commands_switch_kubectl_to_the_proxy_and_back() {
    let Some(bed) = bed::alone().await else { return };
    let proxy = Plan::delegated(&bed).start(&bed).await;
    let target = proxy.target();
    let authority = target.ca.unwrap_or_else(|| bed.ca()).display().to_string();
    let shell = reader(&bed).set("PROXY", &target.url).set("CA", &authority);
    let [there, back] = blocks("docs/GUIDES.md", "guide_commands_switch_kubectl_to_the_proxy_and_back");
    let before = answered(&proxy).await;
    let output = shell.run(&there);
    assert!(output.contains("\"kind\":\"PodList\""), "{output}");
    let through = answered(&proxy).await;
    assert!(through >= before + 2, "{before} requests, and {through} after the commands");
    let output = shell.run(&back);
    assert!(output.contains("\"kind\":\"PodList\""), "{output}");
    assert_eq!(answered(&proxy).await, through, "the last one goes to the apiserver");
    proxy.assert_sound();
}

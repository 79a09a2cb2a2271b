//! JSON that the proxy does not derive, because the release that upstream reports is not the one that wrote the objects.

use serde_json::json;

use crate::bed::{self, Plan, Planter, Proxy, RequestSpec, eventually, version_of};

pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// What the proxy derives for the same resource, while it refuses to derive JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Derived {
    /// Metadata. While few objects were compared, the proxy reads upstream's release every five seconds.
    Metadata,
    /// Nothing. The proxy reads upstream's release every minute.
    Nothing,
}

/// The number of feeds of a resource whose JSON has this mode.
pub async fn mode(proxy: &Proxy, resource: &str, mode: &str) -> i64 {
    let labels = [("resource", resource), ("representation", "json"), ("mode", mode)];
    proxy.metrics().await.sum("kube_fanout_representation_mode", &labels)
}

/// Two servers share an address during an upgrade: the old one reports its release, and the new one writes the objects.
/// When the new one reports its release too, JSON is derived.
pub async fn is_retried_after_release_change(derived: Derived) {
    let Some(bed) = bed::shared().await else { return };
    let planter = Planter::start(&bed).await;
    // This release wrote `creationTimestamp: null` into templates.
    planter.say_release(33);
    let proxy = Plan::plain().upstream(&planter.kubeconfig()).start(&bed).await;
    let (namespace, direct, through) = (bed.namespace("upgrade").await, bed.direct(), proxy.client());
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    let labels = json!({"app": "x"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": labels}, "template": template});
    let version = version_of(&direct.create(&path, json!({"metadata": {"name": "d"}, "spec": spec})).await);
    let _protobuf =
        through.watch(RequestSpec::get(&format!("{path}?watch=1&resourceVersion={version}")).accept(PROTOBUF)).await;
    let request = RequestSpec::get(&format!("{path}?resourceVersion={version}"));
    let same = async || {
        let (ours, theirs) = (through.fetch(request.clone()).await, direct.fetch(request.clone()).await);
        assert_eq!(ours.value()["items"], theirs.value()["items"]);
    };
    let _metadata = if derived == Derived::Metadata {
        let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        let watch = RequestSpec::get(&format!("{path}?watch=1&resourceVersion={version}"));
        Some(through.watch(watch.accept(metadata)).await)
    } else {
        None
    };
    // If the comparison takes longer than a request is held, the request is forwarded and the comparison continues.
    eventually("the difference is detected", async || {
        same().await;
        (mode(&proxy, "deployments.v1.apps", "mismatch").await == 1).then_some(())
    })
    .await;
    planter.say_release(0);
    eventually("it is derived", async || {
        same().await;
        (mode(&proxy, "deployments.v1.apps", "derived").await == 1).then_some(())
    })
    .await;
}

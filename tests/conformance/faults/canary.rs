//! Objects that are written directly to the apiserver, to measure when the proxy has them.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bed::{Http, Plane, Proxy, eventually, version_of};

/// One object of each resource.
pub struct Canaries {
    direct: Http,
    through: Http,
    paths: [String; 2],
}

impl Canaries {
    pub async fn new(plane: &Plane, proxy: &Proxy) -> Self {
        let (direct, namespace) = (plane.direct(), plane.namespace("canary").await);
        let custom = ("verify.kube-fanout.io/v1", "Sample", "/apis/verify.kube-fanout.io/v1", "samples");
        let collections = [("v1", "ConfigMap", "/api/v1", "configmaps"), custom];
        let paths = collections.map(|(.., group, plural)| format!("{group}/namespaces/{namespace}/{plural}"));
        for ((version, kind, ..), path) in collections.iter().zip(&paths) {
            let canary = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "canary"}});
            direct.create(path, canary).await;
        }
        Self { direct, through: proxy.client(), paths: paths.map(|path| format!("{path}/canary")) }
    }

    /// Measures the time until all feeds have the latest writes.
    pub async fn known(&self) -> Duration {
        let since = Instant::now();
        let patch = json!({"metadata": {"annotations": {"round": fastrand::u64(..).to_string()}}});
        for path in &self.paths {
            let written = version_of(&self.direct.patch(path, patch.clone()).await);
            eventually(&format!("{path} is known"), async || {
                let answer = self.through.try_get(&format!("{path}?resourceVersion=0")).await?;
                let object: Option<Value> = (answer.status == 200 && answer.is_cached()).then(|| answer.value());
                object.filter(|object| version_of(object) >= written).map(drop)
            })
            .await;
        }
        since.elapsed()
    }
}

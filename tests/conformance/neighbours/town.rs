use std::ops::Deref;

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::json;

use crate::bed::{Authority, Bed, Http, Identity, Plan, Plane, Proxy, RequestSpec, Watch, rbac, unique};

/// A proxy and three callers. One has a token, one a certificate, and both may read secrets and configmaps of `t1`. The
/// third may read nothing.
pub struct Town {
    pub bed: Bed<Box<Plane>>,
    pub proxy: Proxy,
    pub good: [Identity; 2],
    pub powerless: Identity,
}

pub const CACHED: &str = "/api/v1/namespaces/t1/configmaps";
pub const PASSED: &str = "/api/v1/namespaces/t1/secrets";

impl Town {
    pub async fn settle(bed: Bed<Box<Plane>>, config: &str) -> Self {
        let proxy = Plan::delegated(&bed).config(config).start(&bed).await;
        let name = unique("good");
        let good = [bed.user("alice"), Authority::of(&bed).issue(&name, &[])];
        let bindings = rbac::collection(Some("t1"), "rolebindings");
        for user in ["alice", &name] {
            let binding = rbac::binding(&unique("good"), "ClusterRole", "admin", &rbac::subject("User", user));
            bed.direct().create(&bindings, binding).await;
        }
        let powerless = bed.user("bob");
        let town = Self { bed, proxy, good, powerless };
        for http in town.clients() {
            for path in [CACHED, PASSED] {
                http.until_ok("the good may read", RequestSpec::get(path)).await;
            }
        }
        town
    }

    /// Clients of the permitted callers, one connection each.
    pub fn clients(&self) -> Vec<Http> {
        self.good.iter().map(|identity| self.proxy.client_of(identity)).collect()
    }

    /// Opens `count` watches of the permitted callers, half of them on the cache.
    pub async fn watches(&self, count: usize) -> Vec<Watch> {
        let clients: Vec<_> = (0..count.div_ceil(40)).flat_map(|_| self.clients()).collect();
        let open = (0..count).map(async |at| {
            let path = [CACHED, PASSED][at / 2 % 2];
            let request = RequestSpec::get(&format!("{path}?watch=true&allowWatchBookmarks=true"));
            let response = clients[at % clients.len()].send(request).await;
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            let is_cached = response.headers().contains_key("kube-fanout-served");
            assert_eq!(is_cached, path == CACHED, "{path}");
            Watch::new(response)
        });
        join_all(open).await
    }

    /// Checks that no watch has ended, and that each receives a new write.
    pub async fn assert_unharmed(&self, watches: Vec<Watch>) {
        let name = unique("afterwards");
        for path in [CACHED, PASSED] {
            self.bed.direct().create(path, json!({"metadata": {"name": name}})).await;
        }
        let seen = watches.into_iter().map(|mut watch| {
            let name = name.clone();
            async move { while watch.change().await.name() != name {} }
        });
        join_all(seen).await;
        self.proxy.assert_sound();
    }

    /// The number of TokenReviews that the apiserver has counted.
    pub async fn reviews(&self) -> i64 {
        let labels = [("resource", "tokenreviews"), ("verb", "POST")];
        self.bed.metrics().await.sum("apiserver_request_total", &labels)
    }
}

impl Deref for Town {
    type Target = Proxy;

    fn deref(&self) -> &Proxy {
        &self.proxy
    }
}

//! Retries reads that upstream refused, when the permissions of the proxy's own identity may have changed.

use crate::feeds::{FeedHandle, FeedRegistry, FeedScope};
use crate::serve::feed_spec;
use crate::upstream::{ApiDefinitionKind, ResourceCatalog, UpstreamClient};
use kubeapi::Gvr;

/// The parts that upstream may have refused, and that retry when the proxy's permissions may have changed.
#[derive(Debug, Clone)]
pub(super) struct RefusedReadRetrier {
    pub(super) client: UpstreamClient,
    pub(super) catalog: ResourceCatalog,
    pub(super) feeds: FeedRegistry,
    /// Whether the proxy serves one node, so that there are as many proxies as nodes.
    pub(super) on_node: bool,
}

impl RefusedReadRetrier {
    /// Whether the proxy follows cluster-wide objects: RBAC, and the definitions of resources.
    fn follow_cluster(&self) -> bool {
        follow_cluster(self.on_node, self.catalog.reads()[ApiDefinitionKind::Definitions as usize])
    }

    /// Returns the feed of a cluster-wide resource; `None` if the proxy does not follow it, or cannot.
    pub(super) fn feed(&self, gvr: &Gvr) -> Option<FeedHandle> {
        let resource = self.catalog.find(gvr).filter(|resource| resource.watchable && self.follow_cluster())?;
        self.feeds.handle(&feed_spec(&resource, FeedScope::Cluster, resource.encoding), None).ok()
    }

    /// Allows retries of refused reads, because the permissions of the proxy's credentials may have changed.
    pub(super) fn changed(&self) {
        self.feeds.on_permissions_changed();
        self.catalog.permissions_changed();
    }

    /// Reports each change of the proxy's credentials; never returns.
    pub(super) async fn run(self) {
        self.client.watch_credentials(|| self.changed()).await;
    }
}

/// Decides whether to follow cluster-wide objects. A node's usual identity may read none of them. So on a node, a
/// single read of the definitions decides: an identity that may read them has wider permissions.
fn follow_cluster(on_node: bool, reads_definitions: bool) -> bool {
    !on_node || reads_definitions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_proxy_without_rights_does_not_follow_cluster_changes() {
        for (on_node, reads_definitions, expected, what) in [
            (false, false, true, "a central proxy tries, ever more rarely"),
            (false, true, true, "a central proxy"),
            (true, false, false, "a node's proxy with the rights of a node"),
            (true, true, true, "a node's proxy with rights of its own"),
        ] {
            assert_eq!(follow_cluster(on_node, reads_definitions), expected, "{what}");
        }
    }
}

//! The rights of our own identity, and when reads that it was refused are tried again.

use crate::feeds::Feeds;
use crate::upstream::{Catalog, Client};

/// The parts that upstream may have refused something, and that try again when our rights may have changed.
#[derive(Debug, Clone)]
pub(super) struct Rights {
    pub(super) client: Client,
    pub(super) catalog: Catalog,
    pub(super) feeds: Feeds,
    /// Whether the proxy serves one node. Then there are as many proxies as nodes.
    pub(super) on_node: bool,
}

impl Rights {
    /// Whether what belongs to the whole cluster is followed: RBAC, and the definitions of what is served.
    pub(super) fn follow_cluster(&self) -> bool {
        follow_cluster(self.on_node, self.catalog.reads().definitions)
    }

    /// Lets what was refused be tried again: the rights behind our credentials may have changed.
    pub(super) fn changed(&self) {
        self.feeds.rights_changed();
        self.catalog.rights_changed();
    }

    /// Reports each change of our credentials; never returns.
    pub(super) async fn keep_up(self) {
        let mut credentials = self.client.credentials();
        loop {
            credentials.changed().await;
            self.changed();
        }
    }
}

/// Decides whether to follow what belongs to the whole cluster. The usual identity of a node may read none of it, so on
/// a node the definitions decide, which are asked for once: an identity that may read them has wider rights.
fn follow_cluster(on_node: bool, reads_definitions: bool) -> bool {
    !on_node || reads_definitions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_identity_is_not_asked_to_follow_the_cluster() {
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

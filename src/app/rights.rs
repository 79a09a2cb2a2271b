//! The rights of our own identity, and when reads that it was refused are tried again.

use crate::feeds::Feeds;
use crate::upstream::{Catalog, Client};

/// Tells everything that was refused something when that may be different now.
#[derive(Debug, Clone)]
pub(super) struct Rights {
    pub(super) catalog: Catalog,
    pub(super) feeds: Feeds,
    /// The proxy is one of as many as there are nodes.
    pub(super) on_node: bool,
}

impl Rights {
    /// Whether what belongs to the whole cluster is followed: RBAC, and the definitions of what is served.
    pub(super) fn follow_cluster(&self) -> bool {
        follow_cluster(self.on_node, self.catalog.reads().definitions)
    }

    /// The rights behind our credentials may be others than before.
    pub(super) fn changed(&self) {
        self.feeds.rights_changed();
        self.catalog.rights_changed();
    }

    /// Tells of new credentials, for ever.
    pub(super) async fn keep_up(self, client: Client) {
        let mut credentials = client.credentials();
        loop {
            credentials.changed().await;
            self.changed();
        }
    }
}

/// A node's identity may read nothing of the kind. A wider one shows by the definitions, which are asked for once; on
/// a node that decides.
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

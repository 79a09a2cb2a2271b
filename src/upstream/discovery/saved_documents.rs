use std::sync::Arc;

use super::definitions::CustomResourceDefinitions;
use super::documents::{ApiGroupList, ApiResourceList, ApiServices};
use super::served_resources::{DiscoveryRoot, DiscoveryState};
use super::{ServerBuild, UpstreamResource, read, versions_in};

/// Saved discovery documents of a server, for tools that have them already and send no requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiscoveryDocuments<'a> {
    /// The response bodies for `/api` and `/apis`.
    pub roots: [&'a [u8]; 2],
    /// The responses for the group versions below `/api` and `/apis`, from a server without aggregated discovery.
    pub versions: &'a [&'a [u8]],
    /// The `CustomResourceDefinitions` and the `APIServices`, if they may be read.
    pub definitions: Option<&'a [u8]>,
    pub services: Option<&'a [u8]>,
    /// The response body for `/version`.
    pub build: &'a [u8],
    pub protobuf: bool,
}

impl DiscoveryDocuments<'_> {
    /// Returns the resources that the server of these documents serves. Unreadable documents are ignored.
    pub fn resources(&self) -> Vec<Arc<UpstreamResource>> {
        let from_roots = self.roots.into_iter().filter_map(versions_in).flatten();
        let listed =
            self.versions.iter().filter_map(|body| read::<ApiResourceList>(body)).map(ApiResourceList::into_version);
        let root = DiscoveryRoot { etag: None, versions: from_roots.chain(listed).collect() };
        let state = DiscoveryState {
            roots: [root, DiscoveryRoot::default()],
            protobuf: self.protobuf,
            minor: ServerBuild::parse(self.build).map(|build| build.release.minor),
            custom: self.definitions.and_then(read).map(CustomResourceDefinitions::served),
            aggregated: self.services.and_then(read).map(ApiServices::aggregated),
            ..DiscoveryState::default()
        };
        state.served().resources.into_values().collect()
    }

    /// Returns the group versions in the roots of a server without aggregated discovery.
    pub fn named(&self) -> Vec<String> {
        self.roots.into_iter().filter_map(read::<ApiGroupList>).flat_map(ApiGroupList::group_versions).collect()
    }
}

//! What upstream serves, and what of it can be watched.

mod documents;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::time::Instant;

use self::documents::{ApiServices, CustomResourceDefinitions, DiscoveryList, Groups, LegacyList, VersionList};
use super::{Client, Error};
use crate::kube::{FieldTable, Gvr};

/// One resource that upstream serves.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    pub gvr: Gvr,
    pub kind: Arc<str>,
    pub namespaced: bool,
    /// It has both `list` and `watch`.
    pub watchable: bool,
    pub origin: Origin,
    pub fields: Arc<FieldTable>,
}

/// Who serves a resource: decides its forms, the layout of its JSON and whether it may be cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The apiserver's own types: JSON in declaration order, and protobuf.
    BuiltIn,
    /// From a CustomResourceDefinition: JSON with sorted keys, no protobuf.
    Custom,
    /// Another server behind the aggregation layer: its versions mean what it likes, so it is never cached.
    Aggregated,
}

/// The resources upstream serves, as last discovered. Cloning shares.
#[derive(Debug, Clone)]
pub struct Catalog {
    client: Client,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    resources: RwLock<HashMap<Gvr, Arc<Resource>>>,
    refreshing: tokio::sync::Mutex<Option<Instant>>,
}

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
const JSON: &str = "application/json";

/// Groups that kube-apiserver serves itself, for identities that may not read APIServices.
const BUILT_IN_GROUPS: [&str; 21] = [
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
];
const BUILT_IN_STORAGE_GROUPS: [&str; 2] = ["storage.k8s.io", "storagemigration.k8s.io"];

impl Catalog {
    /// An empty catalog; [`refresh`](Self::refresh) fills it.
    pub fn new(client: Client) -> Self {
        Self { client, shared: Arc::default() }
    }

    pub fn find(&self, gvr: &Gvr) -> Option<Arc<Resource>> {
        self.shared.resources.read().get(gvr).cloned()
    }

    /// Resources known by a name as users give it: `pods`, `deployments.apps`, `deployments.v1.apps`.
    pub fn find_by_name(&self, name: &str) -> Option<Arc<Resource>> {
        let resources = self.shared.resources.read();
        let mut found: Vec<_> = resources
            .values()
            .filter(|resource| {
                name == resource.gvr.to_string()
                    || name == resource.gvr.group_resource()
                    || (name == &*resource.gvr.resource && resource.origin == Origin::BuiltIn)
            })
            .collect();
        // The core group first, as kubectl resolves short names; then stable versions before the others.
        found.sort_by_key(|resource| (resource.gvr.group.len(), resource.gvr.version.len(), resource.gvr.to_string()));
        found.first().map(|resource| (*resource).clone())
    }

    pub fn len(&self) -> usize {
        self.shared.resources.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Asks upstream what it serves, unless somebody has asked after `since`.
    ///
    /// Callers that arrive together share one question. Returns whether something changed.
    pub async fn refresh(&self, since: Instant) -> Result<bool, Error> {
        let mut last = self.shared.refreshing.lock().await;
        if last.is_some_and(|last| last > since) {
            return Ok(false);
        }
        let asked = Instant::now();
        let found = self.discover().await?;
        *last = Some(asked);
        let mut resources = self.shared.resources.write();
        let changed = *resources != found;
        *resources = found;
        Ok(changed)
    }

    async fn discover(&self) -> Result<HashMap<Gvr, Arc<Resource>>, Error> {
        let mut versions = Vec::new();
        for root in ["/api", "/apis"] {
            versions.extend(self.versions_below(root).await?);
        }
        let customs = self.optional::<CustomResourceDefinitions>(documents::CRD_PATH).await?;
        let services = self.optional::<ApiServices>(documents::API_SERVICE_PATH).await?;
        let customs = customs.map(CustomResourceDefinitions::selectable_fields).unwrap_or_default();
        let aggregated = services.map(ApiServices::remote).unwrap_or_default();
        Ok(versions
            .into_iter()
            .flat_map(|version| version.resources(&customs, &aggregated))
            .map(|resource| (resource.gvr.clone(), Arc::new(resource)))
            .collect())
    }

    /// Every group version below `/api` or `/apis`: from the aggregated document, or one by one from an older server.
    async fn versions_below(&self, root: &str) -> Result<Vec<VersionList>, Error> {
        let (_, body) = self.client.fetch(root, AGGREGATED).await?;
        if let Some(list) = read::<DiscoveryList>(&body).filter(|list| list.kind == "APIGroupDiscoveryList") {
            return Ok(list.into_versions());
        }
        let groups = read::<Groups>(&body).ok_or_else(|| Error::Form(format!("{root} is not a discovery document")))?;
        let mut versions = Vec::new();
        for group_version in groups.group_versions() {
            match self.client.fetch(&format!("{root}/{group_version}"), JSON).await {
                Ok((_, body)) => versions.extend(read::<LegacyList>(&body).map(LegacyList::into_version)),
                // One broken aggregated API must not hide the others (reliability.md U23).
                Err(error) => tracing::warn!(%group_version, %error, "discovery of one group failed"),
            }
        }
        Ok(versions)
    }

    /// A document that our identity may not be allowed to read.
    async fn optional<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Error> {
        match self.client.fetch(path, JSON).await {
            Ok((_, body)) => Ok(read(&body)),
            Err(error) if matches!(error.code(), Some(403 | 404)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl VersionList {
    fn resources(
        self,
        customs: &BTreeMap<(String, String, String), Vec<String>>,
        aggregated: &[(String, String)],
    ) -> Vec<Resource> {
        let Self { group, version, resources } = self;
        let remote = aggregated.iter().any(|(g, v)| *g == group && *v == version);
        let built_in = BUILT_IN_GROUPS.contains(&group.as_str()) || BUILT_IN_STORAGE_GROUPS.contains(&group.as_str());
        let build = |(name, kind, namespaced, verbs): (String, String, bool, Vec<String>)| {
            let gvr = Gvr::new(&group, &version, &name);
            let selectable = customs.get(&(group.clone(), version.clone(), name));
            let origin = match (remote, selectable) {
                (true, _) => Origin::Aggregated,
                (false, None) if built_in => Origin::BuiltIn,
                (false, _) => Origin::Custom,
            };
            let fields = match origin {
                Origin::BuiltIn => FieldTable::of_builtin(&gvr, namespaced),
                _ => FieldTable::of_custom(selectable.map_or(&[], Vec::as_slice), namespaced),
            };
            let has = |verb: &str| verbs.iter().any(|v| v == verb);
            let watchable = has("list") && has("watch");
            Resource { gvr, kind: kind.into(), namespaced, watchable, origin, fields: Arc::new(fields) }
        };
        resources.into_iter().map(build).collect()
    }
}

fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

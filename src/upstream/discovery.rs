//! What upstream serves, and what of it can be watched.

mod documents;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::time::Instant;

use self::documents::{ApiServices, CustomResourceDefinitions, DiscoveryList, Groups, LegacyList, VersionList};
use super::{Client, Error};
use crate::kube::{FieldTable, Gvr};
use crate::wire::Form;

/// One resource that upstream serves.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    pub gvr: Gvr,
    pub kind: Arc<str>,
    pub namespaced: bool,
    /// It has both `list` and `watch`.
    pub watchable: bool,
    pub origin: Origin,
    /// It is to be had in protobuf: no custom resource is, and there are servers that speak JSON only.
    pub protobuf: bool,
    pub fields: Arc<FieldTable>,
    /// `fields` may lack some: our identity may not read the resource's definition.
    pub fields_unknown: bool,
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
const PROTOBUF_FIRST: &str = "application/vnd.kubernetes.protobuf,application/json";

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
        // Failed ones count too, or everybody who waits here would try again in turn.
        *last = Some(Instant::now());
        let found = self.discover().await?;
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
        let (answered, _) = self.client.fetch("/api", PROTOBUF_FIRST).await?;
        let customs = self.optional::<CustomResourceDefinitions>(documents::CRD_PATH).await?;
        let services = self.optional::<ApiServices>(documents::API_SERVICE_PATH).await?;
        let known = Known {
            protobuf: answered == Some(Form::Protobuf),
            customs: customs.map(CustomResourceDefinitions::selectable_fields),
            remote: services.map(ApiServices::remote),
        };
        Ok(versions
            .into_iter()
            .flat_map(|version| version.resources(&known))
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

/// What our identity may read of who serves what; `None` where it may not.
struct Known {
    /// Upstream writes its own types in protobuf.
    protobuf: bool,
    /// Selectable JSON paths by group, version and plural.
    customs: Option<BTreeMap<(String, String, String), Vec<String>>>,
    /// Groups and versions behind the aggregation layer.
    remote: Option<Vec<(String, String)>>,
}

impl Known {
    fn selectable(&self, group: &str, version: &str, plural: String) -> Option<&Vec<String>> {
        self.customs.as_ref()?.get(&(group.to_owned(), version.to_owned(), plural))
    }

    /// Who serves a resource. In doubt another server, which is not cached.
    fn origin(&self, group: &str, version: &str, is_custom: bool) -> Origin {
        let remote = self.remote.as_ref().map(|remote| remote.iter().any(|(g, v)| g == group && v == version));
        let built_in = BUILT_IN_GROUPS.contains(&group) || BUILT_IN_STORAGE_GROUPS.contains(&group);
        match (remote, is_custom) {
            (Some(true), _) => Origin::Aggregated,
            (_, true) => Origin::Custom,
            _ if built_in => Origin::BuiltIn,
            (Some(false), false) if self.customs.is_none() => Origin::Custom,
            _ => Origin::Aggregated,
        }
    }
}

impl VersionList {
    fn resources(self, known: &Known) -> Vec<Resource> {
        let Self { group, version, resources } = self;
        let build = |(name, kind, namespaced, verbs): (String, String, bool, Vec<String>)| {
            let gvr = Gvr::new(&group, &version, &name);
            let selectable = known.selectable(&group, &version, name);
            let origin = known.origin(&group, &version, selectable.is_some());
            let fields_unknown = origin == Origin::Custom && selectable.is_none();
            let fields = match origin {
                Origin::BuiltIn => FieldTable::of_builtin(&gvr, namespaced),
                _ => FieldTable::of_custom(selectable.map_or(&[], Vec::as_slice), namespaced),
            };
            let has = |verb: &str| verbs.iter().any(|v| v == verb);
            let watchable = has("list") && has("watch");
            let protobuf = known.protobuf && origin == Origin::BuiltIn;
            let (kind, fields) = (kind.into(), Arc::new(fields));
            Resource { gvr, kind, namespaced, watchable, origin, protobuf, fields, fields_unknown }
        };
        resources.into_iter().map(build).collect()
    }
}

fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

//! What upstream serves, and what of it can be watched.

mod definitions;
mod documents;
mod insistence;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use self::definitions::{CustomResourceDefinitions, Definition};
use self::documents::{ApiServices, DiscoveryList, Groups, LegacyList, VersionList};
pub use self::insistence::Insistence;
use self::insistence::RefusedDocument;
use super::{Client, Error};
use crate::kube::{FieldTable, Gvr, PageStore};
use crate::wire::Encoding;

/// One resource that upstream serves.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    pub gvr: Gvr,
    pub kind: Arc<str>,
    pub list_kind: Arc<str>,
    pub namespaced: bool,
    /// It has both `list` and `watch`.
    pub watchable: bool,
    pub origin: ResourceOrigin,
    /// What its feed is fetched in. Protobuf is what kubelets and controllers ask for, and the rest is derived from it;
    /// no custom resource has it, and there are servers that speak JSON only.
    pub encoding: Encoding,
    pub fields: Arc<FieldTable>,
    /// `fields` may lack some: our identity may not read the resource's definition.
    pub fields_unknown: bool,
    /// What upstream reads the pages of its lists from.
    pub pages: PageStore,
    /// The edition of a custom resource's definition: objects that were read under another one may read differently
    /// now.
    pub edition: Option<Arc<str>>,
}

impl Resource {
    /// Whether users may mean it by this name: `pods`, `deployments.apps`, `deployments.v1.apps`.
    pub fn is_called(&self, name: &str) -> bool {
        name == self.gvr.to_string()
            || name == self.gvr.group_resource()
            || (name == &*self.gvr.resource && self.origin == ResourceOrigin::BuiltIn)
    }
}

/// Who serves a resource: decides its encodings, the layout of its JSON and whether it may be cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceOrigin {
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

#[derive(Debug)]
struct Shared {
    insistence: Insistence,
    served: RwLock<Served>,
    asking: tokio::sync::Mutex<Asking>,
    refused: Mutex<Documents<RefusedDocument>>,
}

/// What upstream is asked besides its discovery, and may refuse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Documents<T> {
    /// The `CustomResourceDefinitions`.
    pub definitions: T,
    /// The `APIServices`, which say what is behind the aggregation layer.
    pub services: T,
}

#[derive(Debug, Default, PartialEq)]
struct Served {
    resources: HashMap<Gvr, Arc<Resource>>,
    /// Which documents were read. If the definitions were, there are no other custom resources.
    read: Documents<bool>,
    /// The minor of upstream's release, as it was told last.
    minor: Option<u32>,
}

#[derive(Debug, Default)]
struct Asking {
    last: Option<Instant>,
    /// Since when definitions that we had read may not be read.
    refused_since: Option<Instant>,
}

/// How long that is taken for a passing refusal: an apiserver that has just started denies what its caches do not know.
const REFUSED_MAX: Duration = Duration::from_secs(60);

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
    pub fn new(client: Client, insistence: Insistence) -> Self {
        let (served, asking, refused) = (RwLock::default(), tokio::sync::Mutex::default(), Mutex::default());
        Self { client, shared: Arc::new(Shared { insistence, served, asking, refused }) }
    }

    pub fn find(&self, gvr: &Gvr) -> Option<Arc<Resource>> {
        self.shared.served.read().resources.get(gvr).cloned()
    }

    /// Resources known by a name as users give it: `pods`, `deployments.apps`, `deployments.v1.apps`.
    pub fn find_by_name(&self, name: &str) -> Option<Arc<Resource>> {
        let served = self.shared.served.read();
        let mut found: Vec<_> = served.resources.values().filter(|resource| resource.is_called(name)).collect();
        // The core group first, as kubectl resolves short names; then stable versions before the others.
        found.sort_by_key(|resource| (resource.gvr.group.len(), resource.gvr.version.len(), resource.gvr.to_string()));
        found.first().map(|resource| (*resource).clone())
    }

    pub fn len(&self) -> usize {
        self.shared.served.read().resources.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a custom resource is certain to be served no more: discovery may lack it for a moment, its definition is
    /// there or is not.
    pub fn is_gone(&self, custom: &Gvr) -> bool {
        let served = self.shared.served.read();
        served.read.definitions && !served.resources.contains_key(custom)
    }

    /// What our identity was let read when upstream was asked last.
    pub fn reads(&self) -> Documents<bool> {
        self.shared.served.read().read
    }

    /// When something is to be asked for again that our identity may not read, if ever.
    pub fn refused_until(&self) -> Option<Instant> {
        let refused = self.shared.refused.lock();
        [&refused.definitions, &refused.services].into_iter().filter_map(|one| one.again(self.shared.insistence)).min()
    }

    /// What our identity may not read is asked for again soon: that may have changed.
    pub fn rights_changed(&self) {
        let mut refused = self.shared.refused.lock();
        let Documents { definitions, services } = &mut *refused;
        for refused in [definitions, services] {
            refused.rights_changed(self.shared.insistence);
        }
    }

    /// Asks upstream what it serves, unless somebody has asked after `since`.
    ///
    /// Callers that arrive together share one question. Returns whether something changed.
    pub async fn refresh(&self, since: Instant) -> Result<bool, Error> {
        let mut asking = self.shared.asking.lock().await;
        if asking.last.is_some_and(|last| last > since) {
            return Ok(false);
        }
        // Failed ones count too, or everybody who waits here would try again in turn.
        asking.last = Some(Instant::now());
        let known = self.reads();
        let found = self.discover(known).await?;
        if known.definitions && !found.read.definitions {
            // Everything that we know of custom resources would be lost, and every watch of them.
            if asking.refused_since.get_or_insert_with(Instant::now).elapsed() < REFUSED_MAX {
                return Err(Error::HiddenDefinitions);
            }
        }
        asking.refused_since = None;
        let mut served = self.shared.served.write();
        let changed = *served != found;
        *served = found;
        Ok(changed)
    }

    /// `known` is what could be read the last time, and is asked for whatever it was refused since.
    async fn discover(&self, known: Documents<bool>) -> Result<Served, Error> {
        let mut versions = Vec::new();
        for root in ["/api", "/apis"] {
            versions.extend(self.versions_below(root).await?);
        }
        let (answered, _) = self.client.fetch("/api", PROTOBUF_FIRST).await?;
        // After discovery: what was created or deleted in between counts as the definitions say.
        let customs = self
            .optional::<CustomResourceDefinitions>(definitions::PATH, known.definitions, |of| &mut of.definitions)
            .await?;
        let services =
            self.optional::<ApiServices>(documents::API_SERVICE_PATH, known.services, |of| &mut of.services).await?;
        // Not worth failing for: a token of either spelling is continued.
        let release = self.client.release().await.ok().filter(|release| release.major == 1);
        let known = Known {
            minor: release.map(|release| release.minor).or_else(|| self.shared.served.read().minor),
            protobuf: answered == Some(Encoding::Protobuf),
            customs: customs.map(CustomResourceDefinitions::served),
            remote: services.map(ApiServices::remote),
        };
        let mut resources: HashMap<_, _> = versions
            .into_iter()
            .flat_map(|version| version.resources(&known))
            .map(|resource| (resource.gvr.clone(), Arc::new(resource)))
            .collect();
        for resource in known.customs() {
            // Discovery lags behind the definitions, which decide; but not in groups that the server itself serves.
            if resources.contains_key(&resource.gvr) || !is_built_in(&resource.gvr.group) {
                resources.insert(resource.gvr.clone(), Arc::new(resource));
            }
        }
        let read = Documents { definitions: known.customs.is_some(), services: known.remote.is_some() };
        Ok(Served { resources, read, minor: known.minor })
    }

    /// Every group version below `/api` or `/apis`: from the aggregated document, or one by one from an older server.
    async fn versions_below(&self, root: &str) -> Result<Vec<VersionList>, Error> {
        let (_, body) = self.client.fetch(root, AGGREGATED).await?;
        if let Some(list) = read::<DiscoveryList>(&body).filter(|list| list.kind == "APIGroupDiscoveryList") {
            return Ok(list.into_versions());
        }
        let groups = read::<Groups>(&body).ok_or_else(|| Error::OtherDocument(root.to_owned()))?;
        let mut versions = Vec::new();
        for group_version in groups.group_versions() {
            match self.client.fetch(&format!("{root}/{group_version}"), JSON).await {
                Ok((_, body)) => versions.extend(read::<LegacyList>(&body).map(LegacyList::into_version)),
                // One broken aggregated API must not hide the others (R-UPSTREAM-11).
                Err(error) => tracing::warn!(%group_version, %error, "discovery of one group failed"),
            }
        }
        Ok(versions)
    }

    /// A document that our identity may not be allowed to read: then it is not asked for again soon.
    async fn optional<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        is_known: bool,
        of: for<'a> fn(&'a mut Documents<RefusedDocument>) -> &'a mut RefusedDocument,
    ) -> Result<Option<T>, Error> {
        let Shared { insistence, refused, .. } = &*self.shared;
        if !is_known && of(&mut refused.lock()).stands(Instant::now(), *insistence) {
            return Ok(None);
        }
        match self.client.fetch(path, JSON).await {
            Ok((_, body)) => {
                of(&mut refused.lock()).answered();
                Ok(read(&body))
            }
            Err(error) if error.code() == Some(403) => {
                of(&mut refused.lock()).refused(Instant::now(), *insistence);
                Ok(None)
            }
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What our identity may read of who serves what; `None` where it may not.
struct Known {
    /// The minor of its release.
    minor: Option<u32>,
    /// Upstream writes its own types in protobuf.
    protobuf: bool,
    customs: Option<HashMap<Gvr, Definition>>,
    /// Groups and versions behind the aggregation layer.
    remote: Option<Vec<(String, String)>>,
}

impl Known {
    /// Who serves a resource. In doubt another server, which is not cached.
    fn origin(&self, gvr: &Gvr) -> ResourceOrigin {
        let is_named = |(group, version): &(String, String)| *group == *gvr.group && *version == *gvr.version;
        let remote = self.remote.as_ref().map(|remote| remote.iter().any(is_named));
        let is_custom = self.customs.as_ref().is_some_and(|customs| customs.contains_key(gvr));
        match (remote, is_custom) {
            (Some(true), _) => ResourceOrigin::Aggregated,
            (_, true) => ResourceOrigin::Custom,
            _ if is_built_in(&gvr.group) => ResourceOrigin::BuiltIn,
            (Some(false), false) if self.customs.is_none() => ResourceOrigin::Custom,
            _ => ResourceOrigin::Aggregated,
        }
    }

    fn pages(&self, gvr: &Gvr) -> PageStore {
        PageStore::of_release(self.minor, gvr.has_watch_cache())
    }

    /// What the definitions say is served, whether discovery has it already or not.
    fn customs(&self) -> impl Iterator<Item = Resource> {
        let defined = self.customs.iter().flatten().filter(|(gvr, _)| self.origin(gvr) == ResourceOrigin::Custom);
        defined.map(|(gvr, definition)| Resource {
            gvr: gvr.clone(),
            kind: definition.kind.clone(),
            list_kind: definition.list_kind.clone(),
            namespaced: definition.namespaced,
            watchable: true,
            origin: ResourceOrigin::Custom,
            fields: Arc::new(FieldTable::of_custom(&definition.selectable, definition.namespaced)),
            fields_unknown: false,
            encoding: Encoding::Json,
            pages: self.pages(gvr),
            edition: Some(definition.edition.clone()),
        })
    }
}

impl VersionList {
    fn resources(self, known: &Known) -> Vec<Resource> {
        let Self { group, version, resources } = self;
        let build = |(name, kind, namespaced, verbs): (String, String, bool, Vec<String>)| {
            let gvr = Gvr::new(&group, &version, &name);
            let origin = known.origin(&gvr);
            let fields = match origin {
                ResourceOrigin::BuiltIn => FieldTable::of_builtin(&gvr, namespaced),
                _ => FieldTable::of_custom(&[], namespaced),
            };
            let has = |verb: &str| verbs.iter().any(|v| v == verb);
            Resource {
                pages: known.pages(&gvr),
                gvr,
                list_kind: format!("{kind}List").into(),
                kind: kind.into(),
                namespaced,
                watchable: has("list") && has("watch"),
                origin,
                encoding: if known.protobuf && origin == ResourceOrigin::BuiltIn {
                    Encoding::Protobuf
                } else {
                    Encoding::Json
                },
                fields: Arc::new(fields),
                fields_unknown: origin == ResourceOrigin::Custom,
                edition: None,
            }
        };
        resources.into_iter().map(build).collect()
    }
}

/// Whether kube-apiserver itself serves the group.
fn is_built_in(group: &str) -> bool {
    BUILT_IN_GROUPS.contains(&group) || BUILT_IN_STORAGE_GROUPS.contains(&group)
}

fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

//! What upstream serves, and what of it can be watched.

mod declaration;
mod definitions;
mod documents;
mod reading;
mod refusal_backoff;
mod served;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::time::{Instant, sleep_until, timeout_at};

use self::declaration::Declared;
pub use self::declaration::{Declaration, DeclaringResource};
use self::definitions::CustomResourceDefinitions;
use self::documents::{ApiServices, DiscoveryList, Groups, LegacyList, VersionList};
pub use self::reading::DiscoveryDocuments;
pub use self::refusal_backoff::RefusalBackoff;
use self::refusal_backoff::RefusedDocument;
use self::served::{DiscoveryFindings, DiscoveryState, Root, Served};
use super::{Build, Cause, Client, Error};
use crate::wire::Encoding;
use kubeapi::{FieldTable, Gvr, PageStore};
use tokio::sync::watch;

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
    /// Upstream may have more of them.
    pub fields: Arc<FieldTable>,
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
    insistence: RefusalBackoff,
    state: RwLock<State>,
    asking: tokio::sync::Mutex<Asking>,
    refused: Mutex<Documents<RefusedDocument>>,
    /// When something was last heard, or could have been missed, that may change what upstream says that it serves.
    stirred: Mutex<Instant>,
    /// Whether upstream has answered at least once.
    is_known: watch::Sender<bool>,
    /// Why it has not, when it was asked last.
    failure: Mutex<Option<DiscoveryFailure>>,
}

/// Why nothing is known of what upstream serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryFailure {
    /// Upstream is away, or answers nobody. Otherwise it answers, and perhaps those who have other credentials.
    pub is_outage: bool,
    /// The reason, for whoever asks.
    pub why: String,
}

impl From<&Error> for DiscoveryFailure {
    fn from(error: &Error) -> Self {
        Self { is_outage: error.is_outage(), why: error.in_brief() }
    }
}

/// What is known, and what follows from it.
#[derive(Debug, Default)]
struct State {
    known: DiscoveryState,
    served: Served,
}

/// What upstream is asked besides its discovery, and may refuse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Documents<T> {
    /// The `CustomResourceDefinitions`.
    pub definitions: T,
    /// The `APIServices`, which say what is behind the aggregation layer.
    pub services: T,
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

impl Catalog {
    /// An empty catalog; [`refresh`](Self::refresh) fills it.
    pub fn new(client: Client, insistence: RefusalBackoff) -> Self {
        let (state, asking, refused) = (RwLock::default(), tokio::sync::Mutex::default(), Mutex::default());
        let (stirred, is_known, failure) = (Mutex::new(Instant::now()), watch::Sender::new(false), Mutex::default());
        Self { client, shared: Arc::new(Shared { insistence, state, asking, refused, stirred, is_known, failure }) }
    }

    pub fn find(&self, gvr: &Gvr) -> Option<Arc<Resource>> {
        self.shared.state.read().served.resources.get(gvr).cloned()
    }

    /// Resources known by a name as users give it: `pods`, `deployments.apps`, `deployments.v1.apps`.
    pub fn find_by_name(&self, name: &str) -> Option<Arc<Resource>> {
        let served = &self.shared.state.read().served;
        let mut found: Vec<_> = served.resources.values().filter(|resource| resource.is_called(name)).collect();
        // The core group first, as kubectl resolves short names; then stable versions before the others.
        found.sort_by_key(|resource| (resource.gvr.group.len(), resource.gvr.version.len(), resource.gvr.to_string()));
        found.first().map(|resource| (*resource).clone())
    }

    /// Everything that upstream serves.
    pub fn all(&self) -> Vec<Arc<Resource>> {
        self.shared.state.read().served.resources.values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.shared.state.read().served.resources.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a custom resource is certain to be served no more: discovery may lack it for a moment, its definition is
    /// there or is not.
    pub fn is_gone(&self, custom: &Gvr) -> bool {
        let served = &self.shared.state.read().served;
        served.read.definitions && !served.resources.contains_key(custom)
    }

    /// What our identity was let read when upstream was asked last.
    pub fn reads(&self) -> Documents<bool> {
        self.shared.state.read().served.read
    }

    /// The minor of upstream's release, as it was told last.
    pub fn minor(&self) -> Option<u32> {
        self.shared.state.read().served.minor
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
        let found = self.discover().await.inspect_err(|error| {
            *self.shared.failure.lock() = Some(error.into());
        })?;
        let mut state = self.shared.state.write();
        let is_hidden = found.asked.definitions && found.customs.is_none() && !state.known.told.definitions;
        if is_hidden && state.served.read.definitions {
            // Everything that we know of custom resources would be lost, and every watch of them.
            if asking.refused_since.get_or_insert_with(Instant::now).elapsed() < REFUSED_MAX {
                return Err(Error::HiddenDefinitions);
            }
        }
        asking.refused_since = None;
        let is_news = found.roots.iter().any(Option::is_some);
        state.known.take(found);
        let changed = state.settle();
        drop(state);
        self.shared.is_known.send_if_modified(|is_known| !std::mem::replace(is_known, true));
        if is_news {
            self.stir();
        }
        Ok(changed)
    }

    /// Asks upstream what it serves for somebody who waits, unless that was asked within `every`. Until upstream has
    /// answered for the first time, asks again and again while it is away.
    ///
    /// # Errors
    /// Nothing is known yet: upstream was away all the time, `within` at most, or its answer is of no use.
    pub async fn refresh_for(&self, every: Duration, within: Duration) -> Result<(), DiscoveryFailure> {
        let (deadline, mut is_known) = (Instant::now() + within, self.shared.is_known.subscribe());
        loop {
            let now = Instant::now();
            let asked = timeout_at(deadline, self.refresh(now.checked_sub(every).unwrap_or(now))).await;
            if *is_known.borrow() {
                return Ok(());
            }
            // It may be the answer to somebody else, who has asked a moment ago.
            let failure = self.shared.failure.lock().clone().unwrap_or_else(|| (&Error::Timeout(within)).into());
            if asked.is_err() || !failure.is_outage || Instant::now() >= deadline {
                return Err(failure);
            }
            tokio::select! {
                biased;
                true = async { is_known.wait_for(|is_known| *is_known).await.is_ok() } => return Ok(()),
                () = sleep_until(deadline.min(now + every)) => {}
            }
        }
    }

    /// Notes that a definition has changed, in whatever way.
    pub fn stir(&self) {
        *self.shared.stirred.lock() = Instant::now();
    }

    /// Since when nothing has changed that upstream's discovery depends on; `None` where that may go unheard.
    pub fn unchanged_since(&self) -> Option<Instant> {
        let Documents { definitions, services } = self.shared.state.read().known.told;
        (definitions && services).then(|| *self.shared.stirred.lock())
    }

    /// Whether another server may answer for this group, so that what it says is its own.
    pub fn is_elsewhere(&self, group: &str) -> bool {
        let state = self.shared.state.read();
        state.known.remote.as_ref().is_none_or(|remote| remote.iter().any(|(other, _)| other == group))
    }

    /// Takes in what a feed of ours says, all of it. From now on upstream is not asked for it. Returns whether
    /// something changed.
    pub fn hear<'a>(&self, from: DeclaringResource, all: impl Iterator<Item = &'a Declaration>) -> bool {
        let (mut customs, mut remote) = (HashMap::new(), Vec::new());
        for Declaration(said) in all {
            match said {
                Declared::Customs(defined) => customs.extend(defined.iter().cloned()),
                Declared::Remote(other) => remote.extend(other.clone()),
            }
        }
        self.stir();
        let mut state = self.shared.state.write();
        match from {
            DeclaringResource::Definitions => state.known.customs = Some(customs),
            DeclaringResource::Services => state.known.remote = Some(remote),
        }
        *state.known.told.of_mut(from) = true;
        self.shared.refused.lock().of_mut(from).answered();
        state.settle()
    }

    /// Nothing is heard of it any more: what is known stays, and upstream is asked again.
    pub fn lose(&self, from: DeclaringResource) {
        *self.shared.state.write().known.told.of_mut(from) = false;
        self.stir();
    }

    /// Asks for what no feed of ours tells.
    async fn discover(&self) -> Result<DiscoveryFindings, Error> {
        let mut found = DiscoveryFindings::default();
        for (at, root) in ["/api", "/apis"].into_iter().enumerate() {
            found.roots[at] = self.changed_root(at, root).await?;
        }
        if found.roots.iter().any(Option::is_some) {
            let (answered, _) = self.client.fetch(Cause::Discovery, "/api", PROTOBUF_FIRST).await?;
            found.protobuf = Some(answered == Some(Encoding::Protobuf));
        }
        let told = self.shared.state.read().known.told;
        found.asked = Documents { definitions: !told.definitions, services: !told.services };
        // After discovery: what was created or deleted in between counts as the definitions say.
        if !told.definitions {
            let read = self.optional::<CustomResourceDefinitions>(DeclaringResource::Definitions).await?;
            found.customs = read.map(CustomResourceDefinitions::served);
        }
        if !told.services {
            let read = self.optional::<ApiServices>(DeclaringResource::Services).await?;
            found.remote = read.map(ApiServices::remote);
        }
        // Not worth failing for: a token of either spelling is continued.
        found.minor =
            self.client.release().await.ok().filter(|release| release.major == 1).map(|release| release.minor);
        Ok(found)
    }

    /// What is below `/api` or `/apis`; `None` if that has not changed.
    async fn changed_root(&self, at: usize, root: &str) -> Result<Option<Root>, Error> {
        let etag = self.shared.state.read().known.roots[at].etag.clone();
        let Some((etag, body)) = self.client.fetch_changed(Cause::Discovery, root, AGGREGATED, etag.as_ref()).await?
        else {
            return Ok(None);
        };
        if let Some(versions) = versions_in(&body) {
            return Ok(Some(Root { etag, versions }));
        }
        // What an older server says here tells nothing of what is below.
        Ok(Some(Root { etag: None, versions: self.versions_below(root, &body).await? }))
    }

    /// Every group version below `/api` or `/apis`, one by one, from a server that has no aggregated document.
    async fn versions_below(&self, root: &str, body: &[u8]) -> Result<Vec<VersionList>, Error> {
        let groups = read::<Groups>(body).ok_or_else(|| Error::OtherDocument(root.to_owned()))?;
        let mut versions = Vec::new();
        for group_version in groups.group_versions() {
            match self.client.fetch(Cause::Discovery, &format!("{root}/{group_version}"), JSON).await {
                Ok((_, body)) => versions.extend(read::<LegacyList>(&body).map(LegacyList::into_version)),
                // One broken aggregated API must not hide the others (R-UPSTREAM-11).
                Err(error) => tracing::warn!(%group_version, %error, "discovery of one group failed"),
            }
        }
        Ok(versions)
    }

    /// A document that our identity may not be allowed to read: then it is not asked for again soon.
    async fn optional<T: serde::de::DeserializeOwned>(&self, from: DeclaringResource) -> Result<Option<T>, Error> {
        let Shared { insistence, refused, .. } = &*self.shared;
        // What could be read the last time is asked for whatever it was refused since.
        let is_known = *self.reads().of(from);
        if !is_known && refused.lock().of(from).stands(Instant::now(), *insistence) {
            return Ok(None);
        }
        match self.client.fetch(Cause::Definitions, &from.gvr().path(), JSON).await {
            Ok((_, body)) => {
                refused.lock().of_mut(from).answered();
                Ok(read(&body))
            }
            Err(error) if error.code() == Some(403) => {
                refused.lock().of_mut(from).refused(Instant::now(), *insistence);
                Ok(None)
            }
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl State {
    /// Puts together what follows from what is known now; whether that is something else.
    fn settle(&mut self) -> bool {
        let served = self.known.served();
        let changed = self.served != served;
        self.served = served;
        changed
    }
}

impl<T> Documents<T> {
    pub fn of(&self, which: DeclaringResource) -> &T {
        match which {
            DeclaringResource::Definitions => &self.definitions,
            DeclaringResource::Services => &self.services,
        }
    }

    pub fn of_mut(&mut self, which: DeclaringResource) -> &mut T {
        match which {
            DeclaringResource::Definitions => &mut self.definitions,
            DeclaringResource::Services => &mut self.services,
        }
    }
}

/// What an aggregated document says; `None` if it is none.
fn versions_in(body: &[u8]) -> Option<Vec<VersionList>> {
    let list = read::<DiscoveryList>(body).filter(|list| list.kind == "APIGroupDiscoveryList")?;
    Some(list.into_versions())
}

fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> Option<T> {
    serde_json::from_slice(body).ok()
}

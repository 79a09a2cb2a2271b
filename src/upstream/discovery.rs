//! Discovers the resources that upstream serves, and which of them can be watched.

mod definitions;
mod served_resources;

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use parking_lot::{Mutex, RwLock};
use tokio::time::{Instant, sleep_until, timeout_at};

pub use self::definitions::{ApiDefinition, ApiDefinitionKind};
pub use self::served_resources::{
    AggregatedDiscoveryList, DiscoveryKind, DiscoveryName, GroupDiscovery, ResourceDiscovery, SubresourceDiscovery,
    VersionDiscovery,
};
use self::served_resources::{DiscoveryFindings, DiscoveryRoot, DiscoveryState, ServedResources, is_built_in};
use super::{BODY_BYTES_MAX, CachedDocument, UpstreamClient, UpstreamError, UpstreamRequestCause};
use crate::wire::{FeedEncoding, TablePrinter};
use base::BackoffBounds;
use kubeapi::{Gvr, ListPageSource, SelectableFieldTable};
use tokio::sync::watch;

/// One resource that upstream serves.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamResource {
    pub gvr: Gvr,
    pub kind: Arc<str>,
    pub list_kind: Arc<str>,
    pub namespaced: bool,
    /// Whether the resource supports both `list` and `watch`.
    pub watchable: bool,
    pub origin: ResourceOrigin,
    /// The encoding in which its feed is fetched. Protobuf is preferred because kubelets and controllers request it,
    /// and the other encodings are derived from it. Custom resources do not support it, and some servers have JSON
    /// only.
    pub encoding: FeedEncoding,
    /// The known selectable fields of the resource. Upstream may have more.
    pub fields: Arc<SelectableFieldTable>,
    /// The store from which upstream reads the pages of its lists.
    pub pages: ListPageSource,
    /// The edition of a custom resource's definition. Objects that were decoded under another one may decode
    /// differently.
    pub edition: Option<Arc<str>>,
    /// Prints Tables of a custom resource, if its definition is known and all columns are understood.
    pub printer: Option<Arc<TablePrinter>>,
}

impl UpstreamResource {
    /// Whether `name` is a name of the resource as users write it: `pods`, `deployments.apps`, `deployments.v1.apps`.
    pub fn has_name(&self, name: &str) -> bool {
        name == self.gvr.to_string()
            || name == self.gvr.group_resource()
            || (name == &*self.gvr.resource && self.origin == ResourceOrigin::BuiltIn)
    }
}

/// The kind of server behind a resource. It determines the encodings, the layout of JSON and whether the resource may
/// be cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceOrigin {
    /// The apiserver's own types: JSON in declaration order, and protobuf.
    BuiltIn,
    /// A custom resource: it is encoded as JSON with sorted keys, and has no protobuf.
    Custom,
    /// A resource of another server behind the aggregation layer. Its versions may have any meaning, so it is never
    /// cached.
    Aggregated,
}

/// The resources that upstream serves, as last discovered. Clones share the state.
#[derive(Debug, Clone)]
pub struct ResourceCatalog {
    client: UpstreamClient,
    shared: Arc<ResourceCatalogShared>,
}

#[derive(Debug)]
struct ResourceCatalogShared {
    policy: DocumentRefusalBackoff,
    state: RwLock<ResourceCatalogState>,
    attempts: tokio::sync::Mutex<DiscoveryAttempts>,
    refused: Mutex<PerApiDefinitionKind<DocumentRefusalStreak>>,
    /// The last time of a change that may affect discovery, or at which such a change could have been missed.
    changed_at: Mutex<Instant>,
    /// Whether upstream has responded at least once.
    is_known: watch::Sender<bool>,
    /// The reason of the last failed discovery; a later success does not clear it.
    failure: Mutex<Option<DiscoveryFailure>>,
}

/// The reason that the resources of upstream are unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryFailure {
    /// Whether upstream is unreachable or fails for every caller. Otherwise it responds, perhaps also to callers with
    /// other credentials.
    pub is_outage: bool,
    /// The reason, as a text for callers.
    pub reason: String,
}

impl From<&UpstreamError> for DiscoveryFailure {
    fn from(error: &UpstreamError) -> Self {
        Self { is_outage: error.is_outage(), reason: error.summary() }
    }
}

/// The known discovery documents, and the resources that follow from them.
#[derive(Debug, Default)]
struct ResourceCatalogState {
    known: DiscoveryState,
    served: ServedResources,
}

/// A value for each of the documents that are requested in addition to discovery, and that upstream may refuse. The index
/// is the [`ApiDefinitionKind`].
pub type PerApiDefinitionKind<T> = [T; ApiDefinitionKind::ALL.len()];

#[derive(Debug, Default)]
struct DiscoveryAttempts {
    last: Option<Instant>,
    /// The time at which upstream began to refuse definitions that the proxy had read before.
    refused_since: Option<Instant>,
}

/// The time for which a refusal of definitions counts as temporary: an apiserver that has just started denies requests
/// until its caches are filled.
const REFUSED_MAX: Duration = Duration::from_secs(60);

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
const JSON: &str = "application/json";
const PROTOBUF_FIRST: &str = "application/vnd.kubernetes.protobuf,application/json";

impl ResourceCatalog {
    /// Creates an empty catalog; [`refresh`](Self::refresh) fills it.
    pub fn new(client: UpstreamClient, policy: DocumentRefusalBackoff) -> Self {
        let (state, attempts, refused) = (RwLock::default(), tokio::sync::Mutex::default(), Mutex::default());
        let (changed_at, is_known, failure) = (Mutex::new(Instant::now()), watch::Sender::new(false), Mutex::default());
        Self {
            client,
            shared: Arc::new(ResourceCatalogShared { policy, state, attempts, refused, changed_at, is_known, failure }),
        }
    }

    pub fn find(&self, gvr: &Gvr) -> Option<Arc<UpstreamResource>> {
        self.shared.state.read().served.resources.get(gvr).cloned()
    }

    /// Returns the resource with a name as users write it: `pods`, `deployments.apps`, `deployments.v1.apps`.
    pub fn find_by_name(&self, name: &str) -> Option<Arc<UpstreamResource>> {
        let served = &self.shared.state.read().served;
        let mut found: Vec<_> = served.resources.values().filter(|resource| resource.has_name(name)).collect();
        // The core group has precedence, as when kubectl resolves short names; then stable versions.
        found.sort_by_key(|resource| (resource.gvr.group.len(), resource.gvr.version.len(), resource.gvr.to_string()));
        found.first().map(|resource| (*resource).clone())
    }

    /// Returns all resources that upstream serves.
    pub fn all(&self) -> Vec<Arc<UpstreamResource>> {
        self.shared.state.read().served.resources.values().cloned().collect()
    }

    /// Whether a custom resource is certainly no longer served. Discovery may lack it for a moment, so its definition
    /// decides.
    pub fn is_removed(&self, custom: &Gvr) -> bool {
        let served = &self.shared.state.read().served;
        served.read[ApiDefinitionKind::Definitions as usize] && !served.resources.contains_key(custom)
    }

    /// Returns which documents the proxy's identity could read at the last discovery.
    pub fn reads(&self) -> PerApiDefinitionKind<bool> {
        self.shared.state.read().served.read
    }

    /// Returns the minor version of upstream's release, as last reported.
    pub fn minor(&self) -> Option<u32> {
        self.shared.state.read().served.minor
    }

    /// Returns the time of the next request for a document that the proxy's identity may not read, if there is one.
    pub fn refused_until(&self) -> Option<Instant> {
        let refused = self.shared.refused.lock();
        refused.iter().filter_map(|one| one.next_retry(self.shared.policy)).min()
    }

    /// Schedules an early retry of documents that the proxy's identity may not read, because its permissions may have
    /// changed.
    pub fn permissions_changed(&self) {
        for refused in self.shared.refused.lock().iter_mut() {
            refused.permissions_changed(self.shared.policy);
        }
    }

    /// Rediscovers the resources of upstream, unless another caller has done so after `since`.
    ///
    /// Concurrent callers share one discovery. Returns whether anything changed.
    pub async fn refresh(&self, since: Instant) -> Result<bool, UpstreamError> {
        let mut attempts = self.shared.attempts.lock().await;
        if attempts.last.is_some_and(|last| last > since) {
            return Ok(false);
        }
        // Failures count too; otherwise every waiting caller would retry in turn.
        attempts.last = Some(Instant::now());
        let found = self.discover().await.inspect_err(|error| {
            *self.shared.failure.lock() = Some(error.into());
        })?;
        let mut state = self.shared.state.write();
        let definitions = ApiDefinitionKind::Definitions;
        let is_hidden = !state.known.from_feeds[definitions as usize]
            && found.definitions.iter().any(|(kind, all)| *kind == definitions && all.is_none());
        if is_hidden && state.served.read[definitions as usize] {
            // Without the definitions, all custom resources and their watches would be lost.
            if attempts.refused_since.get_or_insert_with(Instant::now).elapsed() < REFUSED_MAX {
                return Err(UpstreamError::HiddenDefinitions);
            }
        }
        attempts.refused_since = None;
        let has_new_root = found.roots.iter().any(Option::is_some);
        state.known.apply(found);
        let changed = state.recompute();
        drop(state);
        self.shared.is_known.send_if_modified(|is_known| !std::mem::replace(is_known, true));
        if has_new_root {
            self.mark_changed();
        }
        Ok(changed)
    }

    /// Rediscovers the resources for a waiting caller, unless that was done within `every`. Until upstream has
    /// responded once, retries as long as it is unreachable.
    ///
    /// # Errors
    /// Nothing is known yet: upstream was unreachable for the whole time `within`, or its response is unusable.
    pub async fn refresh_for(&self, every: Duration, within: Duration) -> Result<(), DiscoveryFailure> {
        let (deadline, mut is_known) = (Instant::now() + within, self.shared.is_known.subscribe());
        loop {
            let now = Instant::now();
            let refreshed = timeout_at(deadline, self.refresh(now.checked_sub(every).unwrap_or(now))).await;
            if *is_known.borrow() {
                return Ok(());
            }
            // The failure may be that of another caller's recent request.
            let failure =
                self.shared.failure.lock().clone().unwrap_or_else(|| (&UpstreamError::Timeout(within)).into());
            if refreshed.is_err() || !failure.is_outage || Instant::now() >= deadline {
                return Err(failure);
            }
            tokio::select! {
                biased;
                true = async { is_known.wait_for(|is_known| *is_known).await.is_ok() } => return Ok(()),
                () = sleep_until(deadline.min(now + every)) => {}
            }
        }
    }

    /// Records that a definition has changed, whatever the change is.
    pub fn mark_changed(&self) {
        *self.shared.changed_at.lock() = Instant::now();
    }

    /// Returns the time since which nothing has changed that discovery depends on; `None` if a change may go unnoticed.
    fn unchanged_since(&self) -> Option<Instant> {
        let from_feeds = self.shared.state.read().known.from_feeds;
        (from_feeds == [true; 2]).then(|| *self.shared.changed_at.lock())
    }

    /// Returns the time from which on upstream uses the definitions that are known, if the proxy sees changes within
    /// `lag_max`; `None` if a change may go unnoticed.
    pub fn settled_since(&self, lag_max: Duration) -> Option<Instant> {
        self.unchanged_since().map(|since| since + lag_max)
    }

    /// Whether upstream itself serves this group or group version, rather than a server behind it. In doubt it does only
    /// for groups of its own.
    pub fn is_local_group(&self, group: &str, version: Option<&str>) -> bool {
        let state = self.shared.state.read();
        let is_aggregated = match &state.known.aggregated {
            Some(aggregated) => aggregated.iter().any(|(other, _)| other == group),
            None => !is_built_in(group),
        };
        let has = |gvr: &Gvr| *gvr.group == *group && version.is_none_or(|version| *gvr.version == *version);
        !is_aggregated && state.served.resources.keys().any(has)
    }

    /// Whether it is known that no server behind upstream answers for any group.
    pub fn has_only_local_groups(&self) -> bool {
        self.shared.state.read().known.aggregated.as_ref().is_some_and(|aggregated| aggregated.iter().next().is_none())
    }

    /// Applies the complete contents of one of the proxy's discovery feeds. After this, they are not requested from
    /// upstream. Returns whether anything changed.
    pub fn apply_feed<'a>(&self, from: ApiDefinitionKind, all: impl Iterator<Item = &'a ApiDefinition>) -> bool {
        self.mark_changed();
        let mut state = self.shared.state.write();
        state.known.define(from, Some(all));
        state.known.from_feeds[from as usize] = true;
        self.shared.refused.lock()[from as usize].accepted();
        state.recompute()
    }

    /// Records that the feed of `from` is lost: the known contents stay, and they are requested from upstream again.
    pub fn feed_lost(&self, from: ApiDefinitionKind) {
        self.shared.state.write().known.from_feeds[from as usize] = false;
        self.mark_changed();
    }

    /// Requests all discovery documents that no feed provides.
    async fn discover(&self) -> Result<DiscoveryFindings, UpstreamError> {
        let mut found = DiscoveryFindings::default();
        for (at, root) in ["/api", "/apis"].into_iter().enumerate() {
            found.roots[at] = self.changed_root(at, root).await?;
        }
        if found.roots.iter().any(Option::is_some) {
            let (encoding, _) = self.client.fetch(UpstreamRequestCause::Discovery, "/api", PROTOBUF_FIRST).await?;
            found.protobuf = Some(encoding == Some(FeedEncoding::Protobuf));
        }
        let from_feeds = self.shared.state.read().known.from_feeds;
        // After discovery, so that a definition created or deleted in between takes effect.
        for kind in ApiDefinitionKind::ALL.into_iter().filter(|kind| !from_feeds[*kind as usize]) {
            found.definitions.push((kind, self.definitions(kind).await?));
        }
        // A failure is ignored, because continue tokens of either spelling are continued.
        found.minor =
            self.client.release().await.ok().filter(|release| release.major == 1).map(|release| release.minor);
        Ok(found)
    }

    /// Fetches the resources below `/api` or `/apis`; `None` if they have not changed.
    async fn changed_root(&self, at: usize, root: &str) -> Result<Option<DiscoveryRoot>, UpstreamError> {
        let mut headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(AGGREGATED))]);
        let etag = self.shared.state.read().known.roots[at].etag.clone();
        let is_known = etag.is_some();
        headers.extend(etag.map(|etag| (IF_NONE_MATCH, etag)));
        let document = self.client.document(root, headers, BODY_BYTES_MAX, |_| Ok(())).await?;
        let Some(CachedDocument { headers, body }) = document else {
            // A 304 for an unconditional request must not count as an unchanged, empty document.
            return if is_known { Ok(None) } else { Err(UpstreamError::OtherDocument(root.to_owned())) };
        };
        let list = serde_json::from_slice::<AggregatedDiscoveryList>(&body)
            .ok()
            .filter(|list| list.kind == "APIGroupDiscoveryList");
        let missing = || UpstreamError::OtherDocument(format!("aggregated discovery of {root} (Kubernetes 1.30)"));
        let resources = list.ok_or_else(missing)?.into_resources();
        Ok(Some(DiscoveryRoot { etag: headers.get(ETAG).cloned(), resources }))
    }

    /// Lists the objects of a kind, which the proxy's identity may not be allowed to read. After a refusal, they are not
    /// requested again soon.
    async fn definitions(&self, from: ApiDefinitionKind) -> Result<Option<Vec<ApiDefinition>>, UpstreamError> {
        let ResourceCatalogShared { policy, refused, .. } = &*self.shared;
        // A list that was readable last time is requested regardless of later refusals.
        let is_known = self.reads()[from as usize];
        if !is_known && refused.lock()[from as usize].is_backing_off(Instant::now(), *policy) {
            return Ok(None);
        }
        match self.client.fetch(UpstreamRequestCause::Definitions, &from.gvr().path(), JSON).await {
            Ok((_, body)) => {
                refused.lock()[from as usize].accepted();
                Ok(from.read_list(&body))
            }
            Err(error) if error.code() == Some(403) => {
                refused.lock()[from as usize].refused(Instant::now(), *policy);
                Ok(None)
            }
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl ResourceCatalogState {
    /// Recomputes the served resources. Returns whether they changed.
    fn recompute(&mut self) -> bool {
        let served = self.known.served();
        let changed = self.served != served;
        self.served = served;
        changed
    }
}

/// The retry policy for a document that the proxy's identity may not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentRefusalBackoff {
    /// The delays from a refusal to the next request.
    pub waits: BackoffBounds,
    /// The number of refusals in a row after which the document is not requested again until the proxy's permissions
    /// may have changed.
    pub times_max: u32,
}

/// The consecutive refusals of one document.
#[derive(Debug, Default)]
struct DocumentRefusalStreak {
    /// The number of refusals in a row.
    times: u32,
    last: Option<(Instant, Duration)>,
}

impl DocumentRefusalBackoff {
    /// Returns the policy for a proxy on every node. It tries twice, because an apiserver that has just started denies
    /// requests until its caches are filled.
    pub fn on_node(waits: BackoffBounds) -> Self {
        Self { waits, times_max: 2 }
    }

    /// Returns the policy for one of a few proxies.
    pub fn central(waits: BackoffBounds) -> Self {
        Self { waits, times_max: u32::MAX }
    }
}

impl DocumentRefusalStreak {
    fn accepted(&mut self) {
        *self = Self::default();
    }

    fn refused(&mut self, now: Instant, policy: DocumentRefusalBackoff) {
        self.times = self.times.saturating_add(1);
        self.last = Some((now, policy.waits.after(self.times)));
    }

    /// Resets the backoff to that of one refusal: the next request comes no sooner than the first wait after the last
    /// refusal.
    fn permissions_changed(&mut self, policy: DocumentRefusalBackoff) {
        self.times = 0;
        self.last = self.last.map(|(at, _)| (at, policy.waits.first));
    }

    /// Whether the document must not be requested now.
    fn is_backing_off(&self, now: Instant, policy: DocumentRefusalBackoff) -> bool {
        self.last.is_some() && self.next_retry(policy).is_none_or(|next_retry| now < next_retry)
    }

    /// The time of the next request; `None` if the document was not refused, or is not requested again.
    fn next_retry(&self, policy: DocumentRefusalBackoff) -> Option<Instant> {
        self.last.map(|(at, wait)| at + wait).filter(|_| self.times < policy.times_max)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// The result of requesting `/api` for the first time from a server with this response.
    async fn root_of(response: &'static [u8]) -> Result<Option<DiscoveryRoot>, UpstreamError> {
        let (near, mut far) = duplex(4096);
        let near = Mutex::new(Some(near));
        let client = UpstreamClient::in_memory(move || near.lock().take());
        let backoff = DocumentRefusalBackoff { waits: BackoffBounds::REFUSED, times_max: 1 };
        let catalog = ResourceCatalog::new(client, backoff);
        let answering = async {
            assert!(far.read(&mut [0; 4096]).await.is_ok_and(|bytes| bytes > 0));
            far.write_all(response).await.expect("the connection is open");
        };
        tokio::join!(catalog.changed_root(0, "/api"), answering).0
    }

    #[tokio::test]
    async fn not_modified_without_etag_fails_discovery() {
        let found = root_of(b"HTTP/1.1 304 Not Modified\r\n\r\n").await;
        assert!(matches!(found, Err(UpstreamError::OtherDocument(root)) if root == "/api"));
    }

    #[tokio::test]
    async fn server_without_aggregated_discovery_is_refused_with_the_reason() {
        let found =
            root_of(b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n{\"kind\":\"APIVersions\",\"versions\":[\"v1\"]}")
                .await;
        let error = found.expect_err("another document").to_string();
        assert!(error.contains("aggregated discovery of /api (Kubernetes 1.30)"), "{error}");
    }

    const WAITS: BackoffBounds = BackoffBounds { first: Duration::from_secs(30), longest: Duration::from_secs(3600) };

    /// The times of the requests within a day, in seconds, if each one is refused.
    fn requested(policy: DocumentRefusalBackoff, changed: &[u64]) -> Vec<u64> {
        let (start, mut refused, mut requested) = (Instant::now(), DocumentRefusalStreak::default(), Vec::new());
        let mut changed = changed.iter().copied().peekable();
        for second in 0..24 * 3600 {
            let now = start + Duration::from_secs(second);
            if changed.next_if_eq(&second).is_some() {
                refused.permissions_changed(policy);
            }
            if !refused.is_backing_off(now, policy) {
                refused.refused(now, policy);
                requested.push(second);
            }
        }
        requested
    }

    #[test]
    fn node_proxy_retries_twice_then_only_after_permission_change() {
        let policy = DocumentRefusalBackoff::on_node(WAITS);
        assert_eq!(requested(policy, &[]), [0, 30]);
        assert_eq!(requested(policy, &[40, 41, 50_000]), [0, 30, 60, 90, 50_000, 50_030]);
    }

    #[test]
    fn central_proxy_backs_off_to_hourly_retries() {
        let policy = DocumentRefusalBackoff::central(WAITS);
        let requests = requested(policy, &[]);
        assert!((29..=37).contains(&requests.len()), "{requests:?}");
        assert!(requests.windows(2).skip(8).all(|pair| (2880..=3601).contains(&(pair[1] - pair[0]))), "{requests:?}");
        let storm: Vec<u64> = (1000..2000).collect();
        let in_storm = requested(policy, &storm).into_iter().filter(|at| (1000..2000).contains(at)).count();
        assert!(in_storm <= 35, "permission changes cause no storm of requests: {in_storm}");
    }
}

//! Finds the feed that can answer a request, and waits until it is ready and as fresh as required.

#[cfg(test)]
mod tests;

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::auth::Permit;
use crate::cache::{CacheReader, FeedEnd, FeedState, Snapshot};
use crate::feeds::{
    FeedHandle, FeedKey, FeedSpec, FeedUnavailable, Feeds, RenderingMode, RenderingRefusal as Underived, Scope,
};
use crate::listing::OverLimit;
use crate::serve::response::{LIST_RETRY_SECONDS, too_many, unavailable};
use crate::serve::route::ForwardReason;
use crate::serve::serve_config::{Consistency, ServeConfig};
use crate::upstream::{Resource, ResourceOrigin};
use crate::wire::{Encoding, JsonLayout, Renderer, Representation, TranscodeError};
use base::{DrainWatch, Reloadable};
use kubeapi::{ResourceVersion, Status, VersionMatch};

/// The requirements of a request for a feed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FeedRequirements<'a> {
    /// The permission of the caller, without which no feed is returned.
    pub(crate) permit: &'a Permit,
    /// The namespace in the request path; `None` for the whole cluster.
    pub(crate) namespace: Option<&'a str>,
    pub(crate) representation: Representation,
    pub(crate) received: Instant,
    /// The version after which a watch resumes.
    pub(crate) resume: Option<ResourceVersion>,
}

/// The reason that a feed cannot answer a request.
#[derive(Debug)]
pub(crate) enum NotServable {
    /// The request must be forwarded to upstream.
    Forward(ForwardReason),
    /// The feed ended while the request was waiting. Another feed may replace it, so the request is routed again.
    FeedEnded,
    /// The request must be rejected with this Status.
    Refuse(Box<Status>),
}

impl NotServable {
    /// Rejects a watch that would have to wait during a drain; the client retries at another replica.
    pub(crate) fn going_away() -> Self {
        Self::Refuse(Box::new(unavailable("the proxy is shutting down; try again")))
    }
}

impl From<OverLimit> for NotServable {
    fn from(shed: OverLimit) -> Self {
        Self::Refuse(Box::new(too_many(shed, LIST_RETRY_SECONDS)))
    }
}

/// How long a read waits for a version of a resource without a watch cache. Its streams have no bookmarks, and a proof
/// lists the versions of all objects.
const UNTOLD_MAX: Duration = Duration::from_secs(1);

/// The reason that waiting for a feed failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FeedWaitError {
    Timeout,
    /// The feed has ended while the request waited.
    FeedEnded,
}

/// A feed, and the renderer for one request.
#[derive(Debug)]
pub(crate) struct FeedSource {
    pub(crate) feed: FeedHandle,
    pub(crate) renderer: Renderer,
}

impl FeedSource {
    /// Refuses the representation permanently, because an object of this feed cannot be converted. Later requests use
    /// another feed.
    pub(crate) fn refuse(&self, refused: &TranscodeError) {
        self.feed.refuse(self.renderer.representation(), Underived::Unrenderable, refused);
    }
}

/// Finds feeds for requests, and waits until the feeds can answer.
#[derive(Debug)]
pub(crate) struct FeedSources {
    feeds: Feeds,
    pub(crate) config: Reloadable<ServeConfig>,
    pub(crate) drain: DrainWatch,
}

impl FeedSources {
    pub(crate) fn new(config: Reloadable<ServeConfig>, feeds: Feeds, drain: DrainWatch) -> Self {
        Self { feeds, config, drain }
    }

    /// Returns a feed that covers the request, has a complete state and can render the representation. Starts the feed
    /// and waits for it if necessary.
    pub(crate) async fn source(
        &self,
        resource: &Resource,
        need: &FeedRequirements<'_>,
    ) -> Result<FeedSource, NotServable> {
        if !need.permit.covers(&resource.gvr, resource.namespaced, need.namespace) {
            return Err(NotServable::Forward(ForwardReason::PermissionMismatch));
        }
        let mut why = NotServable::Forward(ForwardReason::NotDerivable);
        for encoding in encodings(resource, need.representation) {
            match self.source_from(resource, need, *encoding).await {
                // This encoding is not offered, or cannot be derived from. The next one may do.
                Err(NotServable::Forward(reason @ (ForwardReason::Unavailable | ForwardReason::NotDerivable))) => {
                    why = NotServable::Forward(reason);
                }
                answer => return answer,
            }
        }
        Err(why)
    }

    async fn source_from(
        &self,
        resource: &Resource,
        need: &FeedRequirements<'_>,
        encoding: Encoding,
    ) -> Result<FeedSource, NotServable> {
        let wanted = need.representation;
        let widest = self.config.get().coverage.scope(resource).map_err(|why| NotServable::Forward(why.into()))?;
        if self.feeds.underivable(&key(resource, widest.clone(), encoding), wanted).is_some() {
            return Err(NotServable::Forward(ForwardReason::NotDerivable));
        }
        let feed = self.ready_feed(resource, widest, need, encoding).await?;
        if wanted == Representation::verbatim(encoding) {
            let renderer = feed.reader.verbatim().clone();
            return Ok(FeedSource { feed, renderer });
        }
        match while_it_runs(&feed.reader, self.sync_deadline(need), feed.renderings.settled(wanted)).await {
            Ok(Ok(renderer)) => Ok(FeedSource { feed, renderer }),
            Ok(Err(_)) => Err(NotServable::Forward(ForwardReason::NotDerivable)),
            Err(FeedWaitError::Timeout) => Err(NotServable::Forward(ForwardReason::Syncing)),
            Err(FeedWaitError::FeedEnded) => Err(NotServable::FeedEnded),
        }
    }

    /// Returns a feed in the given encoding that covers the request and has a complete state.
    async fn ready_feed(
        &self,
        resource: &Resource,
        widest: Scope,
        need: &FeedRequirements<'_>,
        encoding: Encoding,
    ) -> Result<FeedHandle, NotServable> {
        let mut refused = ForwardReason::Unavailable;
        for scope in scopes(widest, need.namespace) {
            match self.synced(&spec(resource, scope, encoding), need).await {
                Err(NotServable::Forward(ForwardReason::Forbidden)) => refused = ForwardReason::Forbidden,
                answer => return answer,
            }
        }
        Err(NotServable::Forward(refused))
    }

    async fn synced(&self, spec: &FeedSpec, need: &FeedRequirements<'_>) -> Result<FeedHandle, NotServable> {
        let leased = self.feeds.handle(spec, need.resume);
        let feed = leased.map_err(|why| NotServable::Forward(why.into()))?;
        match feed.reader.synced(self.sync_deadline(need)).await {
            FeedState::Live | FeedState::Stale { .. } => Ok(feed),
            // A retry would fail in the same way.
            FeedState::Ended(end) if end.is_refusal() => Err(NotServable::Forward(FeedUnavailable::Ended(end).into())),
            FeedState::Ended(_) => Err(NotServable::FeedEnded),
            FeedState::Syncing => Err(NotServable::Forward(ForwardReason::Syncing)),
        }
    }

    /// Returns the minimum duration of a watch without a client timeout; the maximum is twice that.
    pub(crate) fn watch_min(&self) -> Duration {
        self.config.get().watch_min
    }

    fn sync_deadline(&self, need: &FeedRequirements<'_>) -> Instant {
        need.received + self.config.get().sync_wait_max
    }

    /// Returns a running feed for a read of one object, which does not justify starting a feed.
    pub(crate) fn running_source(
        &self,
        permit: &Permit,
        resource: &Resource,
        namespace: Option<&str>,
        wanted: Representation,
    ) -> Option<FeedSource> {
        if !permit.covers(&resource.gvr, resource.namespaced, namespace) {
            return None;
        }
        let widest = self.config.get().coverage.scope(resource).ok()?;
        let running = |encoding: Encoding| {
            let mut scopes = scopes(widest.clone(), namespace);
            let found =
                scopes.find_map(|scope| self.feeds.find(&key(resource, scope, encoding), resource.edition.as_ref()));
            found.filter(|feed| feed.reader.state() != FeedState::Syncing)
        };
        encodings(resource, wanted).iter().find_map(|encoding| {
            let feed = running(*encoding)?;
            if wanted == Representation::verbatim(*encoding) {
                return Some(FeedSource { renderer: feed.reader.verbatim().clone(), feed });
            }
            // Requests the rendering, so that a later read may use it.
            feed.renderings.want(wanted);
            match feed.renderings.mode(wanted) {
                Some(RenderingMode::Derived(renderer)) => Some(FeedSource { feed, renderer }),
                _ => None,
            }
        })
    }

    /// Waits until the feed is as fresh as the request requires, for at most `fresh_wait_max`. Fails if the feed ends.
    pub(crate) async fn fresh(
        &self,
        feed: &FeedHandle,
        version: VersionMatch,
        (received, by_proxy): (Instant, bool),
    ) -> Result<(), NotServable> {
        // Without a watch cache, upstream sends no bookmarks on a quiet stream, so the version may well exist.
        let untold = !feed.spec.key.gvr.has_watch_cache();
        let wait_max = self.config.get().fresh_wait_max;
        let deadline = Instant::now() + if untold { UNTOLD_MAX } else { wait_max };
        match version {
            VersionMatch::Exact(_) => Ok(()),
            VersionMatch::Any => {
                match while_it_runs(&feed.reader, deadline, self.reached(feed, feed.shown_before(), by_proxy)).await {
                    Ok(()) => {}
                    Err(FeedWaitError::Timeout) => feed.forget_shown(),
                    Err(FeedWaitError::FeedEnded) => return Err(NotServable::FeedEnded),
                }
                Ok(())
            }
            VersionMatch::NotOlderThan(rv) => {
                match while_it_runs(&feed.reader, deadline, self.reached(feed, rv, by_proxy)).await {
                    Ok(()) => Ok(()),
                    Err(FeedWaitError::FeedEnded) => Err(NotServable::FeedEnded),
                    Err(FeedWaitError::Timeout) if untold => Err(NotServable::Forward(ForwardReason::NoProof)),
                    Err(FeedWaitError::Timeout) => {
                        let reached = feed.reader.progress().rv;
                        Err(NotServable::Refuse(Box::new(Status::too_large(rv.0, reached.0))))
                    }
                }
            }
            VersionMatch::Unset => self.current(feed, received, Instant::now() + wait_max).await,
        }
    }

    /// Completes when the feed has reached a version. For a client, a state that is proven at that version is
    /// sufficient. For a downstream proxy, the stream must reach it.
    async fn reached(&self, feed: &FeedHandle, rv: ResourceVersion, by_proxy: bool) {
        let is_there = feed.reader.progress().rv >= rv || !by_proxy && feed.reader.shown_at() >= rv;
        if is_there {
            return;
        }
        if by_proxy {
            feed.freshness.want_version(rv);
            feed.reader.reached(rv).await;
        } else {
            feed.freshness.want_state(rv);
            feed.reader.follow_progress().show(rv).await;
        }
    }

    /// Whether the feed's state may be served without a proof that it is current.
    pub(crate) fn needs_no_proof(&self, feed: &FeedHandle) -> bool {
        feed.reader.state() == FeedState::Live && self.config.get().consistency == Consistency::Bounded
    }

    async fn current(&self, feed: &FeedHandle, received: Instant, deadline: Instant) -> Result<(), NotServable> {
        if self.needs_no_proof(feed) {
            return Ok(());
        }
        let proven = while_it_runs(&feed.reader, deadline, feed.freshness.reached(received)).await;
        proven.map_err(|in_vain| match in_vain {
            FeedWaitError::Timeout => NotServable::Forward(ForwardReason::NoProof),
            FeedWaitError::FeedEnded => NotServable::FeedEnded,
        })
    }

    /// Waits until the feed serves no state from before it started, and its bodies match the server that it follows.
    /// Call this right before taking a state, because an earlier wait may have spanned an upgrade.
    pub(crate) async fn of_present(&self, source: &FeedSource) -> Result<(), NotServable> {
        let feed = &source.feed;
        let deadline = Instant::now() + self.config.get().sync_wait_max;
        let present = async {
            feed.caught_up().await;
            feed.body_release.present().await;
        };
        while_it_runs(&feed.reader, deadline, present).await.map_err(|in_vain| match in_vain {
            FeedWaitError::Timeout => NotServable::Forward(ForwardReason::Syncing),
            FeedWaitError::FeedEnded => NotServable::FeedEnded,
        })?;
        // A revoked renderer would render new bodies as the old release did.
        if source.renderer.is_revoked() { Err(NotServable::FeedEnded) } else { Ok(()) }
    }

    /// Returns the state at exactly `rv`, if it is cached. For another proxy, which resumes from its clients' versions,
    /// the state is reconstructed from the history. If the feed has not reached `rv`, this waits. If the build that
    /// writes the bodies has changed, nothing is reconstructed, because old bodies must not appear as a state.
    pub(crate) async fn state_at(&self, feed: &FeedHandle, rv: ResourceVersion, by_proxy: bool) -> Option<Snapshot> {
        let held = feed.reader.snapshot_at(rv);
        if held.is_some() || !by_proxy || feed.body_release.changes() > 0 {
            return held;
        }
        let deadline = Instant::now() + self.config.get().fresh_wait_max;
        while_it_runs(&feed.reader, deadline, self.reached(feed, rv, by_proxy)).await.ok()?;
        feed.reader.past_at(rv)
    }
}

/// Awaits a future until the deadline or the end of the feed.
async fn while_it_runs<T>(
    reader: &CacheReader,
    deadline: Instant,
    wait: impl Future<Output = T>,
) -> Result<T, FeedWaitError> {
    tokio::select! {
        biased;
        done = wait => Ok(done),
        () = reader.over() => Err(FeedWaitError::FeedEnded),
        () = sleep_until(deadline) => Err(FeedWaitError::Timeout),
    }
}

/// Returns the encodings that can be converted to a representation, best first. Built-in resources are cached in
/// protobuf, which most clients request and which can be converted to most representations. They are cached in JSON
/// only for the others (R-DERIVE-3). Tables are always cached as upstream prints them, because only upstream has the
/// columns.
fn encodings(resource: &Resource, wanted: Representation) -> &'static [Encoding] {
    match (resource.encoding, wanted) {
        (_, Representation::Table(_)) => &[Encoding::Table],
        (Encoding::Protobuf, Representation::Object(Encoding::Protobuf)) => &[Encoding::Protobuf],
        (Encoding::Protobuf, _) => &[Encoding::Protobuf, Encoding::Json],
        (_, Representation::Object(Encoding::Protobuf)) => &[],
        (_, _) => &[Encoding::Json],
    }
}

/// Returns the scopes of the feeds that may answer. The widest scope serves every request. If the proxy's identity may
/// not list the cluster, it may still be allowed to list the namespace.
fn scopes(widest: Scope, namespace: Option<&str>) -> impl Iterator<Item = Scope> {
    let narrower = namespace.filter(|_| widest == Scope::Cluster).map(|namespace| Scope::Namespace(namespace.into()));
    std::iter::once(widest).chain(narrower)
}

/// Returns the spec of the feed for a resource, scope and encoding.
pub fn spec(resource: &Resource, scope: Scope, encoding: Encoding) -> FeedSpec {
    // Agents on nodes list their own node's objects. The apiserver has an index for this field (R-FIELD-5).
    let index_field = resource.fields.fields.iter().find(|field| field.key == "spec.nodeName");
    FeedSpec {
        key: key(resource, scope, encoding),
        kind: resource.kind.clone(),
        list_kind: resource.list_kind.clone(),
        edition: resource.edition.clone(),
        shape: match resource.origin {
            ResourceOrigin::BuiltIn => JsonLayout::BuiltIn,
            ResourceOrigin::Custom | ResourceOrigin::Aggregated => JsonLayout::Custom,
        },
        namespaced: resource.namespaced,
        fields: resource.fields.clone(),
        index_field: index_field.map(|field| field.key.as_str().into()),
    }
}

fn key(resource: &Resource, scope: Scope, encoding: Encoding) -> FeedKey {
    FeedKey { gvr: resource.gvr.clone(), scope, encoding }
}

impl From<FeedUnavailable> for ForwardReason {
    fn from(why: FeedUnavailable) -> Self {
        match why {
            FeedUnavailable::Ended(FeedEnd::Forbidden) => Self::Forbidden,
            FeedUnavailable::Ended(FeedEnd::OverBudget) => Self::OverBudget,
            FeedUnavailable::Ended(_) | FeedUnavailable::TooMany => Self::Unavailable,
        }
    }
}

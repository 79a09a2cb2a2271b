//! Finds the feed that can answer a request, and waits until it is ready and as fresh as required.

#[cfg(test)]
mod tests;

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep_until};

use super::request::{AuthorizedRead, NotServable};
use crate::cache::{FeedEndReason, FeedSnapshot, FeedState};
use crate::feeds::{
    DerivedRepresentationMode, DerivedRepresentationRefusal as Underived, FeedFreshness, FeedHandle, FeedKey,
    FeedRegistry, FeedScope, FeedSpec, FeedUnavailable,
};
use crate::serve::activity::metrics;
use crate::serve::response::{ServedFeedStatus, unavailable};
use crate::serve::route::ForwardReason;
use crate::serve::serve_config::{ReadConsistency, ServeConfig};
use crate::upstream::{ResourceOrigin, UpstreamResource};
use crate::wire::{FeedEncoding, JsonLayout, ObjectRenderer, Representation, TranscodeError};
use base::{DrainWatch, Reloadable, sleep_until_opt};
use kubeapi::{ResourceVersion, ResourceVersionMatch, Status, WatchStart, WatchTimeout};

/// What a request requires of a feed. Because its fields are private, only a permission for the request makes one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FeedRequirements<'a> {
    /// The namespace in the request path; `None` for the whole cluster.
    namespace: Option<&'a str>,
    representation: Representation,
    received: Instant,
    by_proxy: bool,
    pub(crate) kind: ReadKind,
}

/// The kind of read, and the version at which it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadKind {
    Get(ResourceVersionMatch),
    List(ResourceVersionMatch),
    Watch { start: WatchStart, timeout_seconds: Option<i64> },
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FeedWaitCondition {
    Nothing,
    /// Nothing now. But the client has the version from another proxy or the apiserver, so the feed must catch up.
    InBackground(ResourceVersion),
    Version(ResourceVersion),
    /// A proof that the feed contains every write that was complete when the request arrived (L5).
    Proof,
}

/// How a request continues when its [`FeedWaitCondition`] is not reached in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitTimeoutAction {
    /// It is answered from the present state.
    Answer,
    /// It gets the apiserver's error for a version that is too large.
    TooLarge,
    /// It needs another proof: a read is forwarded. A watch gets an error instead, because a forwarded one would last.
    NoProof,
}

/// How long a read waits for a version of a resource without a watch cache. Its streams have no bookmarks, and a proof
/// lists the versions of all objects.
const NO_BOOKMARK_WAIT_MAX: Duration = Duration::from_secs(1);
/// How much longer a proxy waits for a version, because upstream itself takes as long to say that it does not have it.
const UPSTREAM_ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long a feed may be disconnected before watches that need a proof fail.
const DISCONNECTED_MAX: Duration = Duration::from_secs(3);
/// The `Retry-After` in seconds for a watch whose feed is still syncing.
const SYNC_RETRY_SECONDS: u32 = 1;

impl<'a> FeedRequirements<'a> {
    /// Returns what a request for objects with this name, or for a collection, requires.
    ///
    /// # Errors
    /// The permission is for other objects.
    pub(crate) fn new(
        AuthorizedRead { request, permission, resource }: AuthorizedRead<'a>,
        name: Option<&str>,
        representation: Representation,
        kind: ReadKind,
    ) -> Result<Self, NotServable> {
        let namespace = (resource.namespaced && !request.info.namespace.is_empty()).then_some(&*request.info.namespace);
        if !permission.covers(&resource.gvr, resource.namespaced, namespace, name) {
            return Err(NotServable::Forward(ForwardReason::PermissionMismatch));
        }
        let by_proxy = request.context.by_proxy && !matches!(kind, ReadKind::Get(_));
        let representation = representation.unprinted();
        Ok(Self { namespace, representation, received: request.received, by_proxy, kind })
    }

    /// Decides what the request waits for, how long, and how it continues if that does not come.
    fn goal(
        &self,
        has_watch_cache: bool,
        wait_max: Duration,
        served_before: ResourceVersion,
    ) -> (FeedWaitCondition, Duration, WaitTimeoutAction) {
        // Without a watch cache, upstream sends no bookmarks on a quiet stream, so the version may well exist.
        let (version_max, missed) = if has_watch_cache {
            (wait_max, WaitTimeoutAction::TooLarge)
        } else {
            (NO_BOOKMARK_WAIT_MAX, WaitTimeoutAction::NoProof)
        };
        let version = match self.kind {
            ReadKind::Get(version) | ReadKind::List(version) => version,
            ReadKind::Watch { start: WatchStart::State { at, .. }, .. } => at,
            ReadKind::Watch { start: WatchStart::FromCurrent, .. } => ResourceVersionMatch::Unset,
            ReadKind::Watch { start: WatchStart::After(rv), .. } => {
                return (FeedWaitCondition::InBackground(rv), Duration::ZERO, missed);
            }
            ReadKind::Watch { start: WatchStart::FromCached, .. } => {
                return (FeedWaitCondition::Nothing, Duration::ZERO, missed);
            }
        };
        match (version, self.kind) {
            (ResourceVersionMatch::Exact(_), _) => (FeedWaitCondition::Nothing, Duration::ZERO, missed),
            (ResourceVersionMatch::Any, _) => {
                (FeedWaitCondition::Version(served_before), version_max, WaitTimeoutAction::Answer)
            }
            (ResourceVersionMatch::NotOlderThan(rv), _) => (FeedWaitCondition::Version(rv), version_max, missed),
            (ResourceVersionMatch::Unset, ReadKind::Watch { timeout_seconds, .. }) => (
                FeedWaitCondition::Proof,
                WatchTimeout::of(timeout_seconds).capped(FeedFreshness::WAIT_MAX),
                WaitTimeoutAction::NoProof,
            ),
            (ResourceVersionMatch::Unset, _) => (FeedWaitCondition::Proof, wait_max, WaitTimeoutAction::NoProof),
        }
    }

    /// Returns the version after which a watch resumes.
    fn resume(&self) -> Option<ResourceVersion> {
        match self.kind {
            ReadKind::Watch { start: WatchStart::After(rv), .. } => Some(rv),
            _ => None,
        }
    }

    /// Returns the feed when it has a complete state.
    async fn synced(&self, feed: FeedHandle, deadline: Instant) -> Result<FeedHandle, NotServable> {
        match feed.reader.synced(deadline).await {
            FeedState::Live | FeedState::Stale { .. } => Ok(feed),
            // A retry would fail in the same way.
            FeedState::Ended(end) if end.is_refusal() => Err(NotServable::Forward(FeedUnavailable::Ended(end).into())),
            FeedState::Ended(_) => Err(NotServable::FeedEnded),
            FeedState::Syncing => Err(self.syncing_outcome()),
        }
    }

    /// Returns the outcome for a feed that is not synced in time. A forwarded watch would last for an hour, so a watch
    /// gets the apiserver's error for an initializing cache instead (R-LIST-5).
    fn syncing_outcome(&self) -> NotServable {
        match self.kind {
            ReadKind::Watch { .. } => NotServable::Refuse(Box::new(Status::initializing(SYNC_RETRY_SECONDS))),
            ReadKind::Get(_) | ReadKind::List(_) => NotServable::Forward(ForwardReason::Syncing),
        }
    }
}

/// A feed, and the renderer for one request.
#[derive(Debug)]
pub(crate) struct FeedWithRenderer {
    pub(crate) feed: FeedHandle,
    pub(crate) renderer: ObjectRenderer,
}

impl FeedWithRenderer {
    /// Leaves fields out of what the renderer writes, if the request does not need them.
    fn new(feed: FeedHandle, renderer: ObjectRenderer, need: &FeedRequirements<'_>) -> Self {
        Self { feed, renderer: renderer.with_fields_of(need.representation) }
    }

    /// Prints Tables of the feed's objects from now on, if the representation is one.
    ///
    /// # Errors
    /// An object could not be printed a moment ago, or the release that wrote the objects is not known.
    pub(crate) fn print(
        &mut self,
        resource: &UpstreamResource,
        representation: Representation,
    ) -> Result<(), NotServable> {
        if let Representation::Printed(include) = representation {
            let build = self.feed.body_release.current_build().build;
            let deps = resource.printer.clone().zip(build).filter(|_| !self.feed.is_unprintable());
            let renderer = deps.and_then(|(printer, build)| {
                let envelope = self.feed.reader.verbatim().envelope();
                ObjectRenderer::printed(envelope, printer, include, (build.minor, wall_clock()))
            });
            self.renderer = renderer.ok_or(NotServable::Forward(ForwardReason::NotDerivable))?;
        }
        Ok(())
    }

    /// Refuses the representation, because an object of this feed cannot be converted. Later requests use another feed;
    /// those for Tables are forwarded for a while.
    pub(crate) fn refuse(&self, refused: &TranscodeError) {
        match self.renderer.representation().full() {
            Representation::Printed(_) => self.feed.mark_unprintable(),
            full => self.feed.refuse(full, Underived::UnsupportedObject, refused),
        }
    }
}

/// Finds feeds for requests, and waits until the feeds can answer.
#[derive(Debug)]
pub(crate) struct FeedResolver {
    feeds: FeedRegistry,
    pub(crate) config: Reloadable<ServeConfig>,
    pub(crate) drain: DrainWatch,
}

impl FeedResolver {
    pub(crate) fn new(config: Reloadable<ServeConfig>, feeds: FeedRegistry, drain: DrainWatch) -> Self {
        Self { feeds, config, drain }
    }

    /// Returns a feed that covers the request, has a complete state and can render the representation. Starts the feed
    /// and waits for it if necessary.
    pub(crate) async fn source(
        &self,
        resource: &UpstreamResource,
        need: &FeedRequirements<'_>,
    ) -> Result<FeedWithRenderer, NotServable> {
        // Fields are left out of a representation that is compared with upstream's own.
        let representation = need.representation.full();
        let config = self.config.get();
        let deadline = need.received + config.sync_wait_max;
        let widest = config.coverage.scope(resource).map_err(|reason| NotServable::Forward(reason.into()))?;
        let mut refused = ForwardReason::NotDerivable;
        // If an encoding is not offered, or cannot be derived from, the next one may do.
        for encoding in encodings(resource, representation) {
            if self.feeds.derivation_refusal(&key(resource, widest.clone(), *encoding), representation).is_some() {
                refused = ForwardReason::NotDerivable;
                continue;
            }
            let mut synced = Err(NotServable::Forward(ForwardReason::Unavailable));
            for scope in scopes(widest.clone(), need.namespace) {
                synced = match self.feeds.handle(&spec(resource, scope, *encoding), need.resume()) {
                    Ok(feed) => need.synced(feed, deadline).await,
                    Err(reason) => Err(NotServable::Forward(reason.into())),
                };
                if !matches!(synced, Err(NotServable::Forward(ForwardReason::Forbidden))) {
                    break;
                }
            }
            let feed = match synced {
                Err(NotServable::Forward(ForwardReason::Unavailable)) => {
                    refused = ForwardReason::Unavailable;
                    continue;
                }
                synced => synced?,
            };
            if representation == Representation::verbatim(*encoding) {
                let renderer = feed.reader.verbatim().clone();
                return Ok(FeedWithRenderer::new(feed, renderer, need));
            }
            match wait_while_running(&feed, deadline, feed.renderings.wait_verified(representation)).await? {
                Some(Ok(renderer)) => return Ok(FeedWithRenderer::new(feed, renderer, need)),
                Some(Err(_)) => refused = ForwardReason::NotDerivable,
                None => return Err(need.syncing_outcome()),
            }
        }
        Err(NotServable::Forward(refused))
    }

    /// Returns a running feed for a read of one object, which does not justify starting a feed.
    pub(crate) fn running_source(
        &self,
        resource: &UpstreamResource,
        need: &FeedRequirements<'_>,
    ) -> Option<FeedWithRenderer> {
        let representation = need.representation.full();
        let widest = self.config.get().coverage.scope(resource).ok()?;
        encodings(resource, representation).iter().find_map(|encoding| {
            let found = scopes(widest.clone(), need.namespace)
                .find_map(|scope| self.feeds.find(&key(resource, scope, *encoding), resource.edition.as_ref()));
            let feed = found.filter(|feed| feed.reader.state() != FeedState::Syncing)?;
            if representation == Representation::verbatim(*encoding) {
                let renderer = feed.reader.verbatim().clone();
                return Some(FeedWithRenderer::new(feed, renderer, need));
            }
            // Requests the rendering, so that a later read may use it.
            feed.renderings.request(representation);
            match feed.renderings.mode(representation) {
                Some(DerivedRepresentationMode::Derived(renderer)) => Some(FeedWithRenderer::new(feed, renderer, need)),
                _ => None,
            }
        })
    }

    /// Waits until the feed is as fresh as the request requires. If the request shows a state, the feed must also serve
    /// no state from before it started, and its bodies must match the server that it follows. Call this right before
    /// taking a state, because an earlier wait may have spanned an upgrade.
    pub(crate) async fn wait_ready(
        &self,
        source: &FeedWithRenderer,
        need: &FeedRequirements<'_>,
    ) -> Result<(), NotServable> {
        let feed = &source.feed;
        let (wait_max, sync_wait_max, is_bounded) = {
            let config = self.config.get();
            (config.fresh_wait_max, config.sync_wait_max, config.consistency == ReadConsistency::Bounded)
        };
        let has_watch_cache = feed.spec.key.gvr.has_watch_cache();
        let (goal, max, missed) = need.goal(has_watch_cache, wait_max, feed.served_before());
        let is_watch = matches!(need.kind, ReadKind::Watch { .. });
        let waited = match goal {
            FeedWaitCondition::Nothing => Some(()),
            FeedWaitCondition::InBackground(rv) => {
                if !has_reached(feed, rv, need.by_proxy) {
                    feed.freshness.await_watch_version(rv);
                }
                Some(())
            }
            FeedWaitCondition::Proof if is_bounded && feed.reader.state() == FeedState::Live => Some(()),
            FeedWaitCondition::Proof if is_watch => {
                // Boxed, so that reads have no room for it.
                let proof = Box::pin(self.hold(feed, max, async {
                    tokio::select! {
                        biased;
                        () = feed.freshness.wait_proven(need.received) => Ok(()),
                        () = disconnected_too_long(feed) => Err(unreachable()),
                    }
                }));
                proof.await?.transpose()?
            }
            FeedWaitCondition::Proof => {
                wait_while_running(feed, Instant::now() + max, feed.freshness.wait_proven(need.received)).await?
            }
            // A downstream proxy treats "too large resource version" as a rollback of the storage, so only upstream may
            // respond with it.
            FeedWaitCondition::Version(rv) if need.by_proxy => {
                let wait = async {
                    tokio::select! {
                        biased;
                        () = reached(feed, rv, true) => Ok(()),
                        () = feed.freshness.versions.wait_unavailable(rv, need.received) => Err(too_large(feed, rv.0)),
                    }
                };
                wait_while_running(feed, Instant::now() + max + UPSTREAM_ANSWER_MAX, wait).await?.transpose()?
            }
            FeedWaitCondition::Version(rv) => {
                wait_while_running(feed, Instant::now() + max, reached(feed, rv, need.by_proxy)).await?
            }
        };
        if waited.is_none() {
            let (reached, is_stale) = (feed.reader.progress().rv.0, ServedFeedStatus::stale_seconds(feed).is_some());
            match (missed, goal) {
                (WaitTimeoutAction::Answer, _) => feed.forget_served_before(),
                (WaitTimeoutAction::TooLarge, _) if need.by_proxy => return Err(unreachable()),
                (WaitTimeoutAction::TooLarge, FeedWaitCondition::Version(rv)) => return Err(too_large(feed, rv.0)),
                _ if !is_watch => return Err(NotServable::Forward(ForwardReason::NoProof)),
                _ if is_stale => return Err(unreachable()),
                _ => return Err(too_large(feed, reached + 1)),
            }
        }
        if is_watch && !matches!(need.kind, ReadKind::Watch { start: WatchStart::State { .. }, .. }) {
            return Ok(());
        }
        let present = async {
            feed.caught_up().await;
            feed.body_release.wait_current_requested().await;
        };
        let present = wait_while_running(feed, Instant::now() + sync_wait_max, present).await?;
        present.ok_or_else(|| need.syncing_outcome())?;
        // A revoked renderer would render new bodies as the old release did.
        if source.renderer.is_revoked() { Err(NotServable::FeedEnded) } else { Ok(()) }
    }

    /// Returns the state at exactly `rv`, if it is cached. For another proxy, which resumes from its clients' versions,
    /// the state is reconstructed from the history. If the feed has not reached `rv`, this waits. If the build that
    /// writes the bodies has changed, nothing is reconstructed, because old bodies must not appear as a state.
    pub(crate) async fn state_at(
        &self,
        feed: &FeedHandle,
        rv: ResourceVersion,
        by_proxy: bool,
    ) -> Option<FeedSnapshot> {
        let cached = feed.reader.snapshot_at(rv);
        if cached.is_some() || !by_proxy || feed.body_release.changes() > 0 {
            return cached;
        }
        let deadline = Instant::now() + self.config.get().fresh_wait_max;
        wait_while_running(feed, deadline, reached(feed, rv, by_proxy)).await.ok()??;
        feed.reader.past_snapshot(rv).filter(|_| feed.body_release.changes() == 0)
    }

    /// Holds a watch until a future completes, for at most `max`; then the result is `None`. Fails if the feed ends or
    /// the proxy drains. The future must be cancel-safe.
    ///
    /// The watch is held instead of rejected, because a rejected client retries and then requires a newer version than
    /// the one that was almost proven. All its peers do the same, for as long as the cache lags (kubernetes#139766). A
    /// held watch already has a permit, so it is counted and limited like a served one.
    pub(crate) async fn hold<T>(
        &self,
        feed: &FeedHandle,
        max: Duration,
        wait: impl Future<Output = T>,
    ) -> Result<Option<T>, NotServable> {
        let _guard = metrics::PendingWatchGuard::new();
        let mut drain = self.drain.clone();
        tokio::select! {
            biased;
            done = wait_while_running(feed, Instant::now() + max, wait) => done,
            // The proxy that replaces this one may be ready.
            () = drain.started() => {
                let status = unavailable("the proxy is shutting down; try again");
                Err(NotServable::Refuse(Box::new(status)))
            }
        }
    }
}

/// Returns the time to which the ages in a Table refer.
#[allow(clippy::disallowed_methods, reason = "objects have the wall clock's times")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// Awaits a future until the deadline; then the result is `None`. Fails if the feed ends, because the next feed may
/// have what this one does not.
async fn wait_while_running<T>(
    feed: &FeedHandle,
    deadline: Instant,
    wait: impl Future<Output = T>,
) -> Result<Option<T>, NotServable> {
    tokio::select! {
        biased;
        done = wait => Ok(Some(done)),
        () = feed.reader.ended() => Err(NotServable::FeedEnded),
        () = sleep_until(deadline) => Ok(None),
    }
}

/// Whether the feed has reached a version. For a client, a state that is proven at that version is sufficient. For a
/// proxy, the stream must reach it.
fn has_reached(feed: &FeedHandle, rv: ResourceVersion, by_proxy: bool) -> bool {
    feed.reader.progress().rv >= rv || !by_proxy && feed.reader.served_version() >= rv
}

/// Completes when the feed has reached a version.
async fn reached(feed: &FeedHandle, rv: ResourceVersion, by_proxy: bool) {
    if has_reached(feed, rv, by_proxy) {
        return;
    }
    if by_proxy {
        feed.freshness.await_watch_version(rv);
        feed.reader.reached(rv).await;
    } else {
        feed.freshness.await_state_version(rv);
        feed.reader.follow_progress().wait_served(rv).await;
    }
}

/// Completes when the feed has been disconnected for too long, counted from now.
async fn disconnected_too_long(feed: &FeedHandle) {
    let began = Instant::now();
    let mut state = feed.reader.watch_state();
    loop {
        let limit = match *state.borrow_and_update() {
            FeedState::Stale { since } => Some(since.max(began) + DISCONNECTED_MAX),
            _ => None,
        };
        tokio::select! {
            biased;
            // The sender lives as long as the feed's reader.
            Ok(()) = state.changed() => {}
            () = sleep_until_opt(limit) => return,
        }
    }
}

/// Returns the apiserver's error for a version that the feed has not reached.
fn too_large(feed: &FeedHandle, requested: u64) -> NotServable {
    NotServable::Late(Box::new(Status::too_large(requested, feed.reader.progress().rv.0)))
}

/// Rejects a watch that needs a proof from an upstream that cannot be reached.
fn unreachable() -> NotServable {
    let reason = "upstream is unreachable, so the cache cannot be proven current";
    NotServable::Refuse(Box::new(unavailable(reason)))
}

/// Returns the encodings that can be converted to a representation, best first. Built-in resources are cached in
/// protobuf, which most clients request and which can be converted to most representations. They are cached in JSON
/// only for the others (R-DERIVE-3). Rows are cached as upstream prints them.
fn encodings(resource: &UpstreamResource, representation: Representation) -> &'static [FeedEncoding] {
    match (resource.encoding, representation) {
        (_, Representation::Table(_)) => &[FeedEncoding::Table],
        (FeedEncoding::Protobuf, Representation::Object(FeedEncoding::Protobuf)) => &[FeedEncoding::Protobuf],
        (FeedEncoding::Protobuf, _) => &[FeedEncoding::Protobuf, FeedEncoding::Json],
        (_, Representation::Object(FeedEncoding::Protobuf)) => &[],
        (_, _) => &[FeedEncoding::Json],
    }
}

/// Returns the scopes of the feeds that may answer. The widest scope serves every request. If the proxy's identity may
/// not list the cluster, it may still be allowed to list the namespace.
fn scopes(widest: FeedScope, namespace: Option<&str>) -> impl Iterator<Item = FeedScope> {
    let narrower =
        namespace.filter(|_| widest == FeedScope::Cluster).map(|namespace| FeedScope::Namespace(namespace.into()));
    std::iter::once(widest).chain(narrower)
}

/// Returns the spec of the feed for a resource, scope and encoding.
pub fn spec(resource: &UpstreamResource, scope: FeedScope, encoding: FeedEncoding) -> FeedSpec {
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

fn key(resource: &UpstreamResource, scope: FeedScope, encoding: FeedEncoding) -> FeedKey {
    FeedKey { gvr: resource.gvr.clone(), scope, encoding }
}

impl From<FeedUnavailable> for ForwardReason {
    fn from(reason: FeedUnavailable) -> Self {
        match reason {
            FeedUnavailable::Ended(FeedEndReason::Forbidden) => Self::Forbidden,
            FeedUnavailable::Ended(FeedEndReason::OverBudget) => Self::OverBudget,
            FeedUnavailable::Ended(_) | FeedUnavailable::TooMany => Self::Unavailable,
        }
    }
}

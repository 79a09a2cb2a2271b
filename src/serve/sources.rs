//! Finds the feed that can answer a request, and waits until it is ready and as fresh as asked.

#[cfg(test)]
mod tests;

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::response_context::FeedStatus;
use super::route::ForwardReason;
use super::serve_config::{Consistency, ServeConfig};
use super::statuses::{LIST_RETRY_SECONDS, too_many, unavailable};
use crate::auth::Permit;
use crate::cache::{CacheReader, FeedEnd, FeedState, Snapshot};
use crate::feeds::{
    FeedHandle, FeedKey, FeedSpec, Feeds, RenderingMode, RenderingRefusal as Underived, Scope, Unavailable,
};
use crate::listing::OverLimit;
use crate::upstream::{Resource, ResourceOrigin};
use crate::wire::{Encoding, JsonLayout, Refused, Renderer, Representation};
use base::{DrainWatch, Reloadable, mutant};
use kubeapi::{ResourceVersion, Status, VersionMatch};

/// What a request needs of a feed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need<'a> {
    /// The permission: without one, nobody gets a feed.
    pub(super) permit: &'a Permit,
    /// The namespace that the path names.
    pub(super) namespace: Option<&'a str>,
    pub(super) representation: Representation,
    pub(super) received: Instant,
    /// The version behind which a watch goes on.
    pub(super) resume: Option<ResourceVersion>,
}

/// Why a feed cannot answer.
#[derive(Debug)]
pub(super) enum NotServable {
    /// Upstream can answer.
    Forward(ForwardReason),
    /// The feed ended while it was waited for. Another one may have its place, so the request is routed again.
    Over,
    /// Nobody can answer now.
    Refuse(Box<Status>),
}

impl NotServable {
    /// Refuses a watch that would have to wait: it is asked for again, of another proxy.
    pub(super) fn going_away() -> Self {
        Self::Refuse(Box::new(unavailable("the proxy is going away")))
    }
}

impl From<OverLimit> for NotServable {
    fn from(shed: OverLimit) -> Self {
        Self::Refuse(Box::new(too_many(shed, LIST_RETRY_SECONDS)))
    }
}

/// How long a read waits for a version of a resource without bookmarks, where a proof lists the versions of all
/// objects.
const UNTOLD_MAX: Duration = Duration::from_secs(1);

/// Why waiting for a feed was in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InVain {
    Late,
    /// The feed has ended, so what was waited for does not come any more.
    Over,
}

/// A feed, and how its objects are written for one request.
#[derive(Debug)]
pub(super) struct FeedSource {
    pub(super) feed: FeedHandle,
    pub(super) renderer: Renderer,
}

impl FeedSource {
    /// Refuses the representation for good, because an object of this source cannot be written in it. From now on it
    /// comes from elsewhere.
    pub(super) fn refuse(&self, refused: &Refused) {
        self.feed.refuse(self.renderer.representation(), Underived::Unrenderable, refused);
    }
}

/// Finds feeds for requests, and waits until they can answer.
#[derive(Debug)]
pub(super) struct Sources {
    feeds: Feeds,
    pub(super) config: Reloadable<ServeConfig>,
    pub(super) drain: DrainWatch,
}

impl Sources {
    pub(super) fn new(config: Reloadable<ServeConfig>, feeds: Feeds, drain: DrainWatch) -> Self {
        Self { feeds, config, drain }
    }

    /// A feed that covers the request, has a complete state and can write what is asked for. It is started and waited
    /// for if need be.
    pub(super) async fn source(&self, resource: &Resource, need: &Need<'_>) -> Result<FeedSource, NotServable> {
        if !need.permit.covers(&resource.gvr, resource.namespaced, need.namespace) {
            return Err(NotServable::Forward(ForwardReason::Ungranted));
        }
        let mut why = NotServable::Forward(ForwardReason::Underivable);
        for encoding in encodings(resource, need.representation) {
            match self.source_from(resource, need, *encoding).await {
                // This encoding is not offered, or cannot be derived from. The next one may do.
                Err(NotServable::Forward(reason @ (ForwardReason::Unavailable | ForwardReason::Underivable))) => {
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
        need: &Need<'_>,
        encoding: Encoding,
    ) -> Result<FeedSource, NotServable> {
        let wanted = need.representation;
        let widest = self.config.get().coverage.scope(resource).map_err(|why| NotServable::Forward(why.into()))?;
        if self.feeds.underivable(&key(resource, widest.clone(), encoding), wanted).is_some() {
            return Err(NotServable::Forward(ForwardReason::Underivable));
        }
        let feed = self.ready_feed(resource, widest, need, encoding).await?;
        if wanted == Representation::verbatim(encoding) {
            let renderer = feed.reader.verbatim().clone();
            return Ok(FeedSource { feed, renderer });
        }
        match while_it_runs(&feed.reader, self.sync_deadline(need), feed.renderings.settled(wanted)).await {
            Ok(Ok(renderer)) => Ok(FeedSource { feed, renderer }),
            Ok(Err(_)) => Err(NotServable::Forward(ForwardReason::Underivable)),
            Err(InVain::Late) => Err(NotServable::Forward(ForwardReason::Syncing)),
            Err(InVain::Over) => Err(NotServable::Over),
        }
    }

    /// A feed in this encoding that covers the request and has a complete state.
    async fn ready_feed(
        &self,
        resource: &Resource,
        widest: Scope,
        need: &Need<'_>,
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

    async fn synced(&self, spec: &FeedSpec, need: &Need<'_>) -> Result<FeedHandle, NotServable> {
        let leased = self.feeds.handle(spec, need.resume);
        let feed = leased.map_err(|why| NotServable::Forward(why.into()))?;
        let deadline = if mutant(13) { need.received } else { self.sync_deadline(need) };
        match feed.reader.synced(deadline).await {
            FeedState::Live | FeedState::Stale { .. } => Ok(feed),
            // A second try would end the same way.
            FeedState::Ended(end) if end.is_refusal() => Err(NotServable::Forward(Unavailable::Ended(end).into())),
            FeedState::Ended(_) => Err(NotServable::Over),
            FeedState::Syncing => Err(NotServable::Forward(ForwardReason::Syncing)),
        }
    }

    /// How long a watch lasts, up to twice, whose client does not say it.
    pub(super) fn watch_min(&self) -> Duration {
        self.config.get().watch_min
    }

    fn sync_deadline(&self, need: &Need<'_>) -> Instant {
        need.received + self.config.get().sync_wait_max
    }

    /// A running feed for a read of one object, which is not worth starting one for.
    pub(super) fn running_source(
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
            // It asks, so that the next read may have it.
            feed.renderings.want(wanted);
            match feed.renderings.mode(wanted) {
                Some(RenderingMode::Derived(renderer)) => Some(FeedSource { feed, renderer }),
                _ => None,
            }
        })
    }

    /// Waits until the feed is as fresh as the request asks, for `fresh_wait_max` at most and no longer than the feed
    /// runs.
    pub(super) async fn fresh(
        &self,
        feed: &FeedHandle,
        version: VersionMatch,
        (received, by_proxy): (Instant, bool),
    ) -> Result<(), NotServable> {
        // Without a watch cache upstream never says how far a quiet stream has come: the version may well exist.
        let untold = !feed.spec.key.gvr.has_watch_cache();
        let wait_max = self.config.get().fresh_wait_max;
        let deadline = Instant::now() + if untold { UNTOLD_MAX } else { wait_max };
        match version {
            VersionMatch::Exact(_) => Ok(()),
            VersionMatch::Any => {
                match while_it_runs(&feed.reader, deadline, self.reached(feed, feed.shown_before(), by_proxy)).await {
                    Ok(()) => {}
                    Err(InVain::Late) => feed.forget_shown(),
                    Err(InVain::Over) => return Err(NotServable::Over),
                }
                Ok(())
            }
            VersionMatch::NotOlderThan(rv) => {
                match while_it_runs(&feed.reader, deadline, self.reached(feed, rv, by_proxy)).await {
                    Ok(()) => Ok(()),
                    Err(InVain::Over) => Err(NotServable::Over),
                    Err(InVain::Late) if untold => Err(NotServable::Forward(ForwardReason::NoProof)),
                    Err(InVain::Late) => {
                        let reached = feed.reader.progress().rv;
                        Err(NotServable::Refuse(Box::new(Status::too_large(rv.0, reached.0))))
                    }
                }
            }
            VersionMatch::Unset => self.current(feed, received, Instant::now() + wait_max).await,
        }
    }

    /// Waits like [`fresh`](Self::fresh), for a caller that is told the feed's version: then what came a moment ago is
    /// included.
    pub(super) async fn fit_to_list(
        &self,
        feed: &FeedHandle,
        version: VersionMatch,
        (received, by_proxy): (Instant, bool),
    ) -> Result<(), NotServable> {
        self.fresh(feed, version, (received, by_proxy)).await?;
        if version == VersionMatch::Any {
            feed.reader.settled().await;
        }
        Ok(())
    }

    /// Completes when the feed is at a version. For a client a state that is proven at that version is enough. For a
    /// proxy the stream has to reach it.
    async fn reached(&self, feed: &FeedHandle, rv: ResourceVersion, by_proxy: bool) {
        let is_there = feed.reader.progress().rv >= rv || !by_proxy && feed.reader.shown_at() >= rv;
        if is_there {
            return;
        }
        match by_proxy {
            _ if mutant(11) => {}
            true => feed.freshness.want_version(rv),
            false => feed.freshness.want_state(rv),
        }
        if by_proxy {
            feed.reader.reached(rv).await;
        } else {
            feed.reader.follow_progress().show(rv).await;
        }
    }

    async fn current(&self, feed: &FeedHandle, received: Instant, deadline: Instant) -> Result<(), NotServable> {
        let live = feed.reader.state() == FeedState::Live;
        if live && (self.config.get().consistency == Consistency::Bounded || mutant(12)) {
            return Ok(());
        }
        let proven = while_it_runs(&feed.reader, deadline, feed.freshness.reached(received)).await;
        proven.map_err(|in_vain| match in_vain {
            InVain::Late => NotServable::Forward(ForwardReason::NoProof),
            InVain::Over => NotServable::Over,
        })
    }

    /// Waits until states of the feed are none of before it began, and as the server that it follows writes them. It
    /// must be called right before a state is taken: an earlier wait may have taken longer than an upgrade.
    pub(super) async fn of_present(&self, source: &FeedSource) -> Result<(), NotServable> {
        let feed = &source.feed;
        let deadline = Instant::now() + self.config.get().sync_wait_max;
        let present = async {
            feed.caught_up().await;
            feed.vintage.present().await;
        };
        while_it_runs(&feed.reader, deadline, present).await.map_err(|in_vain| match in_vain {
            InVain::Late => NotServable::Forward(ForwardReason::Syncing),
            InVain::Over => NotServable::Over,
        })?;
        // A revoked renderer would write new bodies as the old release did.
        if source.renderer.is_revoked() { Err(NotServable::Over) } else { Ok(()) }
    }

    /// The state of exactly `rv`, if it is held. For another proxy, which begins where its clients had been, it is put
    /// together of what has changed since, and waited for if the feed is not so far. But bodies that another build has
    /// written are told to nobody as a state.
    pub(super) async fn state_at(&self, feed: &FeedHandle, rv: ResourceVersion, by_proxy: bool) -> Option<Snapshot> {
        let held = feed.reader.snapshot_at(rv);
        if held.is_some() || !by_proxy || feed.vintage.changes() > 0 {
            return held;
        }
        let deadline = Instant::now() + self.config.get().fresh_wait_max;
        while_it_runs(&feed.reader, deadline, self.reached(feed, rv, by_proxy)).await.ok()?;
        feed.reader.past_at(rv)
    }

    /// What an answer from the feed says of it.
    pub(super) fn standing(feed: &FeedHandle) -> FeedStatus {
        FeedStatus { stale_seconds: Self::stale_seconds(feed), written_by: feed.vintage.written().by }
    }

    /// For how many seconds the feed has been without upstream's stream.
    pub(super) fn stale_seconds(feed: &FeedHandle) -> Option<u64> {
        match feed.reader.state() {
            FeedState::Stale { since } => Some(since.elapsed().as_secs()),
            _ => None,
        }
    }
}

/// Waits for something of a feed until the deadline, and no longer than the feed runs.
async fn while_it_runs<T>(reader: &CacheReader, deadline: Instant, wait: impl Future<Output = T>) -> Result<T, InVain> {
    tokio::select! {
        biased;
        done = wait => Ok(done),
        () = reader.over() => Err(InVain::Over),
        () = sleep_until(deadline) => Err(InVain::Late),
    }
}

/// The encodings that a representation can be derived from, the best first. Built-in resources are held in protobuf,
/// which most clients ask for and the others can be derived from; they are held in JSON only for what that does not
/// give (R-DERIVE-3). Tables come from upstream alone, for nobody else knows what it prints.
fn encodings(resource: &Resource, wanted: Representation) -> &'static [Encoding] {
    match (resource.encoding, wanted) {
        (_, Representation::Table(_)) => &[Encoding::Table],
        (Encoding::Protobuf, Representation::Object(Encoding::Protobuf)) => &[Encoding::Protobuf],
        (Encoding::Protobuf, _) => &[Encoding::Protobuf, Encoding::Json],
        (_, Representation::Object(Encoding::Protobuf)) => &[],
        (_, _) => &[Encoding::Json],
    }
}

/// The scopes of the feeds that may answer. The widest serves every request. If our identity may not list the cluster,
/// it may perhaps list the namespace.
fn scopes(widest: Scope, namespace: Option<&str>) -> impl Iterator<Item = Scope> {
    let narrower = namespace.filter(|_| widest == Scope::Cluster).map(|namespace| Scope::Namespace(namespace.into()));
    std::iter::once(widest).chain(narrower)
}

/// The spec of the feed for this resource.
pub fn spec(resource: &Resource, scope: Scope, encoding: Encoding) -> FeedSpec {
    // Nodes' agents list their own node's objects: the apiserver has an index for that (R-FIELD-5).
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

impl From<Unavailable> for ForwardReason {
    fn from(why: Unavailable) -> Self {
        match why {
            Unavailable::Ended(FeedEnd::Forbidden) => Self::Forbidden,
            Unavailable::Ended(FeedEnd::OverBudget) => Self::OverBudget,
            Unavailable::Ended(_) | Unavailable::TooMany => Self::Unavailable,
        }
    }
}

//! Proves that the objects of a feed are derived in exactly the bytes that upstream would send (W15).
//!
//! At the first need, every object is derived once, and some are compared with upstream's own bytes at the same
//! version. For JSON this happens when the feed gets its first state, because upstream cannot be reached during an
//! outage. After the first read, one object is compared every minute if anything has changed since the last comparison,
//! so an idle proxy sends no requests. A difference, or an object that cannot be derived, ends the derivation for the
//! whole resource. Readers then get that representation from upstream, through a separate feed or passed through.
//!
//! Open watches of a refused representation end between two events. Their clients resume from the last version that
//! they saw, in a feed that starts at the oldest such version. The log names the field that could not be derived. When
//! the followed server runs another release, everything starts over with re-encoded bodies.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use crate::cache::{FeedSnapshot, FeedState, FeedStateId};
use crate::feeds::DerivedRepresentationRefusal;
use crate::upstream::{ServerBuild, UpstreamError, UpstreamRequestCause, UpstreamRequestKind, encoding_of};
use crate::wire::{
    IncludeObjectPolicy, ListMeta, ObjectRenderer, ObjectRevision, Representation, TranscodeError, same_items,
    same_rows,
};
use base::{Backoff, BackoffBounds, random};
use kubeapi::ResourceVersion;

use super::feed_client::FeedTaskContext;
use super::initial_state::exact;
use super::metrics::{self, FeedRequestPurpose};

/// The state of the qualifier.
#[derive(Debug, Default)]
struct RepresentationVerifierState {
    /// The build that upstream reported last, if its release differs from the current one.
    other: Option<ServerBuild>,
    /// The release that objects were compared with, and the number of compared objects.
    release: Option<u32>,
    compared: usize,
    /// The state from which objects were sampled last.
    sampled: Option<FeedStateId>,
}

base::labelled_enum! {
    /// The result of a comparison with upstream.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum BodyComparison {
        Equal = "equal",
        Different = "different",
        /// An object cannot be derived.
        Refused = "refused",
        /// Upstream did not respond to the comparison.
        Unanswered = "unanswered",
        /// Upstream no longer has the state to compare with.
        Expired = "evicted",
        /// Upstream does not offer the representation either.
        NotOffered = "not_offered",
    }
}

/// The number of objects that are compared before a derivation is used.
const QUALIFYING_OBJECTS: usize = 20;
/// The mean interval between samples. It varies by a quarter, so that proxies that start together do not sample at the
/// same time.
const SAMPLE_EVERY: Duration = Duration::from_secs(60);
/// The interval between samples while fewer than [`QUALIFYING_OBJECTS`] objects were compared, because the collection
/// may be small. It also applies while upstream's release is unclear.
const INITIAL_SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// The delays after failed requests, while readers wait for the verdict.
const RETRY: BackoffBounds = BackoffBounds { first: Duration::from_millis(500), longest: SAMPLE_EVERY };
/// The number of objects that are derived before the task yields.
const DERIVED_AT_A_TIME: usize = 64;

impl FeedTaskContext {
    /// Qualifies requested representations and samples derived ones, for as long as the feed lives.
    pub(super) async fn verify_representations(&self) -> Infallible {
        let (mut state, mut retries) = (RepresentationVerifierState::default(), Backoff::new(RETRY));
        let mut changes = self.feed.renderings.changes();
        loop {
            changes.borrow_and_update();
            self.wait_derivable().await;
            if state.release != self.feed.renderings.release() {
                (state.release, state.compared) = (self.feed.renderings.release(), 0);
            }
            let mut is_answered = true;
            for representation in self.feed.renderings.unverified() {
                is_answered &= self.qualify(representation, &mut state).await;
            }
            if !is_answered {
                tokio::select! {
                    biased;
                    _ = changes.changed() => {}
                    () = sleep(retries.failed(Instant::now())) => {}
                }
                continue;
            }
            retries = Backoff::new(RETRY);
            let derives = !self.feed.renderings.in_use().is_empty();
            let soon = derives && state.compared < QUALIFYING_OBJECTS || state.other.is_some();
            let wait = if soon { INITIAL_SAMPLE_INTERVAL } else { SAMPLE_EVERY };
            // Nothing is compared for a refused representation, but upstream may change to a release where it is not
            // refused.
            let decided = self.feed.renderings.is_used();
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                () = sleep(wait.mul_f64(0.75 + 0.5 * random::f64())), if decided => self.sample_bodies(&mut state).await,
            }
        }
    }

    /// Completes when the feed has a state to derive from, all encoded by servers of one release.
    async fn wait_derivable(&self) {
        self.wait_current_bodies().await;
        let mut state = self.feed.reader.watch_state();
        let _ = state.wait_for(|state| matches!(state, FeedState::Live | FeedState::Stale { .. })).await;
    }

    /// Completes when servers of one release encoded the whole state, which the readers that wait for a verdict need.
    async fn wait_current_bodies(&self) {
        let (body_release, mut changes) = (&self.feed.body_release, self.feed.renderings.changes());
        loop {
            changes.borrow_and_update();
            let is_requested = !self.feed.renderings.requested().is_empty();
            tokio::select! {
                biased;
                () = body_release.wait_current_requested(), if is_requested => return,
                () = body_release.wait_current(), if !is_requested => return,
                _ = changes.changed() => {}
            }
        }
    }

    /// Decides whether one representation may be derived. Returns false if upstream did not respond and the decision
    /// must be retried.
    async fn qualify(&self, representation: Representation, state: &mut RepresentationVerifierState) -> bool {
        let feed = &self.feed;
        let minor = match self.verified_release(state).await {
            Ok(Some(minor)) => minor,
            Ok(None) => return false,
            Err(error) if is_release_unavailable(&error) => {
                feed.refuse(representation, DerivedRepresentationRefusal::NotComparable, &error);
                return true;
            }
            Err(error) => {
                tracing::debug!(
                    feed = %feed.spec.key, %error,
                    "cannot read upstream's Kubernetes version"
                );
                return false;
            }
        };
        let Some(renderer) = ObjectRenderer::derived(representation, feed.reader.envelope(), minor) else {
            let kind = &feed.spec.kind;
            feed.refuse(
                representation,
                DerivedRepresentationRefusal::NotInTable,
                &format_args!("{kind} of release 1.{minor}"),
            );
            return true;
        };
        if representation == Representation::Table(IncludeObjectPolicy::None) {
            // Cells are passed on unchanged, so no derivation can differ.
            feed.renderings.qualify(renderer);
            return true;
        }
        let snapshot = feed.reader.snapshot();
        if let Err(refused) = self.derive_all(&snapshot, &renderer).await {
            feed.refuse(representation, DerivedRepresentationRefusal::UnsupportedObject, &refused);
            return true;
        }
        let objects: Vec<_> = snapshot.iter().take(QUALIFYING_OBJECTS).collect();
        let (key, first) = (&feed.spec.key, format!("limit={QUALIFYING_OBJECTS}"));
        let then = key.url(&format!("{first}&{}", exact(snapshot.rv)));
        let comparison = match self.compare_bodies(&renderer, &then, &objects).await {
            // The state was compacted: the resource was quiet for long, or no bookmark came. The most recent state may
            // still be equal.
            BodyComparison::Expired => match self.compare_bodies(&renderer, &key.url(&first), &objects).await {
                BodyComparison::Different => BodyComparison::Unanswered,
                comparison => comparison,
            },
            comparison => comparison,
        };
        let comparison = self.confirm_comparison(comparison, &objects, snapshot.rv).await;
        if comparison == BodyComparison::Equal {
            state.compared += objects.len();
            let (encoding, count) = (key.encoding, objects.len());
            tracing::info!(
                feed = %key,
                "serving {representation} from the {encoding} cache (verified on {count} objects)"
            );
            feed.renderings.qualify(renderer);
            return true;
        }
        let Some((reason, why)) = comparison.refusal() else { return false };
        feed.refuse(representation, reason, &why);
        true
    }

    /// Derives each object once, so that no list fails halfway because an object cannot be derived.
    async fn derive_all(&self, snapshot: &FeedSnapshot, renderer: &ObjectRenderer) -> Result<(), TranscodeError> {
        let mut body = Vec::new();
        for (index, object) in snapshot.iter().enumerate() {
            // The result is not kept, because it may never be read.
            body.clear();
            self.feed.reader.write_body(object, renderer, &mut body)?;
            if index % DERIVED_AT_A_TIME == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Compares one random object of each derivation, if objects have changed since the last sample. Checks first
    /// whether upstream's release may have changed. Does nothing while the feed has no readers.
    async fn sample_bodies(&self, state: &mut RepresentationVerifierState) {
        let state_id = self.feed.reader.state_id();
        let has_changed = state.sampled != Some(state_id);
        if self.feed.readers() == 0 || !has_changed && !self.may_be_upgraded(state) {
            return;
        }
        // While the release is uncertain, nothing is compared.
        let Ok(Some(_)) = self.verified_release(state).await else { return };
        if !has_changed {
            return;
        }
        state.sampled = Some(state_id);
        let includes_objects =
            |renderer: &ObjectRenderer| renderer.representation() != Representation::Table(IncludeObjectPolicy::None);
        for renderer in self.feed.renderings.in_use().into_iter().filter(includes_objects) {
            let snapshot = self.feed.reader.snapshot();
            if snapshot.is_empty() {
                continue;
            }
            let Some(object) = snapshot.iter().nth(random::usize(..snapshot.len())) else { continue };
            // A list of one object, as it is at that version.
            let path = self.feed.spec.key.url_of(&object.key, &exact(snapshot.rv));
            let comparison = self.compare_bodies(&renderer, &path, &[object]).await;
            match self.confirm_comparison(comparison, &[object], snapshot.rv).await {
                BodyComparison::Equal => state.compared += 1,
                BodyComparison::NotOffered => {}
                comparison => {
                    if let Some((reason, why)) = comparison.refusal() {
                        self.feed.refuse(renderer.representation(), reason, &why);
                    }
                }
            }
        }
    }

    /// Whether upstream may have another release although the feed's stream stays open. That is impossible if the
    /// server of the stream reported its release on that connection, because an upgrade would have ended the stream.
    fn may_be_upgraded(&self, state: &RepresentationVerifierState) -> bool {
        state.other.is_some() || !self.body_encoders.is_certain()
    }

    /// Returns the minor version of upstream's release; `None` while it may differ from the one for which derivations
    /// were qualified.
    ///
    /// The request uses the connection of the stream's server, and its response takes effect at once
    /// ([`BodyEncoderTracker`](super::body_encoder_tracker)). If that is not possible, other servers may respond at its
    /// address, during an upgrade or with load balancers. Then two responses in a row must name the other release.
    async fn verified_release(&self, state: &mut RepresentationVerifierState) -> Result<Option<u32>, UpstreamError> {
        let build = match self.body_encoders.reported_by_a_proxy() {
            Some(build) => ServerBuild::clone(&build),
            None => self.client.build().await?,
        };
        let was = self.feed.renderings.release();
        if was.is_some_and(|was| was != build.minor) {
            let previous = state.other.replace(build.clone());
            if previous.as_ref() == Some(&build) && !self.body_encoders.is_certain() {
                self.body_encoders.assume_build(&build);
            }
            return Ok(None);
        }
        state.other = None;
        self.feed.renderings.set_release(build.minor);
        Ok(self.feed.body_release.is_current().then_some(build.minor))
    }

    /// Compares `objects` with upstream's list at `path`.
    async fn compare_bodies(
        &self,
        renderer: &ObjectRenderer,
        path: &str,
        objects: &[&Arc<ObjectRevision>],
    ) -> BodyComparison {
        let representation = renderer.representation();
        let comparison = match self.upstreams_list(path, representation).await {
            Ok(upstream) => match self.equals_list(renderer, objects, &upstream) {
                Ok(true) => BodyComparison::Equal,
                Ok(false) => BodyComparison::Different,
                Err(_) => BodyComparison::Refused,
            },
            Err(error) => {
                let feed = &self.feed.spec.key;
                tracing::debug!(
                    %feed, %representation, %error,
                    "cannot read upstream's objects to verify a conversion"
                );
                BodyComparison::without_answer(&error)
            }
        };
        metrics::compared(&self.feed.spec.key, representation, comparison.as_str());
        comparison
    }

    /// Checks a difference again. It counts against the derivation only if upstream still has the same objects. If
    /// upstream's storage has gone back, the feed must start a new history instead (F3).
    async fn confirm_comparison(
        &self,
        comparison: BodyComparison,
        objects: &[&Arc<ObjectRevision>],
        at: ResourceVersion,
    ) -> BodyComparison {
        if comparison != BodyComparison::Different {
            return comparison;
        }
        let (history, lister) = (self.feed.reader.history(), self.lister(FeedRequestPurpose::PastObject));
        for object in objects {
            match lister.object_at(&object.key, at).await {
                Ok(Some(upstream)) if upstream.rv == object.rv => {}
                Ok(_) => {
                    self.report_mismatch(history);
                    return BodyComparison::Unanswered;
                }
                // Upstream no longer has the state, so the objects cannot be checked again.
                Err(error) if error.is_expired() => return comparison,
                Err(_) => return BodyComparison::Unanswered,
            }
        }
        comparison
    }

    async fn upstreams_list(&self, path: &str, representation: Representation) -> Result<Bytes, UpstreamError> {
        let include = match representation {
            Representation::Table(include) => format!("&includeObject={}", include.as_str()),
            _ => String::new(),
        };
        let path = format!("{path}{include}");
        let response = self
            .client
            .open(UpstreamRequestCause::Comparison, UpstreamRequestKind::Short, &path, &representation.accept(true))
            .await?;
        if self.body_encoders.encodes_differently(response.body().server()) {
            return Err(UpstreamError::OtherDocument(path));
        }
        let answered = encoding_of(&response);
        if answered != Some(representation.encoding()) {
            return Err(UpstreamError::OtherRepresentation { requested: representation.to_string(), answered });
        }
        self.client.read(response).await
    }

    /// Whether `upstream` is the list of `objects` that the proxy would send.
    fn equals_list(
        &self,
        renderer: &ObjectRenderer,
        objects: &[&Arc<ObjectRevision>],
        upstream: &[u8],
    ) -> Result<bool, TranscodeError> {
        let bodies: Vec<_> =
            objects.iter().map(|object| self.feed.reader.body(object, renderer)).collect::<Result<_, _>>()?;
        let representation = renderer.representation();
        Ok(match representation {
            // Cells depend on when they were printed, so only their objects are compared.
            Representation::Table(_) => same_rows(&bodies, upstream),
            _ => same_items(representation.encoding(), &list_of(renderer, &bodies), upstream),
        })
    }
}

impl BodyComparison {
    /// Returns the reason for which the representation is not derived, and its description for the log, which never has
    /// the content of an object. Returns `None` if the comparison decides nothing.
    fn refusal(self) -> Option<(DerivedRepresentationRefusal, &'static str)> {
        match self {
            Self::Different => Some((DerivedRepresentationRefusal::Mismatch, "upstream encodes an object differently")),
            Self::Refused => Some((DerivedRepresentationRefusal::UnsupportedObject, "an object cannot be converted")),
            Self::NotOffered => {
                Some((DerivedRepresentationRefusal::NotComparable, "upstream does not serve this representation"))
            }
            Self::Equal | Self::Unanswered | Self::Expired => None,
        }
    }

    /// Returns the verdict when there is nothing to compare with.
    fn without_answer(error: &UpstreamError) -> Self {
        match error {
            UpstreamError::OtherRepresentation { .. } => Self::NotOffered,
            error if matches!(error.code(), Some(406 | 415)) => Self::NotOffered,
            error if error.is_expired() => Self::Expired,
            _ => Self::Unanswered,
        }
    }
}

/// Whether upstream does not report its release and a retry would not help. Then nothing can be derived.
fn is_release_unavailable(error: &UpstreamError) -> bool {
    matches!(error, UpstreamError::OtherDocument(_)) || matches!(error.code(), Some(403 | 404))
}

fn list_of(renderer: &ObjectRenderer, bodies: &[Bytes]) -> Vec<u8> {
    let meta = ListMeta { resource_version: ResourceVersion(1), ..ListMeta::default() };
    let frame = renderer.list(&meta, bodies.len());
    let len = bodies.iter().map(|body| frame.item_len(body.len())).sum();
    let mut list = frame.head(bodies.len(), len).to_vec();
    for (index, body) in bodies.iter().enumerate() {
        frame.put_item(index == 0, body, &mut list);
    }
    list.extend_from_slice(&frame.tail());
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FeedEncoding;
    use kubeapi::Status;

    fn refused(code: i32) -> UpstreamError {
        UpstreamError::Refused(Box::new(Status { code, ..Status::default() }))
    }

    #[test]
    fn failed_sample_verdict_depends_on_the_error() {
        for (error, expected) in [
            (
                UpstreamError::OtherRepresentation {
                    requested: "protobuf".to_owned(),
                    answered: Some(FeedEncoding::Json),
                },
                BodyComparison::NotOffered,
            ),
            (refused(406), BodyComparison::NotOffered),
            (refused(415), BodyComparison::NotOffered),
            (refused(410), BodyComparison::Expired),
            (refused(403), BodyComparison::Unanswered),
            (refused(503), BodyComparison::Unanswered),
            (UpstreamError::Timeout(INITIAL_SAMPLE_INTERVAL), BodyComparison::Unanswered),
            (UpstreamError::TooLarge(1), BodyComparison::Unanswered),
            (UpstreamError::InvalidRequest("no path".to_owned()), BodyComparison::Unanswered),
            (UpstreamError::OtherDocument("/version".to_owned()), BodyComparison::Unanswered),
        ] {
            assert_eq!(BodyComparison::without_answer(&error), expected, "{error}");
        }
    }

    #[test]
    fn forbidden_or_missing_version_endpoint_is_not_retried() {
        for (error, expected) in [
            (UpstreamError::OtherDocument("/version".to_owned()), true),
            (refused(403), true),
            (refused(404), true),
            (refused(401), false),
            (refused(500), false),
            (UpstreamError::Timeout(INITIAL_SAMPLE_INTERVAL), false),
            (UpstreamError::InvalidRequest("no path".to_owned()), false),
            (UpstreamError::OtherRepresentation { requested: "json".to_owned(), answered: None }, false),
        ] {
            assert_eq!(is_release_unavailable(&error), expected, "{error}");
        }
    }
}

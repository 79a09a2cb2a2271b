use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::wire::{ObjectRenderer, Representation};
use tokio::sync::watch;

/// The representations that a feed's objects are derived in, and whether each is proven to be exact.
///
/// Readers request a representation. The qualifier, which has an upstream connection, compares it with upstream's own
/// (W15). If an object cannot be derived, the representation is refused permanently for the whole resource, so
/// that no reader gets only some of the objects.
#[derive(Debug, Default)]
pub struct DerivedRepresentations {
    /// The representation that is qualified before a reader requests it.
    expected: Option<Representation>,
    modes: watch::Sender<DerivedRepresentationModes>,
    /// The minor version of the release for which the modes were determined; 0 if there is none.
    release: AtomicU32,
}

/// The mode of each representation. A feed has a handful, which start and end together.
#[derive(Debug, Default)]
pub struct DerivedRepresentationModes {
    modes: BTreeMap<Representation, DerivedRepresentationMode>,
    /// Whether a reader has requested the expected representation.
    is_requested: bool,
}

/// How a feed obtains one representation of its objects.
#[derive(Debug, Clone)]
pub enum DerivedRepresentationMode {
    /// A reader has requested the representation, and it has not been compared with upstream's yet.
    Requested,
    /// The proxy derives the representation from the cached objects.
    Derived(ObjectRenderer),
    /// The proxy does not derive the representation, for the given reason.
    Refused(DerivedRepresentationRefusal),
}

base::labelled_enum! {
    /// The reason that a representation is not derived. Every variant is a metric label.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum DerivedRepresentationRefusal {
        /// The table of API types does not contain the kind or the server's release.
        NotInTable = "unknown_type",
        /// An object contains a field that the table of API types does not have, or that the encoding cannot express.
        UnsupportedObject = "unsupported_object",
        /// Upstream encodes an object differently than the proxy derives it.
        Mismatch = "mismatch",
        /// Upstream does not serve the representation either, or not at the requested version.
        NotComparable = "not_comparable",
    }
}

impl DerivedRepresentations {
    /// Creates renderings of which one is qualified once there is a state. It can then be served in an outage even if
    /// no reader has requested it before.
    pub fn with_expected(expected: Option<Representation>) -> Self {
        Self { expected, ..Self::default() }
    }

    /// Returns how a representation is obtained now; `None` if no reader has requested it yet.
    pub fn mode(&self, representation: Representation) -> Option<DerivedRepresentationMode> {
        self.modes.borrow().modes.get(&representation).cloned()
    }

    /// Requests a representation from the feed.
    pub fn request(&self, representation: Representation) {
        self.modes.send_if_modified(|all| {
            let is_expected = self.expected == Some(representation);
            let is_first = is_expected && !std::mem::replace(&mut all.is_requested, true);
            let before = all.modes.len();
            all.modes.entry(representation).or_insert(DerivedRepresentationMode::Requested);
            is_first || all.modes.len() > before
        });
    }

    /// Requests a representation and waits for the result. It may never complete, so callers need a deadline.
    pub async fn wait_verified(
        &self,
        representation: Representation,
    ) -> Result<ObjectRenderer, DerivedRepresentationRefusal> {
        let mut changes = self.changes();
        loop {
            self.request(representation);
            match self.mode(representation) {
                Some(DerivedRepresentationMode::Derived(renderer)) => return Ok(renderer),
                Some(DerivedRepresentationMode::Refused(reason)) => return Err(reason),
                Some(DerivedRepresentationMode::Requested) | None => {}
            }
            // The sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }

    /// Subscribes to changes of the modes of all representations.
    pub fn changes(&self) -> watch::Receiver<DerivedRepresentationModes> {
        self.modes.subscribe()
    }

    /// Returns the representations that readers wait for.
    pub fn requested(&self) -> Vec<Representation> {
        let is_requested = |(_, mode): &(_, _)| matches!(mode, DerivedRepresentationMode::Requested);
        self.all().into_iter().filter(is_requested).map(|(representation, _)| representation).collect()
    }

    /// Returns the representations without a result: those that readers wait for, and the expected one.
    pub fn unverified(&self) -> Vec<Representation> {
        let mut all = self.requested();
        all.extend(self.expected.filter(|expected| self.mode(*expected).is_none()));
        all
    }

    /// Returns the representations that readers have requested, with their modes.
    fn used(&self) -> Vec<(Representation, DerivedRepresentationMode)> {
        let unused = self.expected.filter(|_| !self.modes.borrow().is_requested);
        self.all().into_iter().filter(|(representation, _)| Some(*representation) != unused).collect()
    }

    /// Returns the renderers of representations that readers have requested and that are derived.
    pub fn in_use(&self) -> Vec<ObjectRenderer> {
        let derived =
            |mode| if let DerivedRepresentationMode::Derived(renderer) = mode { Some(renderer) } else { None };
        self.used().into_iter().filter_map(|(_, mode)| derived(mode)).collect()
    }

    /// Returns whether a reader has requested any representation.
    pub fn is_used(&self) -> bool {
        !self.used().is_empty()
    }

    /// Returns every requested representation with its mode.
    pub fn all(&self) -> Vec<(Representation, DerivedRepresentationMode)> {
        self.modes.borrow().modes.iter().map(|(&representation, mode)| (representation, mode.clone())).collect()
    }

    /// Records a successful comparison. The representation is derived from now on, unless it has been refused.
    pub fn qualify(&self, renderer: ObjectRenderer) {
        self.modes.send_modify(|all| {
            let mode = all.modes.entry(renderer.representation()).or_insert(DerivedRepresentationMode::Requested);
            if !matches!(mode, DerivedRepresentationMode::Refused(_)) {
                *mode = DerivedRepresentationMode::Derived(renderer);
            }
        });
    }

    /// Refuses a representation. Returns whether it was not refused before.
    pub fn refuse(&self, representation: Representation, reason: DerivedRepresentationRefusal) -> bool {
        let mut before = None;
        self.modes.send_modify(|all| {
            before = all.modes.insert(representation, DerivedRepresentationMode::Refused(reason));
            if let Some(DerivedRepresentationMode::Derived(renderer)) = &before {
                if reason == DerivedRepresentationRefusal::Mismatch {
                    renderer.mark_mismatch();
                }
                renderer.revoke();
            }
        });
        !matches!(before, Some(DerivedRepresentationMode::Refused(_)))
    }

    /// Returns the minor of upstream's release for which the modes were determined.
    pub fn release(&self) -> Option<u32> {
        Some(self.release.load(Ordering::Relaxed)).filter(|release| *release != 0)
    }

    /// Sets the release for which modes are determined from now on.
    pub fn set_release(&self, minor: u32) {
        self.release.store(minor, Ordering::Relaxed);
    }

    /// Resets the modes of all representations, because upstream runs another release.
    pub fn start_over(&self) {
        self.modes.send_modify(|all| {
            all.modes.values().for_each(DerivedRepresentationMode::revoke);
            all.modes.clear();
        });
    }

    /// Returns whether the feed has a refusal to keep after it has ended.
    pub(super) fn has_refused(&self) -> bool {
        self.all().iter().any(|(_, mode)| matches!(mode, DerivedRepresentationMode::Refused(_)))
    }

    /// Records the start of a feed: proofs for another feed's objects must be repeated. Refusals stay.
    pub(super) fn begin(&self) {
        self.modes.send_modify(|all| {
            all.is_requested = false;
            all.modes.values().for_each(DerivedRepresentationMode::revoke);
            all.modes.retain(|_, mode| matches!(mode, DerivedRepresentationMode::Refused(_)));
        });
    }
}

impl DerivedRepresentationMode {
    /// Ends the use of the renderer, if there is one.
    fn revoke(&self) {
        if let Self::Derived(renderer) = self {
            renderer.revoke();
        }
    }
}
#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::wire::{FeedEncoding, FrameEnvelope, JsonLayout};
    use kubeapi::MetaApiVersion;

    const METADATA: Representation = Representation::Metadata(FeedEncoding::Json, MetaApiVersion::V1);

    fn renderer() -> ObjectRenderer {
        let feed = FrameEnvelope::new(FeedEncoding::Protobuf, "v1", "Pod", JsonLayout::BuiltIn);
        ObjectRenderer::derived(METADATA, &feed, 37).expect("metadata of every kind")
    }

    #[tokio::test]
    async fn first_rendering_refusal_is_final() {
        let renderings = Arc::new(DerivedRepresentations::default());
        assert!(renderings.mode(METADATA).is_none());
        let request = tokio::spawn({
            let renderings = renderings.clone();
            async move { renderings.wait_verified(METADATA).await }
        });
        let mut changes = renderings.changes();
        while renderings.requested() != [METADATA] {
            changes.changed().await.expect("it lives");
        }
        renderings.qualify(renderer());
        assert!(request.await.expect("no panic").is_ok());
        assert!(renderings.refuse(METADATA, DerivedRepresentationRefusal::Mismatch));
        assert!(!renderings.refuse(METADATA, DerivedRepresentationRefusal::UnsupportedObject), "it was refused before");
        renderings.qualify(renderer());
        assert!(renderings.in_use().is_empty(), "a refusal lasts");
        assert_eq!(
            renderings.wait_verified(METADATA).await.unwrap_err(),
            DerivedRepresentationRefusal::UnsupportedObject
        );
    }
    #[test]
    fn expected_representation_qualifies_early_and_is_sampled_in_use() {
        let renderings = DerivedRepresentations::with_expected(Some(METADATA));
        assert_eq!((renderings.unverified(), renderings.requested()), (vec![METADATA], Vec::new()), "no reader waits");
        renderings.qualify(renderer());
        assert!(renderings.unverified().is_empty());
        assert!(matches!(renderings.mode(METADATA), Some(DerivedRepresentationMode::Derived(_))));
        assert!(renderings.in_use().is_empty() && !renderings.is_used(), "no reader uses it");
        let mut changes = renderings.changes();
        changes.borrow_and_update();
        renderings.request(METADATA);
        assert!(changes.has_changed().expect("it lives"), "from now on it is compared");
        assert!(renderings.in_use().len() == 1 && renderings.is_used());
        renderings.start_over();
        assert_eq!(renderings.unverified(), [METADATA], "of another release it is qualified again");
        renderings.refuse(METADATA, DerivedRepresentationRefusal::Mismatch);
        assert!(renderings.unverified().is_empty());
    }
}

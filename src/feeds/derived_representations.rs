use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::RwLock;

use crate::wire::{ObjectRenderer, Representation};
use tokio::sync::watch;

/// The representations that a feed's objects are derived in, and whether each is proven to be exact.
///
/// Readers request a representation. The qualifier, which has an upstream connection, compares it with upstream's own
/// (W15). If an object cannot be derived, the representation is refused permanently for the whole resource, so
/// that no reader gets only some of the objects.
#[derive(Debug)]
pub struct DerivedRepresentations {
    /// The mode of each representation. A feed has a handful, which start and end together. Readers share the lock.
    modes: RwLock<BTreeMap<Representation, DerivedRepresentationMode>>,
    /// The representation that is qualified before a reader requests it.
    expected: Option<Representation>,
    /// Whether a reader has requested the expected representation.
    is_requested: AtomicBool,
    /// The minor version of the release for which the modes were determined; 0 if there is none.
    release: AtomicU32,
    changes: watch::Sender<u64>,
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

impl Default for DerivedRepresentations {
    fn default() -> Self {
        Self::with_expected(None)
    }
}

impl DerivedRepresentations {
    /// Creates renderings of which one is qualified once there is a state. It can then be served in an outage even if
    /// no reader has requested it before.
    pub fn with_expected(expected: Option<Representation>) -> Self {
        Self {
            modes: RwLock::default(),
            expected,
            is_requested: AtomicBool::new(false),
            release: AtomicU32::new(0),
            changes: watch::Sender::new(0),
        }
    }

    /// Returns how a representation is obtained now; `None` if no reader has requested it yet.
    pub fn mode(&self, representation: Representation) -> Option<DerivedRepresentationMode> {
        self.modes.read().get(&representation).cloned()
    }

    /// Requests a representation from the feed.
    pub fn request(&self, representation: Representation) {
        if self.expected == Some(representation) && !self.is_requested.swap(true, Ordering::Relaxed) {
            self.changes.send_modify(|changes| *changes += 1);
        }
        self.modes.write().entry(representation).or_insert_with(|| {
            self.changes.send_modify(|changes| *changes += 1);
            DerivedRepresentationMode::Requested
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
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the representations that readers wait for.
    pub fn requested(&self) -> Vec<Representation> {
        let modes = self.modes.read();
        modes
            .iter()
            .filter(|(_, mode)| matches!(mode, DerivedRepresentationMode::Requested))
            .map(|(&representation, _)| representation)
            .collect()
    }

    /// Returns the representations without a result: those that readers wait for, and the expected one.
    pub fn unverified(&self) -> Vec<Representation> {
        let mut all = self.requested();
        all.extend(self.expected.filter(|expected| self.mode(*expected).is_none()));
        all
    }

    /// Returns the renderers of representations that readers have requested and that are derived.
    pub fn in_use(&self) -> Vec<ObjectRenderer> {
        let unused = self.expected.filter(|_| !self.is_requested.load(Ordering::Relaxed));
        self.derived().into_iter().filter(|renderer| Some(renderer.representation()) != unused).collect()
    }

    /// Returns whether a reader has requested any representation.
    pub fn is_used(&self) -> bool {
        let expected = self.expected.filter(|_| !self.is_requested.load(Ordering::Relaxed));
        self.modes.read().keys().any(|of| Some(*of) != expected)
    }

    /// Returns the renderers of the representations that are derived.
    pub fn derived(&self) -> Vec<ObjectRenderer> {
        let derived = |mode: &DerivedRepresentationMode| {
            if let DerivedRepresentationMode::Derived(renderer) = mode { Some(renderer.clone()) } else { None }
        };
        self.modes.read().values().filter_map(derived).collect()
    }

    /// Returns every requested representation with its mode.
    pub fn all(&self) -> Vec<(Representation, DerivedRepresentationMode)> {
        self.modes.read().iter().map(|(&representation, mode)| (representation, mode.clone())).collect()
    }

    /// Records a successful comparison. The representation is derived from now on, unless it has been refused.
    pub fn qualify(&self, renderer: ObjectRenderer) {
        let mut modes = self.modes.write();
        let mode = modes.entry(renderer.representation()).or_insert(DerivedRepresentationMode::Requested);
        if !matches!(mode, DerivedRepresentationMode::Refused(_)) {
            *mode = DerivedRepresentationMode::Derived(renderer);
        }
        drop(modes);
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Refuses a representation. Returns whether it was not refused before.
    pub fn refuse(&self, representation: Representation, reason: DerivedRepresentationRefusal) -> bool {
        let before = self.modes.write().insert(representation, DerivedRepresentationMode::Refused(reason));
        if let Some(DerivedRepresentationMode::Derived(renderer)) = &before {
            if reason == DerivedRepresentationRefusal::Mismatch {
                renderer.mark_mismatch();
            }
            renderer.revoke();
        }
        self.changes.send_modify(|changes| *changes += 1);
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
        let before = std::mem::take(&mut *self.modes.write());
        for (_, mode) in before {
            if let DerivedRepresentationMode::Derived(renderer) = mode {
                renderer.revoke();
            }
        }
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Returns whether the feed has a refusal to keep after it has ended.
    pub(super) fn has_refused(&self) -> bool {
        self.modes.read().values().any(|mode| matches!(mode, DerivedRepresentationMode::Refused(_)))
    }

    /// Records the start of a feed: proofs for another feed's objects must be repeated. Refusals stay.
    pub(super) fn begin(&self) {
        self.is_requested.store(false, Ordering::Relaxed);
        self.modes.write().retain(|_, mode| match mode {
            DerivedRepresentationMode::Refused(_) => true,
            DerivedRepresentationMode::Derived(renderer) => {
                renderer.revoke();
                false
            }
            DerivedRepresentationMode::Requested => false,
        });
        self.changes.send_modify(|changes| *changes += 1);
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
        assert!(renderings.derived().is_empty(), "a refusal lasts");
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

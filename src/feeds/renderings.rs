use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::RwLock;

use crate::wire::{Renderer, Representation};
use tokio::sync::watch;

/// Which representations a feed's objects are derived in, and whether that has been proven to be exact.
///
/// Readers ask for a representation. The qualifier, which has a connection upstream, compares it with upstream's own
/// (R-DERIVE-11). Whoever finds an object that cannot be derived refuses the representation for good, and for the whole
/// resource, so that no reader sees some objects and not others. Cloning shares.
#[derive(Debug, Clone)]
pub struct Renderings {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// A feed has a handful, which begin and end together. Readers share the lock.
    modes: RwLock<BTreeMap<Representation, RenderingMode>>,
    /// The representation that is qualified before anybody asks for it.
    expected: Option<Representation>,
    /// Whether a reader has asked for that one.
    is_asked_for: AtomicBool,
    /// The minor of the release for which the modes were found; 0 while there is none.
    release: AtomicU32,
    changes: watch::Sender<u64>,
}

/// How one representation of a feed's objects is obtained.
#[derive(Debug, Clone)]
pub enum RenderingMode {
    /// Somebody wants it, and it has not been compared with upstream's own yet.
    Wanted,
    /// It is derived here.
    Derived(Renderer),
    /// It is not derived, for this reason.
    Refused(RenderingRefusal),
}

/// Why a representation is not derived. Every variant is a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RenderingRefusal {
    /// The kind, or the server's release, is not in the table.
    NotInTable,
    /// An object has something that the table does not know, or that the encoding cannot carry.
    Unrenderable,
    /// Upstream writes an object differently.
    Mismatch,
    /// Upstream does not write it either, or not at the version that was asked for.
    NotComparable,
}

impl Default for Renderings {
    fn default() -> Self {
        Self::expecting(None)
    }
}

impl Renderings {
    /// Renderings of which one is qualified as soon as there is a state, so that it can be served in an outage even if
    /// nobody has asked for it before.
    pub fn expecting(expected: Option<Representation>) -> Self {
        let shared = Shared {
            modes: RwLock::default(),
            expected,
            is_asked_for: AtomicBool::new(false),
            release: AtomicU32::new(0),
            changes: watch::Sender::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// How a representation is obtained now; `None` if nobody has asked for it yet.
    pub fn mode(&self, representation: Representation) -> Option<RenderingMode> {
        self.shared.modes.read().get(&representation).cloned()
    }

    /// Asks for a representation.
    pub fn want(&self, representation: Representation) {
        if self.shared.expected == Some(representation) && !self.shared.is_asked_for.swap(true, Ordering::Relaxed) {
            self.shared.changes.send_modify(|changes| *changes += 1);
        }
        self.shared.modes.write().entry(representation).or_insert_with(|| {
            self.shared.changes.send_modify(|changes| *changes += 1);
            RenderingMode::Wanted
        });
    }

    /// Asks for a representation and waits for the verdict. It may never complete: the caller has a deadline.
    pub async fn settled(&self, representation: Representation) -> Result<Renderer, RenderingRefusal> {
        let mut changes = self.changes();
        loop {
            self.want(representation);
            match self.mode(representation) {
                Some(RenderingMode::Derived(renderer)) => return Ok(renderer),
                Some(RenderingMode::Refused(reason)) => return Err(reason),
                Some(RenderingMode::Wanted) | None => {}
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Follows changes of all modes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// The representations that readers wait for.
    pub fn wanted(&self) -> Vec<Representation> {
        let modes = self.shared.modes.read();
        modes.iter().filter(|(_, mode)| matches!(mode, RenderingMode::Wanted)).map(|(&wanted, _)| wanted).collect()
    }

    /// The representations that have no verdict: those that readers wait for, and the expected one.
    pub fn unqualified(&self) -> Vec<Representation> {
        let mut all = self.wanted();
        all.extend(self.shared.expected.filter(|expected| self.mode(*expected).is_none()));
        all
    }

    /// The renderers of the representations that readers have asked for and that are derived.
    pub fn in_use(&self) -> Vec<Renderer> {
        let unused = self.shared.expected.filter(|_| !self.shared.is_asked_for.load(Ordering::Relaxed));
        self.derived().into_iter().filter(|renderer| Some(renderer.representation()) != unused).collect()
    }

    /// Whether a reader has asked for any representation.
    pub fn is_used(&self) -> bool {
        let expected = self.shared.expected.filter(|_| !self.shared.is_asked_for.load(Ordering::Relaxed));
        self.shared.modes.read().keys().any(|of| Some(*of) != expected)
    }

    /// The renderers of the representations that are derived.
    pub fn derived(&self) -> Vec<Renderer> {
        let derived = |mode: &RenderingMode| {
            if let RenderingMode::Derived(renderer) = mode { Some(renderer.clone()) } else { None }
        };
        self.shared.modes.read().values().filter_map(derived).collect()
    }

    /// Every representation that was asked for.
    pub fn all(&self) -> Vec<(Representation, RenderingMode)> {
        self.shared.modes.read().iter().map(|(&representation, mode)| (representation, mode.clone())).collect()
    }

    /// Notes that a representation was compared. It is derived from now on, unless it was refused meanwhile.
    pub fn qualify(&self, renderer: Renderer) {
        let mut modes = self.shared.modes.write();
        let mode = modes.entry(renderer.representation()).or_insert(RenderingMode::Wanted);
        if !matches!(mode, RenderingMode::Refused(_)) {
            *mode = RenderingMode::Derived(renderer);
        }
        drop(modes);
        self.shared.changes.send_modify(|changes| *changes += 1);
    }

    /// Refuses a representation. Returns whether it was not refused before.
    pub fn refuse(&self, representation: Representation, reason: RenderingRefusal) -> bool {
        let before = self.shared.modes.write().insert(representation, RenderingMode::Refused(reason));
        if let Some(RenderingMode::Derived(renderer)) = &before {
            if reason == RenderingRefusal::Mismatch {
                renderer.disprove();
            }
            renderer.revoke();
        }
        self.shared.changes.send_modify(|changes| *changes += 1);
        !matches!(before, Some(RenderingMode::Refused(_)))
    }

    /// The minor of upstream's release for which the verdicts were found.
    pub fn release(&self) -> Option<u32> {
        Some(self.shared.release.load(Ordering::Relaxed)).filter(|release| *release != 0)
    }

    /// Sets the release for which verdicts are found from now on.
    pub fn set_release(&self, minor: u32) {
        self.shared.release.store(minor, Ordering::Relaxed);
    }

    /// Forgets all verdicts, because upstream is of another release.
    pub fn start_over(&self) {
        let before = std::mem::take(&mut *self.shared.modes.write());
        for (_, mode) in before {
            if let RenderingMode::Derived(renderer) = mode {
                renderer.revoke();
            }
        }
        self.shared.changes.send_modify(|changes| *changes += 1);
    }

    /// Whether there is a refusal to remember when the feed is over.
    pub(super) fn has_refused(&self) -> bool {
        self.shared.modes.read().values().any(|mode| matches!(mode, RenderingMode::Refused(_)))
    }

    /// Notes that a feed begins: what was proven of another feed's objects must be proven again. Refusals stay.
    pub(super) fn begin(&self) {
        self.shared.is_asked_for.store(false, Ordering::Relaxed);
        self.shared.modes.write().retain(|_, mode| match mode {
            RenderingMode::Refused(_) => true,
            RenderingMode::Derived(renderer) => {
                renderer.revoke();
                false
            }
            RenderingMode::Wanted => false,
        });
        self.shared.changes.send_modify(|changes| *changes += 1);
    }
}

impl RenderingRefusal {
    pub const ALL: [Self; 4] = [Self::NotInTable, Self::Unrenderable, Self::Mismatch, Self::NotComparable];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotInTable => "not_in_table",
            Self::Unrenderable => "unrenderable",
            Self::Mismatch => "mismatch",
            Self::NotComparable => "not_comparable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Encoding, Envelope, JsonLayout};
    use kubeapi::MetaVersion;

    const METADATA: Representation = Representation::Metadata(Encoding::Json, MetaVersion::V1);

    fn renderer() -> Renderer {
        let feed = Envelope::new(Encoding::Protobuf, "v1", "Pod", JsonLayout::BuiltIn);
        Renderer::derived(METADATA, &feed, 37).expect("metadata of every kind")
    }

    #[tokio::test]
    async fn who_asks_waits_for_the_verdict_and_the_first_refusal_is_final() {
        let renderings = Renderings::default();
        assert!(renderings.mode(METADATA).is_none());
        let asked = tokio::spawn({
            let renderings = renderings.clone();
            async move { renderings.settled(METADATA).await }
        });
        let mut changes = renderings.changes();
        while renderings.wanted() != [METADATA] {
            changes.changed().await.expect("it lives");
        }
        renderings.qualify(renderer());
        assert!(asked.await.expect("no panic").is_ok());
        assert!(renderings.refuse(METADATA, RenderingRefusal::Mismatch));
        assert!(!renderings.refuse(METADATA, RenderingRefusal::Unrenderable), "it was refused before");
        renderings.qualify(renderer());
        assert!(renderings.derived().is_empty(), "a refusal lasts");
        assert_eq!(renderings.settled(METADATA).await.unwrap_err(), RenderingRefusal::Unrenderable);
    }
    #[test]
    fn expected_representation_is_qualified_unasked_and_sampled_when_it_is_used() {
        let renderings = Renderings::expecting(Some(METADATA));
        assert_eq!((renderings.unqualified(), renderings.wanted()), (vec![METADATA], Vec::new()), "nobody waits");
        renderings.qualify(renderer());
        assert!(renderings.unqualified().is_empty());
        assert!(matches!(renderings.mode(METADATA), Some(RenderingMode::Derived(_))));
        assert!(renderings.in_use().is_empty() && !renderings.is_used(), "nobody reads it");
        let mut changes = renderings.changes();
        changes.borrow_and_update();
        renderings.want(METADATA);
        assert!(changes.has_changed().expect("it lives"), "from now on it is compared");
        assert!(renderings.in_use().len() == 1 && renderings.is_used());
        renderings.start_over();
        assert_eq!(renderings.unqualified(), [METADATA], "of another release it is qualified again");
        renderings.refuse(METADATA, RenderingRefusal::Mismatch);
        assert!(renderings.unqualified().is_empty());
    }
}

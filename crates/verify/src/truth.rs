//! The truth about one resource: its objects at every version.

use super::digest::ContentDigest;
use super::interner::ObjectKeyId;
use super::record::{RecordedEncoding, RecordedEventType};

/// A change that happened, or an object of the truth's initial state.
#[derive(Clone, Debug)]
pub(super) struct GroundTruthChange {
    pub(super) version: u64,
    pub(super) key: ObjectKeyId,
    /// The type of the change: ADDED, MODIFIED or DELETED.
    pub(super) kind: RecordedEventType,
    pub(super) digest: Option<ContentDigest>,
    pub(super) metadata: Option<ContentDigest>,
    /// The number of the object's labels and fields.
    pub(super) attributes: u32,
    /// A time by which the change had happened.
    pub(super) learnt_ns: u64,
    /// The previous change of the same key.
    pub(super) before: Option<u32>,
    /// The next change of the same key.
    pub(super) after: Option<u32>,
    pub(super) line: u32,
}

impl GroundTruthChange {
    pub(super) fn is_deletion(&self) -> bool {
        self.kind == RecordedEventType::Deleted
    }

    /// Returns the digest that a client with this encoding gets; `None` if it is unknown.
    pub(super) fn content(&self, encoding: RecordedEncoding) -> Option<ContentDigest> {
        match encoding {
            RecordedEncoding::Json | RecordedEncoding::Protobuf => self.digest,
            RecordedEncoding::Metadata | RecordedEncoding::MetadataProtobuf => self.metadata,
            RecordedEncoding::Table => None,
        }
    }
}

/// The truth about one resource: its state at `from`, and every change after it up to `to`.
#[derive(Debug, Default)]
pub(super) struct ResourceGroundTruth {
    pub(super) resource: String,
    pub(super) from: u64,
    pub(super) to: u64,
    /// The version that the true history had reached by each moment.
    pub(super) reached: Vec<(u64, u64)>,
    /// The changes, sorted by version, then by key.
    pub(super) changes: Vec<GroundTruthChange>,
    /// The changes by key, then by version.
    by_key: Vec<(ObjectKeyId, u32)>,
}

impl ResourceGroundTruth {
    /// Creates an empty true history of a resource.
    pub(super) fn of(resource: &str) -> Self {
        Self { resource: resource.to_owned(), ..Self::default() }
    }

    /// Sorts and links the changes.
    ///
    /// # Errors
    /// The line of a change that cannot have happened, and the reason. Then nothing can be judged by this truth.
    pub(super) fn link(&mut self) -> Result<(), (u32, String)> {
        self.changes.sort_by_key(|change| (change.version, change.key));
        self.by_key = (0..).zip(&self.changes).map(|(at, change)| (change.key, at)).collect();
        self.by_key.sort_unstable();
        for at in 0..self.by_key.len() {
            let (key, change) = self.by_key[at];
            let before = at.checked_sub(1).map(|at| self.by_key[at]).filter(|(other, _)| *other == key);
            let before = before.map(|(_, before)| before);
            if let Some(before) = before {
                self.changes[before as usize].after = Some(change);
            }
            let was = before.map(|before| &self.changes[before as usize]);
            let now = &self.changes[change as usize];
            if let Some(why) = self.impossible(was, now) {
                return Err((now.line, why.to_owned()));
            }
            self.changes[change as usize].before = before;
        }
        Ok(())
    }

    fn impossible(&self, was: Option<&GroundTruthChange>, now: &GroundTruthChange) -> Option<&'static str> {
        let existed = was.is_some_and(|was| !was.is_deletion());
        match now.kind {
            _ if was.is_some_and(|was| was.version == now.version) => Some("a second change of a key at one version"),
            _ if now.version <= self.from && (now.kind != RecordedEventType::Added || was.is_some()) => {
                Some("a change in the initial state")
            }
            RecordedEventType::Added if existed => Some("ADDED of an existing object"),
            RecordedEventType::Modified | RecordedEventType::Deleted if !existed => {
                Some("a change of an object that does not exist")
            }
            RecordedEventType::Bookmark | RecordedEventType::Error => Some("an event that is not a change"),
            _ => None,
        }
    }

    /// Whether the state at a version is known.
    pub(super) fn knows(&self, version: u64) -> bool {
        self.to > 0 && (self.from..=self.to).contains(&version)
    }

    /// Returns the index of a key's change at a version.
    pub(super) fn change_at(&self, key: ObjectKeyId, version: u64) -> Option<u32> {
        let at = self.changes.binary_search_by_key(&(version, key), |change| (change.version, change.key)).ok()?;
        u32::try_from(at).ok()
    }

    /// Returns the last change of a key up to and including a version. The key exists there unless the change is a
    /// deletion.
    pub(super) fn state_of(&self, key: ObjectKeyId, version: u64) -> Option<&GroundTruthChange> {
        let of_key = self.of_key(key);
        let behind = of_key.partition_point(|(_, at)| self.changes[*at as usize].version <= version);
        behind.checked_sub(1).map(|at| &self.changes[of_key[at].1 as usize])
    }

    /// Returns the first change of a key after a version that satisfies the condition.
    pub(super) fn next_of(
        &self,
        key: ObjectKeyId,
        version: u64,
        matches: impl Fn(&GroundTruthChange) -> bool,
    ) -> Option<&GroundTruthChange> {
        let changes = self.of_key(key).iter().map(|(_, at)| &self.changes[*at as usize]);
        changes.filter(|change| change.version > version).find(|change| matches(change))
    }

    /// Returns the first change between two versions of an object that differs between them.
    pub(super) fn difference(&self, from: u64, to: u64) -> Option<&GroundTruthChange> {
        let lacks = |key, at| self.state_of(key, at).is_none_or(GroundTruthChange::is_deletion);
        let mut behind = self.changes[self.index_behind(from)..].iter().take_while(|change| change.version <= to);
        behind.find(|change| !lacks(change.key, from) || !lacks(change.key, to))
    }

    /// Returns the index of the first change after a version.
    pub(super) fn index_behind(&self, version: u64) -> usize {
        self.changes.partition_point(|change| change.version <= version)
    }

    fn of_key(&self, key: ObjectKeyId) -> &[(ObjectKeyId, u32)] {
        let start = self.by_key.partition_point(|(other, _)| *other < key);
        let end = self.by_key.partition_point(|(other, _)| *other <= key);
        &self.by_key[start..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(version: u64, key: u32, kind: RecordedEventType) -> GroundTruthChange {
        GroundTruthChange {
            version,
            key: ObjectKeyId(key),
            kind,
            digest: None,
            metadata: None,
            attributes: 0,
            learnt_ns: 0,
            before: None,
            after: None,
            line: u32::try_from(version).unwrap(),
        }
    }

    fn truth(changes: &[(u64, u32, RecordedEventType)]) -> Result<ResourceGroundTruth, (u32, String)> {
        let changes = changes.iter().map(|(version, key, kind)| change(*version, *key, *kind)).collect();
        let mut truth = ResourceGroundTruth { from: 2, to: 9, changes, ..ResourceGroundTruth::default() };
        truth.link().map(|()| truth)
    }

    #[test]
    fn object_state_at_a_version_is_that_of_its_last_change() {
        use RecordedEventType::{Added, Deleted, Modified};
        let truth = truth(&[(5, 1, Deleted), (1, 1, Added), (3, 1, Modified), (5, 0, Added), (7, 1, Added)]).unwrap();
        let at = |version| truth.state_of(ObjectKeyId(1), version).map(|change| (change.version, change.is_deletion()));
        let all: Vec<_> = (0..8).map(at).collect();
        let [one, three, five] = [Some((1, false)), Some((3, false)), Some((5, true))];
        assert_eq!(all, [None, one, one, three, three, five, five, Some((7, false))]);
        assert_eq!(truth.changes.iter().map(|change| change.key.0).collect::<Vec<_>>(), [1, 1, 0, 1, 1]);
        let deletion = &truth.changes[truth.change_at(ObjectKeyId(1), 5).unwrap() as usize];
        assert_eq!((deletion.before, deletion.after), (Some(1), Some(4)));
        assert_eq!(truth.next_of(ObjectKeyId(1), 3, |change| !change.is_deletion()).unwrap().version, 7);
        let differs = |from, to| truth.difference(from, to).map(|change| change.version);
        // Object 1 does not exist before 1 and at 6; in between it was created and deleted.
        assert_eq!([differs(0, 6), differs(0, 3), differs(1, 3), differs(5, 6)], [Some(5), Some(1), Some(3), None]);
        assert_eq!(differs(0, 4), Some(1));
    }

    #[test]
    fn impossible_change_sequence_is_rejected() {
        use RecordedEventType::{Added, Deleted, Modified};
        let wrong: [(&[_], _); 6] = [
            (&[(3, 1, Modified)], 3),
            (&[(3, 1, Added), (4, 1, Added)], 4),
            (&[(3, 1, Added), (4, 1, Deleted), (5, 1, Deleted)], 5),
            (&[(3, 1, Added), (3, 1, Modified)], 3),
            (&[(1, 1, Added), (2, 1, Modified)], 2),
            (&[(3, 1, RecordedEventType::Bookmark)], 3),
        ];
        for (changes, line) in wrong {
            assert_eq!(truth(changes).unwrap_err().0, line, "{changes:?}");
        }
    }
}

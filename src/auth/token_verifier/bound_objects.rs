//! The objects that tokens are bound to, by name, with their UID. A token is valid only while they exist.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use kubeapi::is_dns_subdomain;

/// A kind of objects that a token may be bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BoundKind {
    Account,
    Pod,
    Node,
    Secret,
}

/// An object that a token is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BoundObject {
    pub(super) kind: BoundKind,
    /// `NAMESPACE/NAME`, or `/NAME`.
    pub(super) key: Box<str>,
    pub(super) uid: Uid,
}

/// A UID. The apiserver creates UUIDs in lower case; an object with another UID is known by none.
pub(super) type Uid = [u8; 16];

/// The known objects of every kind.
#[derive(Default)]
pub(super) struct BoundObjects {
    kinds: [ObjectsOfKind; BoundKind::ALL.len()],
    /// The signals of tokens by the UID of an object that they are bound to.
    dependents: Mutex<Dependents>,
}

#[derive(Default)]
struct ObjectsOfKind {
    known: RwLock<KnownObjects>,
    /// The time of the last use; `None` if the objects are not followed.
    used: Mutex<Option<Instant>>,
    needed: Notify,
}

/// About 100 bytes for each object.
#[derive(Debug, Default)]
struct KnownObjects {
    objects: HashMap<Box<str>, KnownObject>,
    /// Whether one list has been complete.
    is_complete: bool,
    /// The time since which changes are not received; `None` while they are.
    stale_since: Option<Instant>,
    /// The number of the current list.
    list: u32,
    /// The latest version that was received.
    version: u64,
    /// Whether the objects are those of an earlier version, from a server that lags or whose storage was restored.
    is_behind: bool,
}

#[derive(Debug, Clone, Copy)]
struct KnownObject {
    uid: Option<Uid>,
    is_deleting: bool,
    /// The number of the last list that had the object.
    list: u32,
}

#[derive(Default)]
struct Dependents {
    by_uid: HashMap<Uid, Vec<Weak<CancellationToken>>>,
    len: usize,
    /// The number of signals at which those of dropped tokens are removed.
    len_max: usize,
}

/// The maximum number of objects of one kind that are kept. Tokens bound to others are reviewed.
const OBJECTS_MAX: usize = 1_000_000;
/// The number of dependents that are kept without looking for dropped ones.
const PRUNE_MIN: usize = 1_024;

impl BoundKind {
    pub(super) const ALL: [Self; 4] = [Self::Account, Self::Pod, Self::Node, Self::Secret];

    pub(super) fn resource(self) -> &'static str {
        match self {
            Self::Account => "serviceaccounts",
            Self::Pod => "pods",
            Self::Node => "nodes",
            Self::Secret => "secrets",
        }
    }
}

impl BoundObject {
    /// Creates the object that a token names; `None` if no object has such names or such a UID.
    pub(super) fn new(kind: BoundKind, namespace: &str, name: &str, uid: &str) -> Option<Self> {
        // So a path of names is unambiguous.
        is_dns_subdomain(name).then_some(())?;
        Some(Self { kind, key: key(namespace, name), uid: parse_uid(uid)? })
    }
}

pub(super) fn key(namespace: &str, name: &str) -> Box<str> {
    format!("{namespace}/{name}").into_boxed_str()
}

/// Parses a UUID in lower case with hyphens.
pub(super) fn parse_uid(text: &str) -> Option<Uid> {
    let is_valid = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    (text.len() == 36 && text.bytes().enumerate().all(is_valid)).then_some(())?;
    Some(u128::from_str_radix(&text.replace('-', ""), 16).ok()?.to_be_bytes())
}

impl BoundObjects {
    /// Returns how long it has not been certain that the object exists with this UID and is not being deleted; zero
    /// while changes are received. `None` if that is not known.
    pub(super) fn stale_for(&self, object: &BoundObject) -> Option<Duration> {
        let kind = self.of(object.kind);
        if kind.used.lock().replace(Instant::now()).is_none() {
            kind.needed.notify_one();
        }
        let known = kind.known.read();
        let found = known.objects.get(&object.key).filter(|_| known.is_complete)?;
        let is_same = found.uid == Some(object.uid) && !found.is_deleting;
        is_same.then(|| known.stale_since.map_or(Duration::ZERO, |since| since.elapsed()))
    }

    /// Whether no object with this UID exists, as far as changes are received.
    pub(super) fn is_gone(&self, object: &BoundObject) -> bool {
        let known = self.of(object.kind).known.read();
        let is_other = known.objects.get(&object.key).is_none_or(|found| found.uid != Some(object.uid));
        known.is_complete && known.stale_since.is_none() && !known.is_behind && is_other
    }

    /// Cancels `lost` when one of the objects no longer exists.
    pub(super) fn signal_loss(&self, bound: &[BoundObject], lost: &Arc<CancellationToken>) {
        let Dependents { by_uid, len, len_max } = &mut *self.dependents.lock();
        if *len >= *len_max {
            by_uid.retain(|_, signals| {
                signals.retain(|signal| signal.strong_count() > 0);
                !signals.is_empty()
            });
            *len = by_uid.values().map(Vec::len).sum();
            *len_max = 2 * (*len).max(PRUNE_MIN);
        }
        *len += bound.len();
        bound.iter().for_each(|object| by_uid.entry(object.uid).or_default().push(Arc::downgrade(lost)));
    }

    /// Completes when objects of this kind are used.
    pub(super) async fn needed(&self, kind: BoundKind) {
        self.of(kind).needed.notified().await;
    }

    /// Completes when no object of this kind was used for `idle_max`. The objects are then forgotten.
    pub(super) async fn idle(&self, kind: BoundKind, idle_max: Duration) {
        let of_kind = self.of(kind);
        loop {
            let due = of_kind.used.lock().unwrap_or_else(Instant::now) + idle_max;
            sleep_until(due).await;
            let mut used = of_kind.used.lock();
            if used.is_none_or(|used| used.elapsed() >= idle_max) {
                *used = None;
                *of_kind.known.write() = KnownObjects::default();
                return;
            }
        }
    }

    /// Begins a list. Objects that it does not have are removed at its end.
    pub(super) fn begin_list(&self, kind: BoundKind) {
        let mut known = self.of(kind).known.write();
        known.list = known.list.wrapping_add(1);
        // The pages are as old as the first one.
        known.stale_since.get_or_insert_with(Instant::now);
    }

    /// Adds or replaces an object. Returns false if there are too many.
    pub(super) fn put(&self, kind: BoundKind, key: Box<str>, uid: Option<Uid>, is_deleting: bool) -> bool {
        let mut known = self.of(kind).known.write();
        if known.objects.len() >= OBJECTS_MAX && !known.objects.contains_key(&key) {
            return false;
        }
        let object = KnownObject { uid, is_deleting, list: known.list };
        let before = known.objects.insert(key, object);
        drop(known);
        self.signal(before.filter(|before| before.uid != uid));
        true
    }

    pub(super) fn remove(&self, kind: BoundKind, key: &str) {
        let removed = self.of(kind).known.write().objects.remove(key);
        self.signal(removed);
    }

    /// Ends a list that had every object. Returns the number of objects.
    pub(super) fn end_list(&self, kind: BoundKind) -> usize {
        let mut lost = Vec::new();
        let mut known = self.of(kind).known.write();
        let list = known.list;
        known.objects.retain(|_, object| {
            let is_listed = object.list == list;
            lost.extend(Some(*object).filter(|_| !is_listed));
            is_listed
        });
        known.is_complete = true;
        let len = known.objects.len();
        drop(known);
        self.signal(lost);
        len
    }

    /// Records the version of the objects.
    pub(super) fn reached(&self, kind: BoundKind, version: u64) {
        let mut known = self.of(kind).known.write();
        known.is_behind = version < known.version;
        known.version = known.version.max(version);
    }

    /// Records whether changes are received; if not, since when.
    pub(super) fn set_live(&self, kind: BoundKind, stale_since: Option<Instant>) {
        let mut known = self.of(kind).known.write();
        known.stale_since = stale_since.map(|since| known.stale_since.unwrap_or(since));
    }

    /// Signals the tokens that are bound to these objects, which no longer exist.
    fn signal(&self, lost: impl IntoIterator<Item = KnownObject>) {
        let mut dependents = self.dependents.lock();
        for uid in lost.into_iter().filter_map(|object| object.uid) {
            let signals = dependents.by_uid.remove(&uid).unwrap_or_default();
            dependents.len -= signals.len();
            signals.iter().filter_map(Weak::upgrade).for_each(|signal| signal.cancel());
        }
    }

    fn of(&self, kind: BoundKind) -> &ObjectsOfKind {
        &self.kinds[kind as usize]
    }
}

#[cfg(test)]
impl BoundObjects {
    pub(super) fn dependents_for_tests(&self) -> usize {
        self.dependents.lock().len
    }
}

//! Finds the objects of a feed that contradict upstream's state.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cache::FeedSnapshot;
use crate::reflect::continuity::differences;
use crate::reflect::initial_state::ObjectVersionPage;
use crate::wire::ObjectRevision;
use kubeapi::ObjectKey;

/// Returns the keys whose versions contradict each other. `listed` is the part after the key `start` of a state of
/// upstream. That state is not older than the cached state `before` and not newer than the cached state `after`. The
/// three may be one version. Changes between `before` and `after` prove nothing.
pub(super) fn conflicting_keys(
    before: &FeedSnapshot,
    after: &FeedSnapshot,
    listed: &ObjectVersionPage,
    start: Option<&ObjectKey>,
) -> Vec<ObjectKey> {
    let mut found = BTreeSet::new();
    for cached in [before, after] {
        let cached_part = cached.after(start).take_while(|object| listed.end().is_none_or(|end| object.key <= *end));
        let cached_part = cached_part.map(|object| (&object.key, object.rv));
        let listed_part = listed.objects().filter(|(key, _)| start.is_none_or(|start| *key > start));
        let different = differences(cached_part, cached.rv, listed_part, listed.at);
        found.extend(different.filter(|(_, contradicts)| *contradicts).map(|(key, _)| key.clone()));
    }
    found.into_iter().collect()
}

base::labelled_enum! {
    /// The difference of one object at one version of the collection.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum ObjectDiscrepancy {
        /// Upstream has the object, and the feed does not.
        Missing = "missing in the cache",
        /// The feed has the object, and upstream no longer does.
        Deleted = "deleted upstream",
        /// Upstream has another version of the object.
        Version = "another resourceVersion upstream",
        /// Upstream has other bytes for the same version of the object.
        Bytes = "another content upstream",
    }
}

impl ObjectDiscrepancy {
    /// Compares two objects. `alike` is true if the server that responded produces the same bytes as the cached ones.
    pub(super) fn between(
        cached: Option<&Arc<ObjectRevision>>,
        upstream: Option<&ObjectRevision>,
        alike: bool,
    ) -> Option<Self> {
        match (cached, upstream) {
            (None, None) => None,
            (None, Some(_)) => Some(Self::Missing),
            (Some(_), None) => Some(Self::Deleted),
            (Some(cached), Some(upstream)) if cached.rv != upstream.rv => Some(Self::Version),
            (Some(cached), Some(upstream)) => (alike && cached.body() != upstream.body()).then_some(Self::Bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::{FeedEncoding, JsonLayout, ObjectReader};
    use kubeapi::ResourceVersion;

    fn object(name: &str, rv: u64, more: &str) -> ObjectRevision {
        let reader = ObjectReader::new(FeedEncoding::Json, JsonLayout::BuiltIn, Arc::default());
        let metadata = format!(r#"{{"name":"{name}","namespace":"a","resourceVersion":"{rv}"}}"#);
        let item = format!(r#"{{"metadata":{metadata}{more}}}"#);
        let head = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"99"},"items":["#;
        let page = format!("{head}{item}]}}");
        reader.list(&Bytes::from(page)).expect("well-formed").items.remove(0)
    }

    fn state(rv: u64, objects: &[(&str, u64)]) -> FeedSnapshot {
        FeedSnapshot::from_objects(ResourceVersion(rv), objects.iter().map(|(name, rv)| object(name, *rv, "")))
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("a", name)
    }

    fn listed(at: u64, versions: &[(&str, u64)], is_last: bool) -> ObjectVersionPage {
        let versions = versions.iter().map(|(name, rv)| (key(name), ResourceVersion(*rv))).collect();
        ObjectVersionPage { at: ResourceVersion(at), versions, is_last, ..ObjectVersionPage::default() }
    }

    fn found(
        before: &FeedSnapshot,
        after: &FeedSnapshot,
        page: &ObjectVersionPage,
        start_after: Option<&str>,
    ) -> Vec<String> {
        conflicting_keys(before, after, page, start_after.map(key).as_ref())
            .iter()
            .map(|key| key.name().to_owned())
            .collect()
    }

    #[test]
    fn every_difference_at_the_same_version_is_found() {
        let cached = state(9, &[("a", 1), ("b", 2), ("d", 4)]);
        for (what, upstream, expected) in [
            ("the same", [("a", 1), ("b", 2), ("d", 4)].as_slice(), [].as_slice()),
            ("one more", &[("a", 1), ("b", 2), ("c", 3), ("d", 4)], &["c"]),
            ("one less", &[("a", 1), ("d", 4)], &["b"]),
            ("another version", &[("a", 1), ("b", 7), ("d", 4)], &["b"]),
            ("an older version", &[("a", 1), ("b", 1), ("d", 4)], &["b"]),
            ("nothing", &[], &["a", "b", "d"]),
        ] {
            assert_eq!(found(&cached, &cached, &listed(9, upstream, true), None), expected, "{what}");
        }
    }

    #[test]
    fn list_page_is_compared_only_within_its_key_range() {
        let cached = state(9, &[("a", 1), ("b", 2), ("d", 4), ("e", 5)]);
        for (after, upstream, is_last, expected) in [
            (None, [("a", 1), ("b", 2)].as_slice(), false, [].as_slice()),
            (None, &[("a", 1), ("d", 4)], false, &["b"]),
            (Some("a"), &[("b", 2), ("d", 4)], false, &[]),
            (Some("b"), &[("d", 4)], true, &["e"]),
            (Some("e"), &[], true, &[]),
            (Some("d"), &[], true, &["e"]),
        ] {
            assert_eq!(
                found(&cached, &cached, &listed(9, upstream, is_last), after),
                expected,
                "{after:?} {upstream:?}"
            );
        }
    }

    #[test]
    fn changes_between_two_snapshots_are_not_reported_as_differences() {
        let (before, after) = (state(10, &[("a", 1), ("b", 2)]), state(20, &[("a", 1), ("b", 18), ("c", 17)]));
        for (what, upstream, expected) in [
            ("as it was before", [("a", 1), ("b", 2)].as_slice(), [].as_slice()),
            ("came and went in between", &[("a", 1), ("b", 2), ("x", 13)], &[]),
            ("changed and changed again", &[("a", 1), ("b", 12)], &[]),
            ("went and came again", &[("a", 1)], &[]),
            ("was never known here", &[("a", 1), ("b", 2), ("x", 3)], &["x"]),
            ("went and is still cached", &[("b", 2)], &["a"]),
            ("changed and is still cached as it was", &[("a", 14), ("b", 2)], &["a"]),
        ] {
            assert_eq!(found(&before, &after, &listed(15, upstream, true), None), expected, "{what}");
        }
    }

    #[test]
    fn bytes_are_compared_only_for_the_same_version_and_encoder() {
        let cached = Arc::new(object("a", 1, ""));
        let (other, later) = (object("a", 1, r#","spec":{}"#), object("a", 2, ""));
        for (mine, upstream, alike, expected) in [
            (Some(&cached), Some(&*cached), true, None),
            (Some(&cached), Some(&other), false, None),
            (Some(&cached), Some(&other), true, Some(ObjectDiscrepancy::Bytes)),
            (Some(&cached), Some(&later), false, Some(ObjectDiscrepancy::Version)),
            (Some(&cached), None, false, Some(ObjectDiscrepancy::Deleted)),
            (None, Some(&other), false, Some(ObjectDiscrepancy::Missing)),
            (None, None, true, None),
        ] {
            assert_eq!(ObjectDiscrepancy::between(mine, upstream, alike), expected);
        }
    }
}

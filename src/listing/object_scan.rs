//! Scans of objects one by one for a selector, with pauses.

use std::sync::Arc;

use super::scan_pacer::ScanPacer;
use crate::auth::{NamespaceAccess, ReadPermission};
use crate::cache::{CollectionView, FeedSnapshot};
use crate::wire::ObjectRevision;
use kubeapi::ObjectKey;

/// Passes the objects that the caller may see and that `view` matches to `select`, until it returns false. Permissions
/// are checked first: the selector is never evaluated on an object that the caller may not see.
pub(super) async fn scan<'a>(
    objects: impl Iterator<Item = &'a Arc<ObjectRevision>>,
    (permit, view): (&'a ReadPermission, &CollectionView),
    pace: &mut ScanPacer,
    mut select: impl FnMut(&'a Arc<ObjectRevision>) -> bool,
) {
    // Adjacent objects are mostly of one namespace, which is checked once.
    let mut last: Option<(&str, NamespaceAccess)> = None;
    let mut sees = |key: &'a ObjectKey| match (&last, key.namespace_or_name()) {
        (Some((checked, access)), namespace) if *checked == namespace => access.allows(key.name()),
        (_, namespace) => last.insert((namespace, permit.access(namespace))).1.allows(key.name()),
    };
    for object in objects {
        if pace.spend(view.cost_of(object)) {
            pace.rest_after_scan().await;
        }
        if sees(&object.key) && view.matches(object) && !select(object) {
            break;
        }
    }
}

/// Returns the first object that the caller may read and that `view` matches.
pub(super) async fn first<'a>(
    objects: impl Iterator<Item = &'a Arc<ObjectRevision>>,
    seen: (&'a ReadPermission, &CollectionView),
    pace: &mut ScanPacer,
) -> Option<&'a Arc<ObjectRevision>> {
    let mut first = None;
    scan(objects, seen, pace, |object| first.replace(object).is_some()).await;
    first
}

/// Returns up to `limit` namespaces that have an object in `view`, or that are one, in key order, from the first key that is not before
/// `start`. It skips the rest of a namespace after its first match.
pub(crate) async fn namespaces(
    snapshot: &FeedSnapshot,
    (view, namespaced): (&CollectionView, bool),
    start: Option<&str>,
    limit: usize,
    pace: &mut ScanPacer,
) -> Vec<Arc<str>> {
    let (mut found, mut start) = (Vec::<Arc<str>>::new(), start.map(str::to_owned));
    'namespaces: while found.len() < limit {
        for object in snapshot.scan_candidates(view, namespaced, start.as_deref()) {
            if pace.spend(view.cost_of(object)) {
                pace.rest_after_scan().await;
            }
            if view.matches(object) {
                let namespace = object.key.namespace_or_name();
                found.push(namespace.into());
                // '0' is the character after '/'.
                start = Some(format!("{namespace}{}", if namespaced { '0' } else { '\0' }));
                continue 'namespaces;
            }
        }
        break;
    }
    found
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::listing::{CallerCpuSlices, ScanQueue};
    use crate::wire::{FeedEncoding, JsonLayout, ObjectReader};
    use kubeapi::{FieldSelector, Gvr, LabelSelector, ResourceVersion, SelectableFieldTable, Selector};

    /// Pods in namespaces with common prefixes: `-` and `.` sort before `/` (R-LIST-4).
    fn snapshot() -> FeedSnapshot {
        let pods = [("t1", "p"), ("t1", "q"), ("t1-a", "p"), ("t1.a", "p"), ("a", "p"), ("b", "p"), ("t1", "a")];
        let item = |(namespace, name)| {
            format!(r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","resourceVersion":"1"}}}}"#)
        };
        let head = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"100"},"items":["#;
        let page = format!("{head}{}]}}", pods.map(item).join(","));
        let reader = ObjectReader::new(FeedEncoding::Json, JsonLayout::BuiltIn, Arc::default());
        let listed = reader.list(&Bytes::from(page)).expect("it is well-formed");
        FeedSnapshot::from_objects(ResourceVersion(100), listed.items)
    }

    #[tokio::test]
    async fn namespaces_are_found_once_in_object_order() {
        let (snapshot, table) = (snapshot(), SelectableFieldTable::of_builtin(&Gvr::new("", "v1", "pods")));
        for (labels, fields, start, limit, expected) in [
            ("", "", None, 9, vec!["a", "b", "t1-a", "t1.a", "t1"]),
            ("", "", None, 2, vec!["a", "b"]),
            ("", "metadata.name=a", None, 9, vec!["t1"]),
            ("", "metadata.namespace=t1", None, 9, vec!["t1"]),
            ("app=y", "", None, 9, vec![]),
            ("", "", Some("t1-a/p"), 9, vec!["t1-a", "t1.a", "t1"]),
            ("", "", Some("t1-a/p\0"), 9, vec!["t1.a", "t1"]),
        ] {
            let fields = FieldSelector::parse(fields).expect("valid").compile(&table).expect("known fields");
            let selector = Selector { labels: LabelSelector::parse(labels).expect("valid"), fields };
            let view = CollectionView::new(None, selector);
            let mut pace = ScanPacer::new(None, (ScanQueue::at_a_time(1), CallerCpuSlices::new(1)), None);
            let found = namespaces(&snapshot, (&view, true), start, limit, &mut pace).await;
            assert_eq!(found.iter().map(|name| &**name).collect::<Vec<_>>(), expected, "{labels:?} {start:?} {limit}");
        }
    }
}

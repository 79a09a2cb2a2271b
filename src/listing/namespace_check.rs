//! Scans of objects one by one for a selector, with pauses.

use std::sync::Arc;

use super::page_chunks::PageChunks;
use super::scan_pace::ScanPace;
use crate::auth::Permit;
use crate::cache::{Snapshot, View};
use crate::wire::Object;

/// Decides which objects the caller may read. It caches the result for adjacent objects of one namespace.
struct NamespaceCheck<'a> {
    permit: &'a Permit,
    last: Option<(&'a str, bool)>,
}

impl<'a> NamespaceCheck<'a> {
    fn new(permit: &'a Permit) -> Self {
        Self { permit, last: None }
    }

    fn sees(&mut self, namespace: &'a str) -> bool {
        if let Some((_, sees)) = self.last.filter(|(last, _)| *last == namespace) {
            return sees;
        }
        let sees = self.permit.sees(namespace);
        self.last = Some((namespace, sees));
        sees
    }
}

/// Appends the objects that the caller may see and that `view` matches, up to `limit`. Permissions are checked first:
/// the selector is never evaluated on an object that the caller may not see.
pub(crate) async fn pick<'a>(
    chunks: &mut PageChunks,
    looked_at: impl Iterator<Item = &'a Arc<Object>>,
    (permit, view): (&'a Permit, &View),
    limit: usize,
    pace: &mut ScanPace,
) {
    let (mut picking, mut picked, mut check) = (chunks.picking(), 0, NamespaceCheck::new(permit));
    for object in looked_at {
        if picked == limit {
            break;
        }
        if pace.spend(view.cost_of(object)) {
            pace.rest_from_looking().await;
        }
        if check.sees(object.key.namespace()) && view.matches(object) {
            chunks.pick(&mut picking, object);
            picked += 1;
        }
    }
    chunks.end_picking(picking);
}

/// Returns the first object that the caller may read and that `view` matches.
pub(crate) async fn first<'a>(
    looked_at: impl Iterator<Item = &'a Arc<Object>>,
    (permit, view): (&'a Permit, &View),
    pace: &mut ScanPace,
) -> Option<&'a Arc<Object>> {
    let mut check = NamespaceCheck::new(permit);
    for object in looked_at {
        if pace.spend(view.cost_of(object)) {
            pace.rest_from_looking().await;
        }
        if check.sees(object.key.namespace()) && view.matches(object) {
            return Some(object);
        }
    }
    None
}

/// Returns up to `limit` namespaces that have an object in `view`, in key order, from the first key that is not before
/// `start`. It skips the rest of a namespace after its first match.
pub(crate) async fn namespaces(
    snapshot: &Snapshot,
    view: &View,
    start: Option<&str>,
    limit: usize,
    pace: &mut ScanPace,
) -> Vec<Arc<str>> {
    let (mut found, mut start) = (Vec::<Arc<str>>::new(), start.map(str::to_owned));
    'namespaces: while found.len() < limit {
        for object in snapshot.looked_at(view, true, start.as_deref()) {
            if pace.spend(view.cost_of(object)) {
                pace.rest_from_looking().await;
            }
            if view.matches(object) {
                let namespace = object.key.namespace();
                found.push(namespace.into());
                // '0' is the character after '/'.
                start = Some(format!("{namespace}0"));
                continue 'namespaces;
            }
        }
        break;
    }
    found
}

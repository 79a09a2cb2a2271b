//! The cost of selections, the amount of work done at once, and the limits above which requests pass through to
//! upstream.
//!
//! The unit of cost is one text comparison, some ten nanoseconds. One label of a pod takes 23 ns, and three take 50 ns
//! (benches/README.md). Accessing an object of a large collection takes 0.4 µs and counts as forty.

use crate::cache::{CollectionView, FeedSnapshot};
use kubeapi::Selector;

/// The selector cost between two yields to other tasks: about a millisecond of work.
pub(crate) const SLICE: usize = 100_000;
/// The selector cost that a watch may incur without a CPU slice.
pub(crate) const FREE_SCAN_COST: usize = SLICE / 4;
/// The cost of converting one object for a single client, if it is not cached: ten microseconds or more.
pub(crate) const DERIVED: usize = 1_000;
/// The cost of compressing one byte for a single client: ten nanoseconds.
pub(crate) const COMPRESSED_BYTE: usize = 1;
/// The cost up to which a scan needs no turn.
pub(crate) const SMALL: usize = SLICE;
/// The maximum selector cost of a LIST, in addition to accessing the objects: a sixth of a second in all. Ten
/// requirements on 100,000 pods cost 6 million, one on a million pods as much. The worst 16 KiB selector costs about 14
/// million on 10,000 objects. A more expensive LIST is forwarded.
pub(crate) const LIST_COMPARISONS_MAX: usize = 16_000_000;
/// The limit of a watch's selector cost per object, for any number of labels. A selector is evaluated twice per event.
/// Ten requirements cost 50; the limit allows 130 different keys. A more expensive watch is forwarded.
pub(crate) const WATCH_COMPARISONS_MAX: usize = 1_024;

/// The number up to which the objects of a namespace are counted; a larger namespace counts as the whole collection.
const COUNTED_MAX: usize = 1_000;

/// Returns an upper bound of the cost of finding the objects that match `view`.
pub(crate) fn scan_cost(view: &CollectionView, namespaced: bool, snapshot: &FeedSnapshot) -> usize {
    if view.selector().is_everything() { 0 } else { of_objects(view, objects(view, namespaced, snapshot)) }
}

/// Returns the cost of a LIST; `None` if it exceeds the limit.
pub(crate) fn list_cost(view: &CollectionView, namespaced: bool, snapshot: &FeedSnapshot) -> Option<usize> {
    if view.selector().is_everything() {
        return Some(0);
    }
    let objects = objects(view, namespaced, snapshot);
    is_for_objects(view, objects).then(|| of_objects(view, objects))
}

/// Returns an upper bound of the objects to scan.
fn objects(view: &CollectionView, namespaced: bool, snapshot: &FeedSnapshot) -> usize {
    if view.selector().is_contradictory() {
        return 0;
    }
    let is_narrow = view.single(namespaced).is_some() || view.namespace().is_some();
    let counted = || snapshot.scan_candidates(view, namespaced, None).take(COUNTED_MAX).count();
    match is_narrow.then(counted) {
        Some(counted) if counted < COUNTED_MAX => counted,
        _ => snapshot.len(),
    }
}

fn is_for_objects(view: &CollectionView, objects: usize) -> bool {
    objects.saturating_mul(view.comparison_estimate()) <= LIST_COMPARISONS_MAX
}

fn of_objects(view: &CollectionView, objects: usize) -> usize {
    objects.saturating_mul(view.cost_estimate())
}

/// Returns whether a watch with the selector is cheap enough to be served from the cache.
pub(crate) fn is_watchable(selector: &Selector) -> bool {
    selector.comparisons_at_most() <= WATCH_COMPARISONS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubeapi::{FieldSelector, Gvr, LabelSelector, SelectableFieldTable};

    fn view(labels: &str, fields: &str) -> CollectionView {
        let table = SelectableFieldTable::of_builtin(&Gvr::new("", "v1", "pods"));
        let fields = FieldSelector::parse(fields).expect("valid").compile(&table).expect("known fields");
        CollectionView::new(
            None,
            Selector { labels: LabelSelector::parse(labels).expect("valid"), fields, ..Selector::default() },
        )
    }

    fn many(each: impl Fn(usize) -> String, separator: &str) -> String {
        (0..).map(each).take(1_300).collect::<Vec<_>>().join(separator)
    }

    /// The attack used three thousand objects, the documented limit is about ten thousand, and ordinary use is a
    /// hundred.
    #[test]
    fn only_expensive_selectors_are_forwarded_upstream() {
        let ten = "a=1,b=2,c in (x,y,z),d!=4,e notin (p,q),f,!g,h>5,i,j=0";
        let keys = many(|n| format!("!k{n:04}"), ",");
        let sets = (0..40).map(|key| format!("k{key} notin ({})", many(|n| format!("v{n}"), ",").split_at(300).0));
        let sets = sets.collect::<Vec<_>>().join(",");
        let long = (0..40).map(|n| format!("{}.{n}/{}", "p".repeat(240), "n".repeat(60))).collect::<Vec<_>>().join(",");
        let phases = many(|n| format!("status.phase!={n}"), ",");
        let phases = phases[..16_000].rsplit_once(',').expect("many").0;
        for (what, labels, fields, objects, in_lists, in_watches) in [
            ("nothing", "", "", 10_000_000, true, true),
            ("an app", "app=x", "", 1_000_000, true, true),
            ("a node", "", "spec.nodeName=n", 1_000_000, true, true),
            ("ten requirements", ten, "", 100_000, true, true),
            ("ten, of very many", ten, "", 1_000_000, false, true),
            ("the same one over and over", &"!aa,".repeat(3_000), "", 1_000_000, true, true),
            ("thousands of keys", &keys, "", 10_000, true, false),
            ("thousands of keys, of many", &keys, "", 200_000, false, false),
            ("a contradiction", &format!("{keys},k0000"), "", 10_000_000, true, true),
            ("a set of thousands", &format!("a in ({})", many(|n| format!("v{n}"), ",")), "", 800_000, true, true),
            ("sets", &sets, "", 100_000, false, true),
            ("long names", &long, "", 200_000, false, false),
            ("a long field selector", "", phases, 500_000, true, true),
        ] {
            let view = view(labels.trim_end_matches(','), fields);
            let usual = view.comparison_estimate();
            assert_eq!(is_for_objects(&view, objects), in_lists, "{what}: {usual}");
            let at_most = view.selector().comparisons_at_most();
            assert_eq!(is_watchable(view.selector()), in_watches, "{what}: {at_most}");
        }
    }

    #[test]
    fn scan_that_skips_the_queue_costs_at_most_one_millisecond() {
        for (labels, objects, is_small) in [("app=x", 2_000, true), ("app=x", 3_000, false)] {
            assert_eq!(of_objects(&view(labels, ""), objects) <= SMALL, is_small, "{labels} {objects}");
        }
    }
}

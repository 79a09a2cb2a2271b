//! What selections cost, how much of that is done at once, and what passes through because it costs too much.
//!
//! A cost is a number of texts that are compared, some ten nanoseconds each. benches/README.md has 23 ns for one label
//! of a pod and 50 ns for three. To reach an object of a large collection takes 0.4 µs, which counts as forty.

use crate::cache::{Snapshot, View};
use kubeapi::Selector;

/// The work that is done between two yields to other tasks: about a millisecond.
pub(crate) const SLICE: usize = 100_000;
/// The work that a watch may do without waiting for a slice.
pub(crate) const GLANCE: usize = SLICE / 4;
/// The cost of writing one object in another encoding for one client alone: ten microseconds and more, if nobody has
/// done it before.
pub(crate) const DERIVED: usize = 1_000;
/// Work up to this cost needs no turn.
pub(crate) const SMALL: usize = SLICE;
/// The selectors of a LIST may cost this much beyond looking at the objects: a sixth of a second in all. Ten
/// requirements on 100,000 pods are 6 million, one on a million as much, and the worst of 16 KiB is about 14 million on
/// 10,000 objects. A dearer LIST passes through.
pub(crate) const LIST_COMPARISONS_MAX: usize = 16_000_000;
/// The selectors of a watch may cost this much for one object, however many labels it has: they are evaluated twice for
/// every event. Ten requirements are 50; 130 different keys are the most. A dearer watch passes through.
pub(crate) const WATCH_COMPARISONS_MAX: usize = 1_024;

/// Objects of a namespace are counted up to here; a larger namespace is taken for the whole collection.
const COUNTED_MAX: usize = 1_000;

/// The cost of finding what `view` sees, at most.
pub(crate) fn of_scan(view: &View, namespaced: bool, snapshot: &Snapshot) -> usize {
    if view.selector().is_everything() { 0 } else { of_objects(view, objects(view, namespaced, snapshot)) }
}

/// The cost for a LIST; `None` if it is more than a LIST may cost.
pub(crate) fn of_list(view: &View, namespaced: bool, snapshot: &Snapshot) -> Option<usize> {
    if view.selector().is_everything() {
        return Some(0);
    }
    let objects = objects(view, namespaced, snapshot);
    is_for_objects(view, objects).then(|| of_objects(view, objects))
}

/// How many objects have to be looked at, at most.
fn objects(view: &View, namespaced: bool, snapshot: &Snapshot) -> usize {
    if view.selector().is_impossible() {
        return 0;
    }
    let is_narrow = view.single(namespaced).is_some() || view.namespace().is_some();
    let counted = || snapshot.looked_at(view, namespaced, None).take(COUNTED_MAX).count();
    match is_narrow.then(counted) {
        Some(counted) if counted < COUNTED_MAX => counted,
        _ => snapshot.len(),
    }
}

fn is_for_objects(view: &View, objects: usize) -> bool {
    objects.saturating_mul(view.usual_comparisons()) <= LIST_COMPARISONS_MAX
}

fn of_objects(view: &View, objects: usize) -> usize {
    objects.saturating_mul(view.usual_cost())
}

/// Whether a watch with this selector is served here.
pub(crate) fn is_for_watch(selector: &Selector) -> bool {
    selector.comparisons_at_most() <= WATCH_COMPARISONS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubeapi::{FieldSelector, FieldTable, Gvr, LabelSelector};

    fn view(labels: &str, fields: &str) -> View {
        let table = FieldTable::of_builtin(&Gvr::new("", "v1", "pods"), true);
        let fields = FieldSelector::parse(fields).expect("valid").compile(&table).expect("known fields");
        View::new(None, Selector { labels: LabelSelector::parse(labels).expect("valid"), fields })
    }

    fn many(each: impl Fn(usize) -> String, separator: &str) -> String {
        (0..).map(each).take(1_300).collect::<Vec<_>>().join(separator)
    }

    /// The attack was on three thousand objects, the promise is about ten thousand, and ordinary use is a hundred.
    #[test]
    fn what_is_usual_stays_here_and_what_is_dear_passes_through() {
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
            let usual = view.usual_comparisons();
            assert_eq!(is_for_objects(&view, objects), in_lists, "{what}: {usual}");
            let at_most = view.selector().comparisons_at_most();
            assert_eq!(is_for_watch(view.selector()), in_watches, "{what}: {at_most}");
        }
    }

    #[test]
    fn what_needs_no_turn_is_about_a_millisecond() {
        for (labels, objects, is_small) in [("app=x", 2_000, true), ("app=x", 3_000, false)] {
            assert_eq!(of_objects(&view(labels, ""), objects) <= SMALL, is_small, "{labels} {objects}");
        }
    }
}

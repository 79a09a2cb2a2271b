//! L1 and L4: a snapshot is the state at its version, in the apiserver's order, and stays unchanged for paging clients.

use std::time::Duration;

use tokio::time::advance;

use super::fixture::{POD, Pod, added, deleted, listed, ring, rv, short_lanes, shown, snapshot, view};
use crate::cache::{CacheConfig, CacheReader, CollectionView, FeedSnapshot};
use kubeapi::ObjectKey;

/// Namespaces with common prefixes: `-` and `.` sort before `/` (R-LIST-4).
fn crowd() -> FeedSnapshot {
    let pods = [("t1", "p"), ("t1", "q"), ("t1-a", "p"), ("t1.a", "p"), ("a", "p"), ("b", "p"), ("t1", "a")];
    let pods: Vec<_> =
        pods.into_iter().zip(1..).map(|((namespace, name), rv)| (Pod { namespace, name, ..POD }, rv)).collect();
    snapshot(100, &pods)
}

#[test]
fn objects_are_sorted_bytewise_by_namespace_slash_name() {
    let all = ["a/p 5", "b/p 6", "t1-a/p 3", "t1.a/p 4", "t1/a 7", "t1/p 1", "t1/q 2"];
    assert_eq!(shown(&crowd(), &CollectionView::everything()), all);
}

#[test]
fn namespace_view_excludes_namespaces_with_the_same_prefix() {
    for (namespace, labels, fields, expected) in [
        ("t1", "", "", vec!["t1/a 7", "t1/p 1", "t1/q 2"]),
        ("t1-a", "", "", vec!["t1-a/p 3"]),
        ("t1.a", "", "", vec!["t1.a/p 4"]),
        ("", "", "metadata.namespace=t1", vec!["t1/a 7", "t1/p 1", "t1/q 2"]),
        ("t1", "", "metadata.name=p", vec!["t1/p 1"]),
        ("t1", "", "metadata.name=gone", vec![]),
        ("t1", "", "metadata.name!=p", vec!["t1/a 7", "t1/q 2"]),
        ("t1", "", "metadata.name=p,metadata.name=q", vec![]),
        ("t1", "", "metadata.namespace=a", vec![]),
        ("gone", "", "", vec![]),
        ("t", "", "", vec![]),
        ("t1", "app=y", "", vec![]),
        ("", "", "metadata.name=p", vec!["a/p 5", "b/p 6", "t1-a/p 3", "t1.a/p 4", "t1/p 1"]),
    ] {
        assert_eq!(shown(&crowd(), &view(namespace, labels, fields)), expected, "{namespace:?} {labels:?} {fields:?}");
    }
}

#[test]
fn page_starts_at_the_first_key_at_or_after_its_start() {
    for (namespace, fields, start, expected) in [
        ("", "", "", 7),
        ("", "", "b/p", 6),
        // The successor of the previous page's last key: that key and a NUL.
        ("", "", "b/p\0", 5),
        ("", "", "t1/", 3),
        ("", "", "t1/q\0", 0),
        ("", "", "zzz", 0),
        ("t1", "", "t1/p", 2),
        ("t1", "", "t1/p\0", 1),
        ("t1", "", "t1/q\0", 0),
        // Outside of the namespace on either side.
        ("t1", "", "a/p", 3),
        ("t1", "", "t10", 0),
        ("t1", "", "zzz", 0),
        ("t1", "metadata.name=p", "t1/p", 1),
        ("t1", "metadata.name=p", "t1/p\0", 0),
        ("t1", "metadata.name=p", "t1/a", 1),
        ("t1", "metadata.name=p", "t1/q", 0),
    ] {
        let (snapshot, view) = (crowd(), view(namespace, "", fields));
        let n = snapshot.select(&view, true, Some(start)).count();
        assert_eq!(n, expected, "{namespace:?} {fields:?} from {start:?}");
    }
}

#[test]
fn pages_of_any_size_add_up_to_the_full_list() {
    let snapshot = crowd();
    for view in [CollectionView::everything(), view("t1", "", ""), view("", "app=x", "metadata.name=p")] {
        let whole = shown(&snapshot, &view);
        for size in 1..=whole.len() {
            let mut paged = Vec::new();
            let mut start: Option<String> = None;
            loop {
                let page: Vec<_> = snapshot.select(&view, true, start.as_deref()).take(size).collect();
                let Some(last) = page.last() else { break };
                start = Some(format!("{}\0", last.key));
                paged.extend(page.iter().map(|object| format!("{} {}", object.key, object.rv)));
            }
            assert_eq!(paged, whole, "pages of {size}");
        }
    }
}

#[test]
fn last_object_wins_if_a_list_repeats_a_key() {
    let listed = [(POD, 1), (Pod { app: "y", ..POD }, 2)];
    let snapshot = snapshot(10, &listed);
    assert_eq!(shown(&snapshot, &CollectionView::everything()), ["a/p 2"]);
    let object = snapshot.get(&ObjectKey::new("a", "p")).expect("it is there");
    assert_eq!(object.attributes.label("app"), Some("y"));
    assert_eq!((snapshot.len(), snapshot.is_empty()), (1, false));
}

#[test]
fn snapshot_is_unchanged_by_later_writes() {
    let (mut writer, reader) = listed(ring(2), 10, &[(POD, 5)]);
    let before = reader.snapshot();
    for version in 11..20 {
        writer.apply([added(&Pod { name: "q", ..POD }, version)]).expect("in order");
    }
    writer.apply([deleted(&POD, 20)]).expect("in order");
    writer.replace(snapshot(30, &[]));
    assert_eq!((before.rv, shown(&before, &CollectionView::everything())), (rv(10), vec!["a/p 5".to_owned()]));
    assert!(reader.snapshot().is_empty());
}

fn versions(reader: &CacheReader, range: std::ops::RangeInclusive<u64>) -> Vec<u64> {
    range.filter(|version| reader.snapshot_at(rv(*version)).is_some()).collect()
}

#[test]
fn snapshot_at_covers_versions_from_last_event_to_progress() {
    let (mut writer, reader) = listed(ring(10), 10, &[(POD, 5)]);
    assert_eq!(versions(&reader, 8..=12), [10]);
    writer.advance(rv(12), false);
    assert_eq!(versions(&reader, 8..=14), [10, 11, 12]);
    writer.apply([added(&POD, 14)]).expect("in order");
    assert_eq!(versions(&reader, 8..=16), [14]);
    writer.advance(rv(16), true);
    assert_eq!(versions(&reader, 8..=18), [14, 15, 16]);
    let at = reader.snapshot_at(rv(15)).expect("nothing happened since 14");
    assert_eq!((at.rv, shown(&at, &CollectionView::everything())), (rv(15), vec!["a/p 14".to_owned()]));
}

fn holding(snapshots: usize, age: u64) -> CacheConfig {
    CacheConfig { held_snapshots_max: snapshots, held_snapshot_age_max: Duration::from_secs(age), ..short_lanes() }
}

/// Lists and keeps one snapshot for every version.
fn hold_all(config: CacheConfig, last: u64) -> (crate::cache::CacheWriter, CacheReader) {
    let (mut writer, reader) = listed(config, 10, &[]);
    for version in 11..=last {
        writer.apply([added(&POD, version)]).expect("in order");
        reader.keep_for_paging(&reader.snapshot());
    }
    (writer, reader)
}

#[test]
fn pinned_snapshot_serves_the_next_page() {
    let (mut writer, reader) = hold_all(holding(64, 300), 11);
    writer.apply([deleted(&POD, 12)]).expect("in order");
    let held = reader.snapshot_at(rv(11)).expect("it is held");
    assert_eq!((held.rv, shown(&held, &CollectionView::everything())), (rv(11), vec!["a/p 11".to_owned()]));
    assert!(reader.snapshot_at(rv(10)).is_none(), "no client pages through it");
}

#[test]
fn least_recently_read_snapshot_is_evicted_first() {
    let (mut writer, reader) = hold_all(holding(3, 300), 13);
    assert!(reader.snapshot_at(rv(11)).is_some(), "a page of the oldest is read");
    writer.apply([added(&POD, 14)]).expect("in order");
    reader.keep_for_paging(&reader.snapshot());
    assert_eq!(versions(&reader, 11..=14), [11, 13, 14]);
}

#[test]
fn pinning_a_snapshot_again_takes_no_second_slot() {
    let (mut writer, reader) = hold_all(holding(2, 300), 12);
    for _ in 0..3 {
        reader.keep_for_paging(&reader.snapshot_at(rv(11)).expect("it is held"));
    }
    writer.advance(rv(20), false);
    assert_eq!(versions(&reader, 11..=11), [11]);
    writer.apply([added(&POD, 21)]).expect("in order");
    assert_eq!(versions(&reader, 12..=12), [12]);
}

#[tokio::test(start_paused = true)]
async fn paging_snapshot_expires_despite_page_reads() {
    let (mut writer, reader) = hold_all(holding(64, 300), 11);
    advance(Duration::from_secs(200)).await;
    reader.keep_for_paging(&reader.paging_snapshot(rv(11)).expect("a page of it is read, and there are more"));
    writer.apply([added(&POD, 12)]).expect("in order");
    reader.keep_for_paging(&reader.snapshot());
    advance(Duration::from_secs(200)).await;
    assert!(reader.paging_snapshot(rv(11)).is_none(), "its first page was read 400 seconds ago");
    assert!(reader.paging_snapshot(rv(12)).is_some(), "half of that");
    advance(Duration::from_secs(100)).await;
    assert!(reader.paging_snapshot(rv(12)).is_none(), "nor is it there for being the current state");
    assert_eq!(versions(&reader, 11..=12), [12]);
}

#[test]
fn relist_drops_snapshots_pinned_for_paging() {
    let (mut writer, reader) = hold_all(holding(64, 300), 12);
    let before = reader.snapshot();
    writer.replace(snapshot(50, &[]));
    assert_eq!(versions(&reader, 11..=12), Vec::<u64>::new());
    // A LIST that took its snapshot before the relist.
    reader.keep_for_paging(&before);
    assert!(reader.paging_snapshot(before.rv).is_none());
    drop(writer);
    reader.keep_for_paging(&reader.snapshot());
    assert!(reader.paging_snapshot(rv(50)).is_none(), "the feed has ended");
}

/// Later changes are undone as long as they are held.
#[test]
fn past_state_is_rebuilt_while_later_events_are_cached() {
    let pod = |name| Pod { name, ..POD };
    let (mut writer, reader) = listed(ring(3), 10, &[(pod("a"), 1), (pod("b"), 2)]);
    let everything = CollectionView::everything();
    let state = |at: u64| reader.past_snapshot(rv(at)).map(|past| (past.rv.0, shown(&past, &everything)));
    let mut then = Vec::new();
    for (change, at) in [
        (added(&pod("c"), 11), 11),
        (added(&pod("a"), 13), 13),
        (deleted(&pod("b"), 15), 15),
        (added(&pod("c"), 16), 16),
    ] {
        writer.apply([change]).expect("in order");
        writer.advance(rv(at), false);
        then.push((at, shown(&reader.snapshot(), &everything)));
        assert_eq!(state(at), then.last().cloned());
    }
    for (at, shown) in &then {
        assert_eq!(state(*at), Some((*at, shown.clone())));
    }
    assert_eq!(state(12).map(|(_, shown)| shown), Some(then[0].1.clone()), "nothing has happened at 12");
    assert_eq!((state(10), state(17)), (None, None), "what was before the window, and what is to come");
}

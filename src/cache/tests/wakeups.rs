//! Wake-ups: their receivers, causes and number. A lost wake-up stalls a watch; a needless one costs work for every
//! open watch.

use std::sync::Arc;
use std::task::{Wake, Waker};

use parking_lot::Mutex;

use super::fixture::{POD, Pod, WakeCounter, added, deleted, listed, pull_all, reported, ring, rv, snapshot, view};
use crate::cache::{
    CacheReader, CacheWriter, CollectionView, FeedCursor, FeedEndReason, FeedState, PullResult, WatchStartPosition,
};

/// A waiting reader at the end of its lane.
struct Parked {
    cursor: FeedCursor,
    wakes: Arc<WakeCounter>,
}

impl Parked {
    fn new(reader: &CacheReader, view: CollectionView) -> Self {
        let cursor = reader.open(WatchStartPosition::After(reader.progress().rv), view).expect("at the end").cursor;
        let mut parked = Self { cursor, wakes: Arc::default() };
        parked.park();
        parked
    }

    fn park(&mut self) {
        let pull = self.cursor.pull(1, Some(&self.wakes.waker()), &mut Vec::new());
        assert!(matches!(pull, PullResult::CaughtUp { .. }), "{pull:?}");
    }

    fn woken(&self) -> usize {
        self.wakes.woken()
    }
}

const KINDS: usize = 8;

/// Creates one reader in each kind of lane.
fn one_of_each(reader: &CacheReader) -> [Parked; KINDS] {
    let views = [
        CollectionView::everything(),
        view("a", "", ""),
        view("a", "", "metadata.name=p"),
        view("", "", "spec.nodeName=n1"),
        view("", "", "status.phase=Running"),
        view("", "app=x", ""),
        view("a", "app in (x,y)", ""),
        view("", "app", ""),
    ];
    views.map(|view| Parked::new(reader, view))
}

fn woken(readers: &[Parked; KINDS]) -> [usize; KINDS] {
    readers.each_ref().map(Parked::woken)
}

/// A pod that is only in the lane of all events.
const ELSEWHERE: Pod = Pod { namespace: "b", name: "q", app: "", node: "n2", note: 1 };

#[test]
fn event_wakes_only_readers_of_its_lanes() {
    for (pod, expected) in [
        (POD, [1, 1, 1, 1, 1, 1, 1, 1]),
        (Pod { name: "q", ..POD }, [1, 1, 0, 1, 1, 1, 1, 1]),
        (Pod { name: "q", node: "n2", ..POD }, [1, 1, 0, 0, 1, 1, 1, 1]),
        (Pod { namespace: "b", ..POD }, [1, 0, 0, 1, 1, 1, 0, 1]),
        (Pod { node: "", ..POD }, [1, 1, 1, 0, 1, 1, 1, 1]),
        (Pod { app: "y", ..POD }, [1, 1, 1, 1, 1, 0, 1, 1]),
        (Pod { app: "gone", ..POD }, [1, 1, 1, 1, 1, 0, 0, 1]),
        (Pod { app: "", ..POD }, [1, 1, 1, 1, 1, 0, 0, 0]),
        (Pod { note: 1, ..POD }, [1, 1, 1, 1, 0, 1, 1, 1]),
        (Pod { app: "x", ..ELSEWHERE }, [1, 0, 0, 0, 0, 1, 0, 1]),
        (ELSEWHERE, [1, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        let (mut writer, reader) = listed(ring(10), 10, &[]);
        let readers = one_of_each(&reader);
        writer.apply([added(&pod, 11)]).expect("in order");
        assert_eq!(woken(&readers), expected, "{pod:?}");
    }
}

/// More lanes for other labels than the object has labels, so the look-up uses the object's labels.
#[test]
fn event_wakes_its_label_lane_among_many_other_lanes() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let others = ["b", "c", "d", "e"].map(|label| Parked::new(&reader, view("", &format!("{label}=x"), "")));
    let mut app = Parked::new(&reader, view("", "app=x", ""));
    for (version, app_now, woken) in [(11, "x", 1), (12, "y", 2), (13, "y", 2), (14, "x", 3), (15, "", 4), (16, "", 4)]
    {
        writer.apply([added(&Pod { app: app_now, ..POD }, version)]).expect("in order");
        assert_eq!(app.woken(), woken, "at {version}");
        reported(&mut app.cursor);
        app.park();
    }
    assert!(others.iter().all(|other| other.woken() == 0));
}

#[test]
fn object_leaving_a_selector_wakes_its_readers() {
    let (mut writer, reader) = listed(ring(10), 10, &[(POD, 5)]);
    let readers = one_of_each(&reader);
    writer.apply([added(&Pod { node: "n2", app: "", note: 1, ..POD }, 11)]).expect("in order");
    assert_eq!(woken(&readers), [1; KINDS]);
}

/// Not every term of a selector has a lane: a reader woken without a matching event parks again.
#[test]
fn spurious_wakeup_delivers_no_unmatched_event() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let mut parked = Parked::new(&reader, view("", "app!=x", ""));
    writer.apply([added(&POD, 11)]).expect("in order");
    assert_eq!(parked.woken(), 1);
    parked.park();
    writer.apply([added(&Pod { app: "y", ..POD }, 12)]).expect("in order");
    assert_eq!(parked.woken(), 2);
    assert_eq!(reported(&mut parked.cursor), ["ADDED a/p 12"]);
}

#[test]
fn announced_bookmark_wakes_all_readers() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let mut readers = one_of_each(&reader);
    writer.advance(rv(20), true);
    assert_eq!(woken(&readers), [1; KINDS]);
    readers.iter_mut().for_each(Parked::park);
    writer.advance(rv(20), true);
    assert_eq!(woken(&readers), [2; KINDS], "the same bookmark again is upstream's sign of life");
}

#[test]
fn unannounced_progress_wakes_no_reader() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let readers = one_of_each(&reader);
    writer.advance(rv(20), false);
    assert_eq!(woken(&readers), [0; KINDS]);
    assert_eq!((reader.progress().rv, reader.progress().bookmarks), (rv(20), 0));
}

#[test]
fn rejected_or_duplicate_event_wakes_no_reader() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    writer.apply([added(&POD, 15)]).expect("in order");
    let readers = one_of_each(&reader);
    writer.apply([added(&POD, 15)]).expect("a duplicate");
    writer.apply([added(&ELSEWHERE, 12)]).expect_err("out of order");
    assert_eq!(woken(&readers), [0; KINDS]);
}

#[test]
fn end_of_history_wakes_all_readers() {
    let ends: [fn(CacheWriter) -> Option<CacheWriter>; 2] = [
        |mut writer| {
            writer.replace(snapshot(10, &[]));
            Some(writer)
        },
        |writer| {
            drop(writer);
            None
        },
    ];
    for end in ends {
        let (writer, reader) = listed(ring(10), 10, &[]);
        let mut readers = one_of_each(&reader);
        let _writer = end(writer);
        assert_eq!(woken(&readers), [1; KINDS]);
        for parked in &mut readers {
            assert_eq!(reported(&mut parked.cursor), ["expired 10"]);
        }
    }
}

#[test]
fn reader_is_woken_once_for_all_events_before_its_next_pull() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let mut parked = Parked::new(&reader, CollectionView::everything());
    for version in 11..=13 {
        writer.apply([added(&POD, version)]).expect("in order");
    }
    writer.advance(rv(20), true);
    assert_eq!(parked.woken(), 1);
    assert_eq!(reported(&mut parked.cursor).len(), 3);
    writer.apply([added(&POD, 21)]).expect("in order");
    assert_eq!(parked.woken(), 1, "it has looked without a bell since");
}

/// It need not pull again to learn that there are no more events.
#[test]
fn reader_that_drains_its_lane_is_parked_by_the_same_pull() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let mut cursor =
        reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("in the ring").cursor;
    let wakes = Arc::<WakeCounter>::default();
    writer.apply([added(&POD, 11)]).expect("in order");
    writer.apply([added(&POD, 12)]).expect("in order");
    let mut caught_up = || match cursor.pull(1, Some(&wakes.waker()), &mut Vec::new()) {
        PullResult::Frames { caught_up, .. } => caught_up.map(|progress| progress.rv.0),
        pull => panic!("{pull:?}"),
    };
    assert_eq!([caught_up(), caught_up()], [None, Some(12)], "there was room for one at a time");
    writer.apply([added(&POD, 13)]).expect("in order");
    assert_eq!(wakes.woken(), 1);
}

/// Otherwise it would miss a bookmark that arrived while it was awake.
#[test]
fn caught_up_reader_learns_the_feed_progress() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let mut cursor =
        reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("in the ring").cursor;
    writer.apply([added(&POD, 11)]).expect("in order");
    writer.advance(rv(15), true);
    let pull = cursor.pull(1, None, &mut Vec::new());
    let PullResult::Frames { last, caught_up: Some(progress), .. } = pull else { panic!("{pull:?}") };
    assert_eq!((last.0, progress.rv.0, progress.bookmarks), (11, 15, 1));
}

#[test]
fn last_registered_waker_replaces_the_previous() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let mut parked = Parked::new(&reader, CollectionView::everything());
    let first = std::mem::take(&mut parked.wakes);
    parked.park();
    writer.apply([added(&POD, 11)]).expect("in order");
    assert_eq!((first.woken(), parked.woken()), (0, 1));
}

#[test]
fn pull_without_a_waker_keeps_the_registered_waker() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let mut parked = Parked::new(&reader, CollectionView::everything());
    assert_eq!(reported(&mut parked.cursor), Vec::<String>::new());
    writer.apply([added(&POD, 11)]).expect("in order");
    assert_eq!(parked.woken(), 1);
}

#[test]
fn dropped_reader_is_not_woken_and_its_slot_is_reused() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let (gone, stays) =
        (Parked::new(&reader, CollectionView::everything()), Parked::new(&reader, CollectionView::everything()));
    let wakes = gone.wakes.clone();
    drop(gone);
    // It reuses the freed slot.
    let next = Parked::new(&reader, CollectionView::everything());
    writer.apply([added(&POD, 11)]).expect("in order");
    assert_eq!((wakes.woken(), stays.woken(), next.woken()), (0, 1, 1));
}

/// A leaving reader's entry is reused by another; the other readers must keep theirs.
#[test]
fn leaving_readers_do_not_unregister_remaining_readers() {
    for leave in [[0, 1, 2], [4, 3, 2], [0, 4, 2], [1, 0, 3], [3, 4, 0]] {
        let (mut writer, reader) = listed(ring(10), 10, &[]);
        let mut readers: Vec<_> = (0..5).map(|_| Some(Parked::new(&reader, CollectionView::everything()))).collect();
        let counters: Vec<_> = readers.iter().flatten().map(|parked| parked.wakes.clone()).collect();
        for gone in leave {
            readers[gone] = None;
        }
        writer.apply([added(&POD, 11)]).expect("in order");
        for (place, wakes) in counters.iter().enumerate() {
            assert_eq!(wakes.woken(), usize::from(!leave.contains(&place)), "reader {place} after {leave:?} left");
        }
    }
}

#[test]
fn waker_is_dropped_after_wakeup_and_with_its_reader() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let mut parked = Parked::new(&reader, view("a", "", ""));
    assert_eq!(Arc::strong_count(&parked.wakes), 2);
    writer.apply([added(&POD, 11)]).expect("in order");
    assert_eq!(Arc::strong_count(&parked.wakes), 1);
    assert_eq!(reported(&mut parked.cursor).len(), 1);
    parked.park();
    let wakes = parked.wakes.clone();
    drop(parked);
    assert_eq!(Arc::strong_count(&wakes), 1);
}

#[tokio::test(start_paused = true)]
async fn waiter_completes_when_its_version_is_reached() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let poll = |waiting: &mut tokio::task::JoinHandle<()>| waiting.is_finished();
    let waits = |version| {
        let reader = reader.clone();
        tokio::spawn(async move { reader.reached(rv(version)).await })
    };
    let mut waiting = [10, 11, 15].map(waits);
    tokio::task::yield_now().await;
    assert_eq!(waiting.each_mut().map(poll), [true, false, false]);
    writer.apply([deleted(&POD, 12)]).expect("in order");
    tokio::task::yield_now().await;
    assert_eq!(waiting.each_mut().map(poll), [true, true, false]);
    writer.advance(rv(15), false);
    tokio::task::yield_now().await;
    assert_eq!(waiting.each_mut().map(poll), [true, true, true]);
}

#[test]
fn feed_with_dropped_writer_reads_as_ended() {
    for (last, seen) in [
        (FeedState::Live, FeedState::Ended(FeedEndReason::Shutdown)),
        (FeedState::Syncing, FeedState::Ended(FeedEndReason::Shutdown)),
        (FeedState::Ended(FeedEndReason::Gone), FeedState::Ended(FeedEndReason::Gone)),
    ] {
        let (mut writer, reader) = listed(ring(10), 10, &[]);
        writer.set_state(last);
        drop(writer);
        assert_eq!(reader.state(), seen, "{last:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_stale_state_keeps_its_first_timestamp() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let mut states = reader.watch_state();
    assert_eq!(reader.state(), FeedState::Syncing);
    writer.set_state(FeedState::Live);
    assert!(states.has_changed().expect("the feed lives"));
    states.mark_unchanged();
    let since = tokio::time::Instant::now();
    writer.set_state(FeedState::Stale { since });
    states.mark_unchanged();
    tokio::time::advance(std::time::Duration::from_secs(9)).await;
    writer.set_state(FeedState::Stale { since: tokio::time::Instant::now() });
    assert_eq!(reader.state(), FeedState::Stale { since });
    assert!(!states.has_changed().expect("the feed lives"), "nothing new for those who follow it");
    writer.set_state(FeedState::Live);
    writer.set_state(FeedState::Live);
    assert_eq!(reader.state(), FeedState::Live);
}

/// Records its name when it is woken.
struct Named(&'static str, Arc<Mutex<Vec<&'static str>>>);

impl Wake for Named {
    fn wake(self: Arc<Self>) {
        self.1.lock().push(self.0);
    }
}

/// In every lane, and for events and bookmarks: other clients wait for each proxy.
#[test]
fn downstream_proxies_are_woken_before_clients() {
    let (mut writer, reader) = listed(ring(100), 10, &[]);
    let order = Arc::<Mutex<Vec<_>>>::default();
    let open = |view: CollectionView| reader.open(WatchStartPosition::After(rv(10)), view).expect("in the ring").cursor;
    let mut readers = [
        ("a client", open(view("", "", ""))),
        ("a proxy", open(view("", "", "")).mark_as_proxy()),
        ("a client of the namespace", open(view(POD.namespace, "", ""))),
        ("a proxy of the namespace", open(view(POD.namespace, "", "")).mark_as_proxy()),
    ];
    let acts: [fn(&mut CacheWriter); 2] =
        [|writer| drop(writer.apply([added(&POD, 11)])), |writer| writer.advance(rv(12), true)];
    for act in acts {
        for (name, cursor) in &mut readers {
            pull_all(cursor);
            let waker = Waker::from(Arc::new(Named(name, order.clone())));
            assert!(matches!(cursor.pull(1, Some(&waker), &mut Vec::new()), PullResult::CaughtUp { .. }));
        }
        act(&mut writer);
        let woken = std::mem::take(&mut *order.lock());
        let expected = ["a proxy", "a proxy of the namespace", "a client", "a client of the namespace"];
        assert_eq!(woken, expected);
    }
}

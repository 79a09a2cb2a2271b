//! One writer and many readers in parallel, for errors that no order of whole steps can show. These are a wake-up lost
//! between two locks, a state and a position that do not match (F7), and two readers with different orders (W14).

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use super::fixture::{POD, Pod, Seen, change, listed, ring, rv, seen};
use super::want::Want;
use crate::cache::{CacheReader, CacheWriter, CollectionView, OpenedWatch, PullResult, WatchStartPosition};
use kubeapi::EventType::{self, Added, Deleted, Modified};

const EVENTS: u64 = 400;
const NAMES: [&str; 4] = ["p", "q", "r", "s"];

/// Returns the change at a version, the same in every run: objects are created, relabelled, moved and deleted.
fn happens(version: u64) -> (EventType, Pod) {
    let name = NAMES[usize::try_from(version % 4).expect("small")];
    let pod = |version: u64| Pod {
        namespace: if version % 8 < 4 { "a" } else { "b" },
        name,
        app: ["x", "y", ""][usize::try_from(version % 3).expect("small")],
        node: ["n1", "n2"][usize::try_from(version / 8 % 2).expect("small")],
        note: u32::try_from(version).expect("small"),
    };
    // Every object changes once per 8 versions: it is added, modified twice, and deleted with its last content.
    match version / 8 % 4 {
        0 => (Added, pod(version)),
        3 => (Deleted, pod(version - 8)),
        _ => (Modified, pod(version)),
    }
}

/// Two bookmarks close together: the second one is announced while the reader that the first one has woken looks.
#[test]
fn bookmark_announced_while_a_reader_looks_wakes_it() {
    const BOOKMARKS: u32 = 20_000;
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let OpenedWatch { mut cursor, .. } =
        reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("at the end");
    let (seen, sees) = std::sync::mpsc::channel();
    let follower = std::thread::spawn(move || {
        let waker = Waker::from(Arc::new(Unparked(std::thread::current())));
        loop {
            match cursor.pull(1, Some(&waker), &mut Vec::new()) {
                PullResult::CaughtUp { progress } if seen.send(progress.bookmarks).is_ok() => std::thread::park(),
                _ => return,
            }
        }
    });
    // A third thread makes the others wait for the lane between two of their steps.
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = is_over.clone();
    let crowd = std::thread::spawn(move || {
        let OpenedWatch { mut cursor, .. } =
            reader.open(WatchStartPosition::After(rv(10)), CollectionView::everything()).expect("at the end");
        while !ends.load(Ordering::Relaxed) {
            cursor.pull(1, None, &mut Vec::new());
        }
    });
    for announced in (2..=BOOKMARKS).step_by(2) {
        writer.advance(rv(9 + u64::from(announced)), true);
        writer.advance(rv(10 + u64::from(announced)), true);
        // The time-out only ends a hang.
        while sees.recv_timeout(Duration::from_secs(60)).expect("it has seen the second one") < announced {}
    }
    drop(sees);
    writer.advance(rv(11 + u64::from(BOOKMARKS)), true);
    follower.join().expect("it ends");
    is_over.store(true, Ordering::Relaxed);
    crowd.join().expect("it ends");
}

struct Unparked(Thread);

impl Wake for Unparked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

async fn write(mut writer: CacheWriter) -> CacheWriter {
    for version in 8..8 + EVENTS {
        let (event_type, pod) = happens(version);
        writer.apply([change(event_type, &pod, version)]).expect("in order");
        if version % 16 == 0 {
            writer.advance(rv(version), version % 32 == 0);
        }
        if version % 5 == 0 {
            tokio::task::yield_now().await;
        }
    }
    // A final wake-up for readers whose last event came earlier.
    writer.advance(rv(8 + EVENTS), true);
    writer
}

/// Follows until the last version. Returns the initial state, if any, and the events.
async fn follow(opened: OpenedWatch) -> (BTreeMap<String, u64>, Vec<Seen>) {
    let OpenedWatch { snapshot, mut cursor } = opened;
    let view = cursor.view().clone();
    let known = snapshot.iter().flat_map(|snapshot| snapshot.select(&view, true, None));
    let known = known.map(|object| (object.key.to_string(), object.rv.0)).collect();
    let mut reported = Vec::new();
    poll_fn(|cx| {
        loop {
            let mut frames = Vec::new();
            match cursor.pull(300, Some(cx.waker()), &mut frames) {
                PullResult::Frames { .. } => reported.extend(frames.iter().map(seen)),
                PullResult::CaughtUp { progress } if progress.rv.0 == 8 + EVENTS => return Poll::Ready(()),
                PullResult::CaughtUp { .. } => return Poll::Pending,
                PullResult::Expired { oldest } => panic!("expired at {oldest} in a ring that holds everything"),
                PullResult::Stopped(stop) => panic!("{stop:?}, of a reader without terms"),
                PullResult::Refused(refused) => panic!("{refused}, of what is not derived"),
            }
        }
    })
    .await;
    (known, reported)
}

fn expected(want: Want, after: u64) -> Vec<Seen> {
    let mut model = super::model::Model::new(usize::MAX);
    for version in 8..8 + EVENTS {
        let (event_type, pod) = happens(version);
        model.apply(event_type, pod, version);
    }
    model.reported(want, after, 0).into_iter().map(|(_, seen)| seen).collect()
}

/// Long enough for any machine, so only a lost wake-up exceeds it.
const STUCK: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wakeup_is_lost_under_concurrent_writes() {
    for _ in 0..20 {
        let (writer, reader) = listed(ring(10_000), 7, &[]);
        let readers = Want::ALL.map(|want| {
            let opened = reader.open(WatchStartPosition::After(rv(7)), want.view()).expect("in the ring");
            (want, tokio::spawn(follow(opened)))
        });
        let writer = tokio::spawn(write(writer));
        for (want, reader) in readers {
            let (_, reported) = tokio::time::timeout(STUCK, reader).await.expect("it was woken").expect("no panic");
            assert_eq!(reported, expected(want, 7), "{want:?}");
        }
        writer.await.expect("no panic");
    }
}

/// Opens watches of one view while the writer runs, each with the current state.
async fn open_on_the_way(reader: CacheReader, want: Want) {
    let mut followers = Vec::new();
    for _ in 0..25 {
        let opened = reader.open(WatchStartPosition::Current, want.view()).expect("current");
        let at = opened.cursor.start().0;
        followers.push((at, tokio::spawn(follow(opened))));
        tokio::task::yield_now().await;
    }
    for (at, follower) in followers {
        let (known, reported) = tokio::time::timeout(STUCK, follower).await.expect("it was woken").expect("no panic");
        assert_eq!(known, state_at(want, at), "{want:?} at {at}");
        assert_eq!(reported, expected(want, at), "{want:?} behind {at}");
    }
}

fn state_at(want: Want, at: u64) -> BTreeMap<String, u64> {
    let mut model = super::model::Model::new(usize::MAX);
    for version in (8..8 + EVENTS).take_while(|version| *version <= at) {
        let (event_type, pod) = happens(version);
        model.apply(event_type, pod, version);
    }
    super::model::visible(&model.now, want).into_iter().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn snapshot_and_cursor_are_consistent_under_concurrent_writes() {
    for _ in 0..5 {
        let (writer, reader) = listed(ring(10_000), 7, &[]);
        let wants = [Want::Everything, Want::NamespaceA, Want::TheOneInA, Want::NodeOne, Want::AppX];
        let readers = wants.map(|want| tokio::spawn(open_on_the_way(reader.clone(), want)));
        let writer = tokio::spawn(write(writer));
        for reader in readers {
            reader.await.expect("no panic");
        }
        writer.await.expect("no panic");
    }
}

/// #116122: a watch registered during a restart of the cache must not silently follow the old history.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watch_opened_during_relist_expires_or_follows_new_history() {
    for round in 0..20 {
        let (mut writer, reader) = listed(ring(10_000), 7, &[]);
        let opening = tokio::spawn(async move {
            let mut opened = Vec::new();
            for _ in 0..200 {
                opened.push(reader.open(WatchStartPosition::Current, Want::NamespaceA.view()).expect("current"));
            }
            opened
        });
        for version in (1..=10).map(|n| 10 * n) {
            writer.replace(super::fixture::snapshot(version, &[]));
            tokio::task::yield_now().await;
        }
        let opened = opening.await.expect("no panic");
        writer.apply([change(Added, &POD, 101)]).expect("in order");
        for OpenedWatch { snapshot, mut cursor } in opened {
            let at = snapshot.expect("a state was asked for").rv.0;
            let reported = super::fixture::reported(&mut cursor);
            let expected = if at == 100 { "ADDED a/p 101" } else { "expired 100" };
            assert_eq!(reported, [expected], "opened at {at} in round {round}");
        }
    }
}

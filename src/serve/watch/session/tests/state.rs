//! W11: the state as ADDED events, each key once, then the bookmark that marks its end, then later events (R-WATCH-3).

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use flate2::{Decompress, FlushDecompress};

use super::fixture::{Client, ROOM, Stage, TERMS, WATCH_LIST, app_x, pass, pass_ms};
use crate::cache::{CacheConfig, CollectionView, WatchStartPosition};
use crate::listing::gzip::GzipFrames;
use crate::listing::{CallerCpuSlices, ScanBudget};
use crate::serve::watch::session::{WatchBatch, WatchOptions};
use kubeapi::{LabelSelector, ResourceVersion, Selector};

const PODS: [(&str, &str, u64); 4] = [("q", "y", 5), ("p", "x", 9), ("s", "x", 3), ("r", "x", 7)];

fn stage() -> Stage {
    Stage::new(CacheConfig::default(), &PODS)
}

/// Returns the batches of a client that has this much room.
fn sips(client: &mut Client, bytes_max: usize) -> Vec<Vec<String>> {
    let mut sips = Vec::new();
    while let Poll::Ready(Some(frames)) = client.poll(bytes_max) {
        sips.push(frames);
        assert!(sips.len() < 100, "it never stops: {sips:?}");
    }
    sips
}

const STATE: [&str; 4] = ["ADDED p 9", "ADDED q 5", "ADDED r 7", "ADDED s 3"];

#[tokio::test(start_paused = true)]
async fn initial_state_is_in_key_order_with_one_end_bookmark() {
    let stage = stage();
    let mut client = stage.watch_current(CollectionView::everything(), WATCH_LIST);
    let mut expected = STATE.map(str::to_owned).to_vec();
    expected.push("BOOKMARK 10 end".to_owned());
    assert_eq!(client.reported(), expected);
    pass(600).await;
    assert_eq!(client.reported(), ["BOOKMARK 10"]);
}

#[tokio::test(start_paused = true)]
async fn end_bookmark_is_sent_only_for_watch_list() {
    let stage = stage();
    for options in [TERMS, WatchOptions { bookmarks: false, ..TERMS }] {
        assert_eq!(stage.watch_current(CollectionView::everything(), options).reported(), STATE);
    }
}

#[tokio::test(start_paused = true)]
async fn watch_from_version_has_no_initial_state_or_end_bookmark() {
    let mut stage = stage();
    let mut client = stage.watch_after(10, TERMS);
    assert_eq!(client.reported(), Vec::<String>::new());
    stage.put("p", "x", 11);
    assert_eq!(client.reported(), ["MODIFIED p 11"]);
}

#[tokio::test(start_paused = true)]
async fn selector_filters_initial_state() {
    let stage = stage();
    let mut client = stage.watch_current(app_x(), WATCH_LIST);
    assert_eq!(client.reported(), ["ADDED p 9", "ADDED r 7", "ADDED s 3", "BOOKMARK 10 end"]);
}

/// A client that waits for the mark would wait forever without it (R-CLIENT-1).
#[tokio::test(start_paused = true)]
async fn empty_initial_state_gets_end_bookmark() {
    let mut empty = Stage::empty();
    assert_eq!(empty.watch_current(CollectionView::everything(), WATCH_LIST).reported(), ["BOOKMARK 10 end"]);
    let hidden = Stage::new(CacheConfig::default(), &[("q", "y", 5)]);
    assert_eq!(hidden.watch_current(app_x(), WATCH_LIST).reported(), ["BOOKMARK 10 end"]);
    // Without the mark, no frames are sent, but the watch is woken for later events.
    let mut silent = empty.watch_current(CollectionView::everything(), TERMS);
    assert_eq!(silent.reported(), Vec::<String>::new());
    empty.put("p", "x", 11);
    assert_eq!(silent.woken(), 1);
    assert_eq!(silent.reported(), ["ADDED p 11"]);
}

#[tokio::test(start_paused = true)]
async fn initial_state_is_sent_in_pieces_that_fit_the_buffer() {
    let stage = stage();
    for bytes_max in [0, 1, 100, 250, 400, 100_000] {
        let mut client = stage.watch_current(CollectionView::everything(), WATCH_LIST);
        let sips = sips(&mut client, bytes_max);
        let reported = sips.concat();
        assert_eq!(reported[..4], STATE, "bytes_max for {bytes_max}");
        assert_eq!(reported[4..], ["BOOKMARK 10 end"], "bytes_max for {bytes_max}");
        // At most the frames that fit and one more, in addition to the mark.
        let longest = sips.iter().map(Vec::len).max().expect("something came");
        assert!(longest <= bytes_max / 100 + 2, "bytes_max for {bytes_max}: {sips:?}");
    }
}

/// kube-rs drops a DELETED among the initial events, and then keeps the object forever.
#[tokio::test(start_paused = true)]
async fn events_during_initial_state_follow_end_bookmark() {
    for before in 0..=PODS.len() {
        let mut stage = stage();
        let mut client = stage.watch_current(CollectionView::everything(), WATCH_LIST);
        let mut reported = Vec::new();
        for _ in 0..before {
            let Poll::Ready(Some(frames)) = client.poll(1) else { panic!("there is more of the state") };
            reported.extend(frames);
        }
        // An object that was already sent and one that was not are deleted. Another one is added, and one is modified.
        stage.delete("p", "x", 11);
        stage.delete("s", "x", 12);
        stage.put("t", "x", 13);
        stage.put("r", "x", 14);
        stage.bookmark(20);
        reported.extend(sips(&mut client, 1).concat());
        assert_eq!(reported[..4], STATE, "after {before}");
        let rest = ["BOOKMARK 10 end", "DELETED p 11", "DELETED s 12", "ADDED t 13", "MODIFIED r 14", "BOOKMARK 20"];
        assert_eq!(reported[4..], rest, "after {before}");
    }
}

#[tokio::test(start_paused = true)]
async fn initial_objects_are_not_newer_than_end_bookmark() {
    let mut stage = stage();
    stage.put("p", "x", 15);
    stage.advance(20);
    let mut client = stage.watch_current(CollectionView::everything(), WATCH_LIST);
    let reported = client.reported();
    assert_eq!(reported.last().map(String::as_str), Some("BOOKMARK 20 end"));
    assert_eq!(reported[0], "ADDED p 15");
    pass(59).await;
    assert_eq!(client.reported(), Vec::<String>::new(), "20 has been said");
}

/// A client that reads the state slowly must not receive an error while the history still has the following events.
#[tokio::test(start_paused = true)]
async fn slow_initial_state_does_not_expire_while_history_suffices() {
    let mut stage = Stage::new(CacheConfig { window_events_max: 2, ..CacheConfig::default() }, &PODS);
    let mut client = stage.watch_current(CollectionView::everything(), WATCH_LIST);
    assert!(client.poll(1).is_ready());
    stage.put("p", "x", 11);
    stage.put("p", "x", 12);
    let reported = sips(&mut client, 1).concat();
    assert_eq!(reported[3..], ["BOOKMARK 10 end", "MODIFIED p 11", "MODIFIED p 12"]);
}

#[tokio::test(start_paused = true)]
async fn too_slow_initial_state_expires_after_end_bookmark() {
    let mut stage = Stage::new(CacheConfig { window_events_max: 2, ..CacheConfig::default() }, &PODS);
    let mut client = stage.watch_current(CollectionView::everything(), WATCH_LIST);
    assert!(client.poll(1).is_ready());
    for rv in 11..=13 {
        stage.put("p", "x", rv);
    }
    let reported = sips(&mut client, 1).concat();
    assert_eq!(reported[3..], ["BOOKMARK 10 end", "ERROR 410 Expired: too old resource version: 10 (11)"]);
    assert_eq!(client.reported(), ["over"]);
}

/// A sink that accepts several frames in one piece receives the same bytes, in memory that all watches share.
#[tokio::test(start_paused = true)]
async fn initial_state_chunks_are_shared_between_watches() {
    let names: Vec<_> = (0..300).map(|n| format!("{}/p{n:03}", ["a", "b"][n % 2])).collect();
    let pods: Vec<_> = names.iter().map(|name| (name.as_str(), "x", 5)).collect();
    let mut stage = Stage::new(CacheConfig::default(), &pods);
    let all = |client: &mut Client| -> Vec<Bytes> {
        std::iter::from_fn(|| Some(client.pieces(100)).filter(|pieces| !pieces.is_empty())).flatten().collect()
    };
    let in_namespace = || CollectionView::new(Some("b"), Selector::everything());
    for (view, end_bookmark) in [(CollectionView::everything(), true), (in_namespace(), true), (in_namespace(), false)]
    {
        let options = || WatchOptions { end_bookmark, ..TERMS };
        let frames = all(&mut stage.watch_current(view.clone(), options()));
        let one = all(&mut stage.watch_in_chunks(view.clone(), options()));
        let other = all(&mut stage.watch_in_chunks(view, options()));
        assert_eq!(one.concat(), frames.concat());
        assert!(one.len() < 10 && one[0].as_ptr() == other[0].as_ptr());
    }
    // A selection is not shared with other watches, and later events are sent as usual.
    let mut picked = stage.watch_in_chunks(app_x(), WATCH_LIST);
    assert_eq!(all(&mut picked).len(), 301);
    let mut client = stage.watch_in_chunks(CollectionView::everything(), WATCH_LIST);
    all(&mut client);
    stage.put("p", "x", 11);
    assert_eq!(client.reported(), ["ADDED p 11"]);
}

/// Polls a compressed watch that has room. Returns its text, and the compressed pieces of the state.
async fn compressed(client: &mut Client, mut frames: GzipFrames) -> (Vec<u8>, Vec<Bytes>) {
    let (mut plain, mut sent, mut pieces) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let mut batch = WatchBatch { bytes_max: ROOM, ..WatchBatch::new() };
        let polled = poll_fn(|cx| match client.session.poll_frames(cx, &mut batch) {
            Poll::Pending if client.session.is_parked() => Poll::Ready(None),
            polled => polled.map(Some),
        });
        if polled.await.is_none() {
            break;
        }
        plain.extend(batch.frames.concat());
        frames.push(&mut batch.frames, &batch.keys);
        while let Some(bytes) = poll_fn(|cx| frames.poll(cx)).await {
            sent.extend_from_slice(&bytes);
            pieces.extend(Some(bytes).filter(|_| !batch.keys.is_empty()));
        }
    }
    let (mut inflate, mut text) = (Decompress::new(false), Vec::with_capacity(plain.len() + 1));
    inflate.decompress_vec(&sent[10..], &mut text, FlushDecompress::Sync).expect("valid");
    assert!(text == plain, "{} of {} bytes", text.len(), plain.len());
    (plain, pieces)
}

/// The state is larger than what a feed keeps of recent events, and its chunks are written again for the second watch.
#[tokio::test(start_paused = true)]
async fn large_initial_state_is_compressed_once() {
    let text = |n: usize| -> String {
        let mut random = fastrand::Rng::with_seed(n as u64);
        std::iter::repeat_with(|| random.alphanumeric()).take(10_000).collect::<String>().repeat(2)
    };
    let pods: Vec<_> = (0..1_100).map(|n| (format!("p{n:04}"), text(n))).collect();
    let pods: Vec<_> = pods.iter().map(|(name, text)| (name.as_str(), text.as_str(), 5)).collect();
    let mut stage = Stage::new(CacheConfig::default(), &pods);
    let mut sent = Vec::new();
    for rv in [11, 12] {
        let budget = ScanBudget::new(CallerCpuSlices::new(1), None, false);
        let frames = GzipFrames::new(stage.reader.clone(), budget, false);
        let mut client = stage.watch_in_chunks(CollectionView::everything(), WATCH_LIST);
        let (plain, pieces) = compressed(&mut client, frames).await;
        assert!(plain.len() > 20 << 20 && pieces.len() > 130, "{} bytes in {} pieces", plain.len(), pieces.len());
        sent.push(pieces);
        pass(60).await;
        stage.put("z", "x", rv);
    }
    let [first, second] = sent.as_slice() else { unreachable!("two watches") };
    let shared = first.iter().zip(second).filter(|(first, second)| first.as_ptr() == second.as_ptr()).count();
    // The header precedes the first piece, and the changed object is in the last chunk.
    assert!(first.len() <= shared + 4, "{shared} of {} are shared", first.len());
    assert!(first.iter().map(Bytes::len).sum::<usize>() < 12 << 20);
}

/// Typically, ten thousand watches are idle. Each also has a timer, its cursor's view, which many watches share, and
/// the state of its codec.
#[test]
fn watch_session_size_is_bounded() {
    let size = size_of::<crate::serve::watch::session::WatchSession>();
    assert!(size <= 440, "{size} bytes");
}

/// A scan without results runs in slices, and other tasks run between two of them.
#[tokio::test(start_paused = true)]
async fn sparse_initial_state_is_scanned_in_slices() {
    let names: Vec<_> = (0..6_000).map(|n| format!("n{n:05}")).collect();
    let mut pods: Vec<_> = names.iter().map(|name| (name.as_str(), "y", 5)).collect();
    pods.push(("z", "x", 6));
    let mut stage = Stage::new(CacheConfig::default(), &pods);
    let mut client = stage.watch_current(app_x(), WATCH_LIST);
    let mut other = stage.watch_after(10, TERMS);
    let mut pauses = 0;
    let reported = loop {
        match client.poll(ROOM) {
            Poll::Ready(Some(frames)) => break frames,
            Poll::Ready(None) => panic!("it is over"),
            Poll::Pending => pauses += 1,
        }
        stage.put("q", "y", 10 + pauses);
        assert_eq!(other.reported().len(), 1, "others go on");
        let woken = client.woken();
        pass_ms(64).await;
        assert!(client.woken() > woken, "it comes back by itself");
    };
    assert_eq!(reported, ["ADDED z 6", "BOOKMARK 10 end"]);
    assert!((1..5).contains(&pauses), "{pauses}");
}

#[tokio::test(start_paused = true)]
async fn sparse_history_is_scanned_in_slices() {
    let mut stage = Stage::empty();
    for rv in 11..4_011 {
        stage.put("q", "y", rv);
    }
    stage.put("p", "x", 4_011);
    let opened = stage.reader.open(WatchStartPosition::After(ResourceVersion(10)), app_x()).expect("in the ring");
    let mut client = stage.client(opened, TERMS);
    let mut pauses = 0;
    while client.poll(ROOM) == Poll::Pending {
        pauses += 1;
        assert!(!client.session.is_parked() && pauses < 10, "{pauses}");
        pass_ms(64).await;
    }
    assert!(pauses >= 1, "{pauses}");
    stage.put("p", "x", 4_012);
    assert_eq!(client.reported(), ["MODIFIED p 4012"]);
}

/// Watches that all scan many objects share the CPU time that other work leaves.
#[tokio::test(start_paused = true)]
async fn large_scans_run_one_at_a_time() {
    let mut stage = Stage::empty();
    for rv in 11..4_011 {
        stage.put("q", "y", rv);
    }
    let open = || stage.reader.open(WatchStartPosition::After(ResourceVersion(10)), app_x()).expect("in the ring");
    let mut clients: Vec<_> = (0..20).map(|_| stage.client(open(), TERMS)).collect();
    let mut rounds = 0;
    while clients.iter().any(|client| !client.session.is_parked()) {
        clients.iter_mut().for_each(|client| assert_eq!(client.poll(ROOM), Poll::Pending));
        pass_ms(1).await;
        rounds += 1;
        assert!(rounds < 10_000, "they come to the end");
    }
    // Three slices each, one at a time, with a pause of the same length between two of them.
    assert!(rounds > 20 * 2, "{rounds}");
}

/// Returns a view that matches everything at a high comparison cost.
fn everything_dearly() -> CollectionView {
    let keys: Vec<_> = (0..100).map(|n| format!("!k{n:03}")).collect();
    let labels = LabelSelector::parse(&keys.join(",")).expect("valid");
    CollectionView::new(None, Selector { labels, ..Selector::everything() })
}

/// A selector that is cheap for a few events is expensive for many. Then its watch waits for its turn, and the watches
/// of one caller share their slices. Other watches are not delayed.
#[tokio::test(start_paused = true)]
async fn expensive_selector_waits_for_cpu_slice_when_events_grow() {
    let mut stage = Stage::empty();
    let (mut dear, mut plain) = (stage.watch_current(everything_dearly(), TERMS), stage.watch_current(app_x(), TERMS));
    let others = stage.take_slice();
    let mut reported = [0, 0];
    for rv in 11..1_011 {
        stage.put("p", "x", rv);
        for (reported, client) in reported.iter_mut().zip([&mut dear, &mut plain]) {
            *reported += client.reported().len();
        }
    }
    assert!((100..500).contains(&reported[0]), "a glance, and no more: {reported:?}");
    assert_eq!(reported[1], 1_000);
    drop(others);
    pass_ms(64).await;
    reported[0] += dear.reported().len();
    assert_eq!(reported[0], 1_000, "nothing is lost");
    stage.put("p", "x", 1_011);
    assert_eq!(dear.reported(), ["MODIFIED p 1011"]);
}

#[tokio::test(start_paused = true)]
async fn matching_state_is_charged_for_expensive_selector() {
    let names: Vec<_> = (0..2_000).map(|n| format!("n{n:05}")).collect();
    let pods: Vec<_> = names.iter().map(|name| (name.as_str(), "x", 5)).collect();
    let stage = Stage::new(CacheConfig::default(), &pods);
    let (mut dear, mut plain) =
        (stage.watch_current(everything_dearly(), WATCH_LIST), stage.watch_current(app_x(), WATCH_LIST));
    let others = stage.take_slice();
    let reported = dear.reported().len();
    assert!((100..1_000).contains(&reported), "{reported}");
    assert_eq!(plain.reported().len(), 2_001);
    drop(others);
    pass_ms(64).await;
    assert_eq!(reported + dear.reported().len(), 2_001);
}

/// A large body is a piece of its own, between the head and the end of its event.
#[tokio::test(start_paused = true)]
async fn watch_that_times_out_within_a_large_initial_event_completes_it() {
    let large = "x".repeat(40_000);
    let stage = Stage::new(CacheConfig::default(), &[("p", &large, 5)]);
    let options = WatchOptions { timeout_seconds: Some(5), ..WATCH_LIST };
    let mut client = stage.watch_in_chunks(CollectionView::everything(), options);
    let mut sent = client.pieces(1).concat();
    assert!(!sent.is_empty() && !sent.ends_with(b"\n"), "only a part of the event");
    pass(5).await;
    while !client.session.is_ended() {
        sent.extend(client.pieces(1).concat());
    }
    assert!(sent.ends_with(b"}\n"));
}

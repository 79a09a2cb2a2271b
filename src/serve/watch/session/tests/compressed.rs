use std::task::{Context, Poll, Waker};

use flate2::{Decompress, FlushDecompress};

use super::fixture::{Client, ROOM, Stage, TERMS, WATCH_LIST, pass_ms};
use crate::cache::{CacheConfig, CollectionView};
use crate::listing::{CallerCpuSlices, ScanBudget};
use crate::serve::activity::WatchTransport;
use crate::serve::response::WatchFrameSource as _;
use crate::serve::watch::body::{WatchBody, WatchBodyForm};
use crate::serve::watch::session::WatchOptions;
use crate::wire::{DeltaFrame, FeedEncoding, is_delta};
use kubeapi::ResourceVersion;

/// Polls the body as HTTP/2 does after a wake-up: until it is pending or parked.
fn sent(body: &mut WatchBody, bytes: &mut Vec<u8>) {
    while let Poll::Ready(chunk) = body.poll_chunk(&mut Context::from_waker(Waker::noop())) {
        bytes.extend_from_slice(&chunk.expect("the watch goes on"));
        if body.is_parked() {
            return;
        }
    }
}

/// A proxy that is far behind has the differences made in slices. Another one then finds them made.
#[tokio::test(start_paused = true)]
async fn differences_are_made_in_slices_and_once_for_all_proxies() {
    const EVENTS: usize = 1_000;
    let mut stage = Stage::new(CacheConfig::default(), &[("pod", "x", 10)]);
    (1..=EVENTS as u64).for_each(|event| stage.put("pod", "x", 10 + event));
    let options = WatchOptions { by_proxy: true, deltas_after: Some(ResourceVersion(10)), ..TERMS };
    let available = |client: &mut Client| {
        let pieces = std::iter::from_fn(|| Some(client.pieces(ROOM)).filter(|pieces| !pieces.is_empty())).flatten();
        pieces.inspect(|piece| assert!(is_delta(piece))).count()
    };
    let (mut first, mut second) = (stage.watch_after(10, options), stage.watch_after(10, options));
    let slice = stage.take_slice();
    let mut made = available(&mut first);
    assert!((1..50).contains(&made), "the free budget is enough for {made} events");
    pass_ms(64).await;
    assert_eq!(available(&mut first), 0);
    drop(slice);
    while made < EVENTS {
        pass_ms(64).await;
        let more = available(&mut first);
        assert!(more > 0, "{made} events");
        made += more;
    }
    pass_ms(64).await;
    let _slice = stage.take_slice();
    assert_eq!((made, available(&mut second)), (EVENTS, EVENTS));
}

#[tokio::test(start_paused = true)]
async fn large_events_are_sent_to_proxies_whole() {
    let mut stage = Stage::new(CacheConfig::default(), &[("pod", "x", 10)]);
    let options = WatchOptions { by_proxy: true, deltas_after: Some(ResourceVersion(10)), ..TERMS };
    let mut client = stage.watch_after(10, options);
    for (rv, length, is_difference) in [(11, 10, true), (12, 300 << 10, false), (13, 20, true)] {
        stage.put("pod", &"x".repeat(length), rv);
        let pieces = client.pieces(ROOM);
        assert_eq!(pieces.iter().map(|piece| is_delta(piece)).collect::<Vec<_>>(), [is_difference], "{rv}");
    }
}

/// An event that arrives while earlier ones wait for CPU time uses up the session's waker.
#[tokio::test(start_paused = true)]
async fn event_that_arrives_during_compression_follows_without_another_wake_up() {
    const EVENTS: u64 = 10;
    let mut stage = Stage::empty();
    let Client { session, .. } = stage.watch_after(10, TERMS);
    let slices = CallerCpuSlices::new(1);
    let others = slices.take(&None).expect("no slice is taken");
    let budget = ScanBudget::new(slices, None, false);
    let form = WatchBodyForm { encoding: FeedEncoding::Json, is_gzip: true, has_deltas: false };
    let mut body = WatchBody::new(session, None, WatchTransport::Http2, form, Some(budget));
    let mut bytes = Vec::new();
    sent(&mut body, &mut bytes);
    (1..EVENTS).for_each(|event| stage.put(&format!("p{event}"), "x", 10 + event));
    sent(&mut body, &mut bytes);
    assert!(!bytes.is_empty() && !body.is_parked(), "the free budget is enough for some events");
    stage.put("last", "x", 10 + EVENTS);
    drop(others);
    pass_ms(64).await;
    sent(&mut body, &mut bytes);
    let (mut inflate, mut text) = (Decompress::new(false), Vec::with_capacity(64 << 10));
    inflate.decompress_vec(&bytes[10..], &mut text, FlushDecompress::Sync).expect("valid");
    let text = String::from_utf8(text).expect("text");
    assert!(text.ends_with('\n') && text.lines().count() == 10 && text.contains("\"last\""), "{text}");
    assert!(body.is_parked());
}

/// The end of the compressed part is sent with it, so that the session is polled before the body is parked.
#[tokio::test(start_paused = true)]
async fn first_event_after_compressed_initial_events_follows_without_another_wake_up() {
    let mut stage = Stage::new(CacheConfig::default(), &[("pod", "x", 10)]);
    let options = WatchOptions { by_proxy: true, deltas_after: Some(ResourceVersion(0)), ..WATCH_LIST };
    let Client { session, .. } = stage.watch_current(CollectionView::everything(), options);
    let budget = ScanBudget::new(CallerCpuSlices::new(1), None, false);
    let form = WatchBodyForm { encoding: FeedEncoding::Json, is_gzip: true, has_deltas: true };
    let mut body = WatchBody::new(session, None, WatchTransport::Http2, form, Some(budget));
    let mut bytes = Vec::new();
    sent(&mut body, &mut bytes);
    assert!(!bytes.is_empty());
    for rv in [11, 12] {
        let before = bytes.len();
        stage.put("pod", "x", rv);
        sent(&mut body, &mut bytes);
        let event = DeltaFrame::parse(&bytes[before..]).expect("the event alone");
        assert_eq!(event.base, Some(ResourceVersion(rv - 1)));
    }
}

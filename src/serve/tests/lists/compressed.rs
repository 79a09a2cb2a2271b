//! Compressed chunks are shared, and compressed again only where something has changed.

use std::collections::HashSet;
use std::future::poll_fn;
use std::io::Read as _;

use bytes::Bytes;

use super::{ListPageSource, REPRESENTATIONS, feed, pace, permit, pod, renderer};
use crate::cache::{CollectionView, ObjectChange, ObjectChunk};
use crate::feeds::FeedHandle;
use crate::listing::page::page;
use crate::listing::{GzipList, ListBody, ListPageRequest, PlainList};
use crate::wire::ObjectRevision;
use base::random;
use kubeapi::{EventType, ListPlan, ResourceVersionMatch};

/// Returns a pod whose bytes are random characters from a set of 36, so that its compressed form is long enough to be
/// recognised.
fn noise(namespace: &str, name: usize, rv: u64, bytes: usize) -> ObjectRevision {
    let filler: String = (0..bytes).map(|_| char::from_digit(random::u32(..36), 36).expect("a digit")).collect();
    pod(namespace, name, rv, &filler)
}

async fn list(feed: &FeedHandle) -> ListBody {
    let plan = ListPlan { version: ResourceVersionMatch::Any, limit: None, start: None };
    let (view, pages) = (CollectionView::everything(), ListPageSource::FromCache);
    let read = ListPageRequest { representation: REPRESENTATIONS[0], view, plan, in_namespace: false, pages };
    let page = page(&permit(), feed, &feed.reader.snapshot(), &read, &mut pace()).await;
    let list = PlainList::prepare(page, &renderer(feed, REPRESENTATIONS[0]), &mut pace()).await.expect("as it came");
    ListBody::new(GzipList::new(list))
}

async fn chunks(feed: &FeedHandle) -> Vec<Bytes> {
    let mut list = list(feed).await;
    let mut chunks = Vec::new();
    while let Some(chunk) = poll_fn(|cx| list.poll_chunk(cx)).await {
        chunks.push(chunk.expect("as it came"));
    }
    chunks
}

/// Returns the addresses of the chunks that are too long to be copied.
fn addresses(chunks: &[Bytes]) -> HashSet<*const u8> {
    chunks.iter().filter(|chunk| chunk.len() > 16 << 10).map(|chunk| chunk.as_ptr()).collect()
}

#[tokio::test]
async fn change_recompresses_only_its_chunk_and_dependents() {
    const PODS: usize = 400;
    let (feed, mut feeds) = feed((0..PODS).map(|name| noise("a", name, 7, 5_000)).collect());
    let first = chunks(&feed).await;
    let shared = addresses(&first);
    assert!(shared.len() >= PODS * 5_000 / ObjectChunk::BYTES_MAX, "{} pieces", shared.len());
    for _ in 0..10 {
        assert_eq!(addresses(&chunks(&feed).await), shared, "compressed once, for everybody");
    }
    let object = noise("a", PODS / 2, 1_001, 5_000);
    let change = ObjectChange { event_type: EventType::Modified, object, frame: None };
    feeds.1.writer.apply([change]).expect("in order");
    let after = addresses(&chunks(&feed).await);
    let gone = shared.difference(&after).count();
    // Two batches of two pieces each, and the remainder of one that is cut at another place.
    assert!((1..=6).contains(&gone), "{gone} of {} pieces", shared.len());
}

/// A long object is compressed piece by piece, and other tasks run after each piece.
#[tokio::test]
async fn compression_of_large_object_yields_after_each_piece() {
    const BYTES: usize = 1_500_000;
    let (feed, _feeds) = feed(vec![noise("a", 0, 7, BYTES)]);
    let mut list = list(&feed).await;
    let (mut rests, mut out) = (0, Vec::new());
    while let Some(chunk) = poll_fn(|cx| {
        let chunk = list.poll_chunk(cx);
        rests += usize::from(chunk.is_pending());
        chunk
    })
    .await
    {
        out.extend_from_slice(&chunk.expect("as it came"));
    }
    assert!(rests >= BYTES / (160 << 10), "{rests} times");
    let mut plain = Vec::new();
    flate2::bufread::GzDecoder::new(out.as_slice()).read_to_end(&mut plain).expect("one member");
    assert!(plain.len() > BYTES);
}

/// Namespaces with a few objects each cost no more than one namespace with all of them.
#[tokio::test]
async fn small_namespaces_are_compressed_together() {
    let spread = (0..300).flat_map(|at| (0..2).map(move |name| pod(&format!("n{at:03}"), name, 7, "p")));
    let (spread, _feeds) = feed(spread.collect());
    let (together, _other_feeds) = feed((0..600).map(|name| pod("n", name, 7, "p")).collect());
    let len = async |feed: &FeedHandle| chunks(feed).await.iter().map(Bytes::len).sum::<usize>();
    let (spread, together) = (len(&spread).await, len(&together).await);
    // The names of the namespaces are additional bytes.
    assert!(spread < together + 300 * 8, "{spread} bytes, and {together} of one namespace");
}

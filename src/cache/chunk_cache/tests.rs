use super::*;
use crate::cache::SnapshotPins;

fn cache() -> ChunkCache {
    ChunkCache::new(MemoryBudget::new(usize::MAX / 2, SnapshotPins::default()), MemoryAccount::new())
}

/// Returns the name of a frame, and the bytes that its compressed form may refer to; `None` if the form is cached.
fn compressed(cache: &ChunkCache, frame: &Bytes, previous: Option<&FrameName>) -> (FrameName, Option<Vec<u8>>) {
    let mut referred = None;
    let polled = cache.poll_deflated_frame(frame, previous, &Context::from_waker(Waker::noop()), |before| {
        referred = Some(before.to_vec());
        Ok::<_, ()>(DeflatedChunk { bytes: None, crc: 0, shift: 0, len: 0, is_last: true })
    });
    let Poll::Ready(Ok((name, _))) = polled else { panic!("one task makes it") };
    (name, referred)
}

fn named(cache: &ChunkCache, frame: &Bytes) -> FrameName {
    compressed(cache, frame, None).0
}

#[test]
fn frame_keeps_its_name_and_few_predecessors() {
    let cache = cache();
    let frames: Vec<Bytes> = (0..=2 * PREDECESSORS_MAX).map(|n| Bytes::from(vec![0; 10 + n])).collect();
    let (last, before) = frames.split_last().expect("there are some");
    let (_, referred) = compressed(&cache, last, None);
    assert_eq!(referred, Some(Vec::new()));
    let names: Vec<FrameName> = before.iter().map(|frame| named(&cache, frame)).collect();
    for round in 0..2 {
        for (at, (previous, frame)) in names.iter().zip(before).enumerate() {
            let expected = (round == 0 && at < PREDECESSORS_MAX).then(|| frame.to_vec());
            assert_eq!(compressed(&cache, last, Some(previous)).1, expected, "round {round}, {at}");
        }
    }
}

#[test]
fn dropped_name_is_not_reused_for_the_same_address() {
    let cache = cache();
    let (frame, next) = (Bytes::from(vec![1; 100]), Bytes::from(vec![2; 100]));
    let first = named(&cache, &frame);
    cache.names.drop_oldest();
    let second = named(&cache, &frame);
    assert!(first.0.upgrade().is_none() && second.0.upgrade().is_some_and(|named| named.number == 2));
    assert_eq!(compressed(&cache, &next, Some(&first)).1, Some(Vec::new()), "nothing refers to the dropped name");
    assert_eq!(compressed(&cache, &next, Some(&second)).1, Some(frame.to_vec()));
}

#[test]
fn named_frames_are_bounded_and_released() {
    let cache = cache();
    let frame = Bytes::from(vec![0; NAMED_BYTES_MAX / 4]);
    for n in 0..100 {
        named(&cache, &frame.slice(n..));
    }
    assert_eq!(cache.names.len(), 3);
    assert!(cache.names.bytes() <= NAMED_BYTES_MAX);
    assert_eq!(cache.account.bytes(), 3 * NAME_BYTES);
    cache.expire(Instant::now() + FRAMES_AGE_MAX + Duration::from_secs(1));
    assert_eq!((cache.names.len(), cache.names.bytes(), cache.bytes(), cache.account.bytes()), (0, 0, 0, 0));
}

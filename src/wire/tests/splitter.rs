use bytes::Bytes;
use proptest::prelude::*;

use super::fixtures::{FEEDS, Pod, event, reader, reported, unknown};
use crate::wire::{FeedEncoding, FrameSplitter, JsonLayout, WireError};

const FRAME_MAX: usize = 1 << 20;

#[test]
fn stream_split_at_any_byte_yields_the_same_items() {
    for (encoding, shape) in FEEDS {
        let frames = stream_of(200, encoding, shape);
        let stream = frames.concat();
        let whole = items_of(encoding, shape, [stream.as_slice()]);
        assert_eq!(whole.len(), 200);
        // Each frame between its neighbours, cut at each byte.
        for three in frames.windows(3) {
            let stream = three.concat();
            for cut in 0..=stream.len() {
                let (left, right) = stream.split_at(cut);
                assert_eq!(split(encoding, [left, right]), three, "{encoding} cut at {cut}");
            }
        }
        assert_eq!(items_of(encoding, shape, stream.chunks(1)), whole, "{encoding} byte by byte");
    }
}

proptest! {
    #[test]
    fn stream_in_random_chunks_yields_the_same_frames(
        feed in 0..FEEDS.len(), sizes in prop::collection::vec(1_usize..2_000, 1..400)
    ) {
        let (encoding, shape) = FEEDS[feed];
        let frames = stream_of(40, encoding, shape);
        let stream = frames.concat();
        let mut rest = stream.as_slice();
        let mut chunks = Vec::new();
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, after) = rest.split_at((*size).min(rest.len()));
            chunks.push(chunk);
            rest = after;
        }
        prop_assert_eq!(split(encoding, chunks), frames);
    }
}

#[test]
fn frame_allocation_matches_its_length() {
    for (encoding, shape) in FEEDS {
        let frames = stream_of(3, encoding, shape);
        for frame in split(encoding, [frames.concat().as_slice()]) {
            let len = frame.len();
            let owned = frame.try_into_mut().expect("it is the only reference");
            assert_eq!(owned.capacity(), len);
        }
    }
}

#[test]
fn stream_ending_inside_a_frame_is_an_error() {
    for (encoding, shape) in FEEDS {
        let stream = stream_of(1, encoding, shape).concat();
        for end in 0..=stream.len() {
            let mut splitter = FrameSplitter::new(encoding, FRAME_MAX);
            splitter.push(&stream[..end]);
            while splitter.next_frame().expect("well-formed").is_some() {}
            let whole = end == 0 || end == stream.len();
            assert_eq!(splitter.finish().is_ok(), whole, "{encoding} ended at {end}");
            if !whole {
                assert!(matches!(splitter.finish(), Err(WireError::Truncated)));
            }
        }
    }
}

#[test]
fn frame_limit_applies_to_the_whole_frame() {
    for (encoding, shape) in FEEDS {
        let frame = Pod::default().event(encoding, shape, "ADDED");
        let mut splitter = FrameSplitter::new(encoding, frame.len());
        splitter.push(&frame);
        assert_eq!(splitter.next_frame().expect("exactly the limit"), Some(frame.clone()));

        let max = frame.len() - 1;
        let mut splitter = FrameSplitter::new(encoding, max);
        splitter.push(&frame);
        for _ in 0..2 {
            assert!(
                matches!(splitter.next_frame(), Err(WireError::FrameTooLarge { max: reported }) if reported == max)
            );
        }
    }
}

#[test]
fn claimed_frame_length_does_not_allocate() {
    let mut splitter = FrameSplitter::new(FeedEncoding::Protobuf, usize::MAX);
    splitter.push(&(1_u32 << 30).to_be_bytes());
    splitter.push(b"ten bytes.");
    assert_eq!(splitter.next_frame().expect("not too large"), None);
    assert!(matches!(splitter.finish(), Err(WireError::Truncated)));

    let mut splitter = FrameSplitter::new(FeedEncoding::Protobuf, FRAME_MAX);
    splitter.push(&(1_u32 << 30).to_be_bytes());
    assert!(matches!(splitter.next_frame(), Err(WireError::FrameTooLarge { max: FRAME_MAX })));
}

#[test]
fn overlong_line_is_rejected_before_its_end() {
    let mut splitter = FrameSplitter::new(FeedEncoding::Json, 1_000);
    for _ in 0..9 {
        splitter.push(&[b'x'; 100]);
        assert_eq!(splitter.next_frame().expect("still below the limit"), None);
    }
    splitter.push(&[b'x'; 100]);
    assert!(matches!(splitter.next_frame(), Err(WireError::FrameTooLarge { max: 1_000 })));
}

/// Frames of growing size, with occasional bookmarks.
pub(super) fn stream_of(events: usize, encoding: FeedEncoding, shape: JsonLayout) -> Vec<Bytes> {
    let frame = |at: usize| {
        let pod = Pod { rv: 90 + at as u64, padding: at % 50, ..Pod::default() };
        match (at % 7, encoding, shape) {
            (6, FeedEncoding::Protobuf, _) => {
                event(encoding, "BOOKMARK", &unknown("v1", "Pod", &[0x0a, 4, 0x32, 2, b'9', b'9']))
            }
            (6, FeedEncoding::Json, _) => {
                event(encoding, "BOOKMARK", br#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"99"}}"#)
            }
            (at, ..) => pod.event(encoding, shape, ["ADDED", "MODIFIED", "DELETED"][at % 3]),
        }
    };
    (0..events).map(frame).collect()
}

fn split<'a>(encoding: FeedEncoding, chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Bytes> {
    let mut splitter = FrameSplitter::new(encoding, FRAME_MAX);
    let mut frames = Vec::new();
    for chunk in chunks {
        splitter.push(chunk);
        while let Some(frame) = splitter.next_frame().expect("well-formed") {
            frames.push(frame);
        }
    }
    splitter.finish().expect("nothing is left");
    frames
}

fn items_of<'a>(encoding: FeedEncoding, shape: JsonLayout, chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
    let reader = reader(encoding, shape);
    let item = |frame| reported(&reader.watch_event(frame).expect("well-formed"));
    split(encoding, chunks).into_iter().map(item).collect()
}

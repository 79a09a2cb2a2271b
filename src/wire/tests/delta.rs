use bytes::Bytes;
use proptest::prelude::*;

use crate::wire::{DeltaError, DeltaFrame, FeedEncoding, FrameSplitter, WireError, delta, is_delta};
use kubeapi::{EventType, ResourceVersion};

const FRAME_MAX: usize = 1 << 20;
const TYPES: [EventType; 3] = [EventType::Added, EventType::Modified, EventType::Deleted];

fn rv(base: &[u8]) -> ResourceVersion {
    ResourceVersion(1 + base.len() as u64)
}

fn of(base: Option<&[u8]>, frame: &[u8]) -> Bytes {
    delta(EventType::Modified, base.map(|base| (rv(base), base)), frame)
}

fn read(delta: &[u8], base: &[u8]) -> Result<Bytes, DeltaError> {
    DeltaFrame::parse(delta)?.frame(base, FRAME_MAX)
}

/// Text without repetitions.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(..)).collect()
}

#[test]
fn frame_survives_with_any_base_of_any_length() {
    for (n, len) in [1, 2, 300, 16_383, 16_384, 16_385, 40_000, 300_000].into_iter().enumerate() {
        let frame = noise(len, 1);
        let mut edited = frame.clone();
        edited[len / 2] ^= 1;
        edited.splice(len / 3..len / 3, *b"inserted");
        for base in [frame.clone(), edited, noise(len, 2), Vec::new(), noise(5, 3)] {
            let event_type = TYPES[n % 3];
            let made = delta(event_type, Some((rv(&base), &base)), &frame);
            let parsed = DeltaFrame::parse(&made).expect("a delta");
            assert_eq!((parsed.event_type, parsed.base), (event_type, Some(rv(&base))));
            assert_eq!(parsed.frame(&base, FRAME_MAX).expect("the frame"), frame, "{len} bytes");
        }
        let alone = of(None, &frame);
        assert_eq!(DeltaFrame::parse(&alone).expect("a delta").base, None);
        assert_eq!(read(&alone, &[]).expect("the frame"), frame);
    }
}

#[test]
fn edit_of_large_object_is_small() {
    for len in [400, 12_000, 300_000, 1_000_000] {
        let frame = noise(len, 1);
        let mut base = frame.clone();
        base[len / 2] ^= 1;
        base.splice(len / 3..len / 3, *b"inserted");
        let made = of(Some(&base), &frame);
        assert!(made.len() <= 60 + len / 100, "{} bytes of {len}", made.len());
    }
}

#[test]
fn wrong_base_or_damage_never_yields_a_frame() {
    let (frame, base) = (noise(20_000, 1), [&noise(20_000, 1)[..10_000], b"x", &noise(20_000, 1)[10_000..]].concat());
    let made = of(Some(&base), &frame);
    let mut other = base.clone();
    other[9_000] ^= 1;
    assert_eq!(read(&made, &other), Err(DeltaError::WrongDigest));
    for len in 0..made.len() {
        assert!(read(&made[..len], &base).is_err(), "{len} of {} bytes", made.len());
    }
    for at in 0..made.len() {
        for bit in 0..8 {
            let mut damaged = made.to_vec();
            damaged[at] ^= 1 << bit;
            // The receiver checks the event type and the version of the base.
            let read = read(&damaged, &base);
            assert!(read.is_err() || read == Ok(frame.clone().into()), "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn hostile_delta_is_refused_before_it_costs_memory() {
    let with_pieces = |pieces: &[u8]| {
        let mut delta = vec![0x82];
        kubeapi::protobuf::put_varint(&mut delta, 9 + pieces.len() as u64);
        delta.push(0);
        delta.extend([0; 8]);
        delta.extend(pieces);
        delta
    };
    // A stored block, and one that ends at once.
    let stored = |len: u16| [&[1][..], &len.to_le_bytes(), &(!len).to_le_bytes(), &vec![0; len.into()]].concat();
    let empty = [3, 0];
    let zeros = of(None, &vec![0; FRAME_MAX + 1]);
    let bomb = deflated_zeros(1 << 24);
    assert!(bomb.len() > 4_096 && zeros.len() < 4_096, "{} bytes", zeros.len());
    for (pieces, reason) in [
        (bomb[..4_096].to_vec(), "a piece of 16 MiB"),
        (stored(16_385), "a piece above its limit"),
        (empty.repeat(1_000), "many empty pieces"),
        ([stored(16_384), empty.to_vec()].concat(), "an empty last piece"),
        ([stored(5), stored(5)].concat(), "a short piece before the last"),
        (vec![0xff; 100], "no DEFLATE"),
    ] {
        assert_eq!(read(&with_pieces(&pieces), &[]), Err(DeltaError::Malformed), "{reason}");
    }
    assert_eq!(read(&zeros, &[]), Err(DeltaError::Malformed), "a frame above its limit");
    assert_eq!(read(&with_pieces(&stored(16_384)), &[]), Err(DeltaError::WrongDigest), "a whole piece is read");
    for hostile in [&[][..], &[0x80], &[0x82], &[0x84, 9, 0], &[0x82, 0x80], &[b'{'; 20], &[0xff; 20]] {
        assert!(DeltaFrame::parse(hostile).is_err(), "{hostile:?}");
    }
}

/// Returns `len` zeros as one DEFLATE stream.
fn deflated_zeros(len: u64) -> Vec<u8> {
    use std::io::Read as _;
    let mut out = Vec::new();
    let zeros = std::io::repeat(0).take(len);
    flate2::read::DeflateEncoder::new(zeros, flate2::Compression::fast()).read_to_end(&mut out).expect("memory");
    out
}

#[test]
fn splitter_separates_deltas_from_plain_frames() {
    for (encoding, plain) in
        [(FeedEncoding::Json, &b"{\"\n"[..]), (FeedEncoding::Protobuf, &[0, 0, 0, 3, b'\n', 0x82, b'\n'])]
    {
        let made = of(Some(b"base\nbase"), b"\nframe\n");
        let frames = [plain, &made, &made, plain, plain, &made];
        let stream = frames.concat();
        for size in 1..stream.len() {
            let mut splitter = FrameSplitter::new(encoding, 60).with_deltas();
            let mut seen = Vec::new();
            for chunk in stream.chunks(size) {
                splitter.push(chunk);
                while let Some(frame) = splitter.next_frame().expect("whole frames") {
                    seen.push(frame);
                }
            }
            splitter.finish().expect("a boundary");
            assert_eq!(seen, frames, "{encoding} in chunks of {size}");
        }
        for (hostile, reason) in [(&[0x82, 0xff, 0xff, 3][..], "a long delta"), (&[0xff; 12], "an endless length")] {
            let mut splitter = FrameSplitter::new(encoding, 60).with_deltas();
            splitter.push(hostile);
            assert!(splitter.next_frame().is_err(), "{reason}");
        }
        let mut plain_only = FrameSplitter::new(encoding, 60);
        plain_only.push(&made);
        assert!(!matches!(plain_only.next_frame(), Ok(Some(frame)) if is_delta(&frame) && frame == made));
    }
    let wire: WireError = DeltaError::WrongDigest.into();
    assert_eq!(wire.to_string(), "cannot apply the difference to an earlier version: wrong digest");
}

proptest! {
    #[test]
    fn random_edits_survive(
        text in prop::collection::vec(any::<u8>(), 1..60_000),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_usize..3), 0..20),
    ) {
        let mut frame = text.clone();
        for (at, byte, kind) in edits {
            let at = at.index(frame.len());
            match kind {
                0 => frame[at] = byte,
                1 => frame.insert(at, byte),
                _ if frame.len() > 1 => drop(frame.remove(at)),
                _ => {}
            }
        }
        prop_assert_eq!(read(&of(Some(&text), &frame), &text), Ok(Bytes::from(frame)));
    }

    #[test]
    fn random_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..2_000),
        base in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let _ = read(&bytes, &base);
        let len = bytes.len() % 100;
        let head = [&[0x82][..], &[u8::try_from(len).expect("small")], &bytes[..len]].concat();
        let _ = read(&head, &base);
    }
}

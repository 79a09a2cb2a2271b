mod frames;

use std::io::Read as _;

use bytes::Bytes;

use super::deflate::{WINDOW_BYTES, deflated, piece, pieces};
use super::member::GzipMember;
use super::{compress, is_accepted};
use base::random;

fn gunzipped(compressed: &[u8]) -> Vec<u8> {
    let (mut plain, mut decoder) = (Vec::new(), flate2::bufread::GzDecoder::new(compressed));
    decoder.read_to_end(&mut plain).expect("one whole member, and its sum is right");
    assert!(decoder.into_inner().is_empty(), "nothing behind the member");
    plain
}

fn byte_below(limit: u32) -> u8 {
    u8::try_from(random::u32(..limit)).expect("a byte")
}

fn incompressible(len: usize) -> Vec<u8> {
    std::iter::repeat_with(|| byte_below(256)).take(len).collect()
}

/// Random text of 64 characters, like base64.
fn base64(len: usize) -> Vec<u8> {
    std::iter::repeat_with(|| b'0' + byte_below(64)).take(len).collect()
}

fn repetitive(len: usize) -> Vec<u8> {
    let word = |_| ["index", "level", "info", "name", "config", "data"][random::usize(..6)].as_bytes();
    (0..).flat_map(word).copied().take(len).collect()
}

#[tokio::test]
async fn whole_response_is_one_gzip_member() {
    for len in [0, 1, 2, 63, 64, 128, 65_534, 65_535, 65_536, 131_070, 200_000, 400_001] {
        for plain in [vec![b'x'; len], incompressible(len), base64(len), repetitive(len)] {
            assert!(gunzipped(&compress(plain.clone().into()).await) == plain, "{len} bytes");
        }
    }
}

/// Clients read stored data a hundred times as fast, and no output grows by more than five bytes in 65,535.
#[tokio::test]
async fn incompressible_pieces_are_stored_and_others_compressed() {
    const LEN: usize = 1 << 20;
    let frame = 10 + 2 + 8;
    let compressed = async |plain: Vec<u8>| compress(plain.into()).await.len();
    assert_eq!(compressed(incompressible(LEN)).await, LEN + LEN.div_ceil(65_535) * 5 + frame);
    let base64 = compressed(base64(LEN)).await;
    assert!((LEN * 3 / 4..LEN * 3 / 4 + LEN / 400).contains(&base64), "{base64}");
    assert!(compressed(repetitive(LEN)).await < LEN / 3);
    // A repetition of text with evenly distributed characters.
    assert!(compressed(incompressible(20_000).repeat(50)).await < LEN / 5);
    // A compressible piece among incompressible ones.
    let mixed = [incompressible(LEN / 2), repetitive(LEN / 4), incompressible(LEN / 4)].concat();
    let mixed = compressed(mixed).await;
    assert!((LEN * 3 / 4..LEN * 7 / 8).contains(&mixed), "{mixed}");
}

#[test]
fn pieces_form_one_member_and_reference_preceding_text() {
    let texts = [
        incompressible(70_000),
        repetitive(50_000),
        incompressible(100),
        incompressible(40_000),
        repetitive(200_000),
        base64(90_000),
        incompressible(3),
    ];
    let mut before = Vec::new();
    let mut member = GzipMember::begin();
    for text in texts {
        for index in 0..pieces(text.len()) {
            let range = piece(text.len(), index);
            let made = deflated(&before, &text[range.clone()], index + 1 == pieces(text.len()));
            member.put(&made, || [Bytes::copy_from_slice(&text[range.clone()])]);
            before.extend_from_slice(&text[range]);
        }
        member.put_plain(Bytes::from_static(b","));
        before.push(b',');
    }
    member.end();
    let out: Vec<u8> = std::iter::from_fn(|| member.next()).flatten().collect();
    assert!(gunzipped(&out) == before);
    let again = incompressible(30_000);
    let made = deflated(&again, &again, true);
    assert!(made.bytes.expect("it gains").len() < 1_000, "it is what it is behind");
    let far = [again.clone(), incompressible(WINDOW_BYTES)].concat();
    assert!(deflated(&far, &again, true).bytes.is_none(), "no match reaches that far");
}

#[test]
fn accept_encoding_gzip_must_match_exactly() {
    for (value, expected) in [
        ("gzip", true),
        ("deflate, gzip", true),
        ("gzip,br", true),
        (" gzip ", true),
        ("gzip;q=1.0", false),
        ("*", false),
        ("x-gzip", false),
        ("GZIP", false),
        ("", false),
    ] {
        assert_eq!(is_accepted(value), expected, "{value:?}");
    }
}

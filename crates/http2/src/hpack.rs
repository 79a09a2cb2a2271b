//! Header blocks (RFC 7541). The decoder uses a dynamic table of the default size; the encoder uses none.

use std::collections::VecDeque;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::error::{Http2Error, Http2ErrorCode};
use super::huffman;
use super::static_table::STATIC_TABLE;

/// The size of the decoder's dynamic table, in bytes: the default (RFC 9113 §6.5.2).
///
/// A smaller one would save memory, but some clients ignore the setting. With the table, a token that each request
/// repeats is sent and parsed once.
const TABLE_BYTES_MAX: usize = 4_096;
/// The size of a header field besides its name and value (RFC 7541 §4.1).
pub(super) const FIELD_BYTES: usize = 32;

/// The decoder of a connection's header blocks, which it must read in order.
#[derive(Debug)]
pub(super) struct HpackDecoder {
    /// The entries of the dynamic table, newest first.
    table: VecDeque<HpackTableEntry>,
    table_bytes: usize,
    /// The maximum table size that the client has chosen.
    chosen_bytes_max: usize,
}

/// An entry of the HPACK dynamic table.
#[derive(Debug)]
struct HpackTableEntry {
    name: Box<[u8]>,
    value: HpackTableValue,
}

/// The value of a field in the dynamic table. It is validated once, when the client sends it, because a later request
/// refers to it by a single byte.
#[derive(Debug)]
pub(super) enum HpackTableValue {
    Header(HeaderValue),
    /// A value that is not valid as a header value.
    Invalid(Bytes),
}

/// The value of a decoded header field.
#[derive(Debug, Clone, Copy)]
pub(super) enum HeaderFieldValue<'a> {
    /// A value in the connection's dynamic table. All requests that refer to it share its bytes, because a client sends
    /// one byte to refer to 4 KiB.
    Shared(&'a HpackTableValue),
    Own(&'a [u8]),
}

/// The errors of a header block that was not read to its end. No later block can be read either.
const UNREADABLE: Http2Error = Http2Error::Connection(Http2ErrorCode::Compression, "cannot decode a header block");
/// The fields exceed the limit. One byte can refer to 4 KiB in the dynamic table.
const TOO_LARGE: Http2Error = Http2Error::Connection(Http2ErrorCode::EnhanceYourCalm, "too many header fields");

/// The unread rest of a header block.
struct HeaderBlockReader<'a>(&'a [u8]);

impl HpackDecoder {
    pub(super) fn new() -> Self {
        Self { table: VecDeque::new(), table_bytes: 0, chosen_bytes_max: TABLE_BYTES_MAX }
    }

    /// Reads a block, and passes each field to `field`.
    ///
    /// No field is larger than its block or the table.
    ///
    /// # Errors
    /// The block is invalid, or its fields together exceed `bytes_max`.
    pub(super) fn read(
        &mut self,
        block: &[u8],
        bytes_max: usize,
        mut field: impl FnMut(&[u8], HeaderFieldValue<'_>),
    ) -> Result<(), Http2Error> {
        let mut left = bytes_max;
        let mut field = |name: &[u8], value: HeaderFieldValue<'_>| {
            left = left.checked_sub(name.len() + value.bytes().len() + FIELD_BYTES).ok_or(TOO_LARGE)?;
            field(name, value);
            Ok(())
        };
        let mut rest = HeaderBlockReader(block);
        let (mut name, mut value) = (Vec::new(), Vec::new());
        let mut has_begun = false;
        while let Some(first) = rest.0.first().copied() {
            if first & 0xe0 == 0x20 && !has_begun {
                let chosen = rest.number(5)?;
                if chosen > TABLE_BYTES_MAX {
                    return Err(UNREADABLE);
                }
                self.chosen_bytes_max = chosen;
                self.make_room(0);
                continue;
            }
            if first & 0xe0 == 0x20 {
                return Err(UNREADABLE);
            }
            has_begun = true;
            if first & 0x80 != 0 {
                let (name, value) = self.at(rest.number(7)?).ok_or(UNREADABLE)?;
                field(name, value)?;
                continue;
            }
            let is_kept = first & 0x40 != 0;
            name.clear();
            match rest.number(if is_kept { 6 } else { 4 })? {
                0 => rest.string(&mut name)?,
                at => name.extend_from_slice(self.at(at).ok_or(UNREADABLE)?.0),
            }
            value.clear();
            rest.string(&mut value)?;
            if is_kept {
                let value = HpackTableValue::new(&value);
                field(&name, HeaderFieldValue::Shared(&value))?;
                self.keep(&name, value);
            } else {
                field(&name, HeaderFieldValue::Own(&value))?;
            }
        }
        Ok(())
    }

    fn at(&self, index: usize) -> Option<(&[u8], HeaderFieldValue<'_>)> {
        let index = index.checked_sub(1)?;
        if let Some((name, value)) = STATIC_TABLE.get(index) {
            return Some((name.as_bytes(), HeaderFieldValue::Own(value.as_bytes())));
        }
        let HpackTableEntry { name, value } = self.table.get(index - STATIC_TABLE.len())?;
        Some((name, HeaderFieldValue::Shared(value)))
    }

    fn keep(&mut self, name: &[u8], value: HpackTableValue) {
        let bytes = name.len() + value.bytes().len() + FIELD_BYTES;
        self.make_room(bytes);
        // A field that is larger than the table empties it (RFC 7541 §4.4).
        if bytes <= self.chosen_bytes_max {
            self.table.push_front(HpackTableEntry { name: name.into(), value });
            self.table_bytes += bytes;
        }
    }

    fn make_room(&mut self, bytes: usize) {
        while self.table_bytes + bytes > self.chosen_bytes_max {
            let Some(HpackTableEntry { name, value }) = self.table.pop_back() else { break };
            self.table_bytes -= name.len() + value.bytes().len() + FIELD_BYTES;
        }
        if self.table.is_empty() {
            self.table = VecDeque::new();
        }
    }
}

impl HpackTableValue {
    fn new(value: &[u8]) -> Self {
        let bytes = Bytes::copy_from_slice(value);
        HeaderValue::from_maybe_shared(bytes.clone()).map_or(Self::Invalid(bytes), Self::Header)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Header(value) => value.as_bytes(),
            Self::Invalid(value) => value,
        }
    }
}

impl HeaderFieldValue<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Shared(value) => value.bytes(),
            Self::Own(value) => value,
        }
    }

    /// Returns the value as a header value, if it is valid. A shared one is neither copied nor validated again.
    pub(super) fn to_header(self) -> Option<HeaderValue> {
        match self {
            Self::Shared(HpackTableValue::Header(value)) => Some(value.clone()),
            Self::Shared(HpackTableValue::Invalid(_)) => None,
            Self::Own(value) => HeaderValue::from_bytes(value).ok(),
        }
    }
}

impl HeaderBlockReader<'_> {
    /// Reads a number whose prefix is the last `bits` of a byte (RFC 7541 §5.1).
    fn number(&mut self, bits: u32) -> Result<usize, Http2Error> {
        let prefix = (1_usize << bits) - 1;
        let mut number = usize::from(self.byte()?) & prefix;
        if number < prefix {
            return Ok(number);
        }
        // No valid number here has more than 28 bits.
        for shift in [0, 7, 14, 21] {
            let byte = usize::from(self.byte()?);
            number += (byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(UNREADABLE)
    }

    fn string(&mut self, into: &mut Vec<u8>) -> Result<(), Http2Error> {
        let is_coded = self.0.first().is_some_and(|first| first & 0x80 != 0);
        let length = self.number(7)?;
        let (string, rest) = self.0.split_at_checked(length).ok_or(UNREADABLE)?;
        self.0 = rest;
        if is_coded {
            return huffman::decode(string, into).ok_or(UNREADABLE);
        }
        into.extend_from_slice(string);
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, Http2Error> {
        let (byte, rest) = self.0.split_first().ok_or(UNREADABLE)?;
        self.0 = rest;
        Ok(*byte)
    }
}

/// Announces an empty dynamic table. A client that reduces its table waits for this announcement (RFC 7541 §4.2).
pub(super) fn write_table_size_zero(block: &mut Vec<u8>) {
    block.push(0x20);
}

pub(super) fn put_status(block: &mut Vec<u8>, status: u16) {
    let index = match status {
        200 => 8,
        204 => 9,
        304 => 11,
        400 => 12,
        404 => 13,
        500 => 14,
        _ => {
            put_number(block, 0, 4, STATUS);
            return put_string(block, status.to_string().as_bytes());
        }
    };
    put_number(block, 0x80, 7, index);
}

/// Writes fields without indexing and without Huffman coding, because a nearby client reads each of them once.
pub(super) fn put_fields(block: &mut Vec<u8>, fields: &HeaderMap) {
    for (name, value) in fields {
        match static_index(name) {
            Some(index) => put_number(block, 0, 4, index),
            None => {
                block.push(0);
                put_string(block, name.as_str().as_bytes());
            }
        }
        put_string(block, value.as_bytes());
    }
}

/// The index of `:status` in the static table, and those of the most frequent response fields.
const STATUS: usize = 8;

fn static_index(name: &HeaderName) -> Option<usize> {
    Some(match name.as_str() {
        "cache-control" => 24,
        "content-encoding" => 26,
        "content-length" => 28,
        "content-type" => 31,
        "date" => 33,
        "etag" => 34,
        "vary" => 59,
        _ => return None,
    })
}

fn put_string(block: &mut Vec<u8>, string: &[u8]) {
    put_number(block, 0, 7, string.len());
    block.extend_from_slice(string);
}

fn put_number(block: &mut Vec<u8>, flags: u8, bits: u32, number: usize) {
    let prefix = u8::MAX >> (8 - bits);
    if let Ok(number) = u8::try_from(number)
        && number < prefix
    {
        return block.push(flags | number);
    }
    block.push(flags | prefix);
    let mut rest = number - usize::from(prefix);
    while rest >= 0x80 {
        block.push(0x80 | low(rest));
        rest >>= 7;
    }
    block.push(low(rest));
}

/// Returns the lowest seven bits of a number.
fn low(number: usize) -> u8 {
    number.to_le_bytes()[0] & 0x7f
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(decoder: &mut HpackDecoder, block: &[u8]) -> Result<Vec<String>, Http2Error> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder.read(block, 8_000, |name, value| fields.push(format!("{}: {}", text(name), text(value.bytes()))))?;
        Ok(fields)
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<char> = hex.chars().filter(|digit| !digit.is_whitespace()).collect();
        let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect("hexadecimal");
        digits.chunks(2).map(byte).collect()
    }

    /// The examples of RFC 7541, Appendix C.3 and C.4: three requests on one connection, without and with Huffman
    /// coding.
    #[test]
    fn rfc7541_request_examples_are_decoded() {
        let plain = [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ];
        let coded = [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ];
        for blocks in [plain, coded] {
            let mut decoder = HpackDecoder::new();
            let read = blocks.map(|block| read(&mut decoder, &bytes(block)).expect("right"));
            assert_eq!(read[0], [":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"]);
            assert_eq!(read[1][3..], [":authority: www.example.com", "cache-control: no-cache"]);
            assert_eq!(
                read[2],
                [
                    ":method: GET",
                    ":scheme: https",
                    ":path: /index.html",
                    ":authority: www.example.com",
                    "custom-key: custom-value",
                ]
            );
            assert_eq!(decoder.table_bytes, 164);
        }
    }

    /// The example of RFC 7541, Appendix C.5: a table of 256 bytes evicts its oldest entries.
    #[test]
    fn dynamic_table_evicts_oldest_entries() {
        let mut decoder = HpackDecoder::new();
        assert_eq!(read(&mut decoder, &bytes("3fe101")), Ok(vec![]), "256 bytes");
        let first = "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 \
                     3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d";
        assert_eq!(read(&mut decoder, &bytes(first)).expect("right").len(), 4);
        assert_eq!((decoder.table_bytes, decoder.table.len()), (222, 4));
        assert_eq!(
            read(&mut decoder, &bytes("4803 3330 37c1 c0bf")).expect("right"),
            [
                ":status: 307",
                "cache-control: private",
                "date: Mon, 21 Oct 2013 20:13:21 GMT",
                "location: https://www.example.com",
            ]
        );
        assert_eq!((decoder.table_bytes, decoder.table.len()), (222, 4));
        assert_eq!(read(&mut decoder, &bytes("20")), Ok(vec![]), "none");
        assert_eq!((decoder.table_bytes, decoder.table.capacity()), (0, 0));
    }

    #[test]
    fn invalid_block_is_refused() {
        for (block, what) in [
            ("80", "a field without a number"),
            ("be", "a field that is in no table"),
            ("ff ff ff ff ff 7f", "a number without an end"),
            ("ff", "a number that is cut off"),
            ("00 05 61 62", "a name that is cut off"),
            ("41", "a field without a value"),
            ("3f e2 1f", "a table that is too large: 4097 bytes"),
            ("82 20", "a table that changes behind a field"),
            ("00 81 00 00", "a name that is no code"),
        ] {
            assert_eq!(read(&mut HpackDecoder::new(), &bytes(block)), Err(UNREADABLE), "{what}");
        }
    }

    /// Two bytes refer to a name of 4,000.
    #[test]
    fn hpack_bomb_is_refused_as_too_large() {
        let mut decoder = HpackDecoder::new();
        let mut block = vec![0x40];
        put_string(&mut block, &[b'x'; 4_000]);
        block.push(0);
        assert_eq!(read(&mut decoder, &block).expect("once").len(), 1);
        assert_eq!(read(&mut decoder, &[0x7e, 0, 0x7e, 0]), Err(TOO_LARGE));
    }

    #[test]
    fn encoded_fields_round_trip() {
        let mut fields = HeaderMap::new();
        fields.insert("content-type", "application/json".parse().expect("right"));
        fields.insert("kube-fanout-served", "cache".parse().expect("right"));
        fields.insert("warning", "x".repeat(5_000).parse().expect("right"));
        let static_index = ["cache-control", "content-encoding", "content-length", "date", "etag", "vary"];
        static_index.iter().for_each(|name| drop(fields.insert(*name, "1".parse().expect("right"))));
        for status in [200, 201, 204, 304, 400, 404, 410, 500] {
            let mut block = Vec::new();
            write_table_size_zero(&mut block);
            put_status(&mut block, status);
            put_fields(&mut block, &fields);
            let mut expected = vec![format!(":status: {status}")];
            expected.extend(fields.iter().map(|(name, value)| format!("{name}: {}", value.to_str().expect("text"))));
            assert_eq!(read(&mut HpackDecoder::new(), &block), Ok(expected));
        }
    }

    #[test]
    fn indexed_value_is_shared_and_outlives_its_entry() {
        let (mut decoder, mut values) = (HpackDecoder::new(), Vec::new());
        let mut block = vec![0x40];
        put_string(&mut block, b"x");
        put_string(&mut block, &[b'v'; 1_000]);
        for block in [&block[..], &[0xbe], &[0xbe, 0xbe], &[0x20]] {
            let read = decoder.read(block, 8_000, |_, value| values.push(value.to_header().expect("a valid value")));
            read.expect("valid blocks");
        }
        assert_eq!((values.len(), decoder.table_bytes), (4, 0));
        let values: Vec<_> = values.iter().map(HeaderValue::as_bytes).collect();
        assert!(values.iter().all(|value| value.as_ptr() == values[0].as_ptr() && *value == [b'v'; 1_000]));
    }

    #[test]
    fn invalid_indexed_value_is_refused_each_time() {
        let (mut decoder, mut values) = (HpackDecoder::new(), Vec::new());
        let mut block = vec![0x40];
        put_string(&mut block, b"x");
        put_string(&mut block, b"a\nb");
        for block in [&block[..], &[0xbe]] {
            let read = decoder.read(block, 8_000, |_, value| values.push((value.bytes().to_vec(), value.to_header())));
            read.expect("valid blocks");
        }
        assert_eq!(values, [(b"a\nb".to_vec(), None), (b"a\nb".to_vec(), None)]);
    }

    /// The decoder reads or refuses any block, and the memory it keeps is bounded.
    #[test]
    fn decoder_survives_random_blocks_within_table_limit() {
        let mut decoder = HpackDecoder::new();
        let mut random = fastrand::Rng::with_seed(7541);
        for _ in 0..20_000 {
            let block: Vec<u8> = (0..random.usize(..40)).map(|_| random.u8(..)).collect();
            let _ = read(&mut decoder, &block);
            assert!(decoder.table_bytes <= TABLE_BYTES_MAX);
        }
    }
}

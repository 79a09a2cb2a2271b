//! Header compression (RFC 7541): valid and invalid blocks written by hand, and a strict decoder of the server's
//! blocks. It shares no code with the server, so that both cannot have the same bug.

use std::collections::VecDeque;

/// Code length of each symbol; the last symbol is the end of the string (RFC 7541, appendix B). The codes follow from
/// the lengths: they count up from the shortest to the longest, and among equal lengths from the lowest symbol.
#[rustfmt::skip]
const CODE_BITS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11,
    10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8,
    15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5,
    6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23,
    23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21,
    23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25,
    26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26,
    28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];
const END_OF_STRING: usize = 256;

/// The static table (RFC 7541, appendix A).
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// Initial size of the dynamic table on both sides (RFC 9113 §6.5.2).
pub const TABLE_BYTES: usize = 4096;
/// Size of an entry in addition to its name and value (RFC 7541 §4.1).
const ENTRY_BYTES: usize = 32;

pub type Field = (String, String);

/// Representation of a field that is in no table (RFC 7541 §6.2).
#[derive(Clone, Copy)]
pub enum Literal {
    Remembered = 0x40,
    Plain = 0,
    Never = 0x10,
}

/// An integer after the flags of its first byte (RFC 7541 §5.1).
pub fn integer(flags: u8, prefix: u32, value: usize) -> Vec<u8> {
    let most = (1_usize << prefix) - 1;
    if value < most {
        return vec![flags | low(value)];
    }
    let (mut bytes, mut rest) = (vec![flags | low(most)], value - most);
    while rest >= 128 {
        bytes.push(low(rest % 128) | 128);
        rest /= 128;
    }
    bytes.push(low(rest));
    bytes
}

fn low(value: usize) -> u8 {
    u8::try_from(value).expect("less than a byte holds")
}

/// A string without Huffman coding.
pub fn text(value: &[u8]) -> Vec<u8> {
    [integer(0, 7, value.len()), value.to_vec()].concat()
}

/// A Huffman-coded string.
pub fn coded(value: &[u8]) -> Vec<u8> {
    let codes = codes();
    let bits = value.iter().flat_map(|symbol| bits(codes[usize::from(*symbol)])).collect::<Vec<_>>();
    let bytes = packed(&bits);
    [integer(0x80, 7, bytes.len()), bytes].concat()
}

/// Bits of a symbol's code, including the end symbol's, as ones and zeros.
pub fn code(symbol: usize) -> Vec<u8> {
    bits(codes()[symbol]).collect()
}

/// Packs bits into bytes, and pads the last one with ones, as RFC 7541 §5.2 requires.
pub fn packed(bits: &[u8]) -> Vec<u8> {
    let byte = |part: &[u8]| (0..8).fold(0, |byte, at| byte << 1 | part.get(at).copied().unwrap_or(1));
    bits.chunks(8).map(byte).collect()
}

/// The code of each symbol and its number of bits.
fn codes() -> Vec<(u32, u8)> {
    let mut order: Vec<usize> = (0..CODE_BITS.len()).collect();
    order.sort_by_key(|symbol| CODE_BITS[*symbol]);
    let (mut codes, mut next, mut length) = (vec![(0, 0); CODE_BITS.len()], 0, 0);
    for symbol in order {
        next <<= CODE_BITS[symbol] - length;
        length = CODE_BITS[symbol];
        codes[symbol] = (next, length);
        next += 1;
    }
    codes
}

fn bits((code, length): (u32, u8)) -> impl Iterator<Item = u8> {
    (0..length).rev().map(move |at| u8::from(code >> at & 1 == 1))
}

/// An indexed field; indexes start at 1.
pub fn indexed(index: usize) -> Vec<u8> {
    integer(0x80, 7, index)
}

pub fn resized(bytes: usize) -> Vec<u8> {
    integer(0x20, 5, bytes)
}

/// A field with a literal name.
pub fn literal(kind: Literal, name: &[u8], value: &[u8]) -> Vec<u8> {
    [vec![kind as u8], text(name), text(value)].concat()
}

/// The same with Huffman coding.
pub fn coded_literal(kind: Literal, name: &str, value: &str) -> Vec<u8> {
    [vec![kind as u8], coded(name.as_bytes()), coded(value.as_bytes())].concat()
}

/// Fields that are not added to the table.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| literal(Literal::Plain, name.as_bytes(), value.as_bytes())).collect()
}

/// Decodes the server's blocks, and fails on any violation of the RFC.
pub struct Reader {
    entries: VecDeque<Field>,
    /// The table size that the server has announced.
    size: usize,
    /// The maximum table size from the settings that the server has acknowledged.
    size_max: usize,
    /// The table became smaller, so the next block has to begin with a size update (RFC 7541 §4.2).
    owes_resize: bool,
}

impl Default for Reader {
    fn default() -> Self {
        Self { entries: VecDeque::new(), size: TABLE_BYTES, size_max: TABLE_BYTES, owes_resize: false }
    }
}

impl Reader {
    /// The server has acknowledged another size.
    pub fn allow(&mut self, bytes: usize) {
        self.size_max = bytes;
        self.owes_resize |= bytes < self.size;
    }

    /// Size of the entries in the table, in bytes.
    fn table_bytes(&self) -> usize {
        self.entries.iter().map(cost).sum()
    }

    pub fn read(&mut self, mut block: &[u8]) -> Vec<Field> {
        let mut fields = Vec::new();
        while let Some(first) = block.first().copied() {
            if first & 0xe0 == 0x20 {
                assert!(fields.is_empty(), "the table's size within a block");
                self.size = number(&mut block, 5);
                assert!(self.size <= self.size_max, "a table of {} with {} allowed", self.size, self.size_max);
                self.owes_resize = false;
                self.evict(0);
                continue;
            }
            assert!(!self.owes_resize, "the table became smaller, and the server does not say so");
            fields.push(self.field(&mut block, first));
        }
        fields
    }

    fn field(&mut self, block: &mut &[u8], first: u8) -> Field {
        if first & 0x80 != 0 {
            let index = number(block, 7);
            return self.at(index);
        }
        let is_remembered = first & 0xc0 == 0x40;
        let name = match number(block, if is_remembered { 6 } else { 4 }) {
            0 => string(block),
            index => self.at(index).0,
        };
        let field = (name, string(block));
        if is_remembered {
            self.evict(cost(&field));
            if cost(&field) <= self.size {
                self.entries.push_front(field.clone());
            }
        }
        field
    }

    fn evict(&mut self, more: usize) {
        while !self.entries.is_empty() && self.table_bytes() + more > self.size {
            self.entries.pop_back();
        }
    }

    fn at(&self, index: usize) -> Field {
        let index = index.checked_sub(1).expect("entries count from 1");
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        match STATIC.get(index) {
            Some(entry) => owned(entry),
            None => self.entries.get(index - STATIC.len()).cloned().expect("an entry of the table"),
        }
    }
}

fn cost((name, value): &Field) -> usize {
    name.len() + value.len() + ENTRY_BYTES
}

fn number(block: &mut &[u8], prefix: u32) -> usize {
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(take(block, 1)[0]) & most;
    if value < most {
        return value;
    }
    for shift in (0..28).step_by(7) {
        let byte = usize::from(take(block, 1)[0]);
        value += (byte & 127) << shift;
        if byte < 128 {
            return value;
        }
    }
    panic!("a number of more than four bytes");
}

fn take<'a>(block: &mut &'a [u8], bytes: usize) -> &'a [u8] {
    let (taken, rest) = block.split_at_checked(bytes).expect("the block continues");
    *block = rest;
    taken
}

fn string(block: &mut &[u8]) -> String {
    let is_coded = block.first().is_some_and(|first| first & 0x80 != 0);
    let length = number(block, 7);
    let bytes = take(block, length);
    let bytes = if is_coded { decoded(bytes) } else { bytes.to_vec() };
    String::from_utf8(bytes).expect("the server says nothing but text")
}

fn decoded(bytes: &[u8]) -> Vec<u8> {
    let codes = codes();
    let (mut symbols, mut code, mut length) = (Vec::new(), 0, 0);
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| u32::from(byte >> at & 1))) {
        (code, length) = (code << 1 | bit, length + 1);
        if let Some(symbol) = codes.iter().position(|known| *known == (code, length)) {
            assert_ne!(symbol, END_OF_STRING, "the end of a string is never sent");
            symbols.push(low(symbol));
            (code, length) = (0, 0);
        }
    }
    assert!(length < 8 && code == (1 << length) - 1, "a string is filled with ones, less than a byte of them");
    symbols
}

/// The examples of RFC 7541, appendix C, check the tests' own encoder and decoder.
#[test]
fn hpack_test_codec_matches_rfc_7541_examples() {
    assert_eq!(integer(0, 5, 1337), [31, 154, 10]);
    let authority = [0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
    assert_eq!(coded(b"www.example.com"), authority);
    let mut reader = Reader::default();
    let first = reader.read(&[&[0x82, 0x86, 0x84, 0x41], authority.as_slice()].concat());
    assert_eq!(first[3], (":authority".to_owned(), "www.example.com".to_owned()));
    let second = [&[0x82, 0x86, 0x84, 0xbe, 0x58], coded(b"no-cache").as_slice()].concat();
    let second = reader.read(&second);
    assert_eq!(second[3..], [first[3].clone(), ("cache-control".to_owned(), "no-cache".to_owned())]);
    assert_eq!(reader.table_bytes(), 110);
}

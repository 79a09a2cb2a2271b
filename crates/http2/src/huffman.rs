//! The Huffman code of header fields (RFC 7541 §5.2 and Appendix B).
//!
//! The code is canonical: codes of one length are consecutive in the order of their symbols, and shorter codes precede
//! longer ones. So the lengths define all codes.

/// The length in bits of each byte's Huffman code, and last of the end-of-string code.
#[rustfmt::skip]
const BITS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28,
    28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6,
    12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15,
    5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20,
    22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22,
    23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26,
    27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

const BITS_MAX: usize = 30;
/// The length of the shortest code, in bits.
const BITS_MIN: usize = 5;

struct HuffmanTable {
    /// The first code of each length, aligned to the top of 32 bits. Each code is below the first one of the next
    /// length.
    first: [u32; BITS_MAX + 2],
    /// The index in `symbols` of each length's first symbol.
    at: [u16; BITS_MAX + 2],
    /// All Huffman symbols in the order of their codes.
    symbols: [u16; 257],
}

static CODE: HuffmanTable = HuffmanTable::new();

impl HuffmanTable {
    #[expect(clippy::cast_possible_truncation, reason = "no code has more than 30 bits, and there are 257")]
    const fn new() -> Self {
        let mut code = Self { first: [u32::MAX; BITS_MAX + 2], at: [0; BITS_MAX + 2], symbols: [0; 257] };
        let (mut next, mut count, mut length) = (0_u64, 0_u16, 1);
        while length <= BITS_MAX {
            // After the last code of the last length, there is none.
            code.first[length] = (next << (32 - length)) as u32;
            code.at[length] = count;
            let mut symbol = 0;
            while symbol < BITS.len() {
                if BITS[symbol] as usize == length {
                    code.symbols[count as usize] = symbol as u16;
                    next += 1;
                    count += 1;
                }
                symbol += 1;
            }
            next <<= 1;
            length += 1;
        }
        code
    }

    /// Returns the first symbol in 32 bits, and the length of its code.
    fn symbol(&self, bits: u32) -> (u16, usize) {
        let mut length = BITS_MIN;
        while length < BITS_MAX && bits >= self.first[length + 1] {
            length += 1;
        }
        let index = (bits - self.first[length]) >> (32 - length);
        (self.symbols[usize::from(self.at[length]) + index as usize], length)
    }
}

/// Appends the decoded string; `None` if the coding is invalid.
pub(super) fn decode(coded: &[u8], into: &mut Vec<u8>) -> Option<()> {
    // The unread bits, aligned to the top.
    let (mut bits, mut bit_count, mut rest) = (0_u64, 0_usize, coded.iter());
    loop {
        while bit_count <= 56 {
            let Some(byte) = rest.next() else { break };
            bits |= u64::from(*byte) << (56 - bit_count);
            bit_count += 8;
        }
        if bit_count == 0 {
            return Some(());
        }
        // After the end come ones, as in the padding.
        let filler = if bit_count < 64 { u64::MAX >> bit_count } else { 0 };
        let (symbol, length) = CODE.symbol(((bits | filler) >> 32) as u32);
        if length > bit_count {
            // The rest must be padding: less than a byte, all ones.
            let is_padding = bit_count < 8 && bits >> (64 - bit_count) == (1 << bit_count) - 1;
            return is_padding.then_some(());
        }
        // A coded end-of-string symbol is an error.
        into.push(u8::try_from(symbol).ok()?);
        bits <<= length;
        bit_count -= length;
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn decoded(coded: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        decode(coded, &mut bytes).map(|()| bytes)
    }

    /// Encodes a string, bit by bit.
    fn coded(bytes: &[u8]) -> Vec<u8> {
        let mut bits = String::new();
        for byte in bytes {
            let length = usize::from(BITS[usize::from(*byte)]);
            let index =
                CODE.symbols[usize::from(CODE.at[length])..].iter().position(|symbol| *symbol == u16::from(*byte));
            let code = (CODE.first[length] >> (32 - length)) as usize + index.expect("it has a code");
            write!(bits, "{code:0length$b}").expect("it is a string");
        }
        while !bits.len().is_multiple_of(8) {
            bits.push('1');
        }
        let byte = |bits: &[u8]| u8::from_str_radix(std::str::from_utf8(bits).expect("digits"), 2).expect("a byte");
        bits.as_bytes().chunks(8).map(byte).collect()
    }

    /// The examples of RFC 7541, Appendix C.4 and C.6.
    #[test]
    fn rfc7541_string_examples_round_trip() {
        let rows: [(&[u8], &str); 5] = [
            (&[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff], "www.example.com"),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (&[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f], "custom-key"),
            (&[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf], "custom-value"),
            (
                &[
                    0xd0, 0x7a, 0xbe, 0x94, 0x10, 0x54, 0xd4, 0x44, 0xa8, 0x20, 0x05, 0x95, 0x04, 0x0b, 0x81, 0x66,
                    0xe0, 0x82, 0xa6, 0x2d, 0x1b, 0xff,
                ],
                "Mon, 21 Oct 2013 20:13:21 GMT",
            ),
        ];
        for (bytes, string) in rows {
            assert_eq!(decoded(bytes).as_deref(), Some(string.as_bytes()), "{string}");
            assert_eq!(coded(string.as_bytes()), bytes);
        }
        assert_eq!(decoded(&[]), Some(vec![]));
    }

    #[test]
    fn every_byte_pair_round_trips() {
        for first in 0..=u8::MAX {
            for second in 0..=u8::MAX {
                let bytes = [first, second, b'a', first];
                assert_eq!(decoded(&coded(&bytes)).as_deref(), Some(&bytes[..]), "{first} {second}");
            }
        }
    }

    #[test]
    fn invalid_padding_and_eos_are_refused() {
        // 'a' is 00011.
        assert_eq!(decoded(&[0b0001_1111]), Some(b"a".to_vec()));
        assert_eq!(decoded(&[0b0001_1110]), None, "no padding of ones");
        assert_eq!(decoded(&[0b0001_1111, 0xff]), None, "a byte of padding");
        assert_eq!(decoded(&[0xff]), None);
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), None, "the end is never written");
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xfc]), None);
    }
}

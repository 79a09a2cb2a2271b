//! CRC-32 (RFC 1952 §8) of a text in pieces. A shared piece is appended in constant time, because its factor is known.

/// The polynomial, with the lowest power in the highest bit.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// x^0 in that order of bits.
const ONE: u32 = 1 << 31;

/// Returns the checksum of two texts together. `shift` is that of the second.
pub(super) fn combined_crc(first: u32, second: u32, shift: u32) -> u32 {
    product(first, shift) ^ second
}

/// Returns the factor that appends a text of `len` bytes: x^(8 · len).
pub(super) fn shift(mut len: u64) -> u32 {
    let (mut power, mut square) = (ONE, ONE >> 8);
    while len > 0 {
        if len & 1 == 1 {
            power = product(power, square);
        }
        square = product(square, square);
        len >>= 1;
    }
    power
}

/// Returns the product of two polynomials modulo [`POLYNOMIAL`].
fn product(left: u32, mut right: u32) -> u32 {
    let mut sum = 0;
    for power in (0..u32::BITS).rev() {
        sum ^= right & ((left >> power) & 1).wrapping_neg();
        right = (right >> 1) ^ ((right & 1).wrapping_neg() & POLYNOMIAL);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_pieces_is_that_of_the_whole_text() {
        let text: Vec<u8> = (0..70_000_u32).map(|at| at.to_le_bytes()[at as usize % 3]).collect();
        for at in [0, 1, 2, 255, 256, 4_000, 65_536, text.len()] {
            let (first, second) = text.split_at(at);
            let (first, crc) = (crc32fast::hash(first), crc32fast::hash(second));
            assert_eq!(combined_crc(first, crc, shift(second.len() as u64)), crc32fast::hash(&text), "{at}");
        }
    }
}

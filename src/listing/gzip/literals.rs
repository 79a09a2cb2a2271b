//! DEFLATE blocks without matches (RFC 1951 §3.2.7), for text without repetitions and with few distinct characters.
//!
//! Base64 of random bytes is such text. A search for matches takes ten times as long and finds none. Its output is an
//! eighth of a percent longer, because it has many blocks with codes of their own.

/// Number of codes: one for each literal, and one for the end of the block.
const CODES: usize = 257;
const END: usize = 256;
const CODE_BITS_MAX: u32 = 15;
/// Number of codes for code lengths.
const LENGTH_CODES: usize = 19;
const LENGTH_CODE_BITS_MAX: u32 = 7;
/// Order in which the lengths of those codes are written.
const LENGTHS_ORDER: [usize; LENGTH_CODES] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// The Huffman codes of a text.
#[derive(Debug)]
pub(super) struct Literals {
    lengths: Vec<u32>,
    /// The block's header, which contains the code lengths.
    head: Bits,
    bits: u64,
}

/// A sequence of bits, the lowest of each byte first.
#[derive(Debug, Default, Clone)]
struct Bits {
    done: Vec<u8>,
    open: u64,
    count: u32,
}

impl Literals {
    pub(super) fn of(text: &[u8]) -> Self {
        let mut counts = [0u32; CODES];
        // Four tables, so that a repeated character does not wait for its previous count.
        let mut tables = [[0u32; 256]; 4];
        let mut chunks = text.chunks_exact(4);
        for chunk in &mut chunks {
            (0..4).for_each(|at| tables[at][usize::from(chunk[at])] += 1);
        }
        chunks.remainder().iter().for_each(|byte| tables[0][usize::from(*byte)] += 1);
        for (byte, count) in counts[..END].iter_mut().enumerate() {
            *count = tables.iter().map(|table| table[byte]).sum();
        }
        counts[END] = 1;
        let lengths = lengths(&counts, CODE_BITS_MAX);
        let head = head(&lengths);
        let bits = counts.iter().zip(&lengths).map(|(count, length)| u64::from(*count) * u64::from(*length)).sum();
        Self { lengths, head, bits }
    }

    /// Returns the length of the block in bytes.
    pub(super) fn len(&self) -> usize {
        let bits = self.head.len() + self.bits;
        // The header of an empty block fills the last byte; the length of that block follows.
        usize::try_from((bits + 3).div_ceil(8) + 4).unwrap_or(usize::MAX)
    }

    /// Writes the block, followed by an empty block that ends on a byte boundary.
    pub(super) fn write(self, text: &[u8]) -> Vec<u8> {
        let len = self.len();
        let codes = codes(&self.lengths);
        let mut bits = self.head;
        bits.done.reserve_exact(len);
        for byte in text {
            bits.put(codes[usize::from(*byte)], self.lengths[usize::from(*byte)]);
        }
        bits.put(codes[END], self.lengths[END]);
        bits.put(0, 3);
        let mut done = bits.padded();
        done.extend_from_slice(&[0, 0, 0xff, 0xff]);
        done
    }
}

impl Bits {
    fn put(&mut self, value: u32, count: u32) {
        self.open |= u64::from(value) << self.count;
        self.count += count;
        if self.count >= 32 {
            self.done.extend_from_slice(&self.open.to_le_bytes()[..4]);
            self.open >>= 32;
            self.count -= 32;
        }
    }

    fn len(&self) -> u64 {
        self.done.len() as u64 * 8 + u64::from(self.count)
    }

    fn padded(mut self) -> Vec<u8> {
        let left = self.count.div_ceil(8) as usize;
        self.done.extend_from_slice(&self.open.to_le_bytes()[..left]);
        self.done
    }
}

/// Returns the lengths of a Huffman code, none longer than `max`.
fn lengths(counts: &[u32], max: u32) -> Vec<u32> {
    let mut counts = counts.to_vec();
    loop {
        let lengths = unbounded_lengths(&counts);
        if lengths.iter().all(|length| *length <= max) {
            return lengths;
        }
        // Rare characters are counted as less rare until no code is too long.
        counts.iter_mut().filter(|count| **count > 0).for_each(|count| *count = *count / 2 + 1);
    }
}

fn unbounded_lengths(counts: &[u32]) -> Vec<u32> {
    let mut leaves: Vec<usize> = (0..counts.len()).filter(|at| counts[*at] > 0).collect();
    leaves.sort_by_key(|at| counts[*at]);
    let mut lengths = vec![0; counts.len()];
    if let [only] = leaves[..] {
        lengths[only] = 1;
        return lengths;
    }
    // Leaves come first, then the inner nodes; both sorted by count.
    let mut nodes: Vec<(u32, usize)> = leaves.iter().map(|at| (counts[*at], 0)).collect();
    let (mut leaf, mut node) = (0, leaves.len());
    for parent in leaves.len()..(2 * leaves.len()).saturating_sub(1) {
        let mut sum = 0;
        for _ in 0..2 {
            let takes_leaf = leaf < leaves.len() && (node >= parent || nodes[leaf].0 <= nodes[node].0);
            let child = if takes_leaf { &mut leaf } else { &mut node };
            sum += nodes[*child].0;
            nodes[*child].1 = parent;
            *child += 1;
        }
        nodes.push((sum, 0));
    }
    let mut depths = vec![0; nodes.len()];
    for at in (0..nodes.len().saturating_sub(1)).rev() {
        depths[at] = depths[nodes[at].1] + 1;
    }
    leaves.iter().zip(depths).for_each(|(at, depth)| lengths[*at] = depth);
    lengths
}

/// Returns the codes for these lengths (RFC 1951 §3.2.2), with the first bit lowest.
fn codes(lengths: &[u32]) -> Vec<u32> {
    let mut next = [0; CODE_BITS_MAX as usize + 2];
    lengths.iter().filter(|length| **length > 0).for_each(|length| next[*length as usize + 1] += 1);
    for length in 1..next.len() {
        next[length] = (next[length] + next[length - 1]) << 1;
    }
    let code = |length: &u32| {
        if *length == 0 {
            return 0;
        }
        let code = &mut next[*length as usize];
        *code += 1;
        (*code - 1_u32).reverse_bits() >> (32 - *length)
    };
    lengths.iter().map(code).collect()
}

/// Returns the header of a block that is not the last. It has codes of these lengths for literals, and one unused
/// distance code, because some decoders require one.
fn head(lengths: &[u32]) -> Bits {
    let runs = runs(&[lengths, &[1]].concat());
    let mut counts = [0; LENGTH_CODES];
    runs.iter().for_each(|(code, ..)| counts[*code] += 1);
    let own = self::lengths(&counts, LENGTH_CODE_BITS_MAX);
    let own_codes = codes(&own);
    let told = LENGTHS_ORDER.iter().rposition(|code| own[*code] > 0).map_or(4, |last| (last + 1).max(4));
    let mut bits = Bits::default();
    bits.put(0b100, 3);
    bits.put(0, 5);
    bits.put(0, 5);
    bits.put(u32::try_from(told - 4).expect("15 at most"), 4);
    LENGTHS_ORDER[..told].iter().for_each(|code| bits.put(own[*code], 3));
    for (code, extra, extra_bits) in runs {
        bits.put(own_codes[code], own[code]);
        bits.put(extra, extra_bits);
    }
    bits
}

/// Returns the run-length codes for these lengths (RFC 1951 §3.2.7), each with its extra bits.
fn runs(lengths: &[u32]) -> Vec<(usize, u32, u32)> {
    let mut runs = Vec::new();
    for same in lengths.chunk_by(|a, b| a == b) {
        let (length, mut left) = (same[0], u32::try_from(same.len()).expect("258 at most"));
        if length > 0 {
            runs.push((length as usize, 0, 0));
            left -= 1;
        }
        while left > 0 {
            let (code, taken, least, bits) = match (length, left) {
                (_, 1..3) => (length as usize, 1, 1, 0),
                (0, 3..11) => (17, left, 3, 3),
                (0, _) => (18, left.min(138), 11, 7),
                (_, _) => (16, left.min(6), 3, 2),
            };
            runs.push((code, taken - least, bits));
            left -= taken;
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inflated(block: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        let whole = [block, &[3, 0]].concat();
        std::io::Read::read_to_end(&mut flate2::bufread::DeflateDecoder::new(whole.as_slice()), &mut plain)
            .expect("a block that others read");
        plain
    }

    #[test]
    fn block_inflates_to_input_and_has_predicted_length() {
        let mut random = fastrand::Rng::with_seed(6);
        let rare =
            |at: usize| (0..2_usize.pow(at.try_into().expect("small"))).map(move |_| u8::try_from(at).expect("small"));
        // Counts that double: unbounded Huffman codes would be longer than allowed.
        let skewed: Vec<u8> = (0..18).flat_map(rare).collect();
        let mut texts = vec![vec![], b"a".to_vec(), b"ab".to_vec(), skewed, (0..=255).collect()];
        for characters in [1, 2, 3, 64, 65, 200, 256] {
            let few = (0..20_000).map(|_| u8::try_from(random.usize(..characters)).expect("a byte"));
            texts.push(few.collect());
        }
        for text in texts {
            let literals = Literals::of(&text);
            let len = literals.len();
            let block = literals.write(&text);
            assert_eq!(block.len(), len, "{} bytes", text.len());
            assert_eq!(inflated(&block), text, "{} bytes", text.len());
        }
    }

    #[test]
    fn base64_compresses_to_three_quarters() {
        let mut random = fastrand::Rng::with_seed(64);
        let text: Vec<u8> = (0..100_000).map(|_| b'0' + random.u8(..64)).collect();
        let len = Literals::of(&text).len();
        assert!((75_000..75_300).contains(&len), "{len}");
    }
}

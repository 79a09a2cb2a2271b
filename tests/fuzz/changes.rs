//! Mutations of peers' input, drawn from a seed.

use fastrand::Rng;

/// An endless sequence of inputs: each is one of the corpus, or parts of two, with a few bytes changed.
pub struct Changes {
    rng: Rng,
    corpus: Vec<Vec<u8>>,
}

/// Maximum length of an input.
const BYTES_MAX: usize = 8 << 10;

/// Words that parsers look for, and numbers at their limits.
const WORDS: [&[u8]; 40] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b",",
    b":",
    b"null",
    b"true",
    b"-0",
    b"1e999",
    b"18446744073709551616",
    b"\n",
    b"\r\n",
    b"\0",
    b"\xff",
    b"\xc0\x80",
    b"\xef\xbb\xbf",
    b"k8s\0",
    b"\x0a\x00",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"\xff\xff\xff\xff",
    b"resourceVersion",
    b"metadata",
    b"\"0\"",
    b"ADDED",
    b"BOOKMARK",
    b"ERROR",
    b"!",
    b"=",
    b"==",
    b"!=",
    b" in (",
    b" notin (",
    b"%2F",
    b"%",
    b"&",
];

impl Changes {
    pub fn new(corpus: Vec<Vec<u8>>, seed: u64) -> Self {
        Self { rng: Rng::with_seed(seed), corpus }
    }

    pub fn next(&mut self) -> Vec<u8> {
        let mut input = self.pick();
        if self.rng.u8(..8) == 0 {
            let other = self.pick();
            input.truncate(self.rng.usize(..=input.len()));
            input.extend_from_slice(&other[self.rng.usize(..=other.len())..]);
        }
        for _ in 0..=self.rng.u8(..4) {
            self.change(&mut input);
        }
        input.truncate(BYTES_MAX);
        input
    }

    fn pick(&mut self) -> Vec<u8> {
        if self.corpus.is_empty() { Vec::new() } else { self.corpus[self.rng.usize(..self.corpus.len())].clone() }
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.rng.usize(..=input.len());
        let to = (at + self.rng.usize(..16)).min(input.len());
        match self.rng.u8(..9) {
            0 if at < input.len() => input[at] ^= 1 << self.rng.u8(..8),
            1 if at < input.len() => input[at] = self.rng.u8(..),
            2 if at < input.len() => input[at] = input[at].wrapping_add([1, 255][self.rng.usize(..2)]),
            3 => input.insert(at, self.rng.u8(..)),
            4 => drop(input.drain(at..to)),
            5 => input.truncate(at),
            6 => {
                let again = input[at..to].to_vec();
                input.splice(at..at, again);
            }
            7 => {
                let (from, len) = (self.rng.usize(..=input.len()), to - at);
                let moved = input[from..(from + len).min(input.len())].to_vec();
                input.splice(at..to, moved);
            }
            _ => {
                let word = WORDS[self.rng.usize(..WORDS.len())];
                let until = if self.rng.bool() { at } else { (at + word.len()).min(input.len()) };
                input.splice(at..until, word.iter().copied());
            }
        }
    }
}

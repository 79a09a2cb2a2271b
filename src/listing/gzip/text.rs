use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;

/// A text that consists of shared slices.
#[derive(Debug, Default, Clone)]
pub(super) struct SegmentedBytes {
    slices: VecDeque<Bytes>,
    len: usize,
}

impl SegmentedBytes {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, slice: Bytes) {
        if !slice.is_empty() {
            self.len += slice.len();
            self.slices.push_back(slice);
        }
    }

    /// Returns the part of the text in `range`, without copying it.
    pub(super) fn range(&self, range: Range<usize>) -> Self {
        let mut part = Self::default();
        let mut at = 0;
        for slice in &self.slices {
            let (from, to) = (range.start.clamp(at, at + slice.len()), range.end.clamp(at, at + slice.len()));
            if from < to {
                part.push(slice.slice(from - at..to - at));
            }
            at += slice.len();
        }
        part
    }

    /// Splits off the text after `at` bytes.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let rest = self.range(at..self.len);
        *self = self.range(0..at);
        rest
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.len);
        self.slices.iter().for_each(|slice| whole.extend_from_slice(slice));
        whole
    }
}

impl Extend<Bytes> for SegmentedBytes {
    fn extend<I: IntoIterator<Item = Bytes>>(&mut self, slices: I) {
        slices.into_iter().for_each(|slice| self.push(slice));
    }
}

impl FromIterator<Bytes> for SegmentedBytes {
    fn from_iter<I: IntoIterator<Item = Bytes>>(slices: I) -> Self {
        let mut text = Self::default();
        text.extend(slices);
        text
    }
}

impl IntoIterator for SegmentedBytes {
    type Item = Bytes;
    type IntoIter = std::collections::vec_deque::IntoIter<Bytes>;

    fn into_iter(self) -> Self::IntoIter {
        self.slices.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_independent_of_slice_boundaries() {
        let whole = b"abcdefghij";
        for cuts in [vec![], vec![1], vec![3, 3, 7], vec![1, 2, 3, 4, 5, 6, 7, 8, 9]] {
            let bounds: Vec<usize> = [vec![0], cuts, vec![10]].concat();
            let slices = bounds.windows(2).map(|bounds| Bytes::copy_from_slice(&whole[bounds[0]..bounds[1]]));
            let text: SegmentedBytes = slices.collect();
            assert_eq!(text.len(), 10);
            for (from, to) in (0..=10).flat_map(|from| (from..=10).map(move |to| (from, to))) {
                assert_eq!(text.range(from..to).to_vec(), whole[from..to], "{bounds:?}");
            }
            let mut head = text.clone();
            assert_eq!((head.split_off(4).to_vec(), head.to_vec()), (b"efghij".to_vec(), b"abcd".to_vec()));
        }
    }
}

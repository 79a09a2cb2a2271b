/// Returns the maximum number of texts that a binary search compares among `sorted` ones.
pub(super) fn steps(sorted: usize) -> usize {
    (usize::BITS - sorted.leading_zeros()) as usize
}

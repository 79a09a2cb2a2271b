/// Texts that are looked at to find one among so many sorted ones.
pub(super) fn steps(sorted: usize) -> usize {
    (usize::BITS - sorted.leading_zeros()) as usize
}

//! Random numbers for jitter and for choices among equals, from one generator per thread.
//!
//! In debug builds every thread's generator starts with the same seed, and each test has its own thread. So a unit test
//! draws the same numbers in every run, and cannot fail by chance. Identities and names of temporary files, which must
//! differ between processes, use another generator.

use std::cell::RefCell;
use std::ops::RangeBounds;

use fastrand::Rng;

const SEED: u64 = 20_261_129;

thread_local! {
    static RNG: RefCell<Rng> = RefCell::new(if cfg!(debug_assertions) { Rng::with_seed(SEED) } else { Rng::new() });
}

fn with<T>(draw: impl FnOnce(&mut Rng) -> T) -> T {
    RNG.with_borrow_mut(draw)
}

/// Restarts this thread's random number generator with a seed.
pub fn seed(seed: u64) {
    with(|rng| rng.seed(seed));
}

/// Returns a random number from 0, inclusive, to 1, exclusive.
pub fn f64() -> f64 {
    with(Rng::f64)
}

pub fn u32(range: impl RangeBounds<u32>) -> u32 {
    with(|rng| rng.u32(range))
}

pub fn u64(range: impl RangeBounds<u64>) -> u64 {
    with(|rng| rng.u64(range))
}

pub fn usize(range: impl RangeBounds<usize>) -> usize {
    with(|rng| rng.usize(range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_in_tests_are_the_same_in_every_run() {
        let draw = || (f64().to_bits(), u32(..), u64(1..=6), usize(..10));
        let here = draw();
        assert_eq!(std::thread::spawn(draw).join().expect("no panic"), here);
        assert_ne!(draw(), here);
    }
}

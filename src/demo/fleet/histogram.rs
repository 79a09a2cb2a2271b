//! A histogram with logarithmic buckets: sixteen per power of two, so an answer is off by six percent at most.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SUB_BITS: u32 = 4;
const SUB_BUCKETS: usize = 1 << SUB_BITS;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB_BUCKETS;

#[derive(Debug)]
pub(super) struct Histogram(Box<[AtomicU64]>);

impl Default for Histogram {
    fn default() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Histogram {
    pub(super) fn add(&self, nanoseconds: u64) {
        self.0[bucket(nanoseconds)].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Latencies {
        Latencies(self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect())
    }
}

/// The distribution of latencies at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies(Box<[u64]>);

impl Latencies {
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The value that `fraction` of all are not above; zero if there are none.
    pub fn quantile(&self, fraction: f64) -> Duration {
        let total = self.count();
        // Precision is lost only beyond 2^53 events.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a fraction of a count fits it")]
        let rank = ((total as f64 * fraction.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0;
        for (at, count) in self.0.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(upper_bound(at));
            }
        }
        Duration::ZERO
    }

    /// What came after an earlier reading of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(self.0.iter().zip(&earlier.0).map(|(now, then)| now.saturating_sub(*then)).collect())
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self(vec![0; BUCKETS].into())
    }
}

fn bucket(value: u64) -> usize {
    let magnitude = (u64::BITS - value.leading_zeros()).saturating_sub(SUB_BITS + 1);
    let sub = usize::try_from(value >> magnitude).unwrap_or(0);
    magnitude as usize * SUB_BUCKETS + sub
}

fn upper_bound(bucket: usize) -> u64 {
    let magnitude = (bucket / SUB_BUCKETS).saturating_sub(1);
    let sub = (bucket - magnitude * SUB_BUCKETS) as u64;
    ((sub + 1) << magnitude) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_within_its_bucket() {
        let mut last = 0;
        for value in (0..100_000).chain([1 << 40, (1 << 62) - 1, u64::MAX >> 1]) {
            let at = bucket(value);
            assert!(at < BUCKETS && at >= last && at <= last + 500, "{value}");
            assert!(upper_bound(at) >= value && upper_bound(at) - value <= value / 16, "{value}: {}", upper_bound(at));
            last = at;
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn quantiles_and_differences() {
        let histogram = Histogram::default();
        assert_eq!(histogram.read().quantile(0.5), Duration::ZERO);
        (1..=100).for_each(|ms| histogram.add(ms * 1_000_000));
        let all = histogram.read();
        let near = |found: Duration, ms: u64| {
            let ratio = found.as_secs_f64() * 1000.0 / Duration::from_millis(ms).as_secs_f64() / 1000.0;
            (1.0..1.07).contains(&ratio)
        };
        assert!(near(all.quantile(0.5), 50), "{:?}", all.quantile(0.5));
        assert!(near(all.quantile(0.99), 99), "{:?}", all.quantile(0.99));
        histogram.add(7_000_000);
        assert!(near(histogram.read().since(&all).quantile(0.99), 7));
    }
}

use std::fmt;
use std::time::Duration;

/// Sorted durations of at least one measurement.
pub struct Times(Vec<Duration>);

impl Times {
    pub fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        Self(times)
    }

    pub fn at(&self, percent: usize) -> Duration {
        self.0[(self.0.len() - 1) * percent / 100]
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99, max) = (self.at(50), self.at(99), self.at(100));
        write!(f, "p50 {p50:.2?}, p99 {p99:.2?}, max {max:.2?} of {}", self.0.len())
    }
}

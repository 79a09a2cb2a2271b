//! The options of the `demo` command, and their bounds.

use std::ops::RangeInclusive;

pub(super) const PODS: RangeInclusive<u32> = 1..=50_000;
pub(super) const RATE: RangeInclusive<u32> = 1..=10_000;
pub(super) const WATCHES: RangeInclusive<u32> = 1..=20_000;
pub(super) const SECONDS: RangeInclusive<u64> = 1..=86_400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemoOptions {
    pub pods: u32,
    /// The number of pod events per second.
    pub rate: u32,
    pub watches: u32,
    /// The duration of the demo in seconds; `None` means until it is interrupted.
    pub seconds: Option<u64>,
}

impl Default for DemoOptions {
    fn default() -> Self {
        Self { pods: 500, rate: 50, watches: 500, seconds: None }
    }
}

impl DemoOptions {
    /// Checks that all options are within their bounds.
    ///
    /// # Errors
    /// A sentence for each option that is out of bounds.
    pub fn check(&self) -> Result<(), Vec<String>> {
        let Self { pods, rate, watches, seconds } = *self;
        let numbers = [
            ("pods", u64::from(pods), wide(PODS)),
            ("rate", u64::from(rate), wide(RATE)),
            ("watches", u64::from(watches), wide(WATCHES)),
            ("seconds", seconds.unwrap_or(*SECONDS.start()), SECONDS),
        ];
        let problems: Vec<_> = numbers
            .into_iter()
            .filter(|(_, value, bounds)| !bounds.contains(value))
            .map(|(name, value, bounds)| {
                format!("{name} {value} is out of range: expected {} to {}", bounds.start(), bounds.end())
            })
            .collect();
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

fn wide(bounds: RangeInclusive<u32>) -> RangeInclusive<u64> {
    u64::from(*bounds.start())..=u64::from(*bounds.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_problems_are_reported_together() {
        assert_eq!(DemoOptions::default().check(), Ok(()));
        let options = DemoOptions { pods: 0, rate: 50, watches: 20_001, seconds: Some(0) };
        assert_eq!(
            options.check().unwrap_err(),
            [
                "pods 0 is out of range: expected 1 to 50000",
                "watches 20001 is out of range: expected 1 to 20000",
                "seconds 0 is out of range: expected 1 to 86400"
            ]
        );
    }
}

//! The highest version seen by each moment.

/// The highest version seen by each moment.
#[derive(Debug, Default)]
pub(super) struct VersionTimeline {
    /// The moments with the highest version by then. Both increase.
    points: Vec<(u64, u64)>,
}

impl VersionTimeline {
    /// Builds the timeline from moments and versions in any order.
    pub(super) fn new(mut points: Vec<(u64, u64)>) -> Self {
        points.sort_unstable();
        let mut highest = 0;
        points.retain(|(_, version)| {
            let higher = *version > highest;
            highest = highest.max(*version);
            higher
        });
        points.shrink_to_fit();
        Self { points }
    }

    /// Returns the highest version seen strictly before a moment; 0 if none was.
    pub(super) fn before(&self, at_ns: u64) -> u64 {
        let next = self.points.partition_point(|(at, _)| *at < at_ns);
        next.checked_sub(1).map_or(0, |last| self.points[last].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seen_version_counts_as_known_from_then_on() {
        let seen = VersionTimeline::new(vec![(30, 5), (10, 3), (20, 9), (20, 4), (40, 11)]);
        let at = [10, 11, 20, 21, 31, 41].map(|at| seen.before(at));
        assert_eq!(at, [0, 3, 3, 9, 9, 11]);
    }
}

/// The memory use of one feed, for the decision which feed to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weight {
    /// The number of bytes that the feed holds.
    pub(super) held: usize,
    /// The bytes that the feed held when its state was complete; 0 while its first list is incomplete.
    pub(super) admitted: usize,
    /// Whether the growth of this feed exceeded the limit.
    pub(super) crossed: bool,
}

/// Returns the index of the feed to end: the one that has grown the most since its state was complete. Among equals it
/// is the one whose growth exceeded the limit, then the larger one. A feed that has not grown never makes room for
/// feeds that have. If none has grown, the largest ends.
pub(super) fn outgrown(feeds: &[Weight]) -> Option<usize> {
    let grown = |feed: &Weight| (feed.held.saturating_sub(feed.admitted), feed.crossed, feed.held);
    let has_grown = feeds.iter().any(|feed| grown(feed).0 > 0);
    let key = |feed: &Weight| if has_grown { grown(feed) } else { (feed.held, feed.crossed, 0) };
    let holding = feeds.iter().enumerate().filter(|(_, feed)| feed.held > 0);
    holding.max_by_key(|(_, feed)| key(feed)).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(held: usize, admitted: usize, crossed: bool) -> Weight {
        Weight { held, admitted, crossed }
    }

    #[test]
    fn memory_pressure_ends_the_feed_with_the_most_growth() {
        for (why, feeds, ends) in [
            ("none there", vec![], None),
            ("the one that grew", vec![weight(10, 10, false), weight(90, 20, true)], Some(1)),
            ("not a small one that happened to cross", vec![weight(90, 20, false), weight(11, 10, true)], Some(0)),
            ("not a large one that was always so", vec![weight(70, 70, false), weight(30, 10, true)], Some(1)),
            ("the one that is being listed", vec![weight(50, 40, true), weight(50, 0, false)], Some(1)),
            ("of equals the one that crossed", vec![weight(50, 30, true), weight(50, 30, false)], Some(0)),
            ("and else the larger", vec![weight(50, 30, false), weight(40, 20, false)], Some(0)),
            ("none has grown: the largest", vec![weight(50, 50, false), weight(60, 60, false)], Some(1)),
            ("one that shrank has not grown", vec![weight(50, 60, false), weight(20, 19, false)], Some(1)),
            ("one that holds nothing frees nothing", vec![weight(0, 0, true)], None),
        ] {
            assert_eq!(outgrown(&feeds), ends, "{why}");
        }
    }
}

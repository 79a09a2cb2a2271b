//! Gaps in a feed's history: how often they required a list, and how old they are. The reflector acts on the result.

use std::time::Duration;

use tokio::time::Instant;

use kubeapi::ResourceVersion;

/// Plans the lists that a 410 requires, when upstream no longer has the changes after the feed's version.
///
/// Usually one list closes a gap at once. But if upstream's window is shorter than a list takes, the listed state has
/// left the window before its watch begins. Then every further list of the same kind fails too (F4). The sign of this
/// is a 410 that follows another one with only a list in between. After any other event, the second 410 belongs to
/// another outage.
#[derive(Debug, Default)]
pub(super) struct RelistPlanner {
    last: Option<Instant>,
    /// Whether only lists have come since the last 410.
    in_a_row: bool,
}

/// The next step after a 410.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RelistPlan {
    /// List at once. The value is the start of upstream's window, from which the gap can be closed; `None` requests the
    /// current state.
    AtOnce(Option<ResourceVersion>),
    /// The last list is too recent. Retry the watch at this time, when upstream's window may be different.
    NotBefore(Instant),
    /// List the current state after a growing backoff, because the last list did not help.
    CurrentAfterBackoff,
}

impl RelistPlanner {
    /// The minimum time between two lists.
    const REST: Duration = Duration::from_secs(10);

    /// Returns the next step after a 410 that names `window` as the start of upstream's window.
    pub(super) fn next(&mut self, window: Option<ResourceVersion>, now: Instant) -> RelistPlan {
        if self.in_a_row {
            return RelistPlan::CurrentAfterBackoff;
        }
        if let Some(rested) = self.last.map(|last| last + Self::REST).filter(|rested| *rested > now) {
            return RelistPlan::NotBefore(rested);
        }
        self.in_a_row = true;
        RelistPlan::AtOnce(window)
    }

    /// Records that the state was listed again.
    pub(super) fn listed(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Ends the row of 410s. Called when the stream delivers an item, when a stream stayed open, or when a failure
    /// other than a 410 occurs. After each of these, upstream may have restarted with another window.
    pub(super) fn end_row(&mut self) {
        self.in_a_row = false;
    }
}

/// The latest instant at which a feed is known to have been complete.
///
/// A list of the current state sets it. So does a stream that has caught up: a bookmark shows that it has, and each
/// later item is only as old as its transit time.
///
/// Three things do not set it:
///
/// - The state at a version that a client named, which may be of any age.
/// - The events after such a state, until they reach the position that upstream's storage had when the feed began.
/// - A bookmark that repeats a version, because an apiserver that has lost its storage sends those too.
#[derive(Debug, Default)]
pub(super) struct FeedAsOfTracker {
    as_of: Option<Instant>,
    /// The position of upstream's storage when the state was requested.
    pending_position: Option<ObservedResourceVersion>,
    /// Whether the open stream has caught up.
    caught_up: bool,
}

impl FeedAsOfTracker {
    /// Records that the current state was listed by a request sent at `requested_at`.
    pub(super) fn listed(&mut self, requested_at: Instant) {
        (self.as_of, self.pending_position) = (Some(requested_at), None);
    }

    /// Records that a state of unknown age was listed. `upstream` is the position of upstream's storage.
    pub(super) fn start_from_unknown(&mut self, at: ResourceVersion, upstream: Option<ObservedResourceVersion>) {
        (self.as_of, self.pending_position) = (None, upstream);
        self.on_version(at);
    }

    /// Records that a stream is open; `with_state` if the current state came with it.
    pub(super) fn opened(&mut self, with_state: bool) {
        self.caught_up = with_state;
    }

    /// Records that an item of the stream moved the feed from version `from` to `to`.
    pub(super) fn advanced(&mut self, is_bookmark: bool, from: ResourceVersion, to: ResourceVersion, now: Instant) {
        if to <= from {
            return;
        }
        self.on_version(to);
        self.caught_up |= is_bookmark;
        if self.caught_up {
            self.as_of = Some(now);
        }
    }

    fn on_version(&mut self, rv: ResourceVersion) {
        if let Some(position) = self.pending_position.take_if(|position| position.at <= rv) {
            self.as_of = self.as_of.max(Some(position.requested_at));
        }
    }

    /// The maximum age of a gap; `None` if it is unknown. `proven` is the instant as of which the feed was last proven
    /// current.
    pub(super) fn age(&self, proven: Option<Instant>, now: Instant) -> Option<Duration> {
        self.as_of.max(proven).map(|as_of| now.duration_since(as_of))
    }
}

/// A version and the time at which it was requested: no write that was complete at `requested_at` is newer.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObservedResourceVersion {
    pub(super) requested_at: Instant,
    pub(super) at: ResourceVersion,
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Option<ResourceVersion> = Some(ResourceVersion(7));

    #[test]
    fn second_410_in_a_row_relists_current_state_with_backoff() {
        let (mut relists, start) = (RelistPlanner::default(), Instant::now());
        assert_eq!(relists.next(WINDOW, start), RelistPlan::AtOnce(WINDOW));
        relists.listed(start);
        // The duration of the list does not matter.
        for later in [Duration::ZERO, RelistPlanner::REST, 100 * RelistPlanner::REST] {
            assert_eq!(relists.next(WINDOW, start + later), RelistPlan::CurrentAfterBackoff);
        }
    }

    /// An event in the life of a feed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Step {
        /// An item, a stream that stayed open, or a failure of a stream, a list or a gap recovery.
        RowEnds,
        Wait(u64),
        Gone,
        Listed,
    }

    fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
        use proptest::prelude::*;
        let wait = (0_u64..30).prop_map(Step::Wait);
        let step = prop_oneof![Just(Step::RowEnds), wait, Just(Step::Gone), Just(Step::Listed)];
        proptest::collection::vec(step, 0..80)
    }

    proptest::proptest! {
        /// For any sequence of outages: only a 410 that follows another one and a list gives up the window, and two
        /// lists are at least [`RelistPlanner::REST`] apart.
        #[test]
        fn random_outages_keep_the_relist_window_and_pace(steps in steps()) {
            let (mut relists, mut now) = (RelistPlanner::default(), Instant::now());
            let (mut listed, mut in_a_row) = (None::<Instant>, false);
            for step in steps {
                match step {
                    Step::RowEnds => {
                        relists.end_row();
                        in_a_row = false;
                    }
                    Step::Wait(seconds) => now += Duration::from_secs(seconds),
                    Step::Listed => {
                        relists.listed(now);
                        listed = Some(now);
                    }
                    Step::Gone => {
                        let rested = listed.map(|listed| listed + RelistPlanner::REST).filter(|rested| *rested > now);
                        let plan = relists.next(WINDOW, now);
                        match plan {
                            RelistPlan::CurrentAfterBackoff => proptest::prop_assert!(in_a_row),
                            RelistPlan::NotBefore(due) => {
                                proptest::prop_assert_eq!((in_a_row, Some(due)), (false, rested));
                                now = due;
                            }
                            RelistPlan::AtOnce(window) => {
                                proptest::prop_assert_eq!((in_a_row, window, rested), (false, WINDOW, None));
                                in_a_row = true;
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn state_at_a_client_version_has_no_age_until_caught_up() {
        let (mut known, start) = (FeedAsOfTracker::default(), Instant::now());
        let second = Duration::from_secs(1);
        let [a, b, c, d] = [5, 6, 7, 8].map(ResourceVersion);
        known.start_from_unknown(a, None);
        known.opened(false);
        known.advanced(false, a, b, start);
        assert_eq!(known.age(None, start), None, "an event may be old");
        known.advanced(true, b, b, start);
        assert_eq!(known.age(None, start), None, "what repeats a version says nothing");
        assert_eq!(known.age(Some(start), start + second), Some(second), "a proof does");
        known.advanced(true, b, c, start);
        known.advanced(false, c, d, start + second);
        assert_eq!(known.age(None, start + 3 * second), Some(2 * second));
        assert_eq!(known.age(Some(start), start + 3 * second), Some(2 * second), "the later one counts");
    }

    #[test]
    fn events_up_to_the_checked_version_get_the_check_time() {
        let (mut known, requested_at) = (FeedAsOfTracker::default(), Instant::now());
        let [a, b, c] = [5, 6, 7].map(ResourceVersion);
        known.start_from_unknown(a, Some(ObservedResourceVersion { requested_at, at: c }));
        known.opened(false);
        let minute = Duration::from_secs(60);
        known.advanced(false, a, b, requested_at + minute);
        assert_eq!(known.age(None, requested_at + minute), None);
        known.advanced(false, b, c, requested_at + minute);
        assert_eq!(known.age(None, requested_at + 2 * minute), Some(2 * minute));
        // Nothing was written since the version that the client named.
        known.start_from_unknown(c, Some(ObservedResourceVersion { requested_at, at: c }));
        assert_eq!(known.age(None, requested_at + minute), Some(minute));
    }

    #[test]
    fn streams_that_never_catch_up_do_not_reset_gap_age() {
        let (mut known, start) = (FeedAsOfTracker::default(), Instant::now());
        known.listed(start);
        known.opened(true);
        let second = Duration::from_secs(1);
        let rv = |n: u32| ResourceVersion(n.into());
        known.advanced(false, rv(0), rv(1), start + second);
        // Each stream is lost after a few repeated events.
        for n in 2..400 {
            known.opened(false);
            known.advanced(false, rv(n - 1), rv(n), start + n * second);
        }
        assert_eq!(known.age(None, start + 401 * second), Some(400 * second));
    }
}

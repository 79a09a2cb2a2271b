//! Gaps in a feed's history: how often lists were needed for them, and how long ago they began. The reflector acts on
//! it.

use std::time::Duration;

use tokio::time::Instant;

use kubeapi::ResourceVersion;

/// The lists that were needed because upstream had forgotten what follows our version.
///
/// As a rule one list closes a gap, at once. But if upstream's window is shorter than a list takes, the listed state
/// has left the window before the watch after it begins. Another list of the same kind would fail in the same way, and
/// so would the next one (F4). Such a row shows only in a 410 that follows another one with nothing but a list in
/// between: whatever else came, the second 410 belongs to another outage.
#[derive(Debug, Default)]
pub(super) struct Relists {
    last: Option<Instant>,
    /// Whether nothing but lists has come since the last 410.
    in_a_row: bool,
}

/// What to do about a 410.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RelistPlan {
    /// List at once: the start of upstream's window, from which a gap can be mended; `None` for the current state.
    AtOnce(Option<ResourceVersion>),
    /// The last list is not long ago. Ask again at this time, for upstream's window may be another one by then.
    NotBefore(Instant),
    /// List the current state, after a pause that grows: the last list was in vain.
    CurrentAfterBackoff,
}

impl Relists {
    /// The least time between two lists.
    const REST: Duration = Duration::from_secs(10);

    /// Says what to do about a 410 that names `window`.
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

    /// Notes that the state was listed again.
    pub(super) fn listed(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Ends the row: an item of the stream has come, a stream stayed open, or something failed otherwise than by a 410.
    /// After each of these upstream may have restarted, with another window.
    pub(super) fn end_row(&mut self) {
        self.in_a_row = false;
    }
}

/// The latest instant as of which a feed is known to have held everything.
///
/// A list of the current state tells it. So does a stream that has caught up: a bookmark says that it has, and from
/// then on each item is as young as its way to us. ¶ These do not tell it: the state of a version that a client has
/// named, which may be of any age; the events behind such a state, until they reach what upstream's storage had reached
/// when the feed began; and a bookmark that repeats a version, which an apiserver that has lost its storage sends as
/// well.
#[derive(Debug, Default)]
pub(super) struct Completeness {
    as_of: Option<Instant>,
    /// What upstream's storage had reached when it was asked.
    awaited: Option<Position>,
    /// The open stream has caught up.
    caught_up: bool,
}

impl Completeness {
    /// Notes that the current state was listed, by a question that was sent at `asked`.
    pub(super) fn listed(&mut self, asked: Instant) {
        (self.as_of, self.awaited) = (Some(asked), None);
    }

    /// Notes that the state of a version was listed whose age nobody knows. `upstream` is how far upstream has come.
    pub(super) fn begins_at(&mut self, at: ResourceVersion, upstream: Option<Position>) {
        (self.as_of, self.awaited) = (None, upstream);
        self.reached(at);
    }

    /// Notes that a stream is open; `with_state` if the current state came with it.
    pub(super) fn opened(&mut self, with_state: bool) {
        self.caught_up = with_state;
    }

    /// Notes that an item of the stream moved the feed on from one version to another.
    pub(super) fn came(&mut self, is_bookmark: bool, from: ResourceVersion, to: ResourceVersion, now: Instant) {
        if to <= from {
            return;
        }
        self.reached(to);
        self.caught_up |= is_bookmark;
        if self.caught_up {
            self.as_of = Some(now);
        }
    }

    fn reached(&mut self, rv: ResourceVersion) {
        if let Some(position) = self.awaited.take_if(|position| position.at <= rv) {
            self.as_of = self.as_of.max(Some(position.asked));
        }
    }

    /// How long ago a gap may have begun at most; `None` if nothing tells. `proven` is since when readers know the feed
    /// to be current.
    pub(super) fn age(&self, proven: Option<Instant>, now: Instant) -> Option<Duration> {
        self.as_of.max(proven).map(|as_of| now.duration_since(as_of))
    }
}

/// A version, and when it was asked for: no write that was complete at `asked` is newer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    pub(super) asked: Instant,
    pub(super) at: ResourceVersion,
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Option<ResourceVersion> = Some(ResourceVersion(7));

    #[test]
    fn second_410_in_a_row_lists_the_current_state_with_backoff() {
        let (mut relists, start) = (Relists::default(), Instant::now());
        assert_eq!(relists.next(WINDOW, start), RelistPlan::AtOnce(WINDOW));
        relists.listed(start);
        // However long the list took.
        for later in [Duration::ZERO, Relists::REST, 100 * Relists::REST] {
            assert_eq!(relists.next(WINDOW, start + later), RelistPlan::CurrentAfterBackoff);
        }
    }

    /// What happens to a feed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Step {
        /// An item, a stream that stayed open, or a failure: of the stream, of a list, of reading a gap back.
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
        /// Whatever the sequence of outages: only a 410 that follows another one and a list gives up the window, and
        /// two lists are never closer together than the rest.
        #[test]
        fn any_sequence_of_outages_keeps_the_window_and_the_pace(steps in steps()) {
            let (mut relists, mut now) = (Relists::default(), Instant::now());
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
                        let rested = listed.map(|listed| listed + Relists::REST).filter(|rested| *rested > now);
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
    fn the_state_of_a_version_that_a_client_named_is_of_no_age_until_a_stream_has_caught_up_with_it() {
        let (mut known, start) = (Completeness::default(), Instant::now());
        let second = Duration::from_secs(1);
        let [a, b, c, d] = [5, 6, 7, 8].map(ResourceVersion);
        known.begins_at(a, None);
        known.opened(false);
        known.came(false, a, b, start);
        assert_eq!(known.age(None, start), None, "an event may be old");
        known.came(true, b, b, start);
        assert_eq!(known.age(None, start), None, "what repeats a version says nothing");
        assert_eq!(known.age(Some(start), start + second), Some(second), "a proof does");
        known.came(true, b, c, start);
        known.came(false, c, d, start + second);
        assert_eq!(known.age(None, start + 3 * second), Some(2 * second));
        assert_eq!(known.age(Some(start), start + 3 * second), Some(2 * second), "the later one counts");
    }

    #[test]
    fn events_up_to_where_upstream_was_are_as_old_as_the_question() {
        let (mut known, asked) = (Completeness::default(), Instant::now());
        let [a, b, c] = [5, 6, 7].map(ResourceVersion);
        known.begins_at(a, Some(Position { asked, at: c }));
        known.opened(false);
        let minute = Duration::from_secs(60);
        known.came(false, a, b, asked + minute);
        assert_eq!(known.age(None, asked + minute), None);
        known.came(false, b, c, asked + minute);
        assert_eq!(known.age(None, asked + 2 * minute), Some(2 * minute));
        // Nothing was written since the version that the client had named.
        known.begins_at(c, Some(Position { asked, at: c }));
        assert_eq!(known.age(None, asked + minute), Some(minute));
    }

    #[test]
    fn streams_that_never_catch_up_do_not_make_a_gap_younger() {
        let (mut known, start) = (Completeness::default(), Instant::now());
        known.listed(start);
        known.opened(true);
        let second = Duration::from_secs(1);
        let rv = |n: u32| ResourceVersion(n.into());
        known.came(false, rv(0), rv(1), start + second);
        // Each is lost after a few events of the history that it tells again.
        for n in 2..400 {
            known.opened(false);
            known.came(false, rv(n - 1), rv(n), start + n * second);
        }
        assert_eq!(known.age(None, start + 401 * second), Some(400 * second));
    }
}

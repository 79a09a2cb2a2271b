//! Gaps in a feed's history: how often lists were needed for them, and how long ago they began. The reflector acts on
//! it.

use std::time::Duration;

use tokio::time::Instant;

use crate::kube::ResourceVersion;

/// Lists that were needed because upstream had forgotten what follows our version.
///
/// As a rule one list closes a gap, and is asked for at once. But if upstream's window is shorter than a list takes,
/// the listed state has left the window before the watch behind it begins. Then another list of the same kind would
/// fail in the same way, and so would the next one (F4).
#[derive(Debug, Default)]
pub(super) struct Relists {
    last: Option<Relisted>,
}

#[derive(Debug, Clone, Copy)]
struct Relisted {
    at: Instant,
    /// Since then upstream has only said that this is too old as well.
    in_vain: bool,
}

/// How the state is listed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Relist {
    /// The start of upstream's window, behind which a gap can be mended; `None` for the current state.
    pub(super) window: Option<ResourceVersion>,
    /// Whether to list after a pause that grows, rather than at once.
    pub(super) pauses: bool,
}

impl Relists {
    /// Two lists within this time are one too many.
    const REST: Duration = Duration::from_secs(10);

    /// Says what to do about a 410 that names `window`.
    pub(super) fn next(&self, window: Option<ResourceVersion>, now: Instant) -> Relist {
        match self.last {
            None => Relist { window, pauses: false },
            Some(Relisted { in_vain: true, .. }) => Relist { window: None, pauses: true },
            Some(last) => Relist { window, pauses: now.duration_since(last.at) < Self::REST },
        }
    }

    /// Notes that the state was listed again.
    pub(super) fn listed(&mut self, now: Instant) {
        self.last = Some(Relisted { at: now, in_vain: true });
    }

    /// Notes that upstream goes on from there.
    pub(super) fn goes_on(&mut self) {
        if let Some(last) = &mut self.last {
            last.in_vain = false;
        }
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
    fn a_second_410_in_a_row_lists_the_current_state_and_pauses() {
        let (mut relists, start) = (Relists::default(), Instant::now());
        assert_eq!(relists.next(WINDOW, start), Relist { window: WINDOW, pauses: false });
        relists.listed(start);
        // However long the list took.
        for later in [Duration::ZERO, Relists::REST, 100 * Relists::REST] {
            assert_eq!(relists.next(WINDOW, start + later), Relist { window: None, pauses: true });
        }
    }

    #[test]
    fn what_went_on_in_between_can_be_mended_and_is_paced() {
        let (mut relists, start) = (Relists::default(), Instant::now());
        relists.listed(start);
        relists.goes_on();
        assert_eq!(relists.next(WINDOW, start), Relist { window: WINDOW, pauses: true });
        assert_eq!(relists.next(WINDOW, start + Relists::REST), Relist { window: WINDOW, pauses: false });
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

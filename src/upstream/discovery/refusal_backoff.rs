use std::time::Duration;

use tokio::time::Instant;

use base::Waits;

/// How often a document is asked for that our identity may not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusalBackoff {
    /// From one refusal to the next question.
    pub waits: Waits,
    /// Refused so many times in a row it is not asked for again before our rights may have changed.
    pub times_max: u32,
}

/// How a document was refused, as far as that goes on.
#[derive(Debug, Default)]
pub(super) struct RefusedDocument {
    /// In a row.
    times: u32,
    last: Option<(Instant, Duration)>,
}

impl RefusalBackoff {
    /// For a proxy that is one of as many as there are nodes. Twice, for an apiserver that has just started denies what
    /// its caches do not know.
    pub fn on_node(waits: Waits) -> Self {
        Self { waits, times_max: 2 }
    }

    /// For a proxy of which there are few.
    pub fn central(waits: Waits) -> Self {
        Self { waits, times_max: u32::MAX }
    }
}

impl RefusedDocument {
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }

    pub(super) fn refused(&mut self, now: Instant, insistence: RefusalBackoff) {
        self.times = self.times.saturating_add(1);
        self.last = Some((now, insistence.waits.after(self.times)));
    }

    /// It is asked for as if it had been refused once: no sooner than the first wait after the last time.
    pub(super) fn rights_changed(&mut self, insistence: RefusalBackoff) {
        self.times = 0;
        self.last = self.last.map(|(at, _)| (at, insistence.waits.first));
    }

    /// Whether it is not asked for now.
    pub(super) fn stands(&self, now: Instant, insistence: RefusalBackoff) -> bool {
        self.last.is_some() && self.again(insistence).is_none_or(|again| now < again)
    }

    /// When it is asked for again, if it was refused and ever is.
    pub(super) fn again(&self, insistence: RefusalBackoff) -> Option<Instant> {
        self.last.map(|(at, wait)| at + wait).filter(|_| self.times < insistence.times_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: Waits = Waits { first: Duration::from_secs(30), longest: Duration::from_secs(3600) };

    /// Refuses whenever it is asked; the questions' times in seconds, for a day.
    fn asked(insistence: RefusalBackoff, changed: &[u64]) -> Vec<u64> {
        let (start, mut refused, mut asked) = (Instant::now(), RefusedDocument::default(), Vec::new());
        let mut changed = changed.iter().copied().peekable();
        for second in 0..24 * 3600 {
            let now = start + Duration::from_secs(second);
            if changed.next_if_eq(&second).is_some() {
                refused.rights_changed(insistence);
            }
            if !refused.stands(now, insistence) {
                refused.refused(now, insistence);
                asked.push(second);
            }
        }
        asked
    }

    #[test]
    fn on_a_node_it_is_asked_for_twice_and_then_when_rights_may_have_changed() {
        let insistence = RefusalBackoff::on_node(WAITS);
        assert_eq!(asked(insistence, &[]), [0, 30]);
        assert_eq!(asked(insistence, &[40, 41, 50_000]), [0, 30, 60, 90, 50_000, 50_030]);
    }

    #[test]
    fn elsewhere_it_is_asked_for_ever_more_rarely_and_about_once_an_hour_at_last() {
        let insistence = RefusalBackoff::central(WAITS);
        let asked_for = asked(insistence, &[]);
        assert!((29..=37).contains(&asked_for.len()), "{asked_for:?}");
        assert!(asked_for.windows(2).skip(8).all(|pair| (2880..=3601).contains(&(pair[1] - pair[0]))), "{asked_for:?}");
        let storm: Vec<u64> = (1000..2000).collect();
        let in_storm = asked(insistence, &storm).into_iter().filter(|at| (1000..2000).contains(at)).count();
        assert!(in_storm <= 35, "changes of rights make no storm of questions: {in_storm}");
    }
}

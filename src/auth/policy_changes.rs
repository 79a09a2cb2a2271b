//! Collects policy changes, so that all changes of a period cause one round of reviews.
//!
//! A change causes three rounds of reviews, because upstream's authorizers see it with some delay: at once, one interval
//! later, and three intervals later. While changes arrive, one round per interval reviews everything that is due. The
//! first change of a burst takes effect at once, and the cost of a burst does not depend on its size.
//!
//! When policy watches begin, everything is reviewed once, after the authorizers have had time to catch up. This covers
//! the changes that were missed before.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::AffectedUsers;
use base::{random, sleep_until_opt};

/// The policy changes that the policy watches report, and whether they report all.
#[derive(Debug)]
pub(super) struct PolicyChanges {
    state: Mutex<PolicyWatchState>,
    notify: Notify,
}

#[derive(Debug)]
struct PolicyWatchState {
    /// Policy changes that were received and not yet applied.
    unapplied: AffectedUsers,
    /// When everything is reviewed, and the latest time to which further watches that begin can postpone that; `None`
    /// once everything has been reviewed after the watches began.
    missed_due: Option<(Instant, Instant)>,
    /// Whether a policy change would be received at once.
    is_open: bool,
    /// When a change was last seen, or the watches began or ended.
    last_activity: Instant,
    /// The time since which no change can have been missed. Changes during an interruption are received afterwards.
    complete_since: Instant,
    /// Whether the watches of all kinds have been open, and when the last one began again after that.
    was_open: bool,
    resumed_at: Option<Instant>,
}

/// The policy changes that later review rounds still cover.
#[derive(Debug)]
pub(super) struct PolicyRecheckRounds {
    /// The policy changes of one, two and three intervals ago.
    previous: [AffectedUsers; 3],
    /// The earliest time of the next review round.
    next_round_at: Instant,
}

/// The minimum time from one review round to the next.
const ROUND_INTERVAL: Duration = Duration::from_millis(700);
/// The maximum random addition to each interval, so that a thousand proxies that receive one change do not send their
/// reviews together.
const JITTER: Duration = Duration::from_millis(300);
/// The maximum delay of upstream's authorizers that the review rounds of a change cover.
const SETTLE_TIME: Duration = ROUND_INTERVAL.saturating_mul(3);
/// The maximum time from the return of an apiserver to when it has its rules.
const STARTING_MAX: Duration = Duration::from_secs(30);
/// The maximum delay of the review of everything because of further policy watches that begin after the first.
const GATHER_MAX: Duration = Duration::from_secs(1);

impl PolicyChanges {
    pub(super) fn new() -> Self {
        let (unapplied, now) = (AffectedUsers::default(), Instant::now());
        let state = PolicyWatchState {
            unapplied,
            missed_due: None,
            is_open: false,
            last_activity: now,
            complete_since: now,
            was_open: false,
            resumed_at: None,
        };
        Self { state: Mutex::new(state), notify: Notify::new() }
    }

    /// Records a change.
    pub(super) fn add(&self, affected: &AffectedUsers) {
        let mut state = self.state.lock();
        state.last_activity = Instant::now();
        state.unapplied.add(affected);
        drop(state);
        self.notify.notify_one();
    }

    /// Records that the watch of one more kind of RBAC objects has begun. Earlier changes may have been missed.
    pub(super) fn watch_started(&self) {
        let (now, mut state) = (Instant::now(), self.state.lock());
        (state.last_activity, state.complete_since) = (now, now);
        state.resumed_at = state.was_open.then_some(now);
        let due = now + settle_time();
        let latest = state.missed_due.map_or(due + GATHER_MAX, |(_, latest)| latest);
        state.missed_due = Some((due.min(latest), latest));
        drop(state);
        self.notify.notify_one();
    }

    /// Records whether the watches of all kinds of RBAC objects are open.
    pub(super) fn set_open(&self, is_open: bool) {
        let mut state = self.state.lock();
        state.was_open |= is_open;
        if state.is_open != is_open {
            (state.is_open, state.last_activity) = (is_open, Instant::now());
        }
    }

    /// When a change was last seen, or the watches began or ended.
    pub(super) fn last_activity(&self) -> Instant {
        self.state.lock().last_activity
    }

    /// Returns the time since which no change was received; `None` if changes would not be received at once.
    pub(super) fn unchanged_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        state.is_open.then_some(state.last_activity)
    }

    /// Whether the apiserver may deny access because it does not have its rules yet: the watches began again a short
    /// time ago.
    pub(super) fn upstream_may_be_starting(&self) -> bool {
        self.state.lock().resumed_at.is_some_and(|at| at.elapsed() <= STARTING_MAX)
    }

    /// Whether a permission from RBAC, as reviewed at `sent`, still holds.
    ///
    /// It holds if every change is seen, including those that upstream's authorizers may not have known at `sent`. The
    /// caller must have dropped the decisions that a change affects. An authorizer before RBAC may have begun to deny,
    /// so the result is false after `max`.
    pub(super) fn still_valid(&self, sent: Instant, max: Duration) -> bool {
        let state = self.state.lock();
        sent.elapsed() < max && state.is_open && sent >= state.complete_since + SETTLE_TIME
    }

    /// Completes at the next review round. Returns the affected users, and whether all permissions must be reviewed,
    /// because changes may have been missed.
    pub(super) async fn next(&self, rounds: &mut PolicyRecheckRounds) -> (AffectedUsers, bool) {
        loop {
            sleep_until(rounds.next_round_at).await;
            let is_quiet = rounds.previous.iter().all(AffectedUsers::is_none);
            if is_quiet {
                let settled = self.state.lock().missed_due.map(|(due, _)| due);
                tokio::select! {
                    biased;
                    () = self.notify.notified() => {}
                    () = sleep_until_opt(settled) => {}
                }
            }
            let (unapplied, is_missed) = self.state.lock().take_due();
            if is_quiet && unapplied.is_none() {
                if !is_missed {
                    continue;
                }
                return (unapplied, true);
            }
            let mut due = unapplied.clone();
            [0, 2].into_iter().for_each(|round| due.add(&rounds.previous[round]));
            rounds.previous.rotate_right(1);
            rounds.previous[0] = unapplied;
            rounds.next_round_at = Instant::now() + ROUND_INTERVAL + JITTER.mul_f64(random::f64());
            if is_missed || !due.is_none() {
                return (due, is_missed);
            }
        }
    }
}

impl PolicyWatchState {
    /// The changes since the last call, and whether everything must be reviewed now, because of changes that were
    /// missed before the watches began.
    fn take_due(&mut self) -> (AffectedUsers, bool) {
        let unapplied = std::mem::take(&mut self.unapplied);
        let now = Instant::now();
        if self.missed_due.is_none_or(|(due, _)| due > now) {
            return (unapplied, false);
        }
        // A watch that began a moment ago is too recent for this round, and gets another.
        let (is_recent, due) = (self.complete_since + SETTLE_TIME > now, self.complete_since + settle_time());
        self.missed_due = is_recent.then_some((due, due + GATHER_MAX));
        (unapplied, true)
    }
}

/// Returns the delay from the start of a policy watch to the review of all permissions.
fn settle_time() -> Duration {
    SETTLE_TIME + JITTER.mul_f64(3.0 * random::f64())
}

impl PolicyRecheckRounds {
    pub(super) fn new() -> Self {
        Self { previous: Default::default(), next_round_at: Instant::now() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::auth::AffectedNamespaces;
    use crate::auth::rbac::{PolicySubject, SubjectMap};
    use kubeapi::User;

    fn change(user: usize) -> AffectedUsers {
        let mut subjects = SubjectMap::default();
        subjects.add(PolicySubject::User(user.to_string()), &AffectedNamespaces::Everywhere);
        AffectedUsers::Only(subjects, BTreeSet::new())
    }

    fn touches(affected: &AffectedUsers, user: usize) -> bool {
        affected.namespaces_of(&User { name: user.to_string(), ..User::default() }).is_some()
    }

    /// The rounds within some seconds: the time of each, and the affected users.
    async fn rounds(changes: &PolicyChanges, seconds: u64) -> Vec<(Duration, AffectedUsers)> {
        let (began, mut rounds, mut seen) = (Instant::now(), PolicyRecheckRounds::new(), Vec::new());
        let _ = timeout(Duration::from_secs(seconds), async {
            loop {
                let (affected, is_missed) = changes.next(&mut rounds).await;
                seen.push((began.elapsed(), if is_missed { AffectedUsers::Everyone } else { affected }));
            }
        })
        .await;
        seen
    }

    #[tokio::test(start_paused = true)]
    async fn policy_change_triggers_one_immediate_and_two_later_rounds() {
        let changes = PolicyChanges::new();
        changes.add(&change(1));
        let rounds = rounds(&changes, 60).await;
        assert_eq!(rounds.len(), 3, "{rounds:?}");
        assert!(rounds.iter().all(|(_, affected)| touches(affected, 1) && !touches(affected, 2)));
        assert_eq!(rounds[0].0, Duration::ZERO);
        assert!(rounds[2].0 >= 3 * ROUND_INTERVAL && rounds[2].0 < Duration::from_secs(4), "{rounds:?}");
    }

    /// A thousand role bindings change within two seconds.
    #[tokio::test(start_paused = true)]
    async fn thousand_changes_are_coalesced_into_few_review_rounds() {
        let changes = Arc::new(PolicyChanges::new());
        let (writer, began) = (changes.clone(), Instant::now());
        let written = tokio::spawn(async move {
            for user in 0..1_000 {
                writer.add(&change(user));
                sleep(Duration::from_millis(2)).await;
            }
        });
        let rounds = rounds(&changes, 60).await;
        written.await.expect("a task");
        assert!(rounds.len() <= 8, "{} rounds", rounds.len());
        for user in 0..1_000 {
            let touching: Vec<_> = rounds.iter().filter(|(_, affected)| touches(affected, user)).collect();
            assert_eq!(touching.len(), 3, "{user}");
            let (first, last) = (touching[0].0, touching[2].0);
            let changed_at = Duration::from_millis(2) * u32::try_from(user).expect("a small number");
            assert!(
                first <= changed_at + ROUND_INTERVAL + JITTER + Duration::from_millis(10),
                "{user}: {first:?} after {changed_at:?}"
            );
            assert!(
                last < changed_at + Duration::from_millis(4_100) && last >= changed_at + 2 * (ROUND_INTERVAL + JITTER),
                "{user}: {last:?}"
            );
        }
        assert!(began.elapsed() >= Duration::from_secs(2));
    }

    /// The watches of four kinds begin one after the other, and a change arrives between them.
    #[tokio::test(start_paused = true)]
    async fn starting_policy_watches_trigger_one_full_review_after_settling() {
        for with_change in [false, true] {
            let changes = Arc::new(PolicyChanges::new());
            let began = Instant::now();
            let watches = changes.clone();
            tokio::spawn(async move {
                for _ in 0..4 {
                    watches.watch_started();
                    sleep(Duration::from_millis(200)).await;
                }
                if with_change {
                    watches.add(&change(1));
                }
            });
            let rounds = rounds(&changes, 60).await;
            let (all, some): (Vec<_>, Vec<_>) = rounds.iter().partition(|(_, affected)| touches(affected, 2));
            let last = began + Duration::from_millis(600);
            assert_eq!(all.len(), 1, "{rounds:?}");
            let last_review = began + all[0].0;
            assert!(
                last_review >= last + SETTLE_TIME && last_review <= last + Duration::from_millis(4_100),
                "{rounds:?}"
            );
            let of_change = some.len() + all.iter().filter(|_| with_change && some.len() == 2).count();
            assert!(with_change && (2..=3).contains(&some.len()) && of_change >= 3 || some.is_empty(), "{rounds:?}");
            let first = some.first().map_or(Duration::from_millis(800), |(at, _)| *at);
            assert_eq!(first, Duration::from_millis(800), "a change is reviewed at once in any case");
        }
    }

    /// Watches that restart in a loop, as when upstream is unavailable, do not postpone the round for ever.
    #[tokio::test(start_paused = true)]
    async fn restarting_policy_watches_do_not_postpone_the_review_round() {
        let changes = Arc::new(PolicyChanges::new());
        let watches = changes.clone();
        tokio::spawn(async move {
            for _ in 0..100 {
                watches.watch_started();
                sleep(Duration::from_millis(300)).await;
            }
        });
        let times: Vec<_> = rounds(&changes, 60).await.into_iter().map(|(at, _)| at).collect();
        assert!(times[0] <= Duration::from_millis(4_100), "{times:?}");
        assert!(times.windows(2).all(|two| two[1].saturating_sub(two[0]) <= Duration::from_millis(4_100)), "{times:?}");
        assert!((7..=20).contains(&times.len()), "{times:?}");
        let last = Duration::from_millis(99 * 300);
        assert!(times.last().is_some_and(|at| *at >= last + SETTLE_TIME), "the last beginning, too: {times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn review_rounds_are_jittered_between_proxies() {
        let mut later = Vec::new();
        for _ in 0..50 {
            let changes = PolicyChanges::new();
            changes.add(&AffectedUsers::Everyone);
            later.extend(rounds(&changes, 10).await.into_iter().skip(1).map(|(at, _)| at.as_millis() / 50));
        }
        later.sort_unstable();
        later.dedup();
        assert!(later.len() > 10, "{later:?}");
    }
}

//! Gathers changes of policy: however many there are, upstream is asked once about all that came together.
//!
//! Upstream's authorizers see a change at their own pace. So it is asked about in three rounds: when it is heard of, a
//! beat later, and three beats later. While changes come, there is one round in each beat, for everything that is due
//! in it. So the first change of a burst is acted on at once, and a burst costs a round a beat, whatever its size.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::Affected;

/// Changes that were seen and not yet acted on.
#[derive(Debug)]
pub(super) struct Changes {
    fresh: Mutex<Affected>,
    came: Notify,
}

/// The changes that later rounds are still about.
#[derive(Debug)]
pub(super) struct Rounds {
    /// The changes of one, two and three beats ago.
    ago: [Option<Affected>; 3],
    /// There is no round before this time.
    rest_until: Instant,
}

/// How many leases or remembered answers are looked at for a change before other tasks have the thread.
pub(super) const LOOKED_AT: usize = 1_024;

/// The least time from one round to the next.
const BEAT: Duration = Duration::from_millis(700);
/// A random addition to the beat, drawn anew each time: a thousand proxies that have seen one change do not ask about
/// it together.
const JITTER: Duration = Duration::from_millis(300);

impl Changes {
    pub(super) fn new() -> Self {
        Self { fresh: Mutex::new(Affected::nobody()), came: Notify::new() }
    }

    /// Takes in a change that we have seen.
    pub(super) fn hear(&self, affected: &Affected) {
        let mut fresh = self.fresh.lock();
        let before = std::mem::replace(&mut *fresh, Affected::nobody());
        *fresh = before.and(affected);
        drop(fresh);
        self.came.notify_one();
    }

    /// Completes with the next round, and says whom it is about.
    pub(super) async fn next(&self, rounds: &mut Rounds) -> Affected {
        loop {
            sleep_until(rounds.rest_until).await;
            if rounds.ago.iter().all(Option::is_none) {
                self.came.notified().await;
            }
            let fresh = std::mem::replace(&mut *self.fresh.lock(), Affected::nobody());
            let due = [&rounds.ago[0], &rounds.ago[2]].into_iter().flatten().fold(fresh.clone(), Affected::and);
            rounds.ago.rotate_right(1);
            rounds.ago[0] = Some(fresh).filter(|fresh| !fresh.is_nobody());
            rounds.rest_until = Instant::now() + BEAT + JITTER.mul_f64(fastrand::f64());
            if !due.is_nobody() {
                return due;
            }
        }
    }
}

impl Rounds {
    pub(super) fn new() -> Self {
        Self { ago: [const { None }; 3], rest_until: Instant::now() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::auth::{AffectedScope, Subjects};
    use crate::kube::User;

    fn change(user: usize) -> Affected {
        let mut subjects = Subjects::default();
        subjects.add_user(user.to_string(), &AffectedScope::Everywhere);
        Affected::of(subjects)
    }

    fn touches(affected: &Affected, user: usize) -> bool {
        affected.reach(&User { name: user.to_string(), ..User::default() }).is_some()
    }

    /// The rounds of so many seconds: when each was, and whom it was about.
    async fn rounds(changes: &Changes, seconds: u64) -> Vec<(Duration, Affected)> {
        let (began, mut rounds, mut seen) = (Instant::now(), Rounds::new(), Vec::new());
        let _ = timeout(Duration::from_secs(seconds), async {
            loop {
                let affected = changes.next(&mut rounds).await;
                seen.push((began.elapsed(), affected));
            }
        })
        .await;
        seen
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_acted_on_at_once_and_twice_again_within_the_bound() {
        let changes = Changes::new();
        changes.hear(&change(1));
        let rounds = rounds(&changes, 60).await;
        assert_eq!(rounds.len(), 3, "{rounds:?}");
        assert!(rounds.iter().all(|(_, affected)| touches(affected, 1) && !touches(affected, 2)));
        assert_eq!(rounds[0].0, Duration::ZERO);
        assert!(rounds[2].0 >= 3 * BEAT && rounds[2].0 < Duration::from_secs(4), "{rounds:?}");
    }

    /// A release of a thousand role bindings, over two seconds.
    #[tokio::test(start_paused = true)]
    async fn a_thousand_changes_are_asked_about_once() {
        let changes = Arc::new(Changes::new());
        let (writer, began) = (changes.clone(), Instant::now());
        let written = tokio::spawn(async move {
            for user in 0..1_000 {
                writer.hear(&change(user));
                sleep(Duration::from_millis(2)).await;
            }
        });
        let rounds = rounds(&changes, 60).await;
        written.await.expect("a task");
        assert!(rounds.len() <= 8, "{} rounds", rounds.len());
        for user in 0..1_000 {
            let asked: Vec<_> = rounds.iter().filter(|(_, affected)| touches(affected, user)).collect();
            assert_eq!(asked.len(), 3, "{user}");
            let (first, last) = (asked[0].0, asked[2].0);
            let came = Duration::from_millis(2) * u32::try_from(user).expect("a small number");
            assert!(first <= came + BEAT + JITTER + Duration::from_millis(10), "{user}: {first:?} after {came:?}");
            assert!(
                last < came + Duration::from_millis(4_100) && last >= came + 2 * (BEAT + JITTER),
                "{user}: {last:?}"
            );
        }
        assert!(began.elapsed() >= Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn proxies_that_hear_of_one_change_ask_at_different_times() {
        let mut later = Vec::new();
        for _ in 0..50 {
            let changes = Changes::new();
            changes.hear(&Affected::Everyone);
            later.extend(rounds(&changes, 10).await.into_iter().skip(1).map(|(at, _)| at.as_millis() / 50));
        }
        later.sort_unstable();
        later.dedup();
        assert!(later.len() > 10, "{later:?}");
    }
}

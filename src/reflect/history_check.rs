//! Finds out whether upstream's history is still the one that a feed holds, when there is reason to doubt it.
//!
//! An inquiry runs beside the stream, which goes on meanwhile: one server that lags behind must not cost anybody a
//! watch. It lists the current state once. That is a consistent read, so a version below ours is proof by itself. A
//! later state is compared with what the feed held when the inquiry began.
//!
//! A doubt that is unfounded has no effect, and the next one waits: ten seconds, then twice as long each time. If it is
//! founded, the feed gives its history up: nothing is served until the restored state is there, and watches end with
//! 410. The other feeds of the upstream list as well, within three seconds, and go on if nothing of theirs differs.

use std::future::pending;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use super::continuity::{Finding, Reach, compare, places};
use super::initial_state::{At, FeedClient, InitialState};
use super::metrics::SideRequest;
use super::stream::Ended;
use base::random;
use kubeapi::ResourceVersion;

/// The reason for an inquiry, in the order of urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HistoryCheckReason {
    /// The stream was lost and is open again, and has not shown yet that all is as it was. A cheap question comes
    /// first.
    Reopened,
    /// The stream was opened again, and upstream's storage has come as far as the feed, but the stream does not begin
    /// with the change that it was to tell first.
    Untold,
    /// Upstream has given an answer that contradicts what the feed holds.
    Doubt,
    /// Another feed has found that upstream's storage went back.
    Notice,
}

/// The result of an inquiry.
#[derive(Debug)]
pub(super) enum HistoryCheckOutcome {
    /// Upstream's storage has come as far as the feed, whatever its history is.
    Reached,
    /// Upstream's history is ours.
    Continues,
    /// It is another one, and this is its current state.
    Other(Box<Listed>),
    /// Nobody can tell any more. This is the current state.
    Unproven(HistoryCheckReason, Box<Listed>),
    /// Upstream did not answer.
    Failed(HistoryCheckReason),
}

/// A current state.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) asked: Instant,
    pub(super) initial: InitialState,
}

/// The inquiries of one feed, of which one runs at a time.
#[derive(Default)]
pub(super) struct HistoryChecks {
    due: Option<(Instant, HistoryCheckReason)>,
    /// The inquiry that runs. The lock is never contended; it lets others share a reference to this.
    running: Mutex<Option<BoxFuture<'static, HistoryCheckOutcome>>>,
    pace: Pace,
}

/// Limits how soon a doubt is looked into: an upstream that keeps raising unfounded ones must not be listed again and
/// again.
#[derive(Debug, Default)]
struct Pace {
    /// When the last doubt was found to be unfounded, and how many there were in a row.
    unfounded: Option<(Instant, u32)>,
}

impl Pace {
    const REST: Duration = Duration::from_secs(10);
    const REST_MAX: Duration = Duration::from_secs(5 * 60);

    fn rest(times: u32) -> Duration {
        Self::REST.saturating_mul(1 << times.min(10)).min(Self::REST_MAX)
    }

    /// The earliest moment for the next inquiry.
    fn earliest(&self) -> Option<Instant> {
        self.unfounded.map(|(at, times)| at + Self::rest(times))
    }

    fn was_unfounded(&mut self, now: Instant) {
        let again = self.unfounded.filter(|(at, times)| now.duration_since(*at) < 2 * Self::rest(*times));
        self.unfounded = Some((now, again.map_or(0, |(_, times)| times + 1)));
    }
}

/// A cheap question that is not answered within this time tells nothing.
const QUESTION_MAX: Duration = Duration::from_secs(5);

impl HistoryChecks {
    /// Schedules an inquiry within `from..from + spread`: thousands of feeds may have the same reason at the same
    /// moment.
    pub(super) fn ask(&mut self, why: HistoryCheckReason, from: Duration, spread: Duration) {
        let mut when = Instant::now() + from + spread.mul_f64(random::f64());
        if why == HistoryCheckReason::Doubt {
            when = self.pace.earliest().map_or(when, |earliest| earliest.max(when));
        }
        // What is due already is not put off, and the more urgent reason covers the other.
        self.due = Some(self.due.map_or((when, why), |(at, due)| (at.min(when), due.max(why))));
    }

    /// Cancels an inquiry that was due because the stream was lost: the stream has shown that all is as it was.
    pub(super) fn withdraw(&mut self) {
        self.due.take_if(|(_, why)| matches!(why, HistoryCheckReason::Reopened | HistoryCheckReason::Untold));
    }

    /// Cancels everything, because another history has begun.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Completes with the next outcome. Cancel-safe.
    pub(super) async fn next(&mut self, upstream: &FeedClient) -> HistoryCheckOutcome {
        loop {
            if let Some(running) = self.running.get_mut() {
                let outcome = running.await;
                *self.running.get_mut() = None;
                if matches!(
                    outcome,
                    HistoryCheckOutcome::Continues
                        | HistoryCheckOutcome::Failed(_)
                        | HistoryCheckOutcome::Unproven(HistoryCheckReason::Doubt, _)
                ) {
                    self.pace.was_unfounded(Instant::now());
                }
                return outcome;
            }
            let Some((when, why)) = self.due else { return pending().await };
            sleep_until(when).await;
            self.due = None;
            let inquirer = HistoryProbe { upstream: upstream.clone() };
            *self.running.get_mut() = Some(async move { inquirer.ask(why).await }.boxed());
        }
    }
}

/// Puts the questions of one inquiry to upstream.
struct HistoryProbe {
    upstream: FeedClient,
}

impl HistoryProbe {
    async fn ask(&self, why: HistoryCheckReason) -> HistoryCheckOutcome {
        if why == HistoryCheckReason::Reopened {
            let reached = self.upstream.feed.reader.progress().rv;
            self.upstream.metrics.asked(SideRequest::Position);
            match timeout(QUESTION_MAX, self.upstream.lister(SideRequest::Position).position_beside(reached)).await {
                Ok(Ok(at)) if at >= reached => return HistoryCheckOutcome::Reached,
                Ok(Ok(at)) => {
                    tracing::info!(feed = %self.upstream.feed.spec.key, %at, %reached, "upstream seems to be behind");
                }
                Ok(Err(_)) | Err(_) => return HistoryCheckOutcome::Failed(why),
            }
        }
        self.list(why).await
    }

    async fn list(&self, why: HistoryCheckReason) -> HistoryCheckOutcome {
        self.upstream.metrics.asked(SideRequest::Doubt);
        // What came a moment ago is to be compared as well.
        self.upstream.feed.reader.settled().await;
        let known = self.upstream.feed.reader.snapshot();
        let reach = Reach::of(&self.upstream.feed.reader, known.rv);
        let asked = Instant::now();
        let initial = match self.current(known.rv).await {
            Ok(initial) => initial,
            Err(error) => {
                let feed = &self.upstream.feed.spec.key;
                tracing::info!(%feed, %error, "whether upstream's history is ours is not known");
                return HistoryCheckOutcome::Failed(why);
            }
        };
        let listed = &initial.snapshot;
        let finding = match compare(places(&known), reach, places(listed), listed.rv) {
            // Later changes hide the earlier ones, but upstream may still have the state that we had.
            Finding::Later => match self.upstream.lister(SideRequest::Doubt).list(At::Exact(known.rv)).await {
                Ok(then) => compare(places(&known), reach, places(&then.snapshot), then.snapshot.rv),
                Err(_) => Finding::Later,
            },
            finding => finding,
        };
        let (feed, at, reached) = (&self.upstream.feed.spec.key, listed.rv, known.rv);
        tracing::info!(%feed, ?why, ?finding, %at, %reached, "listed on a doubt");
        let listed = Box::new(Listed { asked, initial });
        match finding {
            Finding::Same => HistoryCheckOutcome::Continues,
            Finding::Other => HistoryCheckOutcome::Other(listed),
            Finding::Later => HistoryCheckOutcome::Unproven(why, listed),
        }
    }

    /// The current state. A proxy's may be of a version below ours and still be ours: then one that is not is asked for
    /// (`Lister::position_beside`).
    async fn current(&self, ours: ResourceVersion) -> Result<InitialState, Ended> {
        let lister = self.upstream.lister(SideRequest::Doubt);
        let current = lister.current(&self.upstream.lists_only).await?;
        if current.snapshot.rv >= ours || !current.is_from_memory {
            return Ok(current);
        }
        match lister.list(At::NotOlderThan(ours)).await {
            Ok(shown) => Ok(shown),
            Err(error) if error.is_too_large_version() => Ok(current),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfounded_doubts_are_looked_into_ever_more_rarely_and_one_after_a_while_at_once() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        assert_eq!(pace.earliest(), None);
        let mut now = start;
        for rest in [10, 20, 40, 80, 160, 300, 300] {
            pace.was_unfounded(now);
            assert_eq!(pace.earliest(), Some(now + Duration::from_secs(rest)));
            now += Duration::from_secs(rest);
        }
        let later = now + 2 * Pace::REST_MAX;
        pace.was_unfounded(later);
        assert_eq!(pace.earliest(), Some(later + Pace::REST));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_due_is_not_put_off_and_the_better_reason_stays() {
        let mut inquiries = HistoryChecks::default();
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        inquiries.ask(HistoryCheckReason::Reopened, second, Duration::ZERO);
        inquiries.ask(HistoryCheckReason::Notice, 3 * second, Duration::ZERO);
        inquiries.ask(HistoryCheckReason::Doubt, 2 * second, Duration::ZERO);
        assert_eq!(inquiries.due, Some((now + second, HistoryCheckReason::Notice)));
        inquiries.withdraw();
        assert!(inquiries.due.is_some(), "there is another reason");
        inquiries.due = None;
        for why in [HistoryCheckReason::Reopened, HistoryCheckReason::Untold] {
            inquiries.ask(why, second, Duration::ZERO);
            inquiries.withdraw();
            assert_eq!(inquiries.due, None);
        }
        inquiries.pace.was_unfounded(now);
        inquiries.ask(HistoryCheckReason::Doubt, Duration::ZERO, Duration::ZERO);
        assert_eq!(inquiries.due, Some((now + Pace::REST, HistoryCheckReason::Doubt)), "paced");
        inquiries.forget();
        inquiries.ask(HistoryCheckReason::Doubt, Duration::ZERO, Duration::ZERO);
        assert_eq!(inquiries.due, Some((now, HistoryCheckReason::Doubt)), "another history, another doubt");
    }
}

//! Decides which of several servers is used. A pure function of events and times, without I/O.

use std::time::Duration;

use tokio::time::Instant;

use base::BackoffBounds;

/// The intervals of readiness checks, and the minimum durations between switches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointTimings {
    /// The time without a response after which a request is a sign that its server may have failed.
    pub slow: Duration,
    /// The timeout of a readiness check. A server that does not report readiness within it is not ready.
    pub check_timeout: Duration,
    /// The delays between readiness checks of the server in use, if it was found ready despite a sign of failure.
    pub false_alarms: BackoffBounds,
    /// The delays between two rounds of readiness checks while no server is ready.
    pub rounds: BackoffBounds,
    /// The minimum time in use of a server that replaced a failed one, before a sign of failure counts against it.
    pub stay: BackoffBounds,
    /// The delays between readiness checks of a preferred server that is not in use.
    pub failbacks: BackoffBounds,
    /// How long a preferred server must have been ready before it is used again.
    pub ready_for: Duration,
    /// The time without failures, switches and failbacks after which their counts are reset.
    pub reset_after: Duration,
}

impl Default for EndpointTimings {
    fn default() -> Self {
        let seconds =
            |first, longest| BackoffBounds { first: Duration::from_secs(first), longest: Duration::from_secs(longest) };
        Self {
            slow: Duration::from_secs(5),
            check_timeout: Duration::from_secs(5),
            false_alarms: seconds(1, 15),
            rounds: seconds(1, 10),
            stay: seconds(1, 30),
            failbacks: seconds(30, 30 * 60),
            ready_for: Duration::from_secs(30),
            reset_after: Duration::from_secs(5 * 60),
        }
    }
}

/// The state of the selection: the server in use, the facts about the others, and the next check.
///
/// - If a sign indicates that the server in use has failed, it is sent a readiness check. If it is not ready, the
///   others are checked in order, and the first ready one is used. If none is ready, all are checked again at growing
///   intervals.
/// - A server before the one in use is preferred. It is used again when it has been ready for a while.
/// - Consecutive failures, switches and failbacks delay the next check. This bounds the checks and switches that
///   unstable servers cause.
/// - While the first server is healthy, no checks are sent.
#[derive(Debug)]
pub(in crate::upstream) struct EndpointSelector {
    servers: usize,
    times: EndpointTimings,
    /// A number from 0 to 1, different in each process, so that processes that started together do not act at the same
    /// time.
    spread: f64,
    current: usize,
    /// When the server in use replaced another one because it is preferred, if it did.
    preferred_since: Option<Instant>,
    /// The server that is being checked, and why it would be used: because the one in use may have failed, which may be
    /// that one, or because it is preferred.
    check: Option<(usize, EndpointSwitchCause)>,
    /// The time of the next check of the server in use, and then of the others.
    check_due: Option<Instant>,
    /// The earliest time of the next check because of a sign of failure.
    failures_ignored_until: Instant,
    /// The time of the next check of the preferred servers.
    failback_due: Option<Instant>,
    /// A preferred server that is ready, and the time since which it is.
    candidate: Option<(usize, Instant)>,
    false_alarms: EndpointRepeatCount,
    switches: EndpointRepeatCount,
    /// The number of rounds in which no server was ready.
    rounds: u32,
    /// The number of unsuccessful checks of preferred servers, and of failbacks that did not last.
    failed_checks: u32,
    failed_failbacks: u32,
}

/// The number of occurrences of an event without a calm time in between.
#[derive(Debug, Default)]
struct EndpointRepeatCount {
    times: u32,
    last: Option<Instant>,
}

/// The next action of the selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) enum EndpointNextStep {
    /// Send a readiness check to the server with this index.
    Check(usize),
    /// Wait for a sign of failure, or until the given time.
    Wait(Option<Instant>),
}

base::labelled_enum! {
    /// The reason for a switch to another upstream server.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(in crate::upstream) enum EndpointSwitchCause {
        /// The previous server has failed.
        Failed = "failed",
        /// A preferred server has been ready for a while.
        Preferred = "preferred",
    }
}

/// A switch to another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) struct EndpointSwitch {
    pub(in crate::upstream) from: usize,
    pub(in crate::upstream) to: usize,
    pub(in crate::upstream) cause: EndpointSwitchCause,
}

/// The number of checks that a preferred server must pass, besides the first.
const CANDIDATE_CHECKS: u32 = 3;

impl EndpointSelector {
    /// Creates the initial state with `servers` servers: the first one is used, and nothing is known about any.
    pub(in crate::upstream) fn new(servers: usize, times: EndpointTimings, spread: f64, now: Instant) -> Self {
        Self {
            servers,
            times,
            spread,
            current: 0,
            preferred_since: None,
            check: None,
            check_due: None,
            failures_ignored_until: now,
            failback_due: None,
            candidate: None,
            false_alarms: EndpointRepeatCount::default(),
            switches: EndpointRepeatCount::default(),
            rounds: 0,
            failed_checks: 0,
            failed_failbacks: 0,
        }
    }

    /// The index of the server in use.
    pub(in crate::upstream) fn current(&self) -> usize {
        self.current
    }

    /// Handles a sign that a server has failed. It is ignored if the server is not in use or a check is in progress. It
    /// is also ignored if no server is ready, because all are checked then anyway.
    pub(in crate::upstream) fn on_failure(&mut self, at: usize, now: Instant) {
        let is_checking = matches!(self.check, Some((_, EndpointSwitchCause::Failed))) || self.rounds > 0;
        if at != self.current || is_checking {
            return;
        }
        let due = *self.check_due.get_or_insert(self.failures_ignored_until.max(now));
        if due <= now && self.check.take().is_some() {
            self.postpone_failback(now);
        }
    }

    /// Ends the checks of preferred servers, because the server in use is checked first: theirs may all time out.
    fn postpone_failback(&mut self, now: Instant) {
        self.candidate = None;
        self.failback_due = Some(now + self.delay(self.times.failbacks, self.failed_checks + 1));
    }

    /// Whether the check in progress is that of a preferred server.
    pub(in crate::upstream) fn is_failing_back(&self) -> bool {
        matches!(self.check, Some((_, EndpointSwitchCause::Preferred)))
    }

    pub(in crate::upstream) fn next_step(&mut self, now: Instant) -> EndpointNextStep {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        if self.check.is_none() && is_due(self.check_due) {
            self.check_due = None;
            self.check = Some((self.current, EndpointSwitchCause::Failed));
        } else if self.check.is_none() && self.rounds == 0 && is_due(self.failback_due) {
            self.failback_due = None;
            self.check = Some((0, EndpointSwitchCause::Preferred));
        }
        let failback = self.failback_due.filter(|_| self.rounds == 0);
        let wait = || EndpointNextStep::Wait([self.check_due, failback].into_iter().flatten().min());
        self.check.map_or_else(wait, |(checked, _)| EndpointNextStep::Check(checked))
    }

    /// Handles the result of the readiness check that was the next step.
    pub(in crate::upstream) fn on_check_result(&mut self, is_ready: bool, now: Instant) -> Option<EndpointSwitch> {
        let (checked, cause) = self.check.take()?;
        match cause {
            EndpointSwitchCause::Failed if is_ready && checked != self.current => {
                return Some(self.switch(checked, cause, now));
            }
            EndpointSwitchCause::Failed if is_ready => {
                self.rounds = 0;
                let times = self.false_alarms.record(now, self.times.reset_after);
                self.failures_ignored_until = now + self.delay(self.times.false_alarms, times);
            }
            EndpointSwitchCause::Failed => {
                self.check = self.next_after(checked).map(|next| (next, cause));
                if self.check.is_none() {
                    self.rounds = self.rounds.saturating_add(1);
                    self.check_due = Some(now + self.delay(self.times.rounds, self.rounds));
                }
            }
            EndpointSwitchCause::Preferred if is_ready => return self.candidate_ready(checked, now),
            EndpointSwitchCause::Preferred => {
                self.candidate = self.candidate.filter(|(at, _)| *at != checked);
                self.check = Some((checked + 1, cause)).filter(|(next, _)| *next < self.current);
                if self.check.is_some() && self.check_due.is_some_and(|due| due <= now) {
                    self.check = None;
                    self.postpone_failback(now);
                } else if self.check.is_none() {
                    self.failed_checks = self.failed_checks.saturating_add(1);
                    self.failback_due = Some(now + self.delay(self.times.failbacks, self.failed_checks));
                }
            }
        }
        None
    }

    /// Returns the server to check after `checked`: first the one in use, then the others in order.
    fn next_after(&self, checked: usize) -> Option<usize> {
        let next = if checked == self.current { 0 } else { checked + 1 };
        let next = if next == self.current { next + 1 } else { next };
        (next < self.servers).then_some(next)
    }

    fn candidate_ready(&mut self, at: usize, now: Instant) -> Option<EndpointSwitch> {
        let since = self.candidate.filter(|(known, _)| *known == at).map_or(now, |(_, since)| since);
        if now.duration_since(since) >= self.times.ready_for {
            return Some(self.switch(at, EndpointSwitchCause::Preferred, now));
        }
        self.candidate = Some((at, since));
        self.failback_due = Some(now + self.times.ready_for / CANDIDATE_CHECKS);
        None
    }

    fn switch(&mut self, to: usize, cause: EndpointSwitchCause, now: Instant) -> EndpointSwitch {
        if let (Some(since), EndpointSwitchCause::Failed) = (self.preferred_since, cause) {
            let lasted = now.duration_since(since) >= self.times.reset_after;
            self.failed_failbacks = if lasted { 0 } else { self.failed_failbacks.saturating_add(1) };
        }
        self.preferred_since = (cause == EndpointSwitchCause::Preferred).then_some(now);
        let from = std::mem::replace(&mut self.current, to);
        let times = self.switches.record(now, self.times.reset_after);
        self.failures_ignored_until = now + self.delay(self.times.stay, times);
        self.rounds = 0;
        self.failed_checks = self.failed_failbacks;
        (self.check_due, self.candidate) = (None, None);
        self.failback_due = (to > 0).then(|| now + self.delay(self.times.failbacks, self.failed_checks + 1));
        EndpointSwitch { from, to, cause }
    }

    /// Returns the delay after `times` occurrences in a row: doubled each time, and up to half longer by the process's
    /// own spread.
    pub(super) fn delay(&self, waits: BackoffBounds, times: u32) -> Duration {
        waits.doubled(times).mul_f64(1.0 + self.spread / 2.0)
    }
}

impl EndpointRepeatCount {
    /// Records another occurrence. Returns the number in a row.
    fn record(&mut self, now: Instant, reset_after: Duration) -> u32 {
        if self.last.is_some_and(|last| now.duration_since(last) >= reset_after) {
            self.times = 0;
        }
        self.last = Some(now);
        self.times = self.times.saturating_add(1);
        self.times
    }
}

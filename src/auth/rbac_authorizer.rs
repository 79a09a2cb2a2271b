//! Access decisions from the RBAC objects that the proxy watches (`delegated.decide: rbac`).
//!
//! A decision is only ever "allowed". What the rules do not allow may be allowed by another authorizer, so upstream
//! reviews it. Decisions need the objects of all four kinds. While a feed is not live, they are made for
//! `delegated.outageGrace`.
//!
//! The rules also determine whose permissions a change may affect, with `decide: ask` too.

use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::review_permission::ReviewResource;
use super::{
    AccessDecider, AffectedUsers, AuthConfig, ObjectNames, RbacEvent, RbacGrant, RbacKind, RbacPolicy, metrics,
};
use base::sleep_until_opt;
use kubeapi::{AccessAttributes, User};

/// Decides by the RBAC objects that the proxy watches.
#[derive(Debug)]
pub(super) struct RbacAuthorizer {
    is_configured: bool,
    /// How long decisions are made while a feed is not live.
    grace: Duration,
    state: RwLock<RbacAuthorizerState>,
    /// Notified when the state has changed in a way that [`RbacAuthorizer::next_change`] reports.
    changed: Notify,
}

#[derive(Debug)]
struct RbacAuthorizerState {
    policy: RbacPolicy,
    /// The state of the feed of each kind.
    feeds: [RbacFeedState; RbacKind::ALL.len()],
    /// Whether a kind has changed while another one was not live. Together they could allow what upstream never did.
    is_mixed: bool,
    /// The time since which not all feeds are live; `None` if they are.
    stale_since: Option<Instant>,
    /// The time since which no decisions are made, if an update has ended them.
    unknown_since: Option<Instant>,
    /// Whether upstream has denied what the rules allow.
    is_disabled: bool,
    /// The users whose permissions have changed since the last report.
    affected: AffectedUsers,
    /// The last reported value of `is_active`.
    was_active: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RbacFeedState {
    /// The feed has not been live with its present objects. They may be those of an old version.
    Unproven,
    Live,
    /// The feed has been live with its present objects, and is not now.
    Stale,
}

/// An access that the rules allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LocalDecision {
    pub(super) grant: RbacGrant,
    /// How long the feeds have not been live; `None` if they are.
    pub(super) stale: Option<Duration>,
}

/// The reason that it is not known which objects the rules allow by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RulesUnknown {
    /// The time since which no decisions are made.
    pub(super) since: Instant,
    /// Whether the rules can be known again without a change of an object that cannot be used.
    pub(super) is_readable: bool,
}

/// A change that affects local decisions.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RbacChange {
    /// The permissions of these users may have changed.
    Rules(AffectedUsers),
    /// Decisions are made from now on. `Rules` follows for everyone.
    Started,
    /// No decisions are made from now on, for this reason. Earlier ones were certain until that time; `None` if upstream
    /// has denied one.
    Stopped { reason: &'static str, certain_until: Option<Instant> },
}

impl RbacAuthorizer {
    pub(super) fn new(config: &AuthConfig) -> Self {
        let is_configured = config.decide == AccessDecider::Rbac;
        let state = RbacAuthorizerState {
            policy: if is_configured { RbacPolicy::default() } else { RbacPolicy::for_changes_only() },
            feeds: [RbacFeedState::Unproven; RbacKind::ALL.len()],
            is_mixed: false,
            stale_since: Some(Instant::now()),
            unknown_since: Some(Instant::now()),
            is_disabled: false,
            affected: AffectedUsers::default(),
            was_active: false,
        };
        Self { is_configured, grace: config.outage_grace, state: RwLock::new(state), changed: Notify::new() }
    }

    /// Whether the RBAC objects are to be watched even if there is no open watch.
    pub(super) fn is_configured(&self) -> bool {
        self.is_configured
    }

    /// Returns the decision that allows an access; `None` if the rules do not allow it, or if they are not known
    /// well enough.
    pub(super) fn decide(&self, user: &User, access: &AccessAttributes) -> Option<LocalDecision> {
        if !self.is_configured {
            return None;
        }
        let state = self.state.read();
        if !state.is_active(self.grace) {
            return None;
        }
        let grant = state.policy.find_grant(user, access)?;
        Some(LocalDecision { grant, stale: state.stale_since.map(|since| since.elapsed()) })
    }

    /// Returns the names of the objects for which the rules allow an access by name; `None` if there are none, or too
    /// many, or if upstream decides everything.
    ///
    /// # Errors
    /// The rules are not known.
    pub(super) fn names(&self, user: &User, access: &AccessAttributes) -> Result<Option<ObjectNames>, RulesUnknown> {
        let state = self.state.read();
        if !self.is_configured || state.is_disabled {
            return Ok(None);
        }
        if state.is_active(self.grace) {
            return Ok(state.policy.find_names(user, access));
        }
        // Stale rules end decisions without an update.
        let stale_until = state.stale_since.map(|since| since + self.grace);
        let since = state.unknown_since.into_iter().chain(stale_until).min();
        Err(RulesUnknown { since: since.unwrap_or_else(Instant::now), is_readable: !state.policy.is_unreadable() })
    }

    /// Whether decisions are made.
    pub(super) fn is_active(&self) -> bool {
        self.is_configured && self.state.read().is_active(self.grace)
    }

    /// How long the feeds have not been live, if decisions are made nevertheless.
    pub(super) fn stale(&self) -> Option<Duration> {
        let state = self.state.read();
        state.stale_since.filter(|_| self.is_configured && state.is_active(self.grace)).map(|since| since.elapsed())
    }

    /// Replaces all objects of a kind. `None` stands for an object that cannot be decoded.
    pub(super) fn load(&self, kind: RbacKind, objects: impl IntoIterator<Item = Option<RbacEvent>>) {
        self.update(|state| {
            state.policy.clear_kind(kind);
            state.set_feed(kind, RbacFeedState::Unproven, Instant::now());
            state.is_mixed = true;
            for object in objects {
                match object {
                    Some(object) => drop(state.policy.apply(kind, object)),
                    None => state.policy.set_incomplete(kind),
                }
            }
            state.policy.set_loaded(kind);
            state.affected = AffectedUsers::Everyone;
        });
    }

    /// Applies a change of an object and returns the users whom it may affect. `None` stands for an object that cannot
    /// be decoded: no decisions are made until all objects of its kind are loaded again.
    pub(super) fn apply(&self, kind: RbacKind, change: Option<RbacEvent>) -> Option<AffectedUsers> {
        self.update(|state| {
            state.is_mixed |= state.stale_since.is_some();
            let affected = match change {
                Some(change) => state.policy.apply(kind, change)?,
                None => {
                    state.policy.set_incomplete(kind);
                    AffectedUsers::Everyone
                }
            };
            if self.is_configured {
                state.affected.add(&affected);
            }
            Some(affected)
        })
    }

    /// Removes the objects of a kind, because it is no longer watched.
    pub(super) fn clear(&self, kind: RbacKind) {
        self.update(|state| state.policy.clear_kind(kind));
    }

    /// Records whether the feed of a kind is live; if not, since when. Calls `report` with whether the feeds of all kinds
    /// are, under the lock, because the kinds change concurrently and the last report must match the last state.
    pub(super) fn set_live(&self, kind: RbacKind, stale_since: Option<Instant>, report: impl FnOnce(bool)) {
        self.update(|state| {
            let feed = match (stale_since, state.feeds[kind as usize]) {
                (None, _) => RbacFeedState::Live,
                (Some(_), RbacFeedState::Live) => RbacFeedState::Stale,
                (Some(_), feed) => feed,
            };
            state.set_feed(kind, feed, stale_since.unwrap_or_else(Instant::now));
            report(state.stale_since.is_none());
        });
    }

    /// Stops local decisions, because upstream has denied what the rules allow. Returns false if they had stopped.
    pub(super) fn disable(&self) -> bool {
        metrics::local_decisions_disagreed(ReviewResource::ACCESS.label, true);
        !self.update(|state| std::mem::replace(&mut state.is_disabled, true))
    }

    /// Makes decisions again after [`disable`](Self::disable).
    pub(super) fn enable(&self) {
        metrics::local_decisions_disagreed(ReviewResource::ACCESS.label, false);
        self.update(|state| state.is_disabled = false);
    }

    fn update<T>(&self, change: impl FnOnce(&mut RbacAuthorizerState) -> T) -> T {
        let mut state = self.state.write();
        let result = change(&mut state);
        let (is_active, now) = (state.is_active(self.grace), Instant::now());
        state.unknown_since = (!is_active).then(|| state.unknown_since.unwrap_or(now));
        drop(state);
        self.changed.notify_one();
        result
    }

    /// Completes at the next change that affects local decisions.
    pub(super) async fn next_change(&self) -> RbacChange {
        loop {
            let ends_at = {
                let mut state = self.state.write();
                let stopped = state.stopped(self.grace);
                let is_active = self.is_configured && stopped.is_none();
                if std::mem::replace(&mut state.was_active, is_active) != is_active {
                    metrics::local_decisions_active(is_active);
                    let certain_until =
                        Some(state.stale_since.unwrap_or_else(Instant::now)).filter(|_| !state.is_disabled);
                    if is_active {
                        // What was decided without the rules may differ.
                        state.affected = AffectedUsers::Everyone;
                    }
                    return stopped.map_or(RbacChange::Started, |reason| RbacChange::Stopped { reason, certain_until });
                }
                let affected = std::mem::take(&mut state.affected);
                if is_active && !affected.is_none() {
                    return RbacChange::Rules(affected);
                }
                state.stale_since.filter(|_| is_active).map(|since| since + self.grace)
            };
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = sleep_until_opt(ends_at) => {}
            }
        }
    }
}

impl RbacAuthorizerState {
    fn is_active(&self, grace: Duration) -> bool {
        self.stopped(grace).is_none()
    }

    /// Returns why no decisions are made, for the log; `None` if they are.
    fn stopped(&self, grace: Duration) -> Option<&'static str> {
        if self.is_disabled {
            Some("disagreed")
        } else if self.policy.is_unreadable() {
            Some("unreadable")
        } else if self.is_mixed || self.feeds.contains(&RbacFeedState::Unproven) || !self.policy.is_complete() {
            Some("history_lost")
        } else {
            self.stale_since.filter(|since| since.elapsed() >= grace).map(|_| "stale")
        }
    }

    /// Sets the state of the feed of a kind. If it is not live, it has not been since `since`.
    fn set_feed(&mut self, kind: RbacKind, feed: RbacFeedState, since: Instant) {
        self.feeds[kind as usize] = feed;
        let is_live = self.feeds.iter().all(|feed| *feed == RbacFeedState::Live);
        self.stale_since = (!is_live).then(|| self.stale_since.map_or(since, |before| before.min(since)));
        self.is_mixed &= !is_live;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feeds_are_reported_in_the_order_of_their_changes() {
        let rbac = RbacAuthorizer::new(&AuthConfig::default());
        let mut reports = Vec::new();
        for kind in RbacKind::ALL {
            rbac.set_live(kind, None, |is_watched| {
                assert!(rbac.state.is_locked_exclusive(), "no other change can be reported in between");
                reports.push(is_watched);
            });
        }
        assert_eq!(reports, [false, false, false, true]);
    }
}

use std::time::Duration;

use tokio::time::Instant;

use super::AuthConfig;
use super::credential::Credential;
use base::random;
use kubeapi::User;

/// How long a lease is valid between two checks.
///
/// Each period is shortened by up to a fifth at random, and the first one by up to four fifths. So leases that began
/// together are checked at different times.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrantLeaseTtls {
    /// How long an access decision stays valid.
    pub(super) of_right: Duration,
    /// How long a decision stays valid if its reason is RBAC, while all changes of RBAC are watched.
    pub(super) by_policy: Duration,
    /// How long the identity of the credential stays valid.
    pub(super) of_identity: Duration,
    /// The maximum delay of upstream's authorizers after a policy change.
    behind: Duration,
    /// How long a lease continues if no decision can be obtained, from the time at which the failure is noticed.
    pub(super) grace: Duration,
}

/// The times at which the identity and the permission were last reviewed.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastReviewTimes {
    pub(super) identity: Instant,
    pub(super) right: Instant,
}

/// How long the decisions on an identity and a permission stay valid.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecisionTtls {
    identity: Duration,
    right: Duration,
}

/// The shortest first period of a lease, as a fraction. The leases of a proxy that has just started began together, and
/// so did those of other proxies.
const FIRST: f64 = 0.2;
/// The fraction of its period after which a decision is renewed together with another one that is due now.
const NEARLY: f64 = 0.9;
/// The maximum age of a shared decision, as a fraction of the period.
const SHARED: f64 = 0.75;

impl GrantLeaseTtls {
    pub(super) fn of(config: &AuthConfig, credential: &Credential, user: &User) -> Self {
        let of_right = config.recheck_of(user);
        // A certificate needs no review: it has its own identity and expiry.
        let is_reviewed = matches!(credential, Credential::Token(_));
        Self {
            of_right,
            by_policy: config.recheck_rbac,
            of_identity: if is_reviewed { config.recheck.max(config.recheck_tokens) } else { of_right },
            behind: config.recheck,
            grace: config.outage_grace,
        }
    }

    /// Returns the validity of a new lease's decisions.
    pub(super) fn first(&self) -> DecisionTtls {
        let part = FIRST + (1.0 - FIRST) * random::f64();
        DecisionTtls { identity: self.of_identity.mul_f64(part), right: self.of_right.mul_f64(part) }
    }

    /// Returns the validity after a lease check. Only renewed decisions get a new period.
    pub(super) fn next(&self, ttls: DecisionTtls, before: LastReviewTimes, after: LastReviewTimes) -> DecisionTtls {
        // One factor for both, so that decisions with the same period are renewed together.
        let part = 0.8 + 0.2 * random::f64();
        let next = |is_same, ttls: Duration, of: Duration| if is_same { ttls } else { of.mul_f64(part) };
        DecisionTtls {
            identity: next(before.identity == after.identity, ttls.identity, self.of_identity),
            right: next(before.right == after.right, ttls.right, self.of_right),
        }
    }

    /// Returns the time from which on all of upstream's decisions take this policy change into account.
    pub(super) fn settled_after(&self, changed: Instant) -> Instant {
        changed + self.behind
    }

    /// Returns the oldest accepted review time after a policy change that has settled. It is `None` if the change has
    /// not settled, or if permissions are reviewed soon after it in any case.
    pub(super) fn least_behind(&self, settles: Instant) -> Option<Instant> {
        Some(settles).filter(|settles| self.of_right > self.behind && *settles <= Instant::now())
    }

    /// Returns the time to review a lease after a policy change has settled. If the regular review at `due` is not
    /// soon, the time is random, to separate leases that one change affects.
    pub(super) fn soon_behind(&self, settled: Instant, due: Instant) -> Instant {
        if due <= settled + self.behind { due } else { settled + self.behind.mul_f64(0.8 * random::f64()) }
    }
}

impl LastReviewTimes {
    pub(super) fn at(now: Instant) -> Self {
        Self { identity: now, right: now }
    }

    /// Returns the time at which the first of the two decisions is due for a review.
    pub(super) fn due(self, ttls: DecisionTtls) -> Instant {
        (self.identity + ttls.identity).min(self.right + ttls.right)
    }

    /// Returns the oldest accepted review times for a lease check. A part that is not due keeps its time.
    pub(super) fn oldest_accepted(self, ttls: DecisionTtls) -> Self {
        let now = Instant::now();
        let oldest = |reviewed: Instant, ttl: Duration| {
            let is_due = reviewed + ttl.mul_f64(NEARLY) <= now;
            if is_due { now.checked_sub(ttl.mul_f64(SHARED)).unwrap_or(now) } else { reviewed }
        };
        Self { identity: oldest(self.identity, ttls.identity), right: oldest(self.right, ttls.right) }
    }
}

use std::time::Duration;

use tokio::time::Instant;

use super::AuthConfig;
use super::credential::Credential;
use base::random;
use kubeapi::User;

/// The times of a lease: how long it is valid between two checks, and in an outage of upstream.
///
/// Each period is shortened by up to a fifth at random, and the first one by up to four fifths. So leases that began
/// together are checked at different times.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrantLeaseTtls {
    /// How long an access decision stays valid.
    pub(super) permission_ttl: Duration,
    /// How long a decision stays valid if its reason is RBAC, while all changes of RBAC are watched.
    pub(super) rbac_ttl: Duration,
    /// How long the identity of the credential stays valid.
    pub(super) identity_ttl: Duration,
    /// The maximum delay of upstream's authorizers after a policy change.
    policy_delay: Duration,
    /// How long a lease continues if no decision can be obtained, from the time at which the failure is noticed.
    pub(super) grace: Duration,
}

/// The times at which the identity and the permission were last reviewed.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastReviewTimes {
    pub(super) identity: Instant,
    pub(super) permission: Instant,
}

/// How long the decisions on an identity and a permission stay valid.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecisionTtls {
    identity: Duration,
    permission: Duration,
}

/// The shortest first period of a lease, as a fraction. The leases of a proxy that has just started began together, and
/// so did those of other proxies.
const FIRST_MIN: f64 = 0.2;
/// The fraction of its period after which a decision is renewed together with another one that is due now.
const EARLY_RENEWAL: f64 = 0.9;
/// The maximum age of a shared decision, as a fraction of the period.
const SHARED: f64 = 0.75;

impl GrantLeaseTtls {
    pub(super) fn new(config: &AuthConfig, credential: &Credential, user: &User) -> Self {
        let permission_ttl = config.recheck_of(user);
        // A certificate needs no review: it has its own identity and expiry.
        let is_reviewed = matches!(credential, Credential::Token(_));
        Self {
            permission_ttl,
            rbac_ttl: config.recheck_rbac,
            identity_ttl: if is_reviewed { config.recheck.max(config.recheck_tokens) } else { permission_ttl },
            policy_delay: config.recheck,
            grace: config.outage_grace,
        }
    }

    /// Returns the validity of a new lease's decisions.
    pub(super) fn first(&self) -> DecisionTtls {
        let fraction = FIRST_MIN + (1.0 - FIRST_MIN) * random::f64();
        DecisionTtls {
            identity: self.identity_ttl.mul_f64(fraction),
            permission: self.permission_ttl.mul_f64(fraction),
        }
    }

    /// Returns the validity after a lease check. Only renewed decisions get a new period.
    pub(super) fn next(&self, ttls: DecisionTtls, before: LastReviewTimes, after: LastReviewTimes) -> DecisionTtls {
        // One factor for both, so that decisions with the same period are renewed together.
        let fraction = 0.8 + 0.2 * random::f64();
        let next = |is_same, ttls: Duration, of: Duration| if is_same { ttls } else { of.mul_f64(fraction) };
        DecisionTtls {
            identity: next(before.identity == after.identity, ttls.identity, self.identity_ttl),
            permission: next(before.permission == after.permission, ttls.permission, self.permission_ttl),
        }
    }

    /// Returns the time from which on all of upstream's decisions take this policy change into account.
    pub(super) fn settled_after(&self, changed: Instant) -> Instant {
        changed + self.policy_delay
    }

    /// Returns the oldest accepted review time after a policy change that has settled. It is `None` if the change has
    /// not settled, or if permissions are reviewed soon after it in any case.
    pub(super) fn oldest_accepted_review(&self, settles_at: Instant) -> Option<Instant> {
        Some(settles_at).filter(|settles_at| self.permission_ttl > self.policy_delay && *settles_at <= Instant::now())
    }

    /// Returns the time to review a lease after a policy change has settled. If the regular review at `due` is not
    /// soon, the time is random, to separate leases that one change affects.
    pub(super) fn review_time_after(&self, settled: Instant, due: Instant) -> Instant {
        if due <= settled + self.policy_delay { due } else { settled + self.policy_delay.mul_f64(0.8 * random::f64()) }
    }
}

impl LastReviewTimes {
    pub(super) fn at(now: Instant) -> Self {
        Self { identity: now, permission: now }
    }

    /// Returns the time at which the first of the two decisions is due for a review.
    pub(super) fn due(self, ttls: DecisionTtls) -> Instant {
        (self.identity + ttls.identity).min(self.permission + ttls.permission)
    }

    /// Returns the time at which the identity is due for a review.
    pub(super) fn identity_due(self, ttls: DecisionTtls) -> Instant {
        self.identity + ttls.identity
    }

    /// Returns the oldest accepted review times for a lease check. A part that is not due keeps its time.
    pub(super) fn oldest_accepted(self, ttls: DecisionTtls) -> Self {
        let now = Instant::now();
        let oldest = |reviewed: Instant, ttl: Duration| {
            let is_due = reviewed + ttl.mul_f64(EARLY_RENEWAL) <= now;
            if is_due { now.checked_sub(ttl.mul_f64(SHARED)).unwrap_or(now) } else { reviewed }
        };
        Self { identity: oldest(self.identity, ttls.identity), permission: oldest(self.permission, ttls.permission) }
    }
}

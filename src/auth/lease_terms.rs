use std::time::Duration;

use tokio::time::Instant;

use super::AuthConfig;
use crate::kube::User;

/// How long a lease stands without being asserted.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseTerms {
    /// At most; less up to a fifth, the first up to four fifths: leases that began together are asserted apart.
    period: Duration,
    /// How long upstream's word stands that RBAC gives the right, while all changes of RBAC are heard.
    pub(super) by_policy: Duration,
    /// How long upstream's word stands whose the credential is; not less than the period.
    of_identity: Duration,
    /// How far upstream's authorizers may be behind a change of policy.
    behind: Duration,
    /// When nobody can tell, from when that is found out.
    pub(super) grace: Duration,
}

/// The part of the period after which a new lease is asserted at the earliest: the leases of a proxy that has just
/// started began together, and so did those of its neighbours.
const FIRST: f64 = 0.2;

impl LeaseTerms {
    pub(super) fn of(config: &AuthConfig, user: &User) -> Self {
        let period = config.recheck_of(user);
        Self {
            period,
            by_policy: config.recheck_rbac,
            of_identity: period.max(config.recheck_tokens),
            behind: config.recheck,
            grace: config.outage_grace,
        }
    }

    pub(super) fn first(&self) -> Duration {
        self.period.mul_f64(FIRST + (1.0 - FIRST) * fastrand::f64())
    }

    pub(super) fn period(&self) -> Duration {
        self.period.mul_f64(0.8 + 0.2 * fastrand::f64())
    }

    /// How soon it is tried again at the latest when nobody could tell.
    pub(super) fn again_max(&self) -> Duration {
        self.period
    }

    /// How much longer than a right an identity stands.
    pub(super) fn longer_of_identity(&self) -> Duration {
        self.of_identity.saturating_sub(self.period)
    }

    /// Whether what RBAC gives is asked about more rarely than other rights.
    pub(super) fn asks_rarely(&self) -> bool {
        self.by_policy > self.period
    }

    /// When all that upstream says goes by this change of policy.
    pub(super) fn settled_after(&self, changed: Instant) -> Instant {
        changed + self.behind
    }

    /// The moment before which no answer will do, now that a change settles then: none, if rights are asked about soon
    /// behind it in any case.
    pub(super) fn least_behind(&self, settles: Instant) -> Option<Instant> {
        Some(settles).filter(|settles| self.period > self.behind && *settles <= Instant::now())
    }

    /// When a lease is asked about behind that which is due at some time. If that is not soon, leases that a change has
    /// touched together are asked about apart.
    pub(super) fn soon_behind(&self, settled: Instant, due: Instant) -> Instant {
        if due <= settled + self.behind { due } else { settled + self.behind.mul_f64(0.8 * fastrand::f64()) }
    }
}

use std::time::Duration;

use tokio::time::Instant;

use super::AuthConfig;
use super::credential::Credential;
use base::random;
use kubeapi::User;

/// How long a lease stands without being asserted: each time at most so long, and less up to a fifth, the first time up
/// to four fifths, so that leases that began together are asserted apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaseTerms {
    /// How long upstream's word stands what the caller may.
    of_right: Duration,
    /// How long it stands if it says that RBAC gives the right, while all changes of RBAC are heard.
    pub(super) by_policy: Duration,
    /// How long it stands whose the credential is.
    of_identity: Duration,
    /// How far upstream's authorizers may be behind a change of policy.
    behind: Duration,
    /// When nobody can tell, from when that is found out.
    pub(super) grace: Duration,
}

/// When upstream was asked whose a credential is, and what its user may.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asserted {
    pub(super) identity: Instant,
    pub(super) right: Instant,
}

/// How long these two answers stand.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecisionTtls {
    identity: Duration,
    right: Duration,
}

/// The part of its time after which a new lease is asserted at the earliest: the leases of a proxy that has just
/// started began together, and so did those of its neighbours.
const FIRST: f64 = 0.2;
/// What is due within the last tenth of its time is asked about together with what is due now.
const NEARLY: f64 = 0.9;
/// The part of that time for which an answer will do that somebody else was given.
const SHARED: f64 = 0.75;

impl LeaseTerms {
    pub(super) fn of(config: &AuthConfig, credential: &Credential, user: &User) -> Self {
        let of_right = config.recheck_of(user);
        // Nobody is asked whose a certificate is: it says so itself, and until when.
        let is_asked_about = matches!(credential, Credential::Token(_));
        Self {
            of_right,
            by_policy: config.recheck_rbac,
            of_identity: if is_asked_about { config.recheck.max(config.recheck_tokens) } else { of_right },
            behind: config.recheck,
            grace: config.outage_grace,
        }
    }

    /// How long the answers of a new lease stand.
    pub(super) fn first(&self) -> DecisionTtls {
        let part = FIRST + (1.0 - FIRST) * random::f64();
        DecisionTtls { identity: self.of_identity.mul_f64(part), right: self.of_right.mul_f64(part) }
    }

    /// How long those of a lease stand that has been asserted: what is new gets another time.
    pub(super) fn next(&self, stands: DecisionTtls, before: Asserted, after: Asserted) -> DecisionTtls {
        // One part for both: where they stand equally long, they are asked about together.
        let part = 0.8 + 0.2 * random::f64();
        let next = |is_same, stands: Duration, of: Duration| if is_same { stands } else { of.mul_f64(part) };
        DecisionTtls {
            identity: next(before.identity == after.identity, stands.identity, self.of_identity),
            right: next(before.right == after.right, stands.right, self.of_right),
        }
    }

    /// How soon it is tried again at the latest when nobody could tell.
    pub(super) fn again_max(&self) -> Duration {
        self.of_right.min(self.of_identity)
    }

    /// Whether what RBAC gives is asked about more rarely than other rights.
    pub(super) fn asks_rarely(&self) -> bool {
        self.by_policy > self.of_right
    }

    /// When all that upstream says goes by this change of policy.
    pub(super) fn settled_after(&self, changed: Instant) -> Instant {
        changed + self.behind
    }

    /// The moment before which no answer will do, now that a change settles then: none, if rights are asked about soon
    /// behind it in any case.
    pub(super) fn least_behind(&self, settles: Instant) -> Option<Instant> {
        Some(settles).filter(|settles| self.of_right > self.behind && *settles <= Instant::now())
    }

    /// When a lease is asked about behind that which is due at some time. If that is not soon, leases that a change has
    /// touched together are asked about apart.
    pub(super) fn soon_behind(&self, settled: Instant, due: Instant) -> Instant {
        if due <= settled + self.behind { due } else { settled + self.behind.mul_f64(0.8 * random::f64()) }
    }
}

impl Asserted {
    pub(super) fn at(now: Instant) -> Self {
        Self { identity: now, right: now }
    }

    /// When the first of them is due.
    pub(super) fn due(self, stands: DecisionTtls) -> Instant {
        (self.identity + stands.identity).min(self.right + stands.right)
    }

    /// The moments before which no answer will do when one of them is due. What is not due itself stays as it is.
    pub(super) fn wanted(self, stands: DecisionTtls) -> Self {
        let now = Instant::now();
        let wanted = |asked: Instant, stands: Duration| {
            let is_due = asked + stands.mul_f64(NEARLY) <= now;
            if is_due { now.checked_sub(stands.mul_f64(SHARED)).unwrap_or(now) } else { asked }
        };
        Self { identity: wanted(self.identity, stands.identity), right: wanted(self.right, stands.right) }
    }
}

//! Open watches and the decisions they stand on.
//!
//! A watch registers its lease first, then its right is asserted, and only then it streams: a change between the two
//! finds the lease (reliability.md §3.4, M21). One lease for all watches of one credential that want the same.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::credential::Credential;
use super::judge::{Identity, Judge, Trusted};
use super::sight::Sight;
use super::{Affected, Refused, metrics, now};
use crate::base::Tasks;
use crate::kube::{Access, RequestInfo, Status, User};
use crate::upstream::CredentialId;

/// What an open watch stands on.
#[derive(Debug)]
pub(super) struct Lease {
    /// Why it is over.
    revoked: OnceLock<Box<Status>>,
    over: CancellationToken,
    shared: Arc<Standing>,
    _keeper: DropGuard,
}

/// What a lease and its keeper know of each other.
#[derive(Debug)]
struct Standing {
    id: CredentialId,
    credential: Credential,
    access: Arc<Access>,
    user: Arc<User>,
    /// For the words of a refusal.
    info: RequestInfo,
    /// Of a watch that may show some namespaces: it stands on them, and not on the whole.
    sight: Option<Arc<Sight>>,
    /// The policy has changed in a way that may matter here.
    dirty: Notify,
}

/// The leases there are.
#[derive(Debug, Default)]
pub(super) struct Leases {
    held: Mutex<HashMap<LeaseKey, Weak<Lease>>>,
    /// How many go on although nobody can tell whether they may.
    in_doubt: Mutex<usize>,
}

/// The last: whether it is for some namespaces.
type LeaseKey = (CredentialId, Arc<Access>, bool);

/// Asserts a lease again and again.
struct Keeper {
    judge: Arc<Judge>,
    leases: Arc<Leases>,
    lease: Weak<Lease>,
    standing: Arc<Standing>,
    terms: Terms,
    until: Option<SystemTime>,
    in_doubt: bool,
}

/// How long a lease stands without being asserted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// At most; less up to a fifth, so that leases that began together are not asserted together.
    pub(super) period: Duration,
    /// When nobody can tell.
    pub(super) grace: Duration,
}

/// Somebody who has been found to be allowed, for the moment.
pub(super) struct Claim {
    pub(super) id: CredentialId,
    pub(super) credential: Credential,
    pub(super) user: Arc<User>,
    /// When the credential ends, if that is known.
    pub(super) until: Option<SystemTime>,
    pub(super) access: Arc<Access>,
    pub(super) info: RequestInfo,
    pub(super) sight: Option<Arc<Sight>>,
}

/// How long watches go on once upstream refuses us the questions: that is no outage (reliability.md §3.10).
const DISOWNED_GRACE: Duration = Duration::from_secs(30);
/// How long all of a lease's questions may take together.
const ASSERT_MAX: Duration = Duration::from_secs(20);
/// When nobody could tell.
const AGAIN: Duration = Duration::from_secs(5);

impl Leases {
    /// The lease for a claim: one that is there, or a new one with its keeper.
    pub(super) fn hold(self: &Arc<Self>, claim: Claim, judge: &Arc<Judge>, terms: Terms, tasks: &Tasks) -> Arc<Lease> {
        let key = (claim.id, claim.access.clone(), claim.sight.is_some());
        let mut held = self.held.lock();
        if let Some(lease) = held.get(&key).and_then(Weak::upgrade).filter(|lease| lease.revoked.get().is_none()) {
            return lease;
        }
        let Claim { id, credential, user, until, access, info, sight } = claim;
        let standing = Arc::new(Standing { id, credential, access, user, info, sight, dirty: Notify::new() });
        let ended = CancellationToken::new();
        let lease = Arc::new(Lease {
            revoked: OnceLock::new(),
            over: CancellationToken::new(),
            shared: standing.clone(),
            _keeper: ended.clone().drop_guard(),
        });
        held.insert(key.clone(), Arc::downgrade(&lease));
        metrics::leases(held.len());
        drop(held);
        let keeper = Keeper {
            judge: judge.clone(),
            leases: self.clone(),
            lease: Arc::downgrade(&lease),
            standing,
            terms,
            until,
            in_doubt: false,
        };
        let (leases, sight) = (self.clone(), keeper.standing.sight.clone());
        tasks.spawn("lease", async move {
            tokio::select! {
                () = keeper.run() => {}
                () = answer(sight) => {}
                () = ended.cancelled() => {}
            }
            leases.forget(&key);
        });
        lease
    }

    /// Makes the keepers of those whose rights may have changed look again.
    pub(super) fn doubt(&self, affected: &Affected) {
        for lease in self.held.lock().values().filter_map(Weak::upgrade) {
            let Standing { user, access, sight, .. } = &*lease.shared;
            // What is seen across namespaces stands on rights in each.
            let access = sight.is_none().then_some(&**access);
            if affected.contains(user, access) {
                lease.shared.dirty.notify_one();
            }
        }
    }

    fn forget(&self, key: &LeaseKey) {
        let mut held = self.held.lock();
        // Another lease may have taken the place of one that was revoked.
        let is_over = |lease: Arc<Lease>| lease.revoked.get().is_some();
        if held.get(key).is_some_and(|lease| lease.upgrade().is_none_or(is_over)) {
            held.remove(key);
        }
        metrics::leases(held.len());
    }

    fn count_doubt(&self, more: bool) {
        let mut in_doubt = self.in_doubt.lock();
        *in_doubt = if more { *in_doubt + 1 } else { in_doubt.saturating_sub(1) };
        metrics::outage(*in_doubt);
    }
}

impl Lease {
    /// Why the watch must end, once it must. One atomic load.
    pub(super) fn revoked(&self) -> Option<&Status> {
        self.revoked.get().map(AsRef::as_ref)
    }

    /// Completes when it must.
    pub(super) fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Which namespaces it is for, if not for all.
    pub(super) fn sight(&self) -> Option<&Arc<Sight>> {
        self.shared.sight.as_ref()
    }

    /// Ends it, because the caller may not what it would come to.
    pub(super) fn refuse(&self, why: &Refused) {
        metrics::revoked(why.as_str());
        self.revoke(why.status(&self.shared.user.name, &self.shared.info));
    }

    fn revoke(&self, status: Status) {
        let _ = self.revoked.set(Box::new(status));
        self.over.cancel();
    }
}

impl Keeper {
    async fn run(mut self) {
        let mut good = Instant::now();
        let mut due = self.bounded(good + self.terms.period());
        let mut authorities = self.judge.authorities(&self.standing.credential);
        loop {
            tokio::select! {
                () = sleep_until(due) => {}
                () = self.standing.dirty.notified() => {}
                () = replaced(&mut authorities) => {}
            }
            let asserted = Instant::now();
            match self.assert(asserted).await {
                Ok(identity) => {
                    self.doubt(false);
                    good = asserted;
                    self.until = identity.until;
                    due = self.bounded(good + self.terms.period());
                }
                // What the credential says itself, nobody has to be asked about.
                Err(why) if why.is_doubt() && self.until.is_some_and(|until| until <= now()) => {
                    return self.revoke(&Refused::Unauthenticated);
                }
                Err(why) if why.is_doubt() => {
                    self.doubt(true);
                    let grace =
                        if why == Refused::Disowned { self.terms.grace.min(DISOWNED_GRACE) } else { self.terms.grace };
                    if good.elapsed() >= grace {
                        return self.revoke(&why);
                    }
                    due = self.bounded((Instant::now() + AGAIN.min(self.terms.period)).min(good + grace));
                }
                Err(why) => return self.revoke(&why),
            }
        }
    }

    /// Whether the caller is still who it was, and what it may, as far as that can be found out in time.
    async fn assert(&self, since: Instant) -> Result<Identity, Refused> {
        let late = || Refused::Unavailable("whether this is still allowed could not be found out in time".to_owned());
        timeout(ASSERT_MAX, self.ask(since)).await.map_err(|_| late())?
    }

    async fn ask(&self, since: Instant) -> Result<Identity, Refused> {
        let Standing { id, credential, access, sight, .. } = &*self.standing;
        let identity = self.judge.identify(*id, credential, Some(since), None).await?;
        let identity = identity.ok_or(Refused::Unauthenticated)?;
        match sight {
            Some(sight) => sight.assert_again(identity.user.clone(), since).await?,
            None => drop(self.judge.accesses.decide(&identity.user, access, Some(since)).await?),
        }
        Ok(identity)
    }

    /// When to ask again if nothing happens: not later than the credential ends.
    fn bounded(&self, due: Instant) -> Instant {
        self.until.map_or(due, |until| due.min(Instant::now() + remaining(until)))
    }

    fn doubt(&mut self, in_doubt: bool) {
        if self.in_doubt != in_doubt {
            self.in_doubt = in_doubt;
            self.leases.count_doubt(in_doubt);
        }
    }

    fn revoke(&self, why: &Refused) {
        if let Some(lease) = self.lease.upgrade() {
            lease.refuse(why);
        }
    }
}

impl Drop for Keeper {
    /// A lease without a keeper would be good for ever, so it ends with it, whatever ended the keeper.
    fn drop(&mut self) {
        self.doubt(false);
        if let Some(lease) = self.lease.upgrade().filter(|lease| lease.revoked().is_none()) {
            let why = Refused::Unavailable("nobody asks any more whether this is allowed".to_owned());
            lease.revoke(why.status(&self.standing.user.name, &self.standing.info));
        }
    }
}

/// Answers about namespaces as they come up; never completes.
async fn answer(sight: Option<Arc<Sight>>) {
    match sight {
        Some(sight) => sight.answer().await,
        None => std::future::pending().await,
    }
}

/// Completes when other certificates are accepted than before; never, if that does not matter or cannot happen.
async fn replaced(authorities: &mut Option<Trusted>) {
    match authorities {
        Some(trusted) => trusted.changed().await,
        None => std::future::pending().await,
    }
}

impl Terms {
    fn period(&self) -> Duration {
        self.period.mul_f64(0.8 + 0.2 * fastrand::f64())
    }
}

/// Time until a credential is over by the clock on the wall; a moment more, so that then it is over. At most a day: a
/// token may say what it likes, and that clock may be set.
fn remaining(until: SystemTime) -> Duration {
    let left = until.duration_since(now()).unwrap_or_default();
    left.min(Duration::from_secs(24 * 3600)) + Duration::from_millis(10)
}

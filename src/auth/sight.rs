use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use imbl::OrdMap;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

use super::Refused;
use super::judge::Judge;
use crate::kube::{Access, User};

/// Which namespaces of a collection somebody may read, as far as that has been found out.
pub(super) struct Sight {
    judge: Arc<Judge>,
    /// What is wanted of each namespace.
    access: Arc<Access>,
    /// As last seen: groups may change while a watch is open.
    user: Mutex<Arc<User>>,
    verdicts: watch::Sender<Verdicts>,
    /// Namespaces that came up in an open watch.
    wanted: Mutex<BTreeSet<Arc<str>>>,
    asked: Notify,
    /// Questions that one user's requests may have under way.
    slots: Arc<Semaphore>,
}

/// What is known of one namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allowed,
    Denied,
    /// It was asked about, and upstream has not said.
    Unclear,
}

pub(super) type Verdicts = OrdMap<Arc<str>, Verdict>;

/// Namespaces that one request is filtered by: each costs a question.
pub(super) const NAMESPACES_MAX: usize = 2_000;
/// Questions about namespaces that one user may have under way.
pub(super) const IN_FLIGHT_MAX: usize = 32;
/// How long an open watch may stand still because of a namespace that nobody knows.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// When nobody could tell.
const AGAIN: Duration = Duration::from_secs(5);

impl Sight {
    pub(super) fn new(judge: Arc<Judge>, user: Arc<User>, access: Arc<Access>, slots: Arc<Semaphore>) -> Self {
        Self {
            judge,
            access,
            user: Mutex::new(user),
            verdicts: watch::Sender::default(),
            wanted: Mutex::default(),
            asked: Notify::new(),
            slots,
        }
    }

    pub(super) fn verdict(&self, namespace: &str) -> Option<Verdict> {
        self.verdicts.borrow().get(namespace).copied()
    }

    pub(super) fn changes(&self) -> watch::Receiver<Verdicts> {
        self.verdicts.subscribe()
    }

    /// Finds out about those of which nothing is known.
    ///
    /// # Errors
    /// Upstream did not say, or there are too many.
    pub(super) async fn find_out(&self, namespaces: BTreeSet<Arc<str>>) -> Result<(), Refused> {
        if namespaces.len() > NAMESPACES_MAX {
            return Err(too_many());
        }
        let user = self.user.lock().clone();
        let known = self.verdicts.borrow().clone();
        let unknown = namespaces.into_iter().filter(|namespace| !is_known(&known, namespace)).collect();
        self.decide(&user, unknown, None, |namespace, outcome| {
            self.learn(namespace, outcome?);
            Ok(())
        })
        .await
    }

    /// Asks again about all that is known.
    ///
    /// # Errors
    /// Upstream does not say; what it has said counts.
    pub(super) async fn assert_again(&self, user: Arc<User>, since: Instant) -> Result<(), Refused> {
        self.user.lock().clone_from(&user);
        let known = self.verdicts.borrow().keys().cloned().collect();
        let mut doubt = Ok(());
        self.decide(&user, known, Some(since), |namespace, outcome| {
            match outcome {
                Ok(verdict) => self.put(namespace, verdict),
                Err(why) => doubt = Err(why),
            }
            Ok(())
        })
        .await?;
        doubt
    }

    /// A namespace came up. False: there are too many.
    pub(super) fn want(&self, namespace: &str) -> bool {
        let mut wanted = self.wanted.lock();
        let fits = self.verdicts.borrow().len() + wanted.len() < NAMESPACES_MAX;
        if fits && !wanted.contains(namespace) {
            wanted.insert(namespace.into());
            self.asked.notify_one();
        }
        fits
    }

    /// Answers about namespaces as they come up, for as long as somebody listens.
    pub(super) async fn answer(&self) {
        loop {
            let unclear = self.unclear();
            tokio::select! {
                () = self.asked.notified() => {}
                () = sleep(AGAIN), if !unclear.is_empty() => {}
            }
            let mut wanted = self.wanted.lock().clone();
            wanted.extend(unclear);
            let user = self.user.lock().clone();
            let asked = wanted.iter().cloned().collect();
            let answering = self.decide(&user, asked, None, |namespace, outcome| {
                if let Ok(verdict) = outcome {
                    self.wanted.lock().remove(&namespace);
                    self.learn(namespace, verdict);
                }
                Ok(())
            });
            // Whoever could not be answered about in time is not visible, and does not hold up what is.
            let _: Result<_, _> = timeout(ANSWER_MAX, answering).await;
            for namespace in wanted {
                self.wanted.lock().remove(&namespace);
                self.learn(namespace, Verdict::Unclear);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_wanted(&self, namespace: &str) -> bool {
        self.wanted.lock().contains(namespace)
    }

    fn unclear(&self) -> Vec<Arc<str>> {
        let verdicts = self.verdicts.borrow();
        let unclear = verdicts.iter().filter(|(_, verdict)| **verdict == Verdict::Unclear);
        unclear.map(|(namespace, _)| namespace.clone()).collect()
    }

    /// Asks about each namespace, until `take` has had enough. What is said of it is `Ok`, a no included.
    async fn decide(
        &self,
        user: &Arc<User>,
        namespaces: Vec<Arc<str>>,
        since: Option<Instant>,
        mut take: impl FnMut(Arc<str>, Result<Verdict, Refused>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let mut asking = FuturesUnordered::new();
        for namespace in namespaces {
            if asking.len() >= IN_FLIGHT_MAX
                && let Some((namespace, outcome)) = asking.next().await
            {
                take(namespace, outcome)?;
            }
            asking.push(self.ask(user, namespace, since));
        }
        while let Some((namespace, outcome)) = asking.next().await {
            take(namespace, outcome)?;
        }
        Ok(())
    }

    async fn ask(
        &self,
        user: &Arc<User>,
        namespace: Arc<str>,
        since: Option<Instant>,
    ) -> (Arc<str>, Result<Verdict, Refused>) {
        // A lease does not wait for the caller's own requests.
        let _slot = match since {
            None => self.slots.acquire().await.ok(),
            Some(_) => None,
        };
        let access = Arc::new(self.access.within(&namespace));
        let outcome = match self.judge.accesses.decide(user, &access, since).await {
            Ok(_) => Ok(Verdict::Allowed),
            Err(Refused::Denied(_)) => Ok(Verdict::Denied),
            Err(why) => Err(why),
        };
        (namespace, outcome)
    }

    /// What is newer is known already, where something is.
    fn learn(&self, namespace: Arc<str>, verdict: Verdict) {
        if !is_known(&self.verdicts.borrow(), &namespace) {
            self.put(namespace, verdict);
        }
    }

    pub(super) fn put(&self, namespace: Arc<str>, verdict: Verdict) {
        self.verdicts.send_if_modified(|verdicts| verdicts.insert(namespace, verdict) != Some(verdict));
    }
}

fn is_known(verdicts: &Verdicts, namespace: &str) -> bool {
    !matches!(verdicts.get(namespace), None | Some(Verdict::Unclear))
}

pub(super) fn too_many() -> Refused {
    Refused::Denied(format!("its objects are in more than {NAMESPACES_MAX} namespaces, too many to ask about").into())
}

impl std::fmt::Debug for Sight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sight").field("namespaces", &self.verdicts.borrow().len()).finish_non_exhaustive()
    }
}

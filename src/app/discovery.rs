//! Keeps the catalog of what upstream serves: asked once, and again when something says that it has changed.
//!
//! It reads two feeds like any client, of `CustomResourceDefinitions` and of `APIServices`, and tells the catalog what
//! stands there: upstream is asked for none of it. What comes with no definition is asked for when a stream of these
//! was lost, and rarely besides; where they cannot be read, everything is, every 30 seconds (`schedule` says when, a
//! pure function). Feeds that the catalog contradicts are retired: their watches end cleanly, as the apiserver ends
//! them.

mod listener;
mod schedule;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::listener::{ChangeListener, News};
use self::schedule::{ChangesHeard, Schedule, SettlingLooks};
use super::rights::Rights;
use crate::base::{Backoff, NotReady, Tasks};
use crate::serve::feed_spec;
use crate::upstream::DeclaringResource;
use crate::wire::JsonLayout;

/// Keeps the catalog in step with upstream, and the feeds in step with the catalog.
#[derive(Debug, Clone)]
pub(super) struct DiscoveryLoop {
    pub(super) rights: Rights,
    pub(super) tasks: Tasks,
    /// When what tells of changes is looked for again where there is none.
    pub(super) again: Duration,
}

/// News that nobody has read yet.
const NEWS_MAX: usize = 16;
/// How long the start waits for the feeds that tell of changes.
const LISTENING_MAX: Duration = Duration::from_secs(5);

impl DiscoveryLoop {
    /// Asks until upstream has answered once.
    pub(super) async fn learn(&self) {
        let mut backoff = Backoff::default();
        while let Err(error) = self.rights.catalog.refresh(Instant::now()).await {
            tracing::warn!(%error, "discovery failed; trying again");
            sleep(backoff.failed(Instant::now())).await;
        }
        tracing::info!(resources = self.rights.catalog.len(), "discovered what upstream serves");
    }

    /// Asks again whenever that may be needed. `starting` is held until changes are heard of.
    pub(super) async fn keep_up(&self, starting: NotReady) {
        let (told, mut news) = mpsc::channel(NEWS_MAX);
        for from in DeclaringResource::ALL {
            let (rights, told) = (self.rights.clone(), told.clone());
            let listener = ChangeListener { from, rights, told, again: self.again };
            self.tasks.spawn("definitions", listener.run());
        }
        let mut heard = Heard::default();
        // Nothing is lost without them: the routine goes on.
        let _ = timeout(LISTENING_MAX, async {
            while [heard.definitions, heard.services].contains(&None) {
                heard.note(news.recv().await);
            }
        })
        .await;
        let asked = Instant::now();
        let is_answered = self.ask(true).await;
        let mut schedule = Schedule::new(asked, Instant::now());
        schedule.rely(self.told(is_answered, &heard));
        drop(starting);
        let mut looks = SettlingLooks::default();
        loop {
            tokio::select! {
                told = news.recv() => {
                    let now = Instant::now();
                    match heard.note(told) {
                        Some(Next::Ask) => schedule.change(now),
                        Some(Next::Look) => {
                            tracing::info!(resources = self.rights.catalog.len(), "what upstream serves has changed");
                            self.rights.feeds.forget_refusals();
                            self.retire_outdated();
                            looks.change(now);
                        }
                        None => {}
                    }
                    if !heard.is_all() {
                        schedule.rely(self.told(true, &heard));
                    }
                }
                () = until(looks.due()) => {
                    // A feed may have asked before upstream had the resource that its definition tells of.
                    self.rights.feeds.forget_gone();
                    self.retire_outdated();
                    looks.look(Instant::now());
                }
                () = sleep_until(schedule.due()) => {
                    let asked = Instant::now();
                    let is_answered = self.ask(schedule.is_prompted()).await;
                    schedule.ask(asked, Instant::now());
                    schedule.rely(self.told(is_answered, &heard));
                }
            }
        }
    }

    /// Asks upstream, and ends the feeds that its answer contradicts; whether there was an answer.
    async fn ask(&self, is_prompted: bool) -> bool {
        let Rights { catalog, feeds, .. } = &self.rights;
        match catalog.refresh(Instant::now()).await {
            Ok(true) => {
                tracing::info!(resources = catalog.len(), "what upstream serves has changed");
                feeds.forget_refusals();
            }
            // A request may have asked before us, or discovery said so before the resource was there.
            Ok(false) if is_prompted => feeds.forget_gone(),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%error, "discovery failed");
                return false;
            }
        }
        self.retire_outdated();
        true
    }

    /// How changes are heard from now on, after the last question.
    fn told(&self, is_answered: bool, heard: &Heard) -> ChangesHeard {
        let catalog = &self.rights.catalog;
        let reads = catalog.reads();
        match (is_answered, heard.is_all(), reads.definitions || reads.services) {
            (false, ..) | (true, false, true) => ChangesHeard::Part,
            (true, true, _) => ChangesHeard::All,
            (true, false, false) => ChangesHeard::Nothing { again: catalog.refused_until() },
        }
    }

    /// The apiserver ends the watches of a custom resource whose definition changes, and so do we (R-END-2):
    /// what was read under the old one may read differently now.
    fn retire_outdated(&self) {
        let Rights { catalog, feeds, .. } = &self.rights;
        for feed in feeds.all() {
            let spec = &feed.spec;
            let fits = match catalog.find(&spec.key.gvr) {
                Some(resource) => feed_spec(&resource, spec.key.scope.clone(), spec.key.encoding) == *spec,
                None => !catalog.is_gone(&spec.key.gvr),
            };
            // The types of the apiserver itself change with the apiserver, which its watches do not outlive.
            if spec.shape == JsonLayout::Custom && !fits {
                feeds.retire(&feed);
            }
        }
    }
}

/// The last news of each listener.
#[derive(Debug, Default)]
struct Heard {
    definitions: Option<News>,
    services: Option<News>,
}

/// What follows from a listener's news.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Upstream is asked: it may serve something else.
    Ask,
    /// The catalog has changed.
    Look,
}

impl Heard {
    fn note(&mut self, told: Option<(DeclaringResource, News)>) -> Option<Next> {
        let (from, news) = told?;
        let last = match from {
            DeclaringResource::Definitions => &mut self.definitions,
            DeclaringResource::Services => &mut self.services,
        };
        match news {
            News::Changed => Some(Next::Look),
            News::Unread => Some(Next::Ask),
            News::Listening | News::Deaf => {
                let is_new = last.replace(news) != Some(news) && news == News::Listening;
                is_new.then_some(Next::Ask)
            }
        }
    }

    fn is_all(&self) -> bool {
        [self.definitions, self.services].iter().all(|news| *news == Some(News::Listening))
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

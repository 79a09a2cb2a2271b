//! Keeps the catalog of what upstream serves: asked once, and again when something says that it has changed.
//!
//! It reads two feeds like any client, of `CustomResourceDefinitions` and of `APIServices`. What happens there makes it
//! ask (`schedule` says when, a pure function); where they cannot be read, it asks every 30 seconds. Feeds that the
//! answer contradicts are retired: their watches end cleanly, as the apiserver ends them.

mod listener;
mod schedule;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::listener::{ChangeListener, News};
use self::schedule::{ChangesHeard, Schedule};
use super::rights::Rights;
use crate::base::{Backoff, NotReady, Tasks};
use crate::kube::Gvr;
use crate::serve::feed_spec;
use crate::wire::JsonLayout;

/// Keeps the catalog in step with upstream, and the feeds in step with the catalog.
#[derive(Debug, Clone)]
pub(super) struct DiscoveryLoop {
    pub(super) rights: Rights,
    pub(super) tasks: Tasks,
    /// When what tells of changes is looked for again where there is none.
    pub(super) again: Duration,
}

/// Custom resources and aggregated APIs come and go with these.
const TELLING: [(&str, &str, &str); 2] =
    [("apiextensions.k8s.io", "v1", "customresourcedefinitions"), ("apiregistration.k8s.io", "v1", "apiservices")];
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
        for (number, (group, version, resource)) in TELLING.into_iter().enumerate() {
            let (gvr, told) = (Gvr::new(group, version, resource), told.clone());
            let listener = ChangeListener { gvr, rights: self.rights.clone(), number, told, again: self.again };
            self.tasks.spawn("definitions", listener.run());
        }
        let mut heard = [None; TELLING.len()];
        // Nothing is lost without them: the routine goes on.
        let _ = timeout(LISTENING_MAX, async {
            while heard.contains(&None) {
                note(&mut heard, news.recv().await);
            }
        })
        .await;
        let asked = Instant::now();
        let is_answered = self.ask(true).await;
        let mut schedule = Schedule::new(asked, Instant::now());
        schedule.rely(self.told(is_answered, &heard));
        drop(starting);
        loop {
            tokio::select! {
                told = news.recv() => {
                    if note(&mut heard, told) {
                        schedule.change(Instant::now());
                    }
                    if !is_told(&heard) {
                        schedule.rely(self.told(true, &heard));
                    }
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
    fn told(&self, is_answered: bool, heard: &[Option<News>]) -> ChangesHeard {
        let catalog = &self.rights.catalog;
        let reads = catalog.reads();
        match (is_answered, is_told(heard), reads.definitions || reads.services) {
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

/// Takes in what a listener told; whether to ask because of it.
fn note(heard: &mut [Option<News>], told: Option<(usize, News)>) -> bool {
    let Some((number, news)) = told else { return false };
    match news {
        News::Changed => true,
        News::Listening | News::Deaf => heard[number].replace(news) != Some(news) && news == News::Listening,
    }
}

fn is_told(heard: &[Option<News>]) -> bool {
    heard.iter().all(|news| *news == Some(News::Listening))
}

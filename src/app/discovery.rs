//! Keeps the catalog of what upstream serves: asked once, and again when something says that it has changed.
//!
//! It reads two feeds like any client, of `CustomResourceDefinitions` and of `APIServices`, and tells the catalog what
//! they declare, so that upstream need not be asked for that. What no definition declares is asked for when one of
//! these streams was lost, and rarely besides. Where the two cannot be read, everything is asked for every 30 seconds;
//! `schedule` decides when. Feeds that the catalog contradicts are retired: their watches end cleanly, as the apiserver
//! ends them.

mod listener;
mod schedule;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::listener::{ChangeListener, News};
use self::schedule::{ChangeCoverage, Schedule, SettlingLooks};
use super::rights::Rights;
use crate::serve::feed_spec;
use crate::upstream::{DeclaringResource, Documents};
use crate::wire::JsonLayout;
use base::{Backoff, NotReady, Tasks, until};

/// Keeps the catalog in step with upstream, and the feeds in step with the catalog.
#[derive(Debug, Clone)]
pub(super) struct DiscoveryLoop {
    pub(super) rights: Rights,
    pub(super) tasks: Tasks,
    /// The pause before a feed that tells of changes is tried again, where it could not be had.
    pub(super) again: Duration,
    /// How the process runs, for the log.
    pub(super) mode: String,
}

/// The time from a change until it is acted on: changes come in groups, and upstream itself serves a definition only a
/// moment after it was written.
const SOON: Duration = Duration::from_millis(100);
/// Messages of listeners that may wait to be read.
const NEWS_MAX: usize = 16;
/// How long the start waits to learn which release upstream runs, for the log.
const RELEASE_MAX: Duration = Duration::from_secs(5);
/// How long the start waits for the feeds that tell of changes.
const LISTENING_MAX: Duration = Duration::from_secs(5);

impl DiscoveryLoop {
    /// Asks upstream what it serves until it has answered once. `starting` gets the reason why it has not.
    pub(super) async fn learn(&self, starting: &NotReady) {
        let mut backoff = Backoff::default();
        while let Err(error) = self.rights.catalog.refresh(Instant::now()).await {
            tracing::warn!(%error, "discovery failed; retrying");
            let why = error.in_brief();
            starting.set_reason(move || Some(why.clone()));
            sleep(backoff.failed(Instant::now())).await;
        }
        let Rights { client, catalog, .. } = &self.rights;
        let release = timeout(RELEASE_MAX, client.release()).await.ok().and_then(Result::ok);
        tracing::info!(
            version = super::VERSION,
            mode = self.mode,
            upstream = client.server_url(),
            release = release.map_or_else(|| "unknown".to_owned(), |release| release.to_string()),
            resources = catalog.len(),
            "discovered what upstream serves"
        );
        starting.set_reason(|| Some("waiting for the feeds of definitions".to_owned()));
    }

    /// Follows changes and asks again when that may be needed. `starting` is held until the listeners have reported, or
    /// did not in `LISTENING_MAX`, and upstream was asked once more.
    pub(super) async fn keep_up(&self, starting: NotReady) {
        let (told, mut news) = mpsc::channel(NEWS_MAX);
        for from in DeclaringResource::ALL {
            let (rights, told) = (self.rights.clone(), told.clone());
            let listener = ChangeListener { from, rights, told, again: self.again };
            self.tasks.spawn_needed("definitions", listener.run());
        }
        let mut heard = Heard::default();
        // A timeout is no error: without listeners, upstream is asked periodically.
        let _ = timeout(LISTENING_MAX, async {
            while !heard.is_from_all() {
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
                biased;
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

    /// Asks upstream, and ends the feeds that its answer contradicts. Returns whether there was an answer.
    async fn ask(&self, is_prompted: bool) -> bool {
        let Rights { catalog, feeds, .. } = &self.rights;
        match catalog.refresh(Instant::now()).await {
            Ok(true) => {
                tracing::info!(resources = catalog.len(), "what upstream serves has changed");
                feeds.forget_refusals();
            }
            // The catalog may have the change already, from a question for a request; or discovery named the resource
            // before it was served. Feeds that were told that it does not exist may try again.
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

    /// Returns how completely changes are heard of from now on.
    fn told(&self, is_answered: bool, heard: &Heard) -> ChangeCoverage {
        let catalog = &self.rights.catalog;
        let reads = catalog.reads();
        match (is_answered, heard.is_all(), reads.definitions || reads.services) {
            (false, ..) | (true, false, true) => ChangeCoverage::Part,
            (true, true, _) => ChangeCoverage::All,
            (true, false, false) => ChangeCoverage::Nothing { again: catalog.refused_until() },
        }
    }

    /// Retires the feeds that the catalog contradicts. The apiserver ends the watches of a custom resource whose
    /// definition changes, and so do we (R-END-2): the same objects may be written otherwise under the new definition.
    fn retire_outdated(&self) {
        let Rights { catalog, feeds, .. } = &self.rights;
        for feed in feeds.all() {
            let spec = &feed.spec;
            let fits = match catalog.find(&spec.key.gvr) {
                Some(resource) => feed_spec(&resource, spec.key.scope.clone(), spec.key.encoding) == *spec,
                None => !catalog.is_gone(&spec.key.gvr),
            };
            // Built-in types are left alone: they change only with the apiserver, and its watches end when it does.
            if spec.shape == JsonLayout::Custom && !fits {
                feeds.retire(&feed);
            }
        }
    }
}

/// The last news of each listener.
#[derive(Debug, Default)]
struct Heard(Documents<Option<News>>);

/// What must be done about a listener's message.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Upstream must be asked: it may serve something else now.
    Ask,
    /// The catalog has changed: feeds must be compared with it.
    Look,
}

impl Heard {
    fn note(&mut self, told: Option<(DeclaringResource, News)>) -> Option<Next> {
        let (from, news) = told?;
        let last = self.0.of_mut(from);
        match news {
            News::Changed => Some(Next::Look),
            News::Unread => Some(Next::Ask),
            News::Listening | News::Deaf => {
                let is_new = last.replace(news) != Some(news) && news == News::Listening;
                is_new.then_some(Next::Ask)
            }
        }
    }

    /// Every listener has reported.
    fn is_from_all(&self) -> bool {
        DeclaringResource::ALL.iter().all(|from| self.0.of(*from).is_some())
    }

    /// Every listener hears of every change.
    fn is_all(&self) -> bool {
        DeclaringResource::ALL.iter().all(|from| *self.0.of(*from) == Some(News::Listening))
    }
}

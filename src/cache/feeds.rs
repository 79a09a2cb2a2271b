use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::reader::End;
use super::{CacheReader, CacheWriter, Config, Currency, State};
use crate::kube::{FieldTable, Gvr};
use crate::wire::{Envelope, Form, Shape};

/// What one feed fetches: a resource, a scope, a form.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FeedKey {
    pub gvr: Gvr,
    /// `None`: the whole cluster.
    pub namespace: Option<Arc<str>>,
    pub form: Form,
}

/// A feed and what is needed to read its objects.
#[derive(Debug, Clone)]
pub struct FeedSpec {
    pub key: FeedKey,
    pub kind: Arc<str>,
    pub shape: Shape,
    pub namespaced: bool,
    pub fields: Arc<FieldTable>,
    /// Key of the selectable field that gets lanes.
    pub lane_field: Option<Arc<str>>,
}

/// A running feed, as its readers hold it.
#[derive(Debug)]
pub struct Feed {
    pub spec: FeedSpec,
    pub reader: CacheReader,
    pub currency: Currency,
    leases: AtomicUsize,
    last_used: Mutex<Instant>,
}

/// Keeps a feed from being idle.
#[derive(Debug, Clone)]
pub struct Lease {
    inner: Arc<LeaseInner>,
}

#[derive(Debug)]
struct LeaseInner {
    feed: Arc<Feed>,
}

/// Somebody wants a feed: its writer goes to whoever runs reflectors.
#[derive(Debug)]
pub struct Demand {
    pub feed: Arc<Feed>,
    pub writer: CacheWriter,
}

/// The feeds there are. Cloning shares.
#[derive(Debug, Clone)]
pub struct Feeds {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Config,
    feeds: Mutex<HashMap<FeedKey, Arc<Feed>>>,
    /// Feeds that ended for a reason that will not go away at once.
    refused: Mutex<HashMap<FeedKey, (End, Instant)>>,
    demand: mpsc::Sender<Demand>,
}

/// Why there is no such feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// It was tried a short while ago and ended so.
    Ended(End),
    /// There are [`FEEDS_MAX`] feeds already.
    TooMany,
}

/// Feeds that may run at once.
pub const FEEDS_MAX: usize = 1_000;
/// How long a refused feed is not tried again.
const REFUSED_FOR: Duration = Duration::from_secs(30);

impl Feeds {
    /// The registry, and the demands that a supervisor serves.
    pub fn new(config: Config) -> (Self, mpsc::Receiver<Demand>) {
        let (demand, demands) = mpsc::channel(FEEDS_MAX);
        let shared = Shared { config, feeds: Mutex::default(), refused: Mutex::default(), demand };
        (Self { shared: Arc::new(shared) }, demands)
    }

    /// The feed for `spec`, started if there is none.
    pub fn lease(&self, spec: &FeedSpec) -> Result<Lease, Unavailable> {
        let mut feeds = self.shared.feeds.lock();
        if let Some(feed) = feeds.get(&spec.key)
            && !matches!(feed.reader.state(), State::Ended(_))
        {
            return Ok(Lease::new(feed.clone()));
        }
        if let Some(end) = self.refusal(&spec.key) {
            return Err(Unavailable::Ended(end));
        }
        if feeds.len() >= FEEDS_MAX {
            return Err(Unavailable::TooMany);
        }
        let (writer, feed) = Feed::new(spec.clone(), self.shared.config.clone());
        let feed = Arc::new(feed);
        if self.shared.demand.try_send(Demand { feed: feed.clone(), writer }).is_err() {
            return Err(Unavailable::TooMany);
        }
        feeds.insert(spec.key.clone(), feed.clone());
        Ok(Lease::new(feed))
    }

    /// The feed for `key` if it runs.
    pub fn find(&self, key: &FeedKey) -> Option<Lease> {
        let feed = self.shared.feeds.lock().get(key).cloned()?;
        (!matches!(feed.reader.state(), State::Ended(_))).then(|| Lease::new(feed))
    }

    /// Every feed, in the order of their keys.
    pub fn all(&self) -> Vec<Arc<Feed>> {
        let mut all: Vec<_> = self.shared.feeds.lock().values().cloned().collect();
        all.sort_by(|a, b| a.spec.key.cmp(&b.spec.key));
        all
    }

    /// Whether so many bytes more fit into the memory that feeds may take together.
    pub fn has_room(&self, bytes: usize) -> bool {
        let feeds: Vec<_> = self.shared.feeds.lock().values().cloned().collect();
        let held = feeds.iter().map(|feed| feed.reader.stats()).map(|stats| stats.object_bytes + stats.event_bytes);
        held.sum::<usize>().saturating_add(bytes) <= self.shared.config.memory_bytes_max
    }

    /// Forgets a feed that ended; one that was refused is not tried again for a while.
    pub fn ended(&self, key: &FeedKey, end: End) {
        self.shared.feeds.lock().remove(key);
        if end.is_refusal() {
            self.shared.refused.lock().insert(key.clone(), (end, Instant::now()));
        }
    }

    /// Forgets refusals: what is served has changed.
    pub fn forget_refusals(&self) {
        self.shared.refused.lock().clear();
    }

    fn refusal(&self, key: &FeedKey) -> Option<End> {
        let mut refused = self.shared.refused.lock();
        refused.retain(|_, (_, at)| at.elapsed() < REFUSED_FOR);
        refused.get(key).map(|(end, _)| *end)
    }
}

impl Feed {
    fn new(spec: FeedSpec, config: Config) -> (CacheWriter, Self) {
        let envelope = spec.envelope();
        let (writer, reader) = CacheWriter::new(
            config,
            spec.key.gvr.clone(),
            envelope,
            spec.namespaced,
            &spec.fields,
            spec.lane_field.as_deref(),
        );
        let currency = Currency::default();
        let last_used = Mutex::new(Instant::now());
        (writer, Self { spec, reader, currency, leases: AtomicUsize::new(0), last_used })
    }

    /// How long nobody has read it; zero while somebody does.
    pub fn idle_for(&self) -> Duration {
        if self.leases.load(Ordering::Relaxed) > 0 { Duration::ZERO } else { self.last_used.lock().elapsed() }
    }

    /// Readers at this moment.
    pub fn readers(&self) -> usize {
        self.leases.load(Ordering::Relaxed)
    }
}

impl Lease {
    fn new(feed: Arc<Feed>) -> Self {
        feed.leases.fetch_add(1, Ordering::Relaxed);
        Self { inner: Arc::new(LeaseInner { feed }) }
    }
}

impl std::ops::Deref for Lease {
    type Target = Feed;

    fn deref(&self) -> &Feed {
        &self.inner.feed
    }
}

impl Drop for LeaseInner {
    fn drop(&mut self) {
        *self.feed.last_used.lock() = Instant::now();
        self.feed.leases.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FeedSpec {
    /// How the feed's objects are framed.
    pub fn envelope(&self) -> Envelope {
        Envelope::new(self.key.form, &self.key.gvr.api_version(), &self.kind, self.shape)
    }
}

impl FeedKey {
    /// The collection's path upstream.
    pub fn path(&self) -> String {
        match &self.namespace {
            Some(namespace) => self.gvr.namespaced_path(namespace),
            None => self.gvr.path(),
        }
    }
}

impl fmt::Display for FeedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.gvr)?;
        if let Some(namespace) = &self.namespace {
            write!(f, " in {namespace}")?;
        }
        write!(f, " ({})", self.form.as_str())
    }
}

impl fmt::Debug for FeedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

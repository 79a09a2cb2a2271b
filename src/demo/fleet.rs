//! Many watches, opened as informers open them, against any apiserver-like URL; what arrives is counted and timed.
//!
//! A watch starts with the initial objects, follows the stream, resumes from its last revision when the stream ends,
//! and starts over when that revision is gone. Nothing is parsed: what matters in a line is found by byte search.

mod histogram;
mod lines;
mod link;
mod watcher;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use histogram::Latencies;

use histogram::Histogram;
use lines::Search;
use link::{Link, Protocol, Target};
use watcher::Watcher;

/// Watches on one HTTP/2 connection, unless the number of connections is given: what an apiserver allows.
const STREAMS_PER_CONNECTION: usize = 100;
/// Watches that are being opened at the same time.
const OPENING_MAX: usize = 200;

/// A fleet that has not set out yet.
#[derive(Clone, Debug)]
pub struct Fleet {
    url: String,
    watches: usize,
    connections: usize,
    protocol: Protocol,
    paths: Vec<String>,
    bearer: Option<String>,
}

/// `watches` watches of all pods at `url` (`http://HOST:PORT`), over HTTP/2.
pub fn fleet(url: &str, watches: usize) -> Fleet {
    Fleet {
        url: url.to_owned(),
        watches,
        connections: watches.div_ceil(STREAMS_PER_CONNECTION),
        protocol: Protocol::Http2,
        paths: vec!["/api/v1/pods".to_owned()],
        bearer: None,
    }
}

impl Fleet {
    /// The HTTP/2 connections that the watches are spread over.
    #[must_use]
    pub fn connections(self, connections: usize) -> Self {
        Self { connections, ..self }
    }

    /// HTTP/1.1, and so a connection for each watch.
    #[must_use]
    pub fn http1(self) -> Self {
        Self { protocol: Protocol::Http1, ..self }
    }

    /// What to watch, with a query of its own perhaps; the watches take turns.
    #[must_use]
    pub fn paths(self, paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { paths: paths.into_iter().map(Into::into).collect(), ..self }
    }

    #[must_use]
    pub fn bearer(self, token: &str) -> Self {
        Self { bearer: Some(token.to_owned()), ..self }
    }

    /// Sets out. The watches open in the background; [`RunningFleet::synced`] waits for them.
    ///
    /// # Errors
    /// If the URL is not `http://HOST:PORT`, or there is nothing to watch.
    pub fn start(self) -> io::Result<RunningFleet> {
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text.to_owned());
        let target = Target::parse(&self.url, self.protocol, self.bearer).map_err(|text| invalid(&text))?;
        if self.paths.is_empty() {
            return Err(invalid("no path to watch"));
        }
        let link_count = match self.protocol {
            Protocol::Http1 => 1,
            Protocol::Http2 => self.connections.clamp(1, self.watches.max(1)),
        };
        let target = Arc::new(target);
        let (tasks, stopping) = (TaskTracker::new(), CancellationToken::new());
        let links: Vec<_> = (0..link_count).map(|_| Arc::new(Link::new(target.clone(), tasks.clone()))).collect();
        let (totals, search) = (Arc::new(Totals::new()), Arc::new(Search::new()));
        for n in 0..self.watches {
            let (link, path) = (links[n % links.len()].clone(), self.paths[n % self.paths.len()].clone());
            let watcher = Watcher::new(link, path, search.clone(), totals.clone());
            let stopping = stopping.clone();
            drop(tasks.spawn(async move {
                tokio::select! {
                    () = stopping.cancelled() => {}
                    () = watcher.run() => {}
                }
            }));
        }
        tasks.close();
        Ok(RunningFleet { watches: self.watches as u64, totals, tasks, stopping })
    }
}

/// What all watches of a fleet count into.
#[derive(Debug)]
struct Totals {
    /// Permits for opening a watch.
    opening: tokio::sync::Semaphore,
    changed: watch::Sender<()>,
    open: AtomicU64,
    synced: AtomicU64,
    initial: AtomicU64,
    deliveries: AtomicU64,
    bookmarks: AtomicU64,
    bytes: AtomicU64,
    resumes: AtomicU64,
    relists: AtomicU64,
    errors: AtomicU64,
    latencies: Histogram,
}

impl Totals {
    fn new() -> Self {
        let zero = AtomicU64::default;
        Self {
            opening: tokio::sync::Semaphore::new(OPENING_MAX),
            changed: watch::Sender::new(()),
            open: zero(),
            synced: zero(),
            initial: zero(),
            deliveries: zero(),
            bookmarks: zero(),
            bytes: zero(),
            resumes: zero(),
            relists: zero(),
            errors: zero(),
            latencies: Histogram::default(),
        }
    }

    fn add(&self, counter: &AtomicU64, n: u64) {
        if n > 0 {
            counter.fetch_add(n, Ordering::Relaxed);
            self.changed.send_replace(());
        }
    }
}

/// The numbers of a fleet at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetCounts {
    pub watches_open: u64,
    /// Watches that have had their initial objects once.
    pub synced: u64,
    /// Objects in initial sets.
    pub initial: u64,
    /// Events after the initial set, bookmarks excluded.
    pub deliveries: u64,
    pub bookmarks: u64,
    pub bytes: u64,
    /// Streams that ended and were continued from the last revision.
    pub resumes: u64,
    /// Streams that had to start over because their revision was gone.
    pub relists: u64,
    pub errors: u64,
}

/// A fleet at sea. Dropping it ends all watches.
#[derive(Debug)]
pub struct RunningFleet {
    watches: u64,
    totals: Arc<Totals>,
    tasks: TaskTracker,
    stopping: CancellationToken,
}

impl RunningFleet {
    pub fn counts(&self) -> FleetCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let totals = &self.totals;
        FleetCounts {
            watches_open: read(&totals.open),
            synced: read(&totals.synced),
            initial: read(&totals.initial),
            deliveries: read(&totals.deliveries),
            bookmarks: read(&totals.bookmarks),
            bytes: read(&totals.bytes),
            resumes: read(&totals.resumes),
            relists: read(&totals.relists),
            errors: read(&totals.errors),
        }
    }

    /// Time from write to arrival, of every event that says when it was written by this process.
    pub fn latencies(&self) -> Latencies {
        self.totals.latencies.read()
    }

    /// Returns when the counts satisfy `wanted`.
    pub async fn until(&self, wanted: impl Fn(&FleetCounts) -> bool) {
        let mut changed = self.totals.changed.subscribe();
        while !wanted(&self.counts()) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns when every watch has had its initial objects, or the time is over; says which.
    pub async fn synced(&self, patience: Duration) -> bool {
        tokio::time::timeout(patience, self.until(|counts| counts.synced >= self.watches)).await.is_ok()
    }

    /// Ends all watches; returns the final counts.
    pub async fn stop(self) -> FleetCounts {
        let counts = self.counts();
        self.stopping.cancel();
        self.tasks.wait().await;
        counts
    }
}

impl Drop for RunningFleet {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

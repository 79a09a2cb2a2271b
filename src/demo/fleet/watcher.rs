//! One watch of the fleet, from its first stream to the end of the fleet.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::BodyExt as _;
use tokio::time::{Instant, sleep};

use super::super::clock::now_ns;
use super::Totals;
use super::lines::{Line, Lines, Search};
use super::link::Link;

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A stream that ends sooner than this without a single event did not work.
const SHORT: Duration = Duration::from_secs(1);
/// As informers ask: between one and two of these.
const TIMEOUT_SECONDS: u64 = 300;

pub(super) struct Watcher {
    link: Arc<Link>,
    path: String,
    totals: Arc<Totals>,
    search: Arc<Search>,
    /// The last revision seen; empty before the first, and after it has expired.
    revision: String,
    /// Whether the initial objects are complete. A resumed stream has none.
    live: bool,
    counted_as_synced: bool,
    /// When the last initial set was complete. What was written before that is catching up, and not timed.
    live_since: u64,
}

enum Ended {
    /// Continue from the last revision.
    Cleanly,
    /// The last revision is gone.
    Expired,
    Badly,
}

/// What one chunk brought, added to the totals at once.
#[derive(Default)]
struct Tally {
    initial: u64,
    deliveries: u64,
    bookmarks: u64,
    end: Option<Ended>,
}

impl Watcher {
    pub(super) fn new(link: Arc<Link>, path: String, search: Arc<Search>, totals: Arc<Totals>) -> Self {
        Self {
            link,
            path,
            totals,
            search,
            revision: String::new(),
            live: false,
            counted_as_synced: false,
            live_since: 0,
        }
    }

    pub(super) async fn run(mut self) {
        let mut backoff = BACKOFF_MIN;
        loop {
            match self.stream().await {
                Ended::Cleanly => {
                    self.totals.add(&self.totals.resumes, 1);
                    backoff = BACKOFF_MIN;
                    continue;
                }
                Ended::Expired => {
                    self.totals.add(&self.totals.relists, 1);
                    self.revision.clear();
                }
                Ended::Badly => self.totals.add(&self.totals.errors, 1),
            }
            sleep(backoff.mul_f64(0.5 + fastrand::f64())).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    fn request(&self) -> String {
        let separator = if self.path.contains('?') { '&' } else { '?' };
        let timeout = fastrand::u64(TIMEOUT_SECONDS..2 * TIMEOUT_SECONDS);
        let initial =
            if self.revision.is_empty() { "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan" } else { "" };
        format!(
            "{}{separator}watch=true&allowWatchBookmarks=true&timeoutSeconds={timeout}&resourceVersion={}{initial}",
            self.path, self.revision
        )
    }

    /// One stream, until it ends in whatever way.
    async fn stream(&mut self) -> Ended {
        let request = self.request();
        self.live = !self.revision.is_empty();
        let opened = {
            let _permit = self.totals.opening.acquire().await;
            self.link.get(&request).await
        };
        let mut response = match opened {
            Ok(response) if response.status().is_success() => response,
            Ok(response) => {
                tracing::debug!(status = %response.status(), "watch refused");
                return if response.status() == http::StatusCode::GONE { Ended::Expired } else { Ended::Badly };
            }
            Err(error) => {
                tracing::debug!(%error, "watch not opened");
                return Ended::Badly;
            }
        };
        let totals = self.totals.clone();
        let _open = Open::new(&totals);
        let (since, mut events, mut lines) = (Instant::now(), 0, Lines::default());
        while let Some(frame) = response.body_mut().frame().await {
            let Some(chunk) = frame.ok().and_then(|frame| frame.into_data().ok()) else {
                return Ended::Badly;
            };
            let mut tally = Tally::default();
            let arrived = now_ns();
            let fed = lines.feed(&chunk, |line| self.read(line, arrived, &mut tally));
            events += tally.initial + tally.deliveries + tally.bookmarks;
            totals.add(&totals.bytes, chunk.len() as u64);
            totals.add(&totals.initial, tally.initial);
            totals.add(&totals.deliveries, tally.deliveries);
            totals.add(&totals.bookmarks, tally.bookmarks);
            match (fed, tally.end) {
                (Err(_), _) => return Ended::Badly,
                (Ok(()), Some(end)) => return end,
                (Ok(()), None) => {}
            }
        }
        if !self.live {
            // Half an initial set is none: what was seen so far is no place to resume from.
            self.revision.clear();
        }
        if events == 0 && since.elapsed() < SHORT { Ended::Badly } else { Ended::Cleanly }
    }

    fn read(&mut self, line: &[u8], arrived: u64, tally: &mut Tally) {
        let kind = self.search.classify(line);
        match kind {
            Line::Fresh if self.live => {
                tally.deliveries += 1;
                if let Some(written) = self.search.written_at_ns(line).filter(|written| *written >= self.live_since) {
                    self.totals.latencies.add(arrived.saturating_sub(written));
                }
            }
            Line::Deleted if self.live => tally.deliveries += 1,
            Line::Fresh | Line::Deleted => tally.initial += 1,
            Line::Bookmark { initial_end } => {
                tally.bookmarks += 1;
                if initial_end {
                    (self.live, self.live_since) = (true, arrived);
                }
                if initial_end && !std::mem::replace(&mut self.counted_as_synced, true) {
                    self.totals.add(&self.totals.synced, 1);
                }
            }
            Line::Expired => tally.end = Some(Ended::Expired),
            Line::Error | Line::Unknown => tally.end = Some(Ended::Badly),
        }
        // Objects of an initial set come in the order of their names: only its end says where to resume.
        let resumable = self.live && matches!(kind, Line::Fresh | Line::Deleted | Line::Bookmark { .. });
        if resumable && let Some(revision) = self.search.revision(line) {
            revision.clone_into(&mut self.revision);
        }
    }
}

/// Counts a stream as open until it is dropped.
struct Open<'a>(&'a Totals);

impl<'a> Open<'a> {
    fn new(totals: &'a Totals) -> Self {
        totals.add(&totals.open, 1);
        Self(totals)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        self.0.changed.send_replace(());
    }
}

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hdrhistogram::Histogram;
use parking_lot::{Mutex, MutexGuard};

/// The largest latency that is distinguished: two minutes, in microseconds.
const LATENCY_US_MAX: u64 = 120_000_000;
/// The significant digits of a latency.
const DIGITS: u8 = 3;
/// The number of recorders that the connections are spread over. Two threads seldom use the same one.
const SHARDS: usize = 32;

/// Returns a histogram of microseconds with three significant digits.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(LATENCY_US_MAX, DIGITS).expect("the bounds are constants that fit")
}

/// The totals of all watches of a fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchCounts {
    /// The number of events after the initial set, bookmarks excluded.
    pub deliveries: u64,
    /// The number of objects in initial sets and LISTs of informers.
    pub initial: u64,
    /// The number of body bytes that were received.
    pub bytes: u64,
    /// The number of those bytes after decompression.
    pub plain_bytes: u64,
    /// The CPU time of the decompression, in nanoseconds.
    pub inflate_ns: u64,
    pub bookmarks: u64,
    /// The number of connections that were opened.
    pub connected: u64,
    /// The number of streams that were opened, and of those that have ended.
    pub opened: u64,
    pub closed: u64,
    /// The number of opened streams that are compressed.
    pub compressed: u64,
    /// The number of watches that have received their initial state, once for each storm.
    pub synced: u64,
    /// The number of streams that ended and resumed at the last version.
    pub resumed: u64,
    /// The number of streams that had to relist.
    pub relisted: u64,
    /// The number of requests whose response was not a stream.
    pub refused: u64,
    /// The number of connections and streams that broke.
    pub broken: u64,
}

impl WatchCounts {
    /// Returns the number of open streams.
    pub fn open(&self) -> u64 {
        self.opened.saturating_sub(self.closed)
    }

    fn add(&mut self, other: &Self) {
        let Self {
            deliveries,
            initial,
            bytes,
            plain_bytes,
            inflate_ns,
            bookmarks,
            connected,
            opened,
            closed,
            compressed,
            synced,
            resumed,
            relisted,
            refused,
            broken,
        } = *other;
        self.deliveries += deliveries;
        self.initial += initial;
        self.bytes += bytes;
        self.plain_bytes += plain_bytes;
        self.inflate_ns += inflate_ns;
        self.bookmarks += bookmarks;
        self.connected += connected;
        self.opened += opened;
        self.closed += closed;
        self.compressed += compressed;
        self.synced += synced;
        self.resumed += resumed;
        self.relisted += relisted;
        self.refused += refused;
        self.broken += broken;
    }
}

/// The recorder of some connections. It is locked once for each read of a socket, not for each event.
#[derive(Debug)]
pub(super) struct WatchTallyShard {
    pub(super) counts: WatchCounts,
    /// The time from the scheduled time of a write to the arrival of its event, in microseconds.
    pub(super) latency: Histogram<u64>,
    /// The time from the beginning of a storm until a watch was synced.
    pub(super) synced: Histogram<u64>,
}

/// The recorders of a fleet, and the counts of each watch.
#[derive(Debug)]
pub(super) struct WatchTally {
    shards: Box<[Mutex<WatchTallyShard>]>,
    pub(super) seen: Box<[WatchProgress]>,
    pub(super) window: MeasurementWindow,
}

/// The events of one watch, stored by its connection after every chunk.
#[derive(Debug, Default)]
pub(super) struct WatchProgress {
    /// The number of events after the initial set, bookmarks excluded.
    pub(super) events: AtomicU64,
    /// The number of received events that this process wrote since the fleet started.
    pub(super) ours: AtomicU64,
    /// The number of events whose version was not above the last one.
    pub(super) repeated: AtomicU64,
    /// Whether the watch relisted, so that its missing events cannot be counted.
    pub(super) broken: AtomicBool,
    /// Whether the watch is read slowly or never. Its missing events are not counted.
    pub(super) lags: AtomicBool,
}

/// The period of time whose writes are measured.
#[derive(Debug)]
pub(super) struct MeasurementWindow {
    from_ns: AtomicU64,
    until_ns: AtomicU64,
}

impl MeasurementWindow {
    pub(super) fn open(&self, from_ns: u64) {
        self.from_ns.store(from_ns, Ordering::Relaxed);
    }

    pub(super) fn close(&self, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> std::ops::Range<u64> {
        self.from_ns.load(Ordering::Relaxed)..self.until_ns.load(Ordering::Relaxed)
    }
}

impl WatchTally {
    pub(super) fn new(watches: usize) -> Self {
        let shard = || {
            Mutex::new(WatchTallyShard { counts: WatchCounts::default(), latency: histogram(), synced: histogram() })
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            seen: (0..watches).map(|_| WatchProgress::default()).collect(),
            window: MeasurementWindow { from_ns: AtomicU64::new(u64::MAX), until_ns: AtomicU64::new(u64::MAX) },
        }
    }

    /// Returns the recorder of the `n`-th connection.
    pub(super) fn shard(&self, n: usize) -> MutexGuard<'_, WatchTallyShard> {
        self.shards[n % self.shards.len()].lock()
    }

    pub(super) fn counts(&self) -> WatchCounts {
        let mut sum = WatchCounts::default();
        self.shards.iter().for_each(|shard| sum.add(&shard.lock().counts));
        sum
    }

    pub(super) fn latency(&self) -> Histogram<u64> {
        self.merged(|shard| &shard.latency)
    }

    pub(super) fn synced(&self) -> Histogram<u64> {
        self.merged(|shard| &shard.synced)
    }

    fn merged(&self, of: impl Fn(&WatchTallyShard) -> &Histogram<u64>) -> Histogram<u64> {
        let mut sum = histogram();
        for shard in &self.shards {
            sum.add(of(&shard.lock())).expect("histograms of the same bounds");
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tally_sums_counts_and_latencies_of_all_shards() {
        let tally = WatchTally::new(0);
        for n in 0..100 {
            let mut shard = tally.shard(n);
            shard.counts.deliveries += 2;
            shard.latency.saturating_record(n as u64 * 1_000_000_000);
        }
        assert_eq!(tally.counts().deliveries, 200);
        assert_eq!(tally.latency().len(), 100);
        assert!(tally.latency().max() >= LATENCY_US_MAX);
    }
}

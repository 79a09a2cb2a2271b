#[cfg(test)]
mod tests;

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Decides whether GETs of the most recent state are answered here, by a proof that many of them share, or passed on.
///
/// A proof costs upstream a question or two, a GET that is passed on costs it a GET. So proofs are worth it where many
/// ask at once and the feed's own stream comes soon to what upstream answered. Neither can be known in advance, so both
/// are measured, for a second at a time.
#[derive(Debug)]
pub struct CurrentGets(Mutex<Meter>);

/// What a proof cost upstream, in GETs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofCost {
    Position,
    /// The versions of so many objects were listed.
    Equality(usize),
    CatchUp,
}

/// What became of a GET that waited for a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetOutcome {
    Proven {
        waited: Duration,
    },
    /// It was passed on after all.
    Late,
}

/// One second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    reads: u32,
    proven: u32,
    late: u32,
    waited: Duration,
    /// What all proofs of the feed cost, whoever waited for them: in GETs.
    cost: u32,
}

#[derive(Debug)]
struct Meter {
    began: Instant,
    /// Since `began`.
    now: Counts,
    /// The reads of the second before.
    reads_before: u32,
    shares: bool,
    /// Until then no further attempt is made.
    rests_until: Instant,
    rest: Duration,
}

impl CurrentGets {
    /// How long a GET waits for its proof, from when the question was due. Then it is passed on.
    pub const WAIT_MAX: Duration = Duration::from_millis(40);

    /// Counts a GET. Returns when it should ask for its proof, together with those that come before that; `None` if it
    /// is to be passed on.
    pub fn turn(&self, now: Instant) -> Option<Instant> {
        self.0.lock().turn(now)
    }

    pub fn came_to(&self, outcome: GetOutcome) {
        let mut meter = self.0.lock();
        match outcome {
            GetOutcome::Proven { waited } => {
                meter.now.proven += 1;
                meter.now.waited += waited;
            }
            GetOutcome::Late => meter.now.late += 1,
        }
    }

    pub fn cost(&self, of: ProofCost) {
        let cost = match of {
            ProofCost::Position => 1,
            ProofCost::Equality(objects) => 1 + u32::try_from(objects / OBJECTS_PER_GET).unwrap_or(u32::MAX / 2),
            // A watch that is opened, waits and ends.
            ProofCost::CatchUp => 4,
        };
        let now = &mut self.0.lock().now;
        now.cost = now.cost.saturating_add(cost);
    }
}

impl Default for CurrentGets {
    fn default() -> Self {
        let began = Instant::now();
        let meter =
            Meter { began, now: Counts::default(), reads_before: 0, shares: false, rests_until: began, rest: REST };
        Self(Mutex::new(meter))
    }
}

/// How long is measured before it is decided anew.
const WINDOW: Duration = Duration::from_secs(1);
/// With fewer reads in a window they are passed on: two would hardly ever share a proof.
const READS_MIN: u32 = 200;
/// A GET must cost upstream less than this part of what it would cost to pass it on.
const COST_PART: u32 = 2;
/// How long GETs may wait on average.
const MEAN_WAIT_MAX: Duration = Duration::from_millis(15);
/// One in so many may be late.
const LATE_ONE_IN: u32 = 50;
/// The number of GETs whose lateness is enough to stop at once.
const LATE_AT_ONCE: u32 = 8;
/// The number of reads that should share a question.
const SHARERS: u32 = 8;
/// But no read waits longer for others than this.
const GATHER_MAX: Duration = Duration::from_millis(5);
/// After an attempt that was not worth it: at first, and at most.
const REST: Duration = Duration::from_secs(10);
const REST_MAX: Duration = Duration::from_secs(600);
/// The number of objects whose versions cost upstream as much as a GET: 13 µs each, and some 160 µs (R-DERIVE-4).
const OBJECTS_PER_GET: usize = 12;

impl Meter {
    fn turn(&mut self, now: Instant) -> Option<Instant> {
        if now >= self.began + WINDOW {
            self.next_window(now);
        }
        self.now.reads += 1;
        let is_bad = self.now.late >= LATE_AT_ONCE && self.now.late > self.now.proven / LATE_ONE_IN;
        if self.shares && is_bad {
            self.stop(now);
        }
        if !self.shares && self.now.reads >= READS_MIN && now >= self.rests_until {
            // No whole window is needed to see that many ask.
            self.shares = true;
        }
        self.shares.then(|| self.gathers_until(now))
    }

    fn next_window(&mut self, now: Instant) {
        let is_old = now >= self.began + 2 * WINDOW;
        let counts = std::mem::take(&mut self.now);
        self.reads_before = if is_old { 0 } else { counts.reads };
        self.began = now;
        if !self.shares {
            return;
        }
        if is_old || counts.reads < READS_MIN {
            // Few ask now, which was no failure.
            self.shares = false;
        } else if counts.is_worth_it() {
            self.rest = REST;
        } else {
            self.stop(now);
        }
    }

    fn stop(&mut self, now: Instant) {
        self.shares = false;
        self.rests_until = now + self.rest;
        self.rest = (2 * self.rest).min(REST_MAX);
    }

    /// The end of the time in which those who come now gather.
    fn gathers_until(&self, now: Instant) -> Instant {
        let gather = (WINDOW * SHARERS / self.reads_before.max(1)).min(GATHER_MAX);
        let nanos = gather.as_nanos().max(1);
        let since = (now - self.began).as_nanos();
        let left = nanos - since % nanos;
        now + Duration::from_nanos(u64::try_from(left).unwrap_or(0))
    }
}

impl Counts {
    /// Whether a window in which proofs were shared was better than one in which all were passed on.
    fn is_worth_it(&self) -> bool {
        let is_cheap = self.cost.saturating_mul(COST_PART) <= self.proven;
        let is_soon = self.waited <= MEAN_WAIT_MAX * self.proven;
        is_cheap && is_soon && self.late <= self.proven / LATE_ONE_IN
    }
}

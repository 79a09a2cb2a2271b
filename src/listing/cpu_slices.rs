//! CPU time slices for work that is done in a poll.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use base::random;
use kubeapi::FlowDistinguisher;

/// A caller; `None` if callers are not distinguished, so that no per-caller limit applies.
pub(crate) type ScanPayer = Option<FlowDistinguisher>;

/// Slices for work that polls do for a single client: scans of a watch's history or initial state, expensive selectors,
/// and the encoding and compression of selections.
///
/// A poll cannot block, and a client that does not read must not hold a resource that others wait for. So slices are
/// never handed to a waiter. A poll that finds no slice retries later; the fewer polls of its caller retry, the sooner.
/// Slices use at most half of the time, so the rest is left for other work.
///
/// Callers get slices in rounds: one each, regardless of the number of their watches. The next round begins when every
/// waiting caller has had its slice, or has not retried in time.
#[derive(Debug, Clone)]
pub(crate) struct CallerCpuSlices(Arc<Mutex<CpuSliceQueue>>);

/// The permission to use the CPU in one poll.
#[derive(Debug)]
pub(crate) struct CpuSlice {
    slices: CallerCpuSlices,
    owner: ScanPayer,
    taken: Instant,
}

/// Counts a waiting poll of a caller until it is dropped.
#[derive(Debug)]
pub(crate) struct CpuSliceWaiter {
    slices: CallerCpuSlices,
    owner: ScanPayer,
}

#[derive(Debug)]
struct CpuSliceQueue {
    /// The times from which the unused slices are available.
    free: Vec<Instant>,
    round: u64,
    /// The time since when a slice is reserved for callers that have not had a slice in this round.
    reserved_since: Option<Instant>,
    /// The callers that wait for a slice, or that have had a slice in this round.
    callers: HashMap<ScanPayer, CpuSliceCaller>,
    /// The number of callers that requested a slice at the last count.
    requested_by: u32,
}

#[derive(Debug)]
struct CpuSliceCaller {
    waiting: u32,
    /// The time at which the caller last requested a slice.
    requested_at: Instant,
    /// The round of the caller's next slice.
    round: u64,
}

/// The minimum time between the starts of two uses of the same slice. A use takes about half of it.
const PERIOD: Duration = Duration::from_millis(2);
/// The time for which a slice is reserved for callers that have not had a slice in this round.
const RESERVED_FOR: Duration = Duration::from_millis(4);
/// The longest retry delay of a poll that found no slice, in milliseconds.
const RETRY_MAX_MS: u32 = 64;
/// The target number of retries per millisecond of all polls together, subject to `RETRY_MAX_MS`.
const TRIES: u32 = 16;
/// The time without a retry after which a poll counts as abandoned by its client.
const ABANDONED_AFTER: Duration = Duration::from_millis(2 * RETRY_MAX_MS as u64);

impl CallerCpuSlices {
    pub(crate) fn new(at_a_time: usize) -> Self {
        let (free, callers) = (vec![Instant::now(); at_a_time], HashMap::new());
        Self(Arc::new(Mutex::new(CpuSliceQueue { free, round: 0, reserved_since: None, callers, requested_by: 1 })))
    }

    /// Takes a slice, or returns the delay before the next attempt.
    pub(crate) fn take(&self, owner: &ScanPayer) -> Result<CpuSlice, Duration> {
        let now = Instant::now();
        let mut queue = self.0.lock();
        if let Some(caller) = queue.callers.get_mut(owner) {
            caller.requested_at = now;
        }
        let slot = queue.free.iter().position(|since| *since <= now);
        match slot.filter(|_| queue.is_due(owner, now)) {
            Some(slot) => {
                queue.free.swap_remove(slot);
                queue.reserved_since = None;
                Ok(CpuSlice { slices: self.clone(), owner: owner.clone(), taken: now })
            }
            None => {
                let own = queue.callers.get(owner).map_or(1, |caller| caller.waiting.max(1));
                let spread = (own.saturating_mul(queue.requested_by) / TRIES).clamp(1, RETRY_MAX_MS);
                Err(Duration::from_millis(1) * random::u32(1..=spread))
            }
        }
    }

    /// Counts one more waiting poll of this caller.
    pub(crate) fn wait(&self, owner: &ScanPayer) -> CpuSliceWaiter {
        let now = Instant::now();
        let mut queue = self.0.lock();
        let unknown = CpuSliceCaller { waiting: 0, requested_at: now, round: queue.round };
        queue.callers.entry(owner.clone()).or_insert(unknown).waiting += 1;
        CpuSliceWaiter { slices: self.clone(), owner: owner.clone() }
    }
}

impl CpuSliceQueue {
    /// Returns whether a caller may take a free slice.
    fn is_due(&mut self, owner: &ScanPayer, now: Instant) -> bool {
        let Some(caller) = self.callers.get(owner) else { return true };
        if caller.round <= self.round {
            return true;
        }
        let round = caller.round;
        match self.reserved_since {
            Some(since) if now < since + RESERVED_FOR => return false,
            // They did not retry in time, so slices are not reserved for them until they do.
            Some(_) => self.reserved_for().for_each(|(_, caller)| caller.requested_at = now - ABANDONED_AFTER),
            None => {}
        }
        if self.reserved_for().any(|(other, caller)| other != owner && caller.requested_at + ABANDONED_AFTER > now) {
            self.reserved_since.get_or_insert(now);
            return false;
        }
        (self.round, self.reserved_since) = (round, None);
        true
    }

    /// Iterates over the callers that wait and have not had their slice in this round.
    fn reserved_for(&mut self) -> impl Iterator<Item = (&ScanPayer, &mut CpuSliceCaller)> {
        let round = self.round;
        self.callers.iter_mut().filter(move |(_, caller)| caller.waiting > 0 && caller.round <= round)
    }

    /// Returns a slice after use of the duration `took`.
    fn used(&mut self, owner: &ScanPayer, taken: Instant, took: Duration) {
        self.free.push(taken + PERIOD.max(2 * took));
        let now = taken + took;
        let is_waiting = |caller: &CpuSliceCaller| caller.waiting > 0 && caller.requested_at + ABANDONED_AFTER > now;
        let others = self.callers.iter().filter(|(other, caller)| *other != owner && is_waiting(caller)).count();
        self.requested_by = u32::try_from(others).unwrap_or(u32::MAX).saturating_add(1);
        if others == 0 {
            self.round += 1;
        } else {
            let round = self.round + 1;
            self.callers
                .entry(owner.clone())
                .or_insert(CpuSliceCaller { waiting: 0, requested_at: now, round })
                .round = round;
        }
        let round = self.round;
        self.callers.retain(|_, caller| caller.waiting > 0 || caller.round > round);
    }
}

impl Drop for CpuSlice {
    fn drop(&mut self) {
        let took = self.taken.elapsed();
        self.slices.0.lock().used(&self.owner, self.taken, took);
    }
}

impl Drop for CpuSliceWaiter {
    fn drop(&mut self) {
        let mut queue = self.slices.0.lock();
        let round = queue.round;
        if let Some(caller) = queue.callers.get_mut(&self.owner) {
            caller.waiting -= 1;
            if caller.waiting == 0 && caller.round <= round {
                queue.callers.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::super::cost;
    use super::super::scan_pacer::ScanBudget;
    use super::*;
    use kubeapi::User;

    fn payer(n: usize) -> FlowDistinguisher {
        FlowDistinguisher::from_user(&User { name: n.to_string(), ..User::default() })
    }

    /// Counts the slices that each caller uses if its watches always want more.
    async fn used(slices: &CallerCpuSlices, watches: &[(ScanPayer, usize)], time: Duration) -> Vec<usize> {
        let counts: Vec<_> = watches.iter().map(|_| Arc::new(Mutex::new(0))).collect();
        let mut tasks = tokio::task::JoinSet::new();
        for ((owner, watches), count) in watches.iter().zip(&counts) {
            for _ in 0..*watches {
                let (mut scan_budget, count) = (ScanBudget::new(slices.clone(), owner.clone(), false), count.clone());
                tasks.spawn(async move {
                    loop {
                        let slice = std::future::poll_fn(|cx| scan_budget.poll(cx)).await;
                        *scan_budget.left() = 0;
                        *count.lock() += usize::from(slice.is_some());
                    }
                });
            }
        }
        sleep(time).await;
        tasks.shutdown().await;
        counts.iter().map(|count| *count.lock()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn caller_gets_fair_cpu_share_despite_many_scans_of_others() {
        let second = Duration::from_secs(1);
        for at_a_time in [1, 2] {
            let slices = CallerCpuSlices::new(at_a_time);
            let alone = used(&slices, &[(Some(payer(0)), 1_000)], second).await[0];
            assert!((200 * at_a_time..=500 * at_a_time).contains(&alone), "{alone}");
            let both = used(&slices, &[(Some(payer(1)), 1_000), (Some(payer(2)), 1)], second).await;
            assert!(both[1] * 3 > both[0] && both[1] >= 100, "{at_a_time} at a time: {both:?}");
            assert!(both.iter().sum::<usize>() >= 200, "nor is it wasted: {both:?}");
            let of_many: Vec<_> = (0..10).map(|n| (Some(payer(n)), if n < 9 { 200 } else { 1 })).collect();
            let each = used(&slices, &of_many, second).await;
            let most = each.iter().max().expect("ten");
            assert!(each[9] * 3 > *most, "{at_a_time} at a time: {each:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unpolled_waiter_does_not_block_other_callers() {
        let slices = CallerCpuSlices::new(1);
        let stuck: Vec<_> = (10..60).map(|n| slices.wait(&Some(payer(n)))).collect();
        sleep(ABANDONED_AFTER).await;
        let alone = used(&slices, &[(Some(payer(0)), 1)], Duration::from_secs(1)).await[0];
        assert!(alone >= 200, "{alone}");
        drop(stuck);
        assert!(slices.0.lock().callers.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn state_of_departed_callers_is_removed() {
        let slices = CallerCpuSlices::new(1);
        used(&slices, &[(Some(payer(1)), 5), (Some(payer(2)), 5)], Duration::from_millis(100)).await;
        sleep(Duration::from_secs(1)).await;
        drop(slices.take(&Some(payer(3))).expect("it is free"));
        assert!(slices.0.lock().callers.is_empty());
    }

    /// A period leaves at least half of the time for other work.
    #[tokio::test(start_paused = true)]
    async fn slice_period_leaves_half_of_the_time_for_other_work() {
        let slices = CallerCpuSlices::new(1);
        for took in [0, 1, 10] {
            let slice = slices.take(&None).expect("it is free");
            sleep(Duration::from_millis(took)).await;
            drop(slice);
            let period = u64::try_from(PERIOD.as_millis()).expect("short");
            sleep(Duration::from_millis(period.max(2 * took) - took - 1)).await;
            assert!(slices.take(&None).is_err(), "{took} ms");
            sleep(Duration::from_millis(1)).await;
        }
        const { assert!(cost::FREE_SCAN_COST < cost::SLICE) };
    }
}

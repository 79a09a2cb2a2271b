//! Turns for looking at objects one by one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::Shed;
use crate::kube::Payer;

/// The queue of scans. A scan takes a whole core. So fewer of them run at a time than there are cores, one for each
/// caller, and callers take turns, about every millisecond. Work of less than a slice needs no turn.
#[derive(Debug, Clone)]
pub(crate) struct Scans(Arc<Mutex<Queue>>);

/// Leave to scan. The next caller may scan when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    scans: Scans,
    whose: Whose,
    /// Whether the turn was given to somebody else, or never had.
    lost: bool,
}

/// A caller; `None` where all callers are one, who then has no share.
pub(crate) type Whose = Option<Payer>;

#[derive(Debug)]
struct Queue {
    running: usize,
    running_max: usize,
    waiting: usize,
    tickets: u64,
    /// The callers that scan or wait.
    callers: HashMap<Whose, Line>,
    /// Callers of whom a scan waits, the next one first.
    order: VecDeque<Whose>,
}

#[derive(Debug, Default)]
struct Line {
    running: usize,
    waiting: VecDeque<(u64, oneshot::Sender<()>)>,
}

/// A place in the queue. Dropping it leaves the queue, and gives back a turn that came too late.
struct Ticket {
    scans: Scans,
    whose: Whose,
    number: u64,
    called: oneshot::Receiver<()>,
    taken: bool,
}

/// How many scans wait for their turn, in all and for one caller. Each holds a request, and a state that others hold
/// too.
const WAITING_MAX: usize = 1_024;
const WAITING_PER_CALLER_MAX: usize = 64;
/// About how long a slice takes.
const SLICE: Duration = Duration::from_millis(1);
/// How long a scan waits for its first turn.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// How many scans may run at a time, so that other work always finds a core: half of the cores, and one at least.
pub(crate) fn at_a_time() -> usize {
    available_parallelism().map_or(1, |cores| cores.get() / 2).max(1)
}

impl Scans {
    pub(crate) fn at_a_time(running_max: usize) -> Self {
        let (callers, order) = (HashMap::new(), VecDeque::new());
        Self(Arc::new(Mutex::new(Queue { running: 0, running_max, waiting: 0, tickets: 0, callers, order })))
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// Too many wait, or for too long.
    pub(crate) async fn turn(&self, whose: Whose) -> Result<Turn, Shed> {
        {
            let queue = self.0.lock();
            let own = queue.callers.get(&whose).map_or(0, |line| line.waiting.len());
            if queue.waiting >= WAITING_MAX || (whose.is_some() && own >= WAITING_PER_CALLER_MAX) {
                return Err(Shed("selections"));
            }
        }
        let called = timeout(WAIT_MAX, self.ticket(whose.clone(), End::Back).turn()).await;
        called.map_err(|_| Shed("selections"))?;
        Ok(Turn { scans: self.clone(), whose, lost: false })
    }

    /// Waits for a turn, however long. The caller has begun already, and its number is bounded elsewhere.
    pub(crate) async fn turn_late(&self, whose: Whose) -> Turn {
        self.ticket(whose.clone(), End::Back).turn().await;
        Turn { scans: self.clone(), whose, lost: false }
    }

    fn ticket(&self, whose: Whose, end: End) -> Ticket {
        let mut queue = self.0.lock();
        let (calls, called) = oneshot::channel();
        queue.tickets += 1;
        queue.waiting += 1;
        let number = queue.tickets;
        let line = queue.callers.entry(whose.clone()).or_default();
        let is_first = line.waiting.is_empty();
        match end {
            End::Back => line.waiting.push_back((number, calls)),
            End::Front => line.waiting.push_front((number, calls)),
        }
        if is_first {
            queue.order.push_back(whose.clone());
        }
        queue.call();
        drop(queue);
        Ticket { scans: self.clone(), whose, number, called, taken: false }
    }

    fn end(&self, whose: &Whose) {
        let mut queue = self.0.lock();
        queue.ended(whose);
        queue.call();
    }
}

/// The end of a caller's own line that a scan joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Back,
    Front,
}

impl Turn {
    /// Lets other tasks run, and then the scans of other callers, if some wait. A caller's own scans run one after the
    /// other.
    pub(crate) async fn rest(&mut self) {
        yield_now().await;
        let others = {
            let queue = self.scans.0.lock();
            queue.order.iter().any(|waits| *waits != self.whose && queue.may_scan(waits))
        };
        if others {
            // Scans that compete leave half of the time to everything else: a slice is about as long as this.
            sleep(SLICE).await;
            // It queues behind those who wait before it gives its turn up.
            let ticket = self.scans.ticket(self.whose.clone(), End::Front);
            self.lost = true;
            self.scans.end(&self.whose);
            ticket.turn().await;
            self.lost = false;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.lost {
            self.scans.end(&self.whose);
        }
    }
}

impl Queue {
    fn may_scan(&self, whose: &Whose) -> bool {
        whose.is_none() || self.callers.get(whose).is_some_and(|line| line.running == 0)
    }

    /// Gives turns to those who are next.
    fn call(&mut self) {
        let mut looked_at = 0;
        while self.running < self.running_max && looked_at < self.order.len() {
            let Some(whose) = self.order.pop_front() else { return };
            if !self.may_scan(&whose) {
                self.order.push_back(whose);
                looked_at += 1;
                continue;
            }
            let Some(line) = self.callers.get_mut(&whose) else { continue };
            let next = line.waiting.pop_front();
            if !line.waiting.is_empty() {
                self.order.push_back(whose.clone());
            }
            let Some((_, calls)) = next else { continue };
            self.waiting -= 1;
            line.running += 1;
            self.running += 1;
            looked_at = 0;
            if calls.send(()).is_err() {
                self.ended(&whose);
            }
        }
    }

    fn ended(&mut self, whose: &Whose) {
        self.running -= 1;
        let Some(line) = self.callers.get_mut(whose) else { return };
        line.running -= 1;
        if !line.waiting.is_empty() {
            // The caller has had its turn.
            self.order.retain(|waits| waits != whose);
            self.order.push_back(whose.clone());
        }
        self.forget(whose);
    }

    /// Gives a ticket back that was not called.
    fn leave(&mut self, whose: &Whose, number: u64) {
        let Some(line) = self.callers.get_mut(whose) else { return };
        let before = line.waiting.len();
        line.waiting.retain(|(waits, _)| *waits != number);
        self.waiting -= before - line.waiting.len();
        if line.waiting.is_empty() && before > 0 {
            self.order.retain(|waits| waits != whose);
        }
        self.forget(whose);
    }

    fn forget(&mut self, whose: &Whose) {
        if self.callers.get(whose).is_some_and(|line| line.running == 0 && line.waiting.is_empty()) {
            self.callers.remove(whose);
        }
    }
}

impl Ticket {
    async fn turn(mut self) {
        // The caller holds the queue, which outlives this future. So an error cannot happen, and would mean no turn.
        self.taken = (&mut self.called).await.is_ok();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        self.called.close();
        if self.called.try_recv().is_ok() {
            self.scans.end(&self.whose);
        } else {
            self.scans.0.lock().leave(&self.whose, self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::kube::User;

    fn caller(n: u8) -> Payer {
        Payer::of(&User { name: n.to_string(), ..User::default() })
    }

    /// Scans so many slices, and notes each.
    async fn scan(scans: Scans, whose: Whose, slices: usize, notes: Arc<Mutex<Vec<u8>>>, name: u8) {
        let mut turn = scans.turn(whose).await.expect("there is room");
        for slice in 0..slices {
            if slice > 0 {
                turn.rest().await;
            }
            notes.lock().push(name);
        }
    }

    fn is_empty(scans: &Scans) -> bool {
        let queue = scans.0.lock();
        (queue.running, queue.waiting, queue.callers.len(), queue.order.len()) == (0, 0, 0, 0)
    }

    #[tokio::test]
    async fn callers_take_turns_slice_by_slice_and_a_callers_own_come_one_by_one() {
        let (scans, notes) = (Scans::at_a_time(1), Arc::<Mutex<Vec<u8>>>::default());
        let scan = |whose, slices, name| scan(scans.clone(), whose, slices, notes.clone(), name);
        tokio::join!(
            scan(Some(caller(1)), 4, b'a'),
            scan(Some(caller(1)), 2, b'b'),
            scan(Some(caller(2)), 3, b'x'),
            scan(Some(caller(3)), 1, b'y')
        );
        assert_eq!(String::from_utf8_lossy(&notes.lock()), "axyaxaxabb");
        assert!(is_empty(&scans));
    }

    #[tokio::test]
    async fn one_caller_scans_once_at_a_time_and_all_not_more_than_there_is_room_for() {
        let scans = Scans::at_a_time(2);
        let first = scans.turn(Some(caller(1))).await.expect("nobody scans");
        assert!(scans.turn(Some(caller(1))).now_or_never().is_none(), "its one scans");
        let second = scans.turn(Some(caller(2))).now_or_never().expect("at once").expect("there is room");
        let mut third = Box::pin(scans.turn(Some(caller(3))));
        assert!(third.as_mut().now_or_never().is_none(), "two scan");
        drop(first);
        assert!(third.await.is_ok());
        drop(second);
        assert!(is_empty(&scans));
    }

    #[tokio::test]
    async fn where_all_callers_are_one_they_have_no_shares() {
        let scans = Scans::at_a_time(2);
        let turns = [scans.turn(None).await, scans.turn(None).await];
        assert!(turns.iter().all(Result::is_ok) && scans.turn(None).now_or_never().is_none());
    }

    #[tokio::test]
    async fn whoever_goes_away_leaves_no_trace_and_what_was_theirs_to_the_next() {
        let scans = Scans::at_a_time(1);
        let turn = scans.turn(Some(caller(1))).await.expect("nobody scans");
        let mut gone = Box::pin(scans.turn(Some(caller(2))));
        let mut next = Box::pin(scans.turn(Some(caller(3))));
        assert!(gone.as_mut().now_or_never().is_none() && next.as_mut().now_or_never().is_none());
        drop(turn);
        // It was called, and does not hear of it any more.
        drop(gone);
        let turn = next.await.expect("it is its turn");
        let waits = Box::pin(scans.turn(Some(caller(4))));
        assert!(waits.now_or_never().is_none(), "and is gone again");
        drop(turn);
        assert!(is_empty(&scans));
    }

    #[tokio::test]
    async fn too_many_who_wait_are_turned_away_and_others_still_find_a_place() {
        let scans = Scans::at_a_time(1);
        let _turn = scans.turn(Some(caller(0))).await.expect("nobody scans");
        let wait = |n| {
            let mut waits = Box::pin(scans.turn(Some(caller(n))));
            assert!(waits.as_mut().now_or_never().is_none());
            waits
        };
        let own: Vec<_> = (0..WAITING_PER_CALLER_MAX).map(|_| wait(1)).collect();
        assert_eq!(scans.turn(Some(caller(1))).await.err(), Some(Shed("selections")));
        drop(wait(2));
        let all: Vec<_> = (own.len()..WAITING_MAX).map(|n| wait(2 + u8::try_from(n / 64).expect("few"))).collect();
        assert_eq!(scans.turn(Some(caller(200))).await.err(), Some(Shed("selections")));
        drop((own, all));
        drop(wait(200));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let scans = Scans::at_a_time(1);
        let turn = scans.turn(Some(caller(0))).await.expect("nobody scans");
        assert_eq!(scans.turn(Some(caller(1))).await.err(), Some(Shed("selections")));
        drop(turn);
        assert!(is_empty(&scans));
    }
}

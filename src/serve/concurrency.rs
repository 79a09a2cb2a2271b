use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::listing::OverLimit;
use base::Shares;
use kubeapi::FlowDistinguisher;

/// How much may be under way at once. Requests beyond a limit are refused at once: nothing queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConcurrencyConfig {
    /// How many watches are served from the cache, in all and for one user.
    pub watches_max: usize,
    pub watches_per_caller_max: usize,
    /// How many bytes of answers may be on their way. Each LIST is charged its length, a quarter MiB at most; large
    /// objects and shared answers of upstream are charged their whole length. One user has half of this. It also limits
    /// how many requests may wait, at [`WAITING_BYTES`] each, to at most [`WAITING_MAX`].
    pub lists_bytes_max: usize,
    /// How many requests are passed through that are answered within seconds, in all and for one user.
    pub forwards_max: usize,
    pub forwards_per_caller_max: usize,
    /// How many streams and tunnels are passed through, in all and for one user.
    pub streams_max: usize,
    pub streams_per_caller_max: usize,
    /// How many reads are passed through because their feed is not ready.
    pub unready_forwards_max: usize,
    /// How many requests without a credential are passed through.
    pub anonymous_forwards_max: usize,
}

impl Default for ConcurrencyConfig {
    fn default() -> Self {
        Self {
            watches_max: 100_000,
            watches_per_caller_max: 10_000,
            lists_bytes_max: 1 << 30,
            forwards_max: 600,
            forwards_per_caller_max: 200,
            streams_max: 2_000,
            streams_per_caller_max: 500,
            unready_forwards_max: 16,
            anonymous_forwards_max: 32,
        }
    }
}

/// Counts what is under way.
#[derive(Debug)]
pub(super) struct ConcurrencyLimits {
    watches: Room,
    /// Places of a KiB each.
    lists: Room,
    forwards: Room,
    streams: Room,
    unready: Room,
    anonymous: Room,
    waiting: Room,
    /// Requests that are being authenticated.
    unknown: Room,
}

/// Places of which no user takes more than its share, however many credentials it has.
///
/// The semaphores only count: how many places there are may change while some are taken, and those stay taken.
#[derive(Debug)]
struct Room {
    what: &'static str,
    all: Arc<Semaphore>,
    places_max: AtomicUsize,
    each: Shares<FlowDistinguisher>,
    each_max: AtomicUsize,
    few: usize,
}

/// A place, or several. They are given back on drop.
#[derive(Debug)]
pub(super) struct ConcurrencyPermit {
    _all: OwnedSemaphorePermit,
    _own: Option<OwnedSemaphorePermit>,
}

/// The most that a LIST is charged: a chunk that HTTP/2 has taken and not sent, and the one behind it.
const LIST_BYTES_MAX: usize = 256 << 10;
/// One out of so many places, the last ones, is for users who have no more than a few.
const RESERVE: usize = 8;
/// How many places are a few, where places are taken one by one.
const FEW: usize = 4;
/// The memory of a waiting request, which is about 12 KB.
const WAITING_BYTES: usize = 16 << 10;
/// The largest number of waiting requests; one user may have half of it. A read of a future version waits for three
/// seconds and costs its sender about fifty bytes.
const WAITING_MAX: usize = 8_192;
/// How much a watch may hold for its selector in its own place. Beyond that each so many bytes take another place.
const WATCH_SELECTOR_BYTES: usize = 2 << 10;

impl ConcurrencyLimits {
    pub(super) fn new(limits: &ConcurrencyConfig) -> Self {
        let admission = Self {
            watches: Room::new("watches", FEW),
            lists: Room::new("lists", LIST_BYTES_MAX >> 10),
            forwards: Room::new("requests", FEW),
            streams: Room::new("streams", FEW),
            unready: Room::new("reads of resources that are not ready", FEW),
            anonymous: Room::new("requests without a credential", FEW),
            waiting: Room::new("waiting requests", FEW),
            unknown: Room::new("requests of unknown senders", FEW),
        };
        admission.tune(limits);
        admission
    }

    /// Lets other limits hold for who comes from now on. What is under way beyond them goes on.
    pub(super) fn tune(&self, limits: &ConcurrencyConfig) {
        let (unready, anonymous) = (limits.unready_forwards_max, limits.anonymous_forwards_max);
        self.watches.resize(limits.watches_max, limits.watches_per_caller_max);
        self.lists.resize(limits.lists_bytes_max >> 10, limits.lists_bytes_max >> 11);
        self.forwards.resize(limits.forwards_max, limits.forwards_per_caller_max);
        self.streams.resize(limits.streams_max, limits.streams_per_caller_max);
        self.unready.resize(unready, unready.div_ceil(2));
        self.anonymous.resize(anonymous, anonymous);
        let waiting = (limits.lists_bytes_max / WAITING_BYTES).clamp(1, WAITING_MAX);
        self.waiting.resize(waiting, waiting.div_ceil(2));
        self.unknown.resize(waiting, waiting);
    }

    /// Takes a place for a watch, and more of them for a long selector. `payer` is the user whose share it takes;
    /// `None` where all callers are one.
    pub(super) fn watch(
        &self,
        payer: Option<&FlowDistinguisher>,
        selector_bytes: usize,
    ) -> Result<ConcurrencyPermit, OverLimit> {
        self.watches.take_many(payer, 1 + selector_bytes / WATCH_SELECTOR_BYTES)
    }

    /// Takes a place for a LIST of so many bytes.
    pub(super) fn list(&self, payer: Option<&FlowDistinguisher>, bytes: usize) -> Result<ConcurrencyPermit, OverLimit> {
        self.lists.take_many(payer, bytes.min(LIST_BYTES_MAX).div_ceil(1 << 10))
    }

    /// Takes a place among the LISTs for a complete answer. It may be the last that keeps its bytes, so it is charged
    /// all of them.
    pub(super) fn whole(
        &self,
        payer: Option<&FlowDistinguisher>,
        bytes: usize,
    ) -> Result<ConcurrencyPermit, OverLimit> {
        self.lists.take_many(payer, bytes.div_ceil(1 << 10)).map_err(|_| OverLimit("large answers"))
    }

    pub(super) fn forward(&self, payer: Option<&FlowDistinguisher>) -> Result<ConcurrencyPermit, OverLimit> {
        self.forwards.take(payer)
    }

    pub(super) fn stream(&self, payer: Option<&FlowDistinguisher>) -> Result<ConcurrencyPermit, OverLimit> {
        self.streams.take(payer)
    }

    pub(super) fn unready(&self, payer: Option<&FlowDistinguisher>) -> Result<ConcurrencyPermit, OverLimit> {
        self.unready.take(payer)
    }

    pub(super) fn anonymous(&self) -> Result<ConcurrencyPermit, OverLimit> {
        self.anonymous.take(None)
    }

    /// Awaits what a request needs before it has a place of its own: a decision, a feed, a version, a proof. While it
    /// waits, the request has a place among the waiting ones. What is ready at once takes no place.
    ///
    /// # Errors All places are taken. Nothing is awaited then.
    pub(super) async fn while_waiting<T>(
        &self,
        payer: Option<&FlowDistinguisher>,
        needed: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, OverLimit> {
        self.waiting.while_waiting(payer, needed).await
    }

    /// Awaits authentication, likewise.
    pub(super) async fn while_unknown<T>(&self, needed: Pin<&mut impl Future<Output = T>>) -> Result<T, OverLimit> {
        self.unknown.while_waiting(None, needed).await
    }
}

impl Room {
    /// Makes a room without places. Anybody may have up to `few` of them as long as there are any.
    fn new(what: &'static str, few: usize) -> Self {
        let all = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        let each = Shares::new(Semaphore::MAX_PERMITS);
        Self { what, all, places_max: AtomicUsize::new(0), each, each_max: AtomicUsize::new(0), few }
    }

    fn resize(&self, places: usize, each: usize) {
        self.places_max.store(places, Ordering::Relaxed);
        self.each_max.store(each, Ordering::Relaxed);
    }

    fn take(&self, payer: Option<&FlowDistinguisher>) -> Result<ConcurrencyPermit, OverLimit> {
        self.take_many(payer, 1)
    }

    async fn while_waiting<T>(
        &self,
        payer: Option<&FlowDistinguisher>,
        mut needed: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, OverLimit> {
        let first = poll_fn(|cx| Poll::Ready(needed.as_mut().poll(cx))).await;
        if let Poll::Ready(done) = first {
            return Ok(done);
        }
        let _place = self.take(payer)?;
        Ok(needed.await)
    }

    /// Takes the places first and looks then, so that those who come at once never have more than there are.
    fn take_many(&self, payer: Option<&FlowDistinguisher>, places: usize) -> Result<ConcurrencyPermit, OverLimit> {
        let (places_max, each_max) = (self.places_max.load(Ordering::Relaxed), self.each_max.load(Ordering::Relaxed));
        let count = u32::try_from(places).unwrap_or(u32::MAX);
        let shed = |_| OverLimit(self.what);
        let own = match payer {
            Some(payer) => {
                let share = self.each.of(payer);
                let own = share.clone().try_acquire_many_owned(count).map_err(shed)?;
                Some((own, taken(&share)))
            }
            None => None,
        };
        let all = self.all.clone().try_acquire_many_owned(count).map_err(shed)?;
        let (held, of_all) = (own.as_ref().map_or(0, |(_, held)| *held), taken(&self.all));
        // A handful of users who fill their shares leave something to everybody else.
        let reserve = if held > self.few { places_max / RESERVE } else { 0 };
        if held > each_max || of_all.saturating_add(reserve) > places_max {
            return Err(OverLimit(self.what));
        }
        Ok(ConcurrencyPermit { _all: all, _own: own.map(|(own, _)| own) })
    }
}

/// How many places are taken of a semaphore that has all of them.
fn taken(of: &Semaphore) -> usize {
    Semaphore::MAX_PERMITS - of.available_permits()
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use super::*;
    use kubeapi::User;

    fn payer(name: &str) -> FlowDistinguisher {
        FlowDistinguisher::of(&User { name: name.to_owned(), ..User::default() })
    }

    fn room(places: usize, each: usize) -> Room {
        let room = Room::new("places", FEW);
        room.resize(places, each);
        room
    }

    /// What is under way stays so, and counts.
    #[test]
    fn limits_may_change_while_places_are_taken() {
        let (room, ada) = (room(100, 10), payer("ada"));
        let mut held: Vec<_> = std::iter::from_fn(|| room.take(Some(&ada)).ok()).collect();
        room.resize(100, 12);
        held.extend(std::iter::from_fn(|| room.take(Some(&ada)).ok()));
        assert_eq!(held.len(), 12);
        room.resize(4, 2);
        assert_eq!(room.take(None).err(), Some(OverLimit("places")));
        held.truncate(3);
        assert!(room.take(None).is_ok() && room.take(Some(&ada)).is_err(), "one is left, and not for her");
    }

    /// R-LIMIT-1: one user leaves room for the others.
    #[test]
    fn nobody_takes_more_than_a_share() {
        let (ada, bob) = (payer("ada"), payer("bob"));
        let room = room(5, 3);
        let adas: Vec<_> = std::iter::from_fn(|| room.take(Some(&ada)).ok()).collect();
        assert_eq!(adas.len(), 3);
        let bobs: Vec<_> = std::iter::from_fn(|| room.take(Some(&bob)).ok()).collect();
        assert_eq!((bobs.len(), room.take(None).err()), (2, Some(OverLimit("places"))));
        drop(adas);
        assert!(room.take(Some(&ada)).is_ok() && room.take(None).is_ok());
    }

    /// Whatever a handful of users hold for as long as they can, somebody else finds a place.
    #[test]
    fn a_handful_of_users_who_fill_their_shares_leave_something_to_everybody_else() {
        let room = room(600, 200);
        let greedy: Vec<_> = ["a", "b", "c", "d", "e"].map(payer).into();
        let held: Vec<_> = greedy.iter().flat_map(|of| std::iter::from_fn(|| room.take(Some(of)).ok())).collect();
        assert!(held.len() <= 600 - 600 / RESERVE + greedy.len() * FEW, "{}", held.len());
        let mut others = Vec::new();
        for name in 0..10 {
            let other = payer(&name.to_string());
            others.extend((0..FEW).map(|_| room.take(Some(&other)).expect("there is a place for a few")));
            assert_eq!(room.take(Some(&other)).err(), Some(OverLimit("places")), "and for no more");
        }
        drop(held);
        let other = payer("0");
        assert!((0..100).all(|_| room.take(Some(&other)).map(|place| others.push(place)).is_ok()));
    }

    /// Ten thousand watches of one caller hold no more with long selectors than with none.
    #[test]
    fn a_watch_is_charged_for_what_its_selector_holds() {
        let admission = ConcurrencyLimits::new(&ConcurrencyConfig {
            watches_max: 100,
            watches_per_caller_max: 50,
            ..ConcurrencyConfig::default()
        });
        let ada = payer("ada");
        let ada = Some(&ada);
        let open = |payer, bytes| std::iter::from_fn(|| admission.watch(payer, bytes).ok()).collect::<Vec<_>>();
        let plain = open(ada, WATCH_SELECTOR_BYTES - 1);
        assert_eq!(plain.len(), 50, "an ordinary one has room in its own place");
        drop(plain);
        let dear = open(ada, 16 << 10);
        assert_eq!(dear.len(), 50 / 9);
        assert_eq!(admission.watch(ada, 16 << 10).err(), Some(OverLimit("watches")));
        assert_eq!(open(None, 0).len(), 100 - 5 * 9, "the others have the rest");
        drop(dear);
        assert_eq!(open(ada, 0).len(), 50);
    }

    /// A user's waiting requests are limited before they wait; what is ready at once is never refused.
    #[test]
    fn waiting_request_takes_a_place_and_ready_one_takes_none() {
        let limits = ConcurrencyConfig { lists_bytes_max: 16 * WAITING_BYTES, ..ConcurrencyConfig::default() };
        let (admission, ada, bob) = (ConcurrencyLimits::new(&limits), payer("ada"), payer("bob"));
        let admission = &admission;
        let wait = |payer| Box::pin(async move { admission.while_waiting(Some(payer), pin!(pending::<()>())).await });
        let mut waiting: Vec<_> = (0..8).map(|_| wait(&ada)).collect();
        assert!(waiting.iter_mut().all(|wait| wait.now_or_never().is_none()));
        assert_eq!(wait(&ada).now_or_never(), Some(Err(OverLimit("waiting requests"))), "half of them are one user's");
        let there = Box::pin(async { admission.while_waiting(Some(&ada), pin!(ready(1))).await });
        assert_eq!(there.now_or_never(), Some(Ok(1)));
        let mut bobs: Vec<_> = (0..FEW).map(|_| wait(&bob)).collect();
        assert!(bobs.iter_mut().all(|wait| wait.now_or_never().is_none()));
        drop(waiting.pop());
        assert!(wait(&ada).now_or_never().is_none(), "a place that is given back");
    }

    /// However large a list is, it holds what is on its way, and nothing else.
    #[test]
    fn lists_are_charged_what_they_hold() {
        let admission =
            ConcurrencyLimits::new(&ConcurrencyConfig { lists_bytes_max: 2 << 20, ..ConcurrencyConfig::default() });
        let ada = payer("ada");
        let large: Vec<_> = std::iter::from_fn(|| admission.list(Some(&ada), usize::MAX).ok()).collect();
        assert_eq!(large.len(), 4, "half of it is one user's share");
        assert_eq!(admission.list(Some(&ada), 1).err(), Some(OverLimit("lists")));
        let small: Vec<_> = std::iter::from_fn(|| admission.list(None, 100).ok()).collect();
        assert_eq!(small.len(), 1 << 10);
        drop(large);
        assert!(admission.list(Some(&ada), 1 << 20).is_ok());
        assert!(admission.list(Some(&ada), 0).is_ok(), "an empty list holds nothing");
    }

    /// A place does not hide what an answer of one piece keeps alive.
    #[test]
    fn an_answer_that_is_all_there_is_charged_its_length() {
        let admission =
            ConcurrencyLimits::new(&ConcurrencyConfig { lists_bytes_max: 8 << 20, ..ConcurrencyConfig::default() });
        let (ada, bob) = (payer("ada"), payer("bob"));
        let held: Vec<_> = std::iter::from_fn(|| admission.whole(Some(&ada), 1 << 20).ok()).collect();
        assert_eq!(held.len(), 4, "half of it is one user's share");
        assert_eq!(admission.list(Some(&ada), 1).err(), Some(OverLimit("lists")), "it is the share of its lists");
        assert!(admission.whole(Some(&bob), 1 << 20).is_ok());
        drop(held);
        assert!(admission.whole(Some(&ada), 4 << 20).is_ok());
    }
}

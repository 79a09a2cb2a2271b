use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::take;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, RuntimeFlavor, RuntimeMetrics};

use super::now_ns;

/// Threads with a runtime each. A task that is spawned on one stays there, and so do the cache lines that it uses. One
/// such thread for connections and one for feeds per core need 0.88 × the CPU of one runtime for both.
/// Clones share the threads, which end with the last clone.
#[derive(Debug, Clone, Default)]
pub struct CoreRuntimes(Arc<PerCoreThreads>);

#[derive(Debug, Default)]
struct PerCoreThreads {
    all: Vec<CoreRuntime>,
    /// The core at which the search for a core begins, so that consecutive short tasks go to different cores.
    next: AtomicUsize,
}

#[derive(Debug)]
struct CoreRuntime {
    runtime: Handle,
    thread: JoinHandle<()>,
    core_waker: Arc<CoreWaker>,
    /// The number of tasks on the core.
    load: AtomicUsize,
}

/// A task's share of a core's load, released on drop.
#[derive(Debug)]
pub struct CoreLoadGuard {
    cores: CoreRuntimes,
    number: usize,
}

/// Collects the wakers that a core's own thread should wake. Waking a task of another thread takes a lock and a system
/// call each time; the collector takes them once for a thousand tasks.
#[derive(Default)]
pub struct CoreWaker {
    /// The number of the core, starting at 0.
    number: usize,
    pending: Mutex<PendingWakes>,
    drain_task: AtomicWaker,
}

#[derive(Default)]
struct PendingWakes {
    wakers: Vec<Waker>,
    is_over: bool,
}

/// A set with one value for each core, and one for all other threads.
#[derive(Debug)]
pub struct PerCore<T>(Box<[T]>);

/// The data of a core's thread about its own core.
struct CurrentCore {
    core_waker: Arc<CoreWaker>,
    main_runtime: Option<Handle>,
}

thread_local! {
    static CURRENT_CORE: RefCell<Option<CurrentCore>> = const { RefCell::new(None) };
}

/// Returns the runtime on which the cores were started, if called on a core's thread; elsewhere the current runtime. It
/// runs tasks that other cores also wait for, which must not depend on one core's load.
pub fn main_runtime() -> Handle {
    CURRENT_CORE
        .with_borrow(|current| current.as_ref().and_then(|current| current.main_runtime.clone()))
        .unwrap_or_else(Handle::current)
}

impl CoreRuntimes {
    /// Starts as many cores as the current runtime has threads. A single-threaded runtime gets none, so that all tasks
    /// stay on it; simulations with a virtual clock rely on this.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn matching_runtime() -> io::Result<Self> {
        let runtime = Handle::current();
        match runtime.runtime_flavor() {
            RuntimeFlavor::CurrentThread => Ok(Self::default()),
            _ => Self::start(runtime.metrics().num_workers()),
        }
    }

    /// Starts `count` cores.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(count: usize) -> io::Result<Self> {
        let all = (0..count).map(CoreRuntime::start).collect::<io::Result<_>>()?;
        Ok(Self(Arc::new(PerCoreThreads { all, next: AtomicUsize::new(0) })))
    }

    /// Returns a slot on the core with the fewest tasks; `None` if there are no cores. Threads that have panicked get
    /// no more tasks.
    pub(super) fn slot(&self) -> Option<CoreLoadGuard> {
        let PerCoreThreads { all, next } = &*self.0;
        let first = next.fetch_add(1, Ordering::Relaxed);
        let numbers = (0..all.len()).map(|at| first.wrapping_add(at) % all.len());
        let alive = numbers.filter(|number| !all[*number].thread.is_finished());
        alive.min_by_key(|number| all[*number].load.load(Ordering::Relaxed)).map(|number| self.slot_on(number))
    }

    /// Returns a slot on each core.
    pub(super) fn each(&self) -> impl Iterator<Item = CoreLoadGuard> {
        (0..self.0.all.len()).map(|number| self.slot_on(number))
    }

    fn slot_on(&self, number: usize) -> CoreLoadGuard {
        self.0.all[number].load.fetch_add(1, Ordering::Relaxed);
        CoreLoadGuard { cores: self.clone(), number }
    }
}

impl CoreRuntime {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let core_waker = Arc::new(CoreWaker { number, ..CoreWaker::default() });
        let handle = runtime.handle().clone();
        let main_runtime = Handle::try_current().ok();
        let draining = core_waker.clone();
        let thread = thread::Builder::new().name(format!("core {number}")).spawn(move || {
            CURRENT_CORE.set(Some(CurrentCore { core_waker: draining.clone(), main_runtime }));
            runtime.block_on(poll_fn(|cx| draining.poll_drain(cx)));
        })?;
        Ok(Self { runtime: handle, thread, core_waker, load: AtomicUsize::new(0) })
    }
}

impl Drop for CoreRuntime {
    fn drop(&mut self) {
        self.core_waker.pending.lock().is_over = true;
        self.core_waker.drain_task.wake();
    }
}

impl CoreLoadGuard {
    pub(super) fn runtime(&self) -> &Handle {
        &self.cores.0.all[self.number].runtime
    }
}

impl Drop for CoreLoadGuard {
    fn drop(&mut self) {
        self.cores.0.all[self.number].load.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CoreWaker {
    /// Returns the waker of the current thread's core, if the thread is a core's.
    pub fn here() -> Option<Arc<Self>> {
        CURRENT_CORE.with_borrow(|current| current.as_ref().map(|current| current.core_waker.clone()))
    }

    pub fn number(&self) -> usize {
        self.number
    }

    /// Makes the core's thread wake the given wakers, in their order.
    pub fn notify(&self, wakers: Vec<Waker>) {
        let mut pending = self.pending.lock();
        // A core that was notified and has not run yet finds all of them.
        let is_first = pending.wakers.is_empty();
        if is_first {
            pending.wakers = wakers;
        } else {
            pending.wakers.extend(wakers);
        }
        drop(pending);
        if is_first {
            self.drain_task.wake();
        }
    }

    fn poll_drain(&self, cx: &Context<'_>) -> Poll<()> {
        self.drain_task.register(cx.waker());
        let mut pending = self.pending.lock();
        let (wakers, is_over) = (take(&mut pending.wakers), pending.is_over);
        drop(pending);
        wakers.into_iter().for_each(Waker::wake);
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<T> PerCore<T> {
    /// Creates one value for each possible core; if more cores were started, some share a value.
    pub fn new(make: impl Fn() -> T) -> Self {
        Self(Self::numbers().map(|_| make()).collect())
    }

    /// Like [`new`](Self::new), for a constructor that may fail.
    pub fn try_new<E>(make: impl Fn() -> Result<T, E>) -> Result<Self, E> {
        Self::numbers().map(|_| make()).collect::<Result<_, E>>().map(Self)
    }

    fn numbers() -> Range<usize> {
        0..1 + thread::available_parallelism().map_or(1, usize::from)
    }

    /// Returns the value of the current thread's core.
    pub fn here(&self) -> &T {
        let number =
            CURRENT_CORE.with_borrow(|current| current.as_ref().map_or(0, |current| 1 + current.core_waker.number));
        &self.0[number % self.0.len()]
    }
}

impl fmt::Debug for CoreWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoreWaker").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Detects runtimes that no longer run their tasks. Each runtime [beats](Self::beat); a caller on another thread gets
/// the longest silence of any of them. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct RuntimeHeartbeat(Arc<Mutex<Vec<Arc<RuntimeBeats>>>>);

/// The heartbeats of one runtime.
#[derive(Debug)]
struct RuntimeBeats {
    /// The time of the runtime's last heartbeat.
    last: AtomicU64,
    /// The metrics of the runtime, set at its first heartbeat.
    runtime: OnceLock<RuntimeMetrics>,
}

/// The interval between two heartbeats. Each wakes the process, even an idle one.
const EVERY: Duration = Duration::from_secs(5);
/// The silence after which a runtime is considered lost: a deadlock or an endless loop blocks it, and it serves no
/// requests.
const STALLED_AFTER: Duration = Duration::from_secs(30);

impl RuntimeHeartbeat {
    /// Sends heartbeats on the runtime that runs the future. The silence is measured from this call, even if that
    /// runtime never runs the future.
    pub fn beat(&self) -> impl Future<Output = Infallible> + Send + use<> {
        let beats = Arc::new(RuntimeBeats { last: AtomicU64::new(now_ns()), runtime: OnceLock::new() });
        self.0.lock().push(beats.clone());
        async move {
            beats.runtime.get_or_init(|| Handle::current().metrics());
            loop {
                beats.last.store(now_ns(), Ordering::Relaxed);
                tokio::time::sleep(EVERY).await;
            }
        }
    }

    /// Returns the longest silence of a runtime, beyond the interval between two heartbeats.
    pub fn silent(&self) -> Duration {
        let last = self.0.lock().iter().map(|beats| beats.last.load(Ordering::Relaxed)).min();
        last.map_or(Duration::ZERO, |last| Duration::from_nanos(now_ns().saturating_sub(last)).saturating_sub(EVERY))
    }

    /// Returns the number of tasks on all runtimes that have sent a heartbeat.
    pub fn tasks(&self) -> usize {
        self.0.lock().iter().filter_map(|beats| beats.runtime.get()).map(RuntimeMetrics::num_alive_tasks).sum()
    }

    /// Whether a runtime has sent no heartbeat for so long that it is considered lost.
    pub fn is_stalled(&self) -> bool {
        self.silent() > STALLED_AFTER
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A timeout that ends a hang.
    const SOON: Duration = Duration::from_secs(60);

    /// The number of the current thread's core.
    fn number() -> Option<usize> {
        CoreWaker::here().map(|core_waker| core_waker.number())
    }

    #[test]
    fn tasks_are_balanced_and_never_leave_their_core() {
        let cores = CoreRuntimes::start(3).expect("threads");
        let slots: Vec<_> = (0..6).map(|_| cores.slot().expect("a core")).collect();
        let (sender, received) = mpsc::channel();
        for slot in &slots {
            let sender = sender.clone();
            slot.runtime().spawn(async move {
                let mut seen = vec![number().expect("on a core")];
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                    seen.push(number().expect("on a core"));
                }
                seen.dedup();
                sender.send(seen).expect("the receiver is open");
            });
        }
        let mut seen: Vec<_> = (0..6).map(|_| received.recv_timeout(SOON).expect("they end")).collect();
        seen.sort();
        assert_eq!(seen, [[0], [0], [1], [1], [2], [2]]);
        drop(slots);
        assert!(cores.0.all.iter().all(|core| core.load.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn new_tasks_are_balanced_after_earlier_ones_end() {
        let cores = CoreRuntimes::start(3).expect("threads");
        let mut numbers: Vec<_> = (0..6).map(|_| cores.slot().expect("a core").number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn panicked_core_receives_no_new_tasks() {
        struct Panics;
        impl std::task::Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("a fault of ours");
            }
        }
        let cores = CoreRuntimes::start(2).expect("threads");
        cores.0.all[0].core_waker.notify(vec![Arc::new(Panics).into()]);
        let began = std::time::Instant::now();
        while !cores.0.all[0].thread.is_finished() && began.elapsed() < SOON {
            thread::yield_now();
        }
        assert!((0..4).all(|_| cores.slot().is_some_and(|slot| slot.number == 1)));
    }

    #[test]
    fn every_waker_runs_in_order_on_the_thread_of_its_core() {
        struct Noted(mpsc::Sender<(usize, Option<usize>)>, usize);
        impl std::task::Wake for Noted {
            fn wake(self: Arc<Self>) {
                self.0.send((self.1, number())).expect("the receiver is open");
            }
        }
        let cores = CoreRuntimes::start(2).expect("threads");
        let (sender, received) = mpsc::channel();
        for round in 0..1_000 {
            let waker = |n| Waker::from(Arc::new(Noted(sender.clone(), n)));
            cores.0.all[1].core_waker.notify(vec![waker(2 * round), waker(2 * round + 1)]);
        }
        for n in 0..2_000 {
            assert_eq!(received.recv_timeout(SOON).expect("it is woken"), (n, Some(1)));
        }
    }

    #[test]
    fn dropping_last_clone_ends_threads_and_drops_tasks() {
        let cores = CoreRuntimes::start(2).expect("threads");
        let (sender, dropped) = mpsc::channel::<()>();
        let slot = cores.slot().expect("a core");
        slot.runtime().spawn(async move {
            let _sender = sender;
            std::future::pending::<()>().await;
        });
        drop((slot, cores));
        assert_eq!(dropped.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[tokio::test]
    async fn single_threaded_runtime_starts_no_cores() {
        assert!(CoreRuntimes::matching_runtime().expect("nothing is started").slot().is_none());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn multi_threaded_runtime_starts_one_core_per_worker() {
        assert_eq!(CoreRuntimes::matching_runtime().expect("threads").0.all.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn runtime_is_lost_only_after_its_heartbeat_stops() {
        let heartbeat = RuntimeHeartbeat::default();
        let (_other, beating) = (tokio::spawn(heartbeat.beat()), tokio::spawn(heartbeat.beat()));
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(
                heartbeat.silent() < Duration::from_millis(10) && !heartbeat.is_stalled(),
                "{:?}",
                heartbeat.silent()
            );
        }
        assert_eq!(heartbeat.tasks(), 2 * 2, "two tasks, counted twice: this runtime beats twice");
        beating.abort();
        tokio::time::sleep(STALLED_AFTER).await;
        assert!(!heartbeat.is_stalled(), "{:?}", heartbeat.silent());
        tokio::time::sleep(2 * EVERY).await;
        assert!(heartbeat.is_stalled(), "{:?}", heartbeat.silent());
    }
}

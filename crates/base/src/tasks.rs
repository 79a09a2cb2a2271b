use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::{CoreLoadGuard, CoreRuntimes};
use tokio::sync::watch;

/// The owner of background tasks: each has a name, and all end with their owner.
///
/// Clones share the owner. Every long-lived task is spawned here, so that none outlives a shutdown unnoticed.
#[derive(Clone, Debug, Default)]
pub struct BackgroundTasks {
    tracker: TaskTracker,
    /// The runtime of tasks that are not spread over cores; `None` for the runtime on which they are spawned.
    main_runtime: Option<Handle>,
    cores: CoreRuntimes,
    running: Arc<Mutex<RunningTasks>>,
    /// The first critical task that has panicked.
    critical_panic: watch::Sender<Option<&'static str>>,
}

#[derive(Debug, Default)]
struct RunningTasks {
    /// The abort handles of the tasks, once they are spawned. If a task also waited for a stop signal, it would check
    /// that at each poll.
    ///
    /// A sharded map is no faster. With one, two and four threads, a task took 108, 242 and 538 ns with this lock, and
    /// 126, 275 and 521 ns with shards.
    handles: HashMap<u64, Option<AbortHandle>>,
    next: u64,
    are_stopped: bool,
}

/// Reports a panic when it is dropped by one, because the runtime catches it and it would go unnoticed.
struct TaskPanicGuard {
    name: &'static str,
    critical_panic: watch::Sender<Option<&'static str>>,
}

/// Removes a task from the list when it ends in any way.
struct TaskEntryGuard {
    running: Arc<Mutex<RunningTasks>>,
    number: u64,
}

impl BackgroundTasks {
    pub fn new() -> Self {
        Self::default()
    }

    /// An owner whose tasks run on the current runtime, wherever they are spawned, except those that are
    /// [spread](Self::spread) over `cores`.
    pub fn with_cores(cores: CoreRuntimes) -> Self {
        Self { main_runtime: Some(Handle::current()), cores, ..Self::default() }
    }

    /// Runs `future` until it ends or the tasks are stopped, whichever comes first.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.spawn_at(None, name, future);
    }

    /// Runs `future` like [`spawn`](Self::spawn), on the core with the fewest such tasks if there are cores.
    pub fn spread(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.spawn_at(self.cores.slot(), name, future);
    }

    /// Runs a future of `make` on each core, and one on the main runtime.
    pub fn spawn_on_each<F: Future<Output = ()> + Send + 'static>(&self, name: &'static str, make: impl Fn() -> F) {
        self.spawn(name, make());
        self.cores.each().for_each(|slot| self.spawn_at(Some(slot), name, make()));
    }

    fn spawn_at(
        &self,
        slot: Option<CoreLoadGuard>,
        name: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        // Boxed once: a future that is moved into a block that awaits it would take twice its size.
        let future = Box::pin(future);
        let Some(entry) = self.enter() else { return };
        let number = entry.number;
        let runtime = slot.as_ref().map_or(self.main_runtime.as_ref(), |slot| Some(slot.runtime())).cloned();
        let work = async move {
            let _guards = (entry, slot);
            future.await;
        };
        let work = work.instrument(tracing::debug_span!("task", name));
        // Spawned without the lock, because a runtime that shuts down drops the task at once.
        let task = match runtime {
            Some(runtime) => self.tracker.spawn_on(work, &runtime),
            None => self.tracker.spawn(work),
        };
        let mut running = self.running.lock();
        if running.are_stopped {
            task.abort();
        }
        if let Some(handle) = running.handles.get_mut(&number) {
            *handle = Some(task.abort_handle());
        }
    }

    /// Runs a `future` that the owner depends on, such as one that reloads credentials: if it panics,
    /// [`critical_panic`](Self::critical_panic) completes. Other tasks serve one connection or one resource, and are replaced by later
    /// ones.
    pub fn spawn_critical(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        let guard = TaskPanicGuard { name, critical_panic: self.critical_panic.clone() };
        let future = Box::pin(future);
        self.spawn(name, async move {
            let _guard = guard;
            future.await;
        });
    }

    /// Completes with the name of the first critical task that has panicked.
    pub async fn critical_panic(&self) -> &'static str {
        let mut panic = self.critical_panic.subscribe();
        // `self` holds a sender, so waiting cannot fail.
        panic.wait_for(Option::is_some).await.ok().and_then(|name| *name).unwrap_or_default()
    }

    /// Adds a task to the list; returns `None` once the tasks are stopped.
    fn enter(&self) -> Option<TaskEntryGuard> {
        let mut running = self.running.lock();
        if running.are_stopped {
            return None;
        }
        let number = running.next;
        running.next += 1;
        running.handles.insert(number, None);
        Some(TaskEntryGuard { running: self.running.clone(), number })
    }

    /// Waits at most `longest` for tasks to end, then aborts the others.
    pub async fn finish(&self, longest: Duration) {
        self.tracker.close();
        let _ = timeout(longest, self.tracker.wait()).await;
        self.join().await;
    }

    /// Aborts all tasks and waits for the last one.
    pub async fn join(&self) {
        let handles: Vec<_> = {
            let mut running = self.running.lock();
            running.are_stopped = true;
            running.handles.values().flatten().cloned().collect()
        };
        handles.iter().for_each(AbortHandle::abort);
        self.tracker.close();
        self.tracker.wait().await;
    }
}

impl Drop for TaskPanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.critical_panic.send_if_modified(|first| first.replace(first.unwrap_or(self.name)).is_none());
        }
    }
}

impl Drop for TaskEntryGuard {
    fn drop(&mut self) {
        self.running.lock().handles.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::CoreWaker;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn spawn_uses_the_home_runtime_even_when_called_on_a_core() {
        let tasks = BackgroundTasks::with_cores(CoreRuntimes::start(2).expect("threads"));
        let (sender, mut received) = mpsc::unbounded_channel();
        let reported = |what: &'static str| {
            let sender = sender.clone();
            async move {
                sender
                    .send((what, CoreWaker::here().map(|core_waker| core_waker.number())))
                    .expect("the receiver is open");
            }
        };
        tasks.spawn_on_each("each", || reported("each"));
        let (inner, from_a_core) = (tasks.clone(), reported("from a core"));
        tasks.spread("spread", async move { inner.spawn("home", from_a_core) });
        drop(sender);
        let mut seen = Vec::new();
        while let Some(one) = received.recv().await {
            seen.push(one);
        }
        seen.sort_unstable();
        let each = [None, Some(0), Some(1)].map(|core| ("each", core));
        assert_eq!(seen, [&each[..], &[("from a core", None)]].concat());
        tasks.join().await;
    }

    /// Sends a message when it is dropped.
    struct NotifyOnDrop(Option<oneshot::Sender<()>>);

    impl Drop for NotifyOnDrop {
        fn drop(&mut self) {
            let _ = self.0.take().map(|reported| reported.send(()));
        }
    }

    #[tokio::test]
    async fn only_a_panicked_needed_task_is_reported_as_lost() {
        let tasks = BackgroundTasks::new();
        tasks.spawn("one of many", async { panic!("not needed") });
        tasks.spawn_critical("ended", async {});
        tasks.spawn_critical("aborted", pending());
        tasks.join().await;
        assert_eq!(*tasks.critical_panic.borrow(), None);
        let tasks = BackgroundTasks::new();
        tasks.spawn_critical("rights", async { panic!("it is over") });
        assert_eq!(tasks.critical_panic().await, "rights");
    }

    #[tokio::test]
    async fn join_ends_all_tasks_and_later_spawns_never_run() {
        let tasks = BackgroundTasks::new();
        let (tx, mut reported) = oneshot::channel();
        let guard = NotifyOnDrop(Some(tx));
        tasks.spawn("short", async {});
        tasks.spawn("long", async move {
            let _guards = guard;
            pending::<()>().await;
        });
        tasks.join().await;
        assert_eq!(reported.try_recv(), Ok(()), "join waits until the task is dropped");
        let (tx, reported) = oneshot::channel();
        let guard = NotifyOnDrop(Some(tx));
        tasks.spawn("late", async move {
            let _guards = guard;
            pending::<()>().await;
        });
        assert_eq!(reported.await, Ok(()), "it was dropped without being polled");
        assert!(tasks.running.lock().handles.is_empty());
    }
}

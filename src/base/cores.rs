use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::future::poll_fn;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};

#[derive(Debug)]
pub struct Core {
    pub handle: Handle,
    pub load: AtomicUsize,
}

#[derive(Debug, Default)]
pub struct Bell {
    pub number: usize,
    waiting: Mutex<Vec<Waker>>,
    sweep: AtomicWaker,
}

thread_local! {
    static HERE: RefCell<Option<Arc<Bell>>> = const { RefCell::new(None) };
}

pub fn here() -> Option<Arc<Bell>> {
    HERE.with_borrow(Clone::clone)
}

static CORES: OnceLock<Vec<Arc<Core>>> = OnceLock::new();

pub fn pick() -> Option<Arc<Core>> {
    let cores = CORES.get()?;
    let core = cores.iter().min_by_key(|core| core.load.load(Ordering::Relaxed))?;
    Some(core.clone())
}

pub fn start(count: usize) -> io::Result<()> {
    let mut cores = Vec::new();
    for number in 0..count {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        cores.push(Arc::new(Core { handle: runtime.handle().clone(), load: AtomicUsize::new(0) }));
        thread::Builder::new().name(format!("core-{number}")).spawn(move || {
            let bell = Arc::new(Bell { number, ..Bell::default() });
            HERE.set(Some(bell.clone()));
            runtime.block_on(poll_fn(move |cx| bell.poll_sweep(cx)));
        })?;
    }
    let _ = CORES.set(cores);
    Ok(())
}

impl Bell {
    pub fn ring(&self, wakers: Vec<Waker>) {
        let mut waiting = self.waiting.lock();
        let was_empty = waiting.is_empty();
        if was_empty {
            *waiting = wakers;
        } else {
            waiting.extend(wakers);
        }
        drop(waiting);
        if was_empty {
            self.sweep.wake();
        }
    }

    fn poll_sweep(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.sweep.register(cx.waker());
        std::mem::take(&mut *self.waiting.lock()).into_iter().for_each(Waker::wake);
        Poll::Pending
    }
}

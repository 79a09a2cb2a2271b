use std::sync::Arc;
use std::task::Waker;

use base::CoreWaker;

/// The readers to wake once no lock is held, grouped by core. Proxies are woken first in each group, because other
/// clients wait for them.
#[derive(Debug, Default)]
pub(super) struct PendingWakeups {
    /// Readers that belong to no core.
    elsewhere: WokenReaders,
    cores: Vec<Option<(Arc<CoreWaker>, WokenReaders)>>,
}

#[derive(Debug, Default)]
struct WokenReaders {
    proxies: Vec<Waker>,
    others: Vec<Waker>,
}

impl PendingWakeups {
    pub(super) fn add(&mut self, waker: Waker, is_proxy: bool, core: Option<&Arc<CoreWaker>>) {
        let readers = match core {
            None => &mut self.elsewhere,
            Some(bell) => {
                let number = bell.number();
                if number >= self.cores.len() {
                    self.cores.resize_with(number + 1, || None);
                }
                match self.cores[number].get_or_insert_with(|| (bell.clone(), WokenReaders::default())) {
                    (known, readers) if Arc::ptr_eq(known, bell) => readers,
                    // The core belongs to another application in the same process.
                    _ => &mut self.elsewhere,
                }
            }
        };
        if is_proxy { readers.proxies.push(waker) } else { readers.others.push(waker) }
    }

    pub(super) fn wake(self) {
        for (bell, readers) in self.cores.into_iter().flatten() {
            bell.notify(readers.in_order());
        }
        self.elsewhere.in_order().into_iter().for_each(Waker::wake);
    }
}

impl WokenReaders {
    fn in_order(self) -> Vec<Waker> {
        let Self { mut proxies, others } = self;
        if proxies.is_empty() {
            return others;
        }
        proxies.extend(others);
        proxies
    }
}

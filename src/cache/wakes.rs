use std::task::Waker;

/// Readers that are to be woken, once no lock is held: first those that are proxies, behind each of which others wait.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    proxies: Vec<Waker>,
    others: Vec<Waker>,
}

impl Wakes {
    pub(super) fn reserve(&mut self, more: usize) {
        self.others.reserve(more);
    }

    pub(super) fn add(&mut self, waker: Waker, is_proxy: bool) {
        let readers = if is_proxy { &mut self.proxies } else { &mut self.others };
        readers.push(waker);
    }

    pub(super) fn wake(self) {
        self.proxies.into_iter().chain(self.others).for_each(Waker::wake);
    }
}

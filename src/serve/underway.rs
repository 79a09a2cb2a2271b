use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::admission::Place;
use super::gzip::GzipList;
use super::list::ListBody;
use crate::base::Tasks;
use crate::wire::Refused;

/// A LIST on its way out: it has a place, and an end.
///
/// A client that reads slowly keeps a state alive that everybody else has left, so it may for as long as the apiserver
/// lets a LIST last, and not for ever.
#[derive(Debug)]
pub(super) struct Underway {
    list: Arc<Mutex<Option<Written>>>,
    _place: Place,
    _ends: DropGuard,
}

#[derive(Debug)]
pub(super) enum Written {
    Plain(ListBody),
    Gzip(GzipList),
}

/// Why a LIST broke off.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("the list was not read within {} s", LIST_MAX.as_secs())]
    TooSlow,
}

/// The apiserver's `--request-timeout`.
const LIST_MAX: Duration = Duration::from_secs(60);

impl Underway {
    /// From now on.
    pub(super) fn new(list: Written, place: Place, tasks: &Tasks) -> Self {
        let (list, ends) = (Arc::new(Mutex::new(Some(list))), CancellationToken::new());
        let (slow, over) = (list.clone(), ends.clone().cancelled_owned());
        tasks.spawn("list", async move {
            tokio::select! {
                () = over => {}
                () = sleep(LIST_MAX) => *slow.lock() = None,
            }
        });
        Self { list, _place: place, _ends: ends.drop_guard() }
    }

    /// The next chunk; `None` after the last.
    pub(super) fn poll_chunk(&self, cx: &Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        let chunk = match &mut *self.list.lock() {
            Some(Written::Plain(list)) => ready!(list.poll_chunk(cx)),
            Some(Written::Gzip(list)) => ready!(list.poll_chunk(cx)),
            None => return Poll::Ready(Some(Err(Broken::TooSlow))),
        };
        Poll::Ready(chunk.map(|chunk| chunk.map_err(Broken::Refused)))
    }

    /// Everything has been given out.
    pub(super) fn is_over(&self) -> bool {
        matches!(&*self.list.lock(), Some(Written::Plain(list)) if list.is_over())
    }
}

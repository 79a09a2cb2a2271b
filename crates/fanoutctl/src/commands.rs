//! The commands of `fanoutctl`. Each connects parsed arguments to the crate or module that does the work.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod estimate;
pub(crate) mod fanout;
pub(crate) mod size;
pub(crate) mod try_command;
pub(crate) mod verify;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

/// Cancels `stop` when `shutdown` completes, and completes at the next Ctrl-C, because a server that does not respond
/// can delay the clean-up for minutes.
async fn interrupted_twice(shutdown: BoxFuture<'_, ()>, stop: &CancellationToken) {
    shutdown.await;
    stop.cancel();
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

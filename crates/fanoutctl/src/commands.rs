//! The commands of `fanoutctl`. Each connects parsed arguments to the crate or module that does the work.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod estimate;
pub(crate) mod fanout;
pub(crate) mod try_command;
pub(crate) mod verify;

/// Completes at the next Ctrl-C. A command that cleans up after the first one ends at the second, because a server that
/// does not respond can delay it for minutes.
async fn next_interrupt() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

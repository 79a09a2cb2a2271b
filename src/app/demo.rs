//! The `demo` command: an embedded upstream, the proxy, and watchers, in one process.

pub use crate::demo::Options;

/// Runs the demo until its time is up or `shutdown` completes.
pub async fn run(_options: Options, _shutdown: impl Future<Output = ()>) -> Result<(), String> {
    Ok(())
}

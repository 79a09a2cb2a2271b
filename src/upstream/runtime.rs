use std::future::pending;
use std::panic::resume_unwind;

use hyper::rt::Executor;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use base::main_runtime;

/// The runtime on which an upstream connection is opened and driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionRuntime {
    /// The shared runtime. Traffic of many callers on one connection, such as reviews and watches, must not depend on
    /// the load of the core that needed it first.
    Shared,
    /// The runtime of the request that needs the connection.
    Current,
}

impl ConnectionRuntime {
    /// Runs `making` on the selected runtime.
    pub(super) async fn run<F>(self, making: F) -> F::Output
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        match self {
            Self::Current => making.await,
            Self::Shared => match AbortOnDropHandle::new(main_runtime().spawn(making)).await {
                Ok(made) => made,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    // The runtime is shutting down, and so is the caller.
                    Err(_) => pending().await,
                },
            },
        }
    }
}

impl<F> Executor<F> for ConnectionRuntime
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    fn execute(&self, driving: F) {
        let runtime = match self {
            Self::Current => Handle::current(),
            Self::Shared => main_runtime(),
        };
        // The task drives the connection and ends with it.
        runtime.spawn(driving);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tokio::sync::oneshot;

    use super::*;
    use base::{BackgroundTasks, CoreRuntimes};

    #[tokio::test]
    async fn shared_connections_run_on_home_runtime_and_others_locally() {
        let (tasks, home) =
            (BackgroundTasks::with_cores(CoreRuntimes::start(1).expect("threads")), thread::current().id());
        let (sender, receiver) = oneshot::channel();
        tasks.spread("a request", async move {
            let here = thread::current().id();
            let mut seen = Vec::new();
            for runtime in [ConnectionRuntime::Shared, ConnectionRuntime::Current] {
                seen.push(runtime.run(async { thread::current().id() }).await);
                let (thread_sender, reported) = oneshot::channel();
                runtime.execute(async { thread_sender.send(thread::current().id()).expect("the receiver is open") });
                seen.push(reported.await.expect("it runs"));
            }
            sender.send((here, seen)).expect("the receiver is open");
        });
        let (here, seen) = receiver.await.expect("it ends");
        assert_ne!(here, home);
        assert_eq!(seen, [home, home, here, here]);
        tasks.join().await;
    }
}

use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use crate::admin::{AdminPages, guarded};
use crate::auth::BrowserGuard;
use crate::net::{Address, bind_tcp_beside_peers, bind_unix};

/// The admin listener: bound with the others, served on a thread and a runtime of its own.
pub(super) struct Admin {
    listener: AdminListener,
    pages: AdminPages,
    browsers: BrowserGuard,
}

enum AdminListener {
    Tcp(StdTcpListener),
    Unix(StdUnixListener, PathBuf),
}

/// The running admin server.
pub(super) struct RunningAdmin {
    stop: CancellationToken,
    thread: JoinHandle<()>,
}

/// How often histograms are folded: what they gather meanwhile is what they hold, whether or not anybody scrapes.
const UPKEEP: Duration = Duration::from_secs(1);

impl Admin {
    pub(super) fn bind(
        address: &Address,
        reuse_port: bool,
        pages: AdminPages,
        browsers: BrowserGuard,
    ) -> io::Result<Self> {
        let listener = match address {
            Address::Tcp(tcp) if reuse_port => AdminListener::Tcp(bind_tcp_beside_peers(*tcp)?),
            Address::Tcp(tcp) => {
                let listener = StdTcpListener::bind(tcp)?;
                listener.set_nonblocking(true)?;
                AdminListener::Tcp(listener)
            }
            Address::Unix(path) => AdminListener::Unix(bind_unix(path)?, path.clone()),
        };
        Ok(Self { listener, pages, browsers })
    }

    pub(super) fn address(&self) -> String {
        match &self.listener {
            AdminListener::Tcp(listener) => {
                listener.local_addr().map_or_else(|error| error.to_string(), |address| format!("http://{address}"))
            }
            AdminListener::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }

    /// Has its descriptors when it returns: whoever connects afterwards cannot take them.
    pub(super) fn start(self) -> io::Result<RunningAdmin> {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().thread_name("ops").build()?;
        let thread = std::thread::spawn(move || runtime.block_on(self.serve(stopped)));
        Ok(RunningAdmin { stop, thread })
    }

    async fn serve(self, stop: CancellationToken) {
        let Self { listener, pages, browsers } = self;
        let exporter = pages.exporter.clone();
        let router = pages.router();
        let serving = async {
            let ended = match listener {
                AdminListener::Tcp(listener) => match TcpListener::from_std(listener) {
                    Ok(listener) => axum::serve(listener, guarded(router, browsers)).await,
                    Err(error) => Err(error),
                },
                AdminListener::Unix(listener, path) => match UnixListener::from_std(listener) {
                    Ok(listener) => {
                        let _removed = RemoveOnDrop(path);
                        axum::serve(listener, router).await
                    }
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = ended {
                tracing::error!(%error, "admin pages ended");
            }
        };
        let upkeep = async {
            loop {
                tokio::time::sleep(UPKEEP).await;
                exporter.upkeep();
            }
        };
        tokio::select! {
            () = serving => {}
            () = upkeep => {}
            () = stop.cancelled() => {}
        }
    }
}

struct RemoveOnDrop(PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl RunningAdmin {
    pub(super) fn stop(self) {
        self.stop.cancel();
        if self.thread.join().is_err() {
            tracing::error!("the admin thread panicked");
        }
    }
}

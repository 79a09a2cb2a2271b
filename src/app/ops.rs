use std::convert::Infallible;
use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use crate::admin::{AdminAnswer, AdminPages};
use crate::auth::BrowserGuard;
use crate::base::Tasks;
use crate::net::{Address, bind_tcp_beside_peers, bind_unix};

/// The admin listener. It is bound with the others, and served on a thread and a runtime of its own.
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

/// How often histograms are folded. Until then they hold every sample, so this bounds their memory, scraped or not.
const UPKEEP: Duration = Duration::from_secs(1);
/// The pause after a failed accept: the usual reason is that there is no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

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

    /// Starts the server. When this returns, its runtime has its descriptors; later connections cannot take them.
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
        let serving = async {
            let Err(error) = serve_pages(listener, pages, browsers).await;
            tracing::error!(%error, "admin pages ended");
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

type Answers = Arc<dyn Fn(&Request<Incoming>) -> AdminAnswer + Send + Sync>;

async fn serve_pages(listener: AdminListener, pages: AdminPages, browsers: BrowserGuard) -> io::Result<Infallible> {
    match listener {
        AdminListener::Tcp(listener) => {
            let listener = TcpListener::from_std(listener)?;
            let answers: Answers = Arc::new(move |request| pages.answer_guarded(&browsers, request));
            Ok(accept(async || Ok(listener.accept().await?.0), &answers).await)
        }
        AdminListener::Unix(listener, path) => {
            let listener = UnixListener::from_std(listener)?;
            let _removed = RemoveOnDrop(path);
            let answers: Answers = Arc::new(move |request| pages.answer(request));
            Ok(accept(async || Ok(listener.accept().await?.0), &answers).await)
        }
    }
}

async fn accept<S>(mut next: impl AsyncFnMut() -> io::Result<S>, answers: &Answers) -> Infallible
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let tasks = Tasks::new();
    loop {
        match next().await {
            Ok(stream) => tasks.spawn("admin connection", serve(stream, answers.clone())),
            Err(error) => {
                tracing::warn!(%error, "cannot accept for the admin pages");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, answers: Answers) {
    let service = service_fn(async |request| Ok::<_, Infallible>(answers(&request)));
    if let Err(error) = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "an admin connection ended");
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

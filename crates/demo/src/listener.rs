//! The listening socket and its connections.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use super::freeze::FreezableSocket;
use super::http::handle;
use super::shared::DemoState;

const BACKLOG: u32 = 4096;
/// The HTTP/2 window and frame size that the apiserver announces.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const FRAME_BYTES_MAX: u32 = 256 * 1024;
/// How long a connection may take to close when the upstream stops. Streams end immediately then. Only a client that
/// does not read takes longer, and the upstream does not wait for it.
const GOODBYE: Duration = Duration::from_secs(2);
/// The buffer of an in-memory connection in each direction, in bytes.
const IN_MEMORY_BYTES: usize = 256 * 1024;
/// The pause before another attempt to listen on the port.
const LISTEN_AGAIN: Duration = Duration::from_millis(2);

/// A port that no other process can take, even while the upstream does not listen: a second socket is bound to it and
/// never listens.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    pub(crate) address: SocketAddr,
    _held: TcpSocket,
}

impl ReservedPort {
    pub(crate) fn hold(address: SocketAddr) -> io::Result<Self> {
        let reserved = socket(address)?;
        Ok(Self { address: reserved.local_addr()?, _held: reserved })
    }

    pub(crate) fn listen(&self) -> io::Result<TcpListener> {
        socket(self.address)?.listen(BACKLOG)
    }
}

fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Carries out a test's orders to go up or down, for an upstream without a port.
pub(crate) async fn follow_orders(shared: Arc<DemoState>) {
    let mut listening = shared.listening.subscribe();
    loop {
        let open = *listening.borrow_and_update();
        shared.bound.send_replace(open);
        tokio::select! {
            biased;
            () = shared.stopping.cancelled() => return,
            _ = listening.changed() => {}
        }
    }
}

/// Accepts connections until the upstream stops. While it is down, the port refuses connections.
pub(crate) async fn accept(port: ReservedPort, mut listener: TcpListener, shared: Arc<DemoState>) {
    let mut listening = shared.listening.subscribe();
    loop {
        loop {
            tokio::select! {
                biased;
                () = shared.stopping.cancelled() => return,
                _ = listening.wait_for(|open| !*open) => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => drop(shared.tasks.spawn(serve(stream, shared.clone()))),
                    // No descriptor is left, or the client has disconnected: neither is a reason to stop.
                    Err(error) => tracing::debug!(%error, "cannot accept a connection"),
                },
            }
        }
        drop(listener);
        shared.bound.send_replace(false);
        tokio::select! {
            biased;
            () = shared.stopping.cancelled() => return,
            _ = listening.wait_for(|open| *open) => {}
        }
        listener = loop {
            match port.listen() {
                Ok(listener) => break listener,
                // A recently forked child process keeps the old socket open until it executes its program.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && !shared.stopping.is_cancelled() => {
                    sleep(LISTEN_AGAIN).await;
                }
                Err(error) => {
                    let address = port.address;
                    return tracing::error!(
                        %address, %error,
                        "cannot listen again after an outage; demo upstream is down"
                    );
                }
            }
        };
        shared.bound.send_replace(true);
    }
}

async fn serve(stream: TcpStream, shared: Arc<DemoState>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY on a connection");
    }
    shared.counts.note(|counts| counts.connections += 1);
    let reset = Arc::new(AtomicBool::new(false));
    let socket = FreezableSocket::new(stream, shared.faults.freeze.clone(), reset.clone());
    converse(socket, shared, || reset.store(true, Ordering::SeqCst)).await;
}

/// Opens a connection within this process, without a socket; `None` while the upstream is down.
pub(crate) fn connect(shared: &Arc<DemoState>) -> Option<DuplexStream> {
    if !*shared.bound.borrow() {
        return None;
    }
    let (near, far) = tokio::io::duplex(IN_MEMORY_BYTES);
    shared.counts.note(|counts| counts.connections += 1);
    let shared = shared.clone();
    drop(shared.tasks.clone().spawn(async move { converse(far, shared, || {}).await }));
    Some(near)
}

/// Serves a connection until it ends or the upstream stops. If a test drops all connections, it calls `reset`.
async fn converse<T>(io: T, shared: Arc<DemoState>, reset: impl FnOnce())
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(handle(shared, request).await) }
    });
    let builder = builder(&shared);
    let mut generation = shared.connections.subscribe();
    let connection = builder.serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    tokio::select! {
        biased;
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                tracing::trace!(%error, "connection failed");
            }
        }
        _ = generation.changed() => reset(),
        () = shared.stopping.cancelled() => {
            connection.as_mut().graceful_shutdown();
            // If a client does not close in time, dropping the future closes the connection.
            let _ = timeout(GOODBYE, connection).await;
        }
    }
}

fn builder(shared: &DemoState) -> auto::Builder<TrackedExecutor> {
    let mut builder = auto::Builder::new(TrackedExecutor(shared.tasks.clone()));
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(shared.settings.streams_max)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX);
    builder
}

/// An executor for the tasks of HTTP/2 streams. It lets `stop` wait for them.
#[derive(Clone)]
struct TrackedExecutor(TaskTracker);

impl<F> Executor<F> for TrackedExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, future: F) {
        drop(self.0.spawn(async move { drop(future.await) }));
    }
}

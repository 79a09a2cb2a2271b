//! Connections to the target: one that many HTTP/2 watches share, or one per HTTP/1.1 watch.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST, USER_AGENT};
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

const CONNECT: Duration = Duration::from_secs(5);
/// An answer's head; a proxy may park a watch while it fills its cache.
const ANSWER: Duration = Duration::from_secs(60);
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// Several stream windows, or one slow stream would stop its neighbours.
const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
const FRAME_BYTES_MAX: u32 = 64 * 1024;
const PING_EVERY: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// Where to, and how.
#[derive(Debug)]
pub(super) struct Target {
    /// `HOST:PORT`.
    authority: String,
    protocol: Protocol,
    bearer: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    #[error("no answer in time")]
    Late,
    #[error("the connection failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("not a request: {0}")]
    Request(#[from] http::Error),
}

impl Target {
    pub(super) fn parse(url: &str, protocol: Protocol, bearer: Option<String>) -> Result<Self, String> {
        let authority = url.strip_prefix("http://").ok_or_else(|| format!("{url}: only http:// is spoken here"))?;
        let authority = authority.trim_end_matches('/');
        if authority.contains('/') || !authority.contains(':') {
            return Err(format!("{url}: expected http://HOST:PORT"));
        }
        Ok(Self { authority: authority.to_owned(), protocol, bearer })
    }

    fn request(&self, path: &str) -> Result<Request<Empty<Bytes>>, http::Error> {
        let uri = match self.protocol {
            Protocol::Http1 => path.to_owned(),
            Protocol::Http2 => format!("http://{}{path}", self.authority),
        };
        let mut request = Request::get(uri).header(ACCEPT, "application/json").header(USER_AGENT, "kube-fanout-demo");
        if self.protocol == Protocol::Http1 {
            request = request.header(HOST, &self.authority);
        }
        if let Some(token) = &self.bearer {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        request.body(Empty::new())
    }

    async fn dial(&self) -> Result<TokioIo<TcpStream>, Failed> {
        let stream = timeout(CONNECT, TcpStream::connect(&self.authority)).await.map_err(|_| Failed::Late)??;
        stream.set_nodelay(true)?;
        Ok(TokioIo::new(stream))
    }
}

/// One shared HTTP/2 connection, dialled again when it is gone. For HTTP/1.1 there is nothing to share.
#[derive(Debug)]
pub(super) struct Link {
    target: Arc<Target>,
    tasks: TaskTracker,
    shared: Mutex<Option<http2::SendRequest<Empty<Bytes>>>>,
}

impl Link {
    pub(super) fn new(target: Arc<Target>, tasks: TaskTracker) -> Self {
        Self { target, tasks, shared: Mutex::new(None) }
    }

    /// Sends a GET; the body of the response is still to come.
    pub(super) async fn get(&self, path: &str) -> Result<Response<Incoming>, Failed> {
        let request = self.target.request(path)?;
        let answered = async {
            match self.target.protocol {
                Protocol::Http2 => Ok::<_, Failed>(self.sender().await?.send_request(request).await?),
                Protocol::Http1 => {
                    let (mut sender, connection) = http1::handshake(self.target.dial().await?).await?;
                    // Ends with the response, which the watch holds.
                    drop(self.tasks.spawn(connection));
                    Ok(sender.send_request(request).await?)
                }
            }
        };
        timeout(ANSWER, answered).await.map_err(|_| Failed::Late)?
    }

    async fn sender(&self) -> Result<http2::SendRequest<Empty<Bytes>>, Failed> {
        let mut shared = self.shared.lock().await;
        if let Some(sender) = shared.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX)
            .keep_alive_interval(PING_EVERY)
            .handshake(self.target.dial().await?)
            .await?;
        // Ends when the last sender and the last stream are gone, or the connection is.
        drop(self.tasks.spawn(connection));
        *shared = Some(sender.clone());
        Ok(sender)
    }
}

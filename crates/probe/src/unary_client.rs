use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{Method, StatusCode};
use tokio::sync::Mutex;

use super::link::{self, EstablishedConnection, FlowControlWindows, HttpRequestSender, ProbeRequestError};
use super::protocol::WatchProtocol;
use super::target::{RequestSpec, TargetServer};
use base::BackgroundTasks;

/// The maximum number of bytes of a response body that are kept.
const BODY_BYTES_MAX: usize = 4 << 20;
const WINDOWS: FlowControlWindows =
    FlowControlWindows { stream: 1 << 20, connection: 4 << 20, socket: None, as_go: false };

/// A client for short requests to one server over one connection. It reconnects if the connection breaks.
pub struct UnaryClient {
    target: TargetServer,
    protocol: WatchProtocol,
    tasks: BackgroundTasks,
    connection: Mutex<Option<UnaryConnection>>,
}

struct UnaryConnection {
    sender: HttpRequestSender,
    /// Whether the server has closed the connection, as servers do with idle ones.
    is_over: Arc<AtomicBool>,
}

/// A response whose body has been read.
#[derive(Debug)]
pub struct UnaryResponse {
    pub status: StatusCode,
    pub body: Vec<u8>,
}

impl UnaryClient {
    pub fn new(target: &TargetServer, protocol: WatchProtocol, tasks: &BackgroundTasks) -> Self {
        // A server that speaks WebSocket serves ordinary requests over HTTP/1.1.
        let protocol = if protocol == WatchProtocol::H2 { WatchProtocol::H2 } else { WatchProtocol::H1 };
        Self { target: target.clone(), protocol, tasks: tasks.clone(), connection: Mutex::new(None) }
    }

    pub async fn get(&self, path: &str, accept: &str) -> Result<UnaryResponse, ProbeRequestError> {
        self.call(&RequestSpec::get(path, accept), Bytes::new()).await
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        media: &str,
        body: Bytes,
    ) -> Result<UnaryResponse, ProbeRequestError> {
        self.call(&RequestSpec { method, content_type: media, ..RequestSpec::get(path, "application/json") }, body)
            .await
    }

    async fn call(&self, request: &RequestSpec<'_>, body: Bytes) -> Result<UnaryResponse, ProbeRequestError> {
        let sender = self.sender().await?;
        let called = async {
            let mut answer = sender.send(&self.target, request, body).await?;
            let (body, _) = answer.body.read(BODY_BYTES_MAX).await?;
            Ok(UnaryResponse { status: answer.status, body })
        };
        let called = called.await;
        if called.is_err() {
            *self.connection.lock().await = None;
        }
        called
    }

    async fn sender(&self) -> Result<HttpRequestSender, ProbeRequestError> {
        let mut kept = self.connection.lock().await;
        if let Some(UnaryConnection { sender, is_over }) = &*kept
            && !is_over.load(Ordering::Relaxed)
        {
            return Ok(sender.clone());
        }
        let EstablishedConnection { sender, driver, .. } = link::open(&self.target, self.protocol, WINDOWS).await?;
        let is_over = Arc::new(AtomicBool::new(false));
        let ended = is_over.clone();
        self.tasks.spawn("caller", async move {
            driver.await;
            ended.store(true, Ordering::Relaxed);
        });
        *kept = Some(UnaryConnection { sender: sender.clone(), is_over });
        Ok(sender)
    }
}

impl UnaryResponse {
    /// Returns the response if its status is a success; otherwise an error that begins with `what`.
    pub fn success(self, what: &str) -> Result<Self, String> {
        if self.status.is_success() {
            return Ok(self);
        }
        let object: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let message = object["message"].as_str().unwrap_or_default();
        Err(format!("{what}: {} {message}", self.status))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::target::TargetCredentials;

    #[tokio::test]
    async fn client_reconnects_after_server_closes_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let tasks = BackgroundTasks::new();
        tasks.spawn("server", async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a client");
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.expect("a head"));
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.expect("it reads");
            }
        });
        let target = TargetCredentials::default().target(&url).await.expect("a URL");
        let caller = UnaryClient::new(&target, WatchProtocol::H1, &tasks);
        for _ in 0..3 {
            assert_eq!(caller.get("/", "*/*").await.expect("answered").body, b"ok");
            while !caller.connection.lock().await.as_ref().expect("kept").is_over.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
        }
        tasks.join().await;
    }
}

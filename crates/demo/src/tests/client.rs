//! A test client that exposes the bytes on the wire.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::super::RunningDemoApiserver;

/// The timeout of every wait in a test. It only prevents hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client that opens a connection for each request, so that a fault meets one request at a time.
pub(super) struct Client {
    authority: String,
    /// The in-memory connector; `None` to use the port.
    connector: Option<Connector>,
    http2: bool,
    accept: &'static str,
}

type Connector = Arc<dyn Fn() -> Option<DuplexStream> + Send + Sync>;

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

pub(super) struct Lines {
    body: Incoming,
    buffer: BytesMut,
}

/// How a stream ended, or a connection attempt failed.
#[derive(Debug, PartialEq)]
pub(super) enum End {
    Clean,
    /// The stream broke off, after these bytes of a frame.
    Broken(Bytes),
}

impl Client {
    pub(super) fn of(up: &RunningDemoApiserver) -> Self {
        Self { authority: up.address().to_string(), connector: None, http2: false, accept: "application/json" }
    }

    /// A client of an upstream without a port, for tests that pause the clock.
    pub(super) fn in_memory(up: &RunningDemoApiserver) -> Self {
        Self { connector: Some(Arc::new(up.connector())), ..Self::of(up) }
    }

    pub(super) fn http2(self) -> Self {
        Self { http2: true, ..self }
    }

    pub(super) fn accept(self, accept: &'static str) -> Self {
        Self { accept, ..self }
    }

    async fn send(&self, method: Method, path: &str, media: &str, body: &str) -> Option<http::Response<Incoming>> {
        let uri = if self.http2 { format!("http://{}{path}", self.authority) } else { path.to_owned() };
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("accept", self.accept)
            .header("content-type", media)
            .header("host", &self.authority)
            .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
            .unwrap();
        match &self.connector {
            Some(connect) => self.send_on(connect()?, request).await,
            None => self.send_on(TcpStream::connect(&self.authority).await.ok()?, request).await,
        }
    }

    async fn send_on<T>(&self, io: T, request: Request<Full<Bytes>>) -> Option<http::Response<Incoming>>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let io = TokioIo::new(io);
        let sent = async {
            if self.http2 {
                let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.ok()?;
                drop(tokio::spawn(connection));
                sender.send_request(request).await.ok()
            } else {
                let (mut sender, connection) = http1::handshake(io).await.ok()?;
                drop(tokio::spawn(connection));
                sender.send_request(request).await.ok()
            }
        };
        timeout(PATIENCE, sent).await.unwrap()
    }

    /// Sends a request; `None` if there is no response at all.
    pub(super) async fn try_call(&self, method: Method, path: &str, media: &str, body: &str) -> Option<Answer> {
        let response = self.send(method, path, media, body).await?;
        let (head, body) = response.into_parts();
        let body = timeout(PATIENCE, body.collect()).await.unwrap().ok()?.to_bytes();
        Some(Answer { status: head.status, headers: head.headers, body })
    }

    pub(super) async fn call(&self, method: Method, path: &str, media: &str, body: &str) -> Answer {
        self.try_call(method, path, media, body).await.unwrap()
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, "application/json", "").await
    }

    pub(super) async fn watch(&self, path: &str) -> Lines {
        let response = self.send(Method::GET, path, "application/json", "").await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        Lines { body: response.into_body(), buffer: BytesMut::new() }
    }
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(super) fn names(&self) -> Vec<String> {
        let list = self.json();
        let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
        list["items"].as_array().unwrap().iter().map(name).collect()
    }
}

impl Lines {
    /// Returns the next frame, or the end of the stream.
    pub(super) async fn try_next(&mut self) -> Result<Bytes, End> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer) {
                return Ok(self.buffer.split_to(at + 1).freeze());
            }
            match timeout(PATIENCE, self.body.frame()).await.expect("a frame in time") {
                Some(Ok(frame)) => self.buffer.extend_from_slice(&frame.into_data().unwrap()),
                Some(Err(_)) => return Err(End::Broken(self.buffer.split().freeze())),
                None => return Err(End::Clean),
            }
        }
    }

    pub(super) async fn next(&mut self) -> Value {
        let line = self.try_next().await.unwrap();
        serde_json::from_slice(&line).unwrap()
    }

    pub(super) async fn end(&mut self) -> End {
        self.try_next().await.unwrap_err()
    }

    /// Returns the next event in a short form: `ADDED pod-a @7`.
    pub(super) async fn event(&mut self) -> String {
        let event = self.next().await;
        let metadata = &event["object"]["metadata"];
        let name = metadata["name"].as_str().unwrap_or("-");
        format!("{} {name} @{}", event["type"].as_str().unwrap(), metadata["resourceVersion"].as_str().unwrap_or("-"))
    }
}

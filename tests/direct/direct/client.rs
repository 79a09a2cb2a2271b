//! A client that exposes the raw responses. It opens one connection per request, unless it is configured to share one.

use std::convert::Infallible;

use base::now_ns;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;

use super::io::{Io, Place, Trust};
use super::watch::WatchPlan;
use super::within;

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
    /// Watches are upgraded to WebSocket; everything else is HTTP/1.1.
    WebSocket,
}

impl Protocol {
    pub const ALL: [Self; 3] = [Self::Http1, Self::Http2, Self::WebSocket];
}

/// A client of one listener.
#[derive(Clone)]
pub struct Client {
    place: Place,
    trust: Option<Trust>,
    pub(super) protocol: Protocol,
    /// Receive windows are small, so that the server soon notices when this client stops reading.
    narrow: bool,
    pub(super) token: Option<String>,
    shared: Option<http2::SendRequest<Body>>,
}

/// A request that has not been sent yet.
pub struct Call {
    client: Client,
    method: Method,
    path: String,
    host: Option<String>,
    headers: HeaderMap,
    body: Body,
}

/// A response that has been read to its end.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Path and query, as sent.
    pub path: String,
    pub asked_ns: u64,
    pub came_ns: u64,
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: Option<HeaderMap>,
}

/// HTTP/2 windows of a narrow client in bytes: the protocol's initial value, because hyper's own are larger.
const NARROW_WINDOW: u32 = 65_535;

impl Client {
    pub fn to(place: Place) -> Self {
        Self { place, trust: None, protocol: Protocol::Http1, narrow: false, token: None, shared: None }
    }

    pub fn trusting(self, trust: Option<Trust>) -> Self {
        Self { trust, ..self }
    }

    pub fn over(&self, protocol: Protocol) -> Self {
        Self { protocol, shared: None, ..self.clone() }
    }

    /// A client that sends this bearer token in every request.
    pub fn bearing(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    pub fn narrow(self) -> Self {
        Self { narrow: true, ..self }
    }

    /// A client that sends all its requests on one connection, over HTTP/2.
    pub async fn multiplexed(&self) -> Self {
        self.try_multiplexed().await.expect("a connection")
    }

    /// The same for an address at which the listener may be gone.
    pub async fn try_multiplexed(&self) -> Result<Self, String> {
        let client = self.over(Protocol::Http2);
        let shared = client.http2().await?;
        Ok(Self { shared: Some(shared), ..client })
    }

    pub fn request(&self, method: Method, path: &str) -> Call {
        let mut headers = HeaderMap::new();
        headers.insert("accept", http::HeaderValue::from_static("application/json"));
        if let Some(token) = &self.token {
            headers.insert("authorization", format!("Bearer {token}").parse().expect("a token"));
        }
        Call { client: self.clone(), method, path: path.to_owned(), host: None, headers, body: body("") }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.request(Method::GET, path).send().await
    }

    pub fn watch(&self, path: &str) -> WatchPlan {
        WatchPlan::new(self.clone(), path)
    }

    /// Opens a connection and sends nothing on it.
    pub async fn connect(&self) -> Result<Box<dyn Io>, String> {
        let protocol: &[u8] = if self.protocol == Protocol::Http2 { b"h2" } else { b"http/1.1" };
        self.place.connect(self.trust.as_ref(), protocol, self.narrow).await.map_err(|error| error.to_string())
    }

    /// The upstream URL for a proxy in front of this listener.
    pub fn url(&self) -> String {
        format!("http://{}", self.host())
    }

    /// The origin of a web page from this listener.
    pub fn origin(&self) -> String {
        format!("{}://{}", if self.trust.is_some() { "https" } else { "http" }, self.host())
    }

    pub(super) fn host(&self) -> String {
        self.place.host()
    }

    async fn http2(&self) -> Result<http2::SendRequest<Body>, String> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        if self.narrow {
            builder.initial_stream_window_size(NARROW_WINDOW).initial_connection_window_size(NARROW_WINDOW);
        }
        let io = TokioIo::new(self.connect().await?);
        let (sender, connection) = builder.handshake(io).await.map_err(|error| error.to_string())?;
        drop(tokio::spawn(connection));
        Ok(sender)
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, String> {
        let answer = match (self.protocol, &self.shared) {
            (Protocol::Http2, Some(shared)) => shared.clone().send_request(request).await,
            (Protocol::Http2, None) => self.http2().await?.send_request(request).await,
            (Protocol::Http1 | Protocol::WebSocket, _) => {
                let io = TokioIo::new(self.connect().await?);
                let (mut sender, connection) = http1::handshake(io).await.map_err(|error| error.to_string())?;
                drop(tokio::spawn(connection.with_upgrades()));
                sender.send_request(request).await
            }
        };
        answer.map_err(|error| error.to_string())
    }
}

impl Call {
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().expect("a header's name");
        if name == http::header::ACCEPT {
            self.headers.remove(&name);
        }
        self.headers.append(name, value.parse().expect("a header's value"));
        self
    }

    /// Sends another Host header than the address that is connected to.
    pub fn host(self, host: &str) -> Self {
        Self { host: Some(host.to_owned()), ..self }
    }

    pub fn body(self, text: impl Into<Bytes>) -> Self {
        Self { body: body(text), ..self }
    }

    /// Sends a body that is produced while it is sent.
    pub fn streaming(self, body: Body) -> Self {
        Self { body, ..self }
    }

    /// Sends the request and reads the response to its end.
    pub async fn send(self) -> Answer {
        let what = format!("{} {}", self.method, self.path);
        self.try_send().await.unwrap_or_else(|error| panic!("no answer to {what}: {error}"))
    }

    pub async fn try_send(self) -> Result<Answer, String> {
        let what = format!("{} {}", self.method, self.path);
        let (path, asked_ns) = (self.path.clone(), now_ns());
        let answer = async {
            let (head, body) = self.open().await?.into_parts();
            let body = body.collect().await.map_err(|error| format!("the body broke off: {error}"))?;
            let (status, headers, trailers) = (head.status.as_u16(), head.headers, body.trailers().cloned());
            let (body, came_ns) = (body.to_bytes(), now_ns());
            Ok(Answer { path, asked_ns, came_ns, status, headers, body, trailers })
        };
        within(&what, answer).await
    }

    /// Sends the request, and reads the response only until `is_whole` is true of its body so far. So a watch is read
    /// without a timeout, before which a machine that stalls may not have sent everything.
    pub async fn send_until(self, what: &str, is_whole: impl Fn(&[u8]) -> bool) -> Answer {
        let (path, asked_ns) = (self.path.clone(), now_ns());
        let reading = async {
            let (head, mut body) = self.open().await.expect("a response").into_parts();
            let mut read = BytesMut::new();
            while !is_whole(&read) {
                let frame = body.frame().await.unwrap_or_else(|| panic!("{path} ended before {what}"));
                read.extend_from_slice(frame.expect("the response goes on").data_ref().expect("data"));
            }
            (head, read.freeze())
        };
        let (head, body) = within(what, reading).await;
        let (status, headers) = (head.status.as_u16(), head.headers);
        Answer { path, asked_ns, came_ns: now_ns(), status, headers, body, trailers: None }
    }

    /// Sends the request, and reads the response until the bookmark that ends the initial events.
    pub async fn initial_events(self) -> Answer {
        self.send_until("the end of the initial events", ends_initial_events).await
    }

    /// Sends the request and returns the response with its body unread.
    pub async fn open(self) -> Result<Response<Incoming>, String> {
        let Self { client, method, path, host, headers, body } = self;
        let host = host.unwrap_or_else(|| client.host());
        let scheme = if client.trust.is_some() { "https" } else { "http" };
        let multiplexed = client.protocol == Protocol::Http2;
        let uri = if multiplexed { format!("{scheme}://{host}{path}") } else { path };
        let mut request = Request::builder().method(method).uri(&uri).body(body).expect("a request");
        *request.headers_mut() = headers;
        if !multiplexed {
            request.headers_mut().insert("host", host.parse().expect("a host"));
        }
        within(&format!("the head of {uri}"), client.send(request)).await
    }
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Whether the response came from the cache.
    pub fn is_cached(&self) -> bool {
        self.header("kube-fanout-served") == Some("cache")
    }

    /// The resourceVersion of the list or object.
    pub fn rv(&self) -> u64 {
        self.json()["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).expect("a version")
    }

    pub fn continue_token(&self) -> Option<String> {
        self.json()["metadata"]["continue"].as_str().filter(|token| !token.is_empty()).map(str::to_owned)
    }

    /// The text with its continue token decoded, so that two encodings of the same position compare equal.
    pub fn readable(&self) -> String {
        let text = self.text();
        let Some(token) = self.body.starts_with(b"{").then(|| self.continue_token()).flatten() else { return text };
        let place = String::from_utf8(URL_SAFE_NO_PAD.decode(&token).expect("base64")).expect("text");
        text.replacen(&token, &place.replace(r#""start":"/"#, r#""start":""#), 1)
    }

    /// Keys (`namespace/name`) and versions of a list's items, in order.
    pub fn items(&self) -> Vec<(String, u64)> {
        let list = self.json();
        let item = |item: &Value| {
            let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
            let (namespace, name) = (text("namespace"), text("name"));
            let key = if namespace.is_empty() { name } else { format!("{namespace}/{name}") };
            (key, text("resourceVersion").parse().expect("a version"))
        };
        list["items"].as_array().expect("a list").iter().map(item).collect()
    }

    /// Code and reason of a Status. Its code must equal the HTTP status.
    pub fn refusal(&self) -> (u16, String) {
        let status = self.json();
        assert_eq!((status["kind"].as_str(), status["code"].as_u64()), (Some("Status"), Some(self.status.into())));
        (self.status, status["reason"].as_str().unwrap_or_default().to_owned())
    }
}

/// Fails unless both responses have the same status and the same bytes, apart from the encoding of a continue token.
/// The message shows the first difference.
pub fn assert_alike(what: &str, ours: &Answer, theirs: &Answer) {
    let (a, b) = (ours.readable(), theirs.readable());
    let at = a.bytes().zip(b.bytes()).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
    let around = |text: &str| text.get(at.saturating_sub(120)..(at + 120).min(text.len())).unwrap_or(text).to_owned();
    assert!(
        ours.status == theirs.status && a == b,
        "{what}: {} and {}, which differ at byte {at}\n  ours: {}\ntheirs: {}",
        ours.status,
        theirs.status,
        around(&a),
        around(&b)
    );
}

/// Whether the last event of a JSON watch is the bookmark that ends the initial events.
pub fn ends_initial_events(text: &[u8]) -> bool {
    const END: &[u8] = b"k8s.io/initial-events-end";
    let last = text.strip_suffix(b"\n").and_then(|text| text.rsplit(|byte| *byte == b'\n').next());
    last.is_some_and(|last| last.windows(END.len()).any(|window| window == END))
}

pub fn body(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed_unsync()
}

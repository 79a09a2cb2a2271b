//! Bytes from a socket.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{BackgroundTasks, DrainTrigger};
use bytes::Bytes;
use http::header::{TRANSFER_ENCODING, UPGRADE};
use http::{Request, Response, Version};
use http_body_util::{BodyExt as _, Full, Limited};
use kube_fanout::net::RequestBody;
use kube_fanout::net::{self, ConnectionLimits, ConnectionPeer, ListenAddress, Listener};
use kube_fanout::serve::websocket;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocket};

/// A socket that yields some bytes and then ends.
struct Ended<'a> {
    comes: &'a [u8],
    went: Vec<u8>,
}

impl Read for Ended<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut self.comes, into)
    }
}

impl Write for Ended<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(&mut self.went, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The longest accepted message, and the overhead of a frame, a close and the end of a connection.
const MESSAGE_BYTES_MAX: usize = 4 << 10;
const ANSWER_BYTES_MAX: usize = 256;

/// WebSocket frames: no message exceeds the limit, and the replies are no longer than the input.
pub fn messages(input: &[u8]) {
    let socket = Ended { comes: input, went: Vec::new() };
    let mut socket = WebSocket::from_raw_socket(socket, Role::Server, Some(websocket::limits()));
    while let Ok(message) = socket.read() {
        assert!(message.len() <= MESSAGE_BYTES_MAX, "{} bytes", message.len());
        match message {
            Message::Close(_) => break,
            Message::Ping(_) if socket.flush().is_err() => break,
            _ => {}
        }
    }
    let went = &socket.get_ref().went;
    assert!(went.len() <= input.len() + ANSWER_BYTES_MAX, "{} bytes are answered", went.len());
}

/// Requests on a connection: the target, the version, and whether none may follow.
type SeenRequests = Arc<Mutex<Vec<(String, Version, bool)>>>;

/// A server of kube-fanout, driven by this thread.
struct Server {
    runtime: Runtime,
    path: PathBuf,
    requests: SeenRequests,
    _drain: DrainTrigger,
}

const BODY_BYTES_MAX: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

impl Server {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (process, thread) = (std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(format!("kube-fanout-fuzz-{process}-{thread:?}.sock"));
        let (requests, (drain, watch)) = (SeenRequests::default(), DrainTrigger::new());
        let noted = requests.clone();
        let handle = move |peer: ConnectionPeer, request: Request<RequestBody>| {
            // A body is read only for a known caller; before that, requests are handled one at a time.
            peer.connection.authenticated(None);
            let (head, body) = request.into_parts();
            let is_last = head.headers.contains_key(TRANSFER_ENCODING) || head.headers.contains_key(UPGRADE);
            noted.lock().expect("no panic").push((head.uri.to_string(), head.version, is_last));
            async move {
                let read = Limited::new(body, BODY_BYTES_MAX).collect().await.map(|body| body.to_bytes().len());
                Response::new(Full::new(Bytes::from(format!("{:?}", read.ok()))))
            }
        };
        let entered = runtime.enter();
        let listener = Listener::bind(&ListenAddress::Unix(path.clone())).expect("a socket");
        let serving = net::serve(listener, None, ConnectionLimits::default(), BackgroundTasks::new(), watch, handle);
        runtime.spawn(serving);
        drop(entered);
        Self { runtime, path, requests, _drain: drain }
    }

    /// Sends these bytes and no more. Returns the reply and the requests.
    fn exchange(&self, input: &[u8]) -> (Vec<u8>, Vec<(String, Version, bool)>) {
        self.requests.lock().expect("no panic").clear();
        let received = self.runtime.block_on(async {
            let talk = async {
                let mut socket = UnixStream::connect(&self.path).await.expect("it accepts");
                let mut received = Vec::new();
                // The server may close before it has read everything.
                if socket.write_all(input).await.is_ok() && socket.shutdown().await.is_ok() {
                    let _ = socket.read_to_end(&mut received).await;
                }
                received
            };
            timeout(PATIENCE, talk).await.expect("a connection ends with its client")
        });
        let requests = self.requests.lock().expect("no panic").clone();
        (received, requests)
    }
}

/// A connection of HTTP/1.1 or HTTP/2. Nothing after ambiguous bytes is handled as a request.
pub fn connections(input: &[u8]) {
    std::thread_local! {
        static SERVER: Server = Server::start();
    }
    let (received, requests) = SERVER.with(|server| server.exchange(input));
    for (at, (target, version, is_last)) in requests.iter().enumerate() {
        let is_followed = *version < Version::HTTP_2 && *is_last && at + 1 < requests.len();
        assert!(!is_followed, "{target} is followed by {:?}", &requests[at + 1..]);
    }
    let is_http = received.is_empty() || received.starts_with(b"HTTP/1.") || !received.starts_with(b"HTTP/");
    assert!(is_http, "{}", received.escape_ascii());
}

//! Watches over WebSocket, as the apiserver serves them (R-WS-1, R-WS-2).

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::header::{
    CONNECTION, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Utf8Bytes;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, Role, WebSocketConfig};

use crate::auth::BEARER_PROTOCOL;
use crate::listing::{ScanBudget, cost};
use crate::net::{FilteredStream, ReadFilter};
use crate::serve::response::{ResponseBody, plain};
use crate::serve::watch::session::{WatchBatch, WatchSession};
use crate::wire::{FeedEncoding, websocket_payload};

/// Whether the request opens a WebSocket, as the apiserver detects it: on HTTP/1.1 only.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket")) && requests_upgrade(headers)
}

/// Whether the request asks to upgrade the connection to another protocol.
pub(crate) fn requests_upgrade(headers: &HeaderMap) -> bool {
    let mut connection = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    connection.any(|value| value.to_ascii_lowercase().contains("upgrade"))
}

/// Removes the token from the subprotocols, because it is the caller's credential and must not leave this proxy.
pub fn drop_bearer(headers: &mut HeaderMap) {
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    let offered: Vec<_> = offered
        .flat_map(|value| value.split(',').map(|protocol| protocol.trim().to_owned()).collect::<Vec<_>>())
        .collect();
    if !offered.iter().any(|protocol| protocol.starts_with(BEARER_PROTOCOL)) {
        return;
    }
    let remaining: Vec<_> = offered.into_iter().filter(|protocol| !protocol.starts_with(BEARER_PROTOCOL)).collect();
    match HeaderValue::from_str(&remaining.join(", ")) {
        Ok(remaining) if !remaining.is_empty() => drop(headers.insert(SEC_WEBSOCKET_PROTOCOL, remaining)),
        _ => drop(headers.remove(SEC_WEBSOCKET_PROTOCOL)),
    }
}

/// Returns the 101 for a well-formed handshake, or the error of the apiserver's library for any other.
///
/// Like that library, it accepts no extension, so messages are not compressed (RFC 7692). Most clients that offer
/// `permessage-deflate` are browsers; a client that needs fewer bytes can watch over HTTP with gzip.
pub fn handshake(headers: &HeaderMap) -> Result<Response<ResponseBody>, Response<ResponseBody>> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if text(SEC_WEBSOCKET_VERSION) != Some("13") {
        let mut response = plain(StatusCode::BAD_REQUEST, "missing or bad WebSocket Version");
        response.headers_mut().insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return Err(response);
    }
    let Some(key) = text(SEC_WEBSOCKET_KEY).filter(|key| !key.is_empty()) else {
        return Err(plain(StatusCode::BAD_REQUEST, "mismatch challenge/response"));
    };
    // Any origin is accepted, but it must be present and parse.
    if !text(ORIGIN).is_some_and(is_request_uri) {
        return Err(plain(StatusCode::FORBIDDEN, ""));
    }
    // Like Go, reads only the first header, including its empty items.
    let named = text(SEC_WEBSOCKET_PROTOCOL).map(str::trim).filter(|named| !named.is_empty());
    let protocols: Vec<_> = named
        .into_iter()
        .flat_map(|named| named.split(','))
        .map(str::trim)
        .filter(|protocol| !protocol.starts_with(BEARER_PROTOCOL))
        .collect();
    let mut response = plain(StatusCode::SWITCHING_PROTOCOLS, "");
    let response_headers = response.headers_mut();
    response_headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    response_headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes())) {
        response_headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    match protocols.as_slice() {
        [] => {}
        [only] => {
            if let Ok(protocol) = HeaderValue::from_str(only) {
                response_headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol);
            }
        }
        _ => return Err(plain(StatusCode::BAD_REQUEST, "")),
    }
    Ok(response)
}

/// Whether Go's `url.ParseRequestURI` accepts the text: a path, or a scheme and what follows it. `null` is neither;
/// `file://` is valid.
fn is_request_uri(text: &str) -> bool {
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let in_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.bytes().all(in_scheme) {
        return false;
    }
    let Some(rest) = rest.strip_prefix("//") else { return true };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let port = match host.strip_prefix('[') {
        Some(literal) => match literal.split_once(']') {
            Some((_, "")) => return true,
            Some((_, after)) => after.strip_prefix(':'),
            None => return false,
        },
        None => host.split_once(':').map_or(Some(""), |(_, port)| Some(port)),
    };
    port.is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The maximum size in bytes of a message that a client of a watch may send. All messages are ignored
/// (R-DOWNSTREAM-10).
const MESSAGE_BYTES_MAX: usize = 4 << 10;
/// How long a client may take to read the close frame.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// The number of further bytes from the client that are read and discarded after the close frame, so that the socket is
/// not reset.
const DISCARDED_BYTES_MAX: usize = 4 << 20;
/// The read size in bytes. The library reserves it for the lifetime of the connection.
const READ_BYTES: usize = 4 << 10;

/// Returns the limits for reading clients' messages and writing the proxy's own.
pub fn limits() -> WebSocketConfig {
    WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX))
        .read_buffer_size(READ_BYTES)
        .write_buffer_size(0)
        .max_write_buffer_size(usize::MAX)
}

/// Runs a watch on an upgraded connection until either side ends it or it is aborted. `scan_budget` limits the rate at
/// which the client's messages are read.
pub(crate) async fn run(upgrade: OnUpgrade, encoding: FeedEncoding, session: WatchSession, scan_budget: ScanBudget) {
    let watchdog = session.watchdog().clone();
    tokio::select! {
        biased;
        // An abort also drops unread bytes.
        () = watchdog.abort().aborted() => {}
        () = serve_session(upgrade, encoding, session, scan_budget) => {}
    }
}

async fn serve_session(
    upgrade: OnUpgrade,
    encoding: FeedEncoding,
    mut session: WatchSession,
    mut scan_budget: ScanBudget,
) {
    let Ok(upgraded) = upgrade.await else { return };
    let io = FilteredStream { io: TokioIo::new(upgraded), filter: WebSocketInboundBudget::new() };
    let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(limits())).await;
    let mut batch = WatchBatch::new();
    let code = loop {
        batch.frames.clear();
        tokio::select! {
            biased;
            message = poll_fn(|cx| poll_message(cx, &mut socket, &mut scan_budget)) => match message {
                None => return,
                // The library has already queued the close frame.
                Some(Ok(Message::Close(_))) => break None,
                Some(Err(error)) => match code_for(&error) {
                    Some(code) => break Some(code),
                    None => return,
                },
                // The library answers pings at its next write or flush.
                Some(Ok(Message::Ping(_))) => if socket.flush().await.is_err() { return },
                Some(Ok(_)) => {}
            },
            more = poll_fn(|cx| session.poll_frames(cx, &mut batch)) => match more {
                None => break Some(CloseCode::Normal),
                Some(()) => {
                    socket.get_mut().filter.record_sent(batch.frames.len());
                    if send(&mut socket, encoding, &batch.frames).await.is_err() { return }
                }
            },
        }
    };
    drop(session);
    // Sends TLS's `close_notify`, without which the client could not distinguish the end from a truncation.
    let _ = timeout(CLOSE_MAX, async {
        let _ = match code {
            Some(code) => socket.close(Some(CloseFrame { code, reason: Utf8Bytes::default() })).await,
            None => socket.flush().await,
        };
        let io = &mut socket.get_mut().io;
        let _ = io.shutdown().await;
        // Closing a socket with unread data resets it, which can discard the last bytes sent.
        if code.is_some_and(|code| code != CloseCode::Normal) {
            let mut unread = io.take(DISCARDED_BYTES_MAX as u64);
            let _ = tokio::io::copy(&mut unread, &mut tokio::io::sink()).await;
        }
    })
    .await;
}

/// Reads the client's next message. Messages have no effect, but reading and answering one costs about as much as
/// deriving an object. So the first few are free, and further ones use CPU slices of the client's user.
fn poll_message<S>(
    cx: &mut Context<'_>,
    socket: &mut WebSocketStream<S>,
    scan_budget: &mut ScanBudget,
) -> Poll<Option<Result<Message, WebSocketError>>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let _slice = ready!(scan_budget.poll(cx));
    let message = ready!(socket.poll_next_unpin(cx));
    *scan_budget.left() = scan_budget.left().saturating_sub(cost::DERIVED);
    Poll::Ready(message)
}

type WebSocketError = tokio_tungstenite::tungstenite::Error;

/// Returns the close code for an invalid message (RFC 6455 §7.4.1), or `None` if a close frame can no longer be sent.
fn code_for(error: &WebSocketError) -> Option<CloseCode> {
    match error {
        WebSocketError::Protocol(ProtocolError::ResetWithoutClosingHandshake) => None,
        WebSocketError::Protocol(_) => Some(CloseCode::Protocol),
        WebSocketError::Capacity(_) => Some(CloseCode::Size),
        WebSocketError::Utf8(_) => Some(CloseCode::Invalid),
        WebSocketError::Io(error)
            if error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<InboundBudgetExceeded>) =>
        {
            Some(CloseCode::Policy)
        }
        _ => None,
    }
}

/// Sends one message per event: text for JSON, binary for protobuf.
async fn send<S>(socket: &mut WebSocketStream<S>, encoding: FeedEncoding, batch: &[Bytes]) -> Result<(), WebSocketError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    for frame in batch {
        let payload = websocket_payload(encoding, frame);
        let message = match encoding {
            FeedEncoding::Json | FeedEncoding::Table => Message::Text(Utf8Bytes::try_from(payload)?),
            FeedEncoding::Protobuf => Message::Binary(payload),
        };
        socket.feed(message).await?;
    }
    socket.flush().await
}

/// The budget for what the client of a watch over WebSocket sends. A watch ignores all of it, and each frame costs the
/// server as much as the client. The budget counts bytes, because a fragment or an empty frame is not a message that
/// could be counted.
#[derive(Debug)]
struct WebSocketInboundBudget {
    left: usize,
    /// The time at which `left` was last increased.
    since: Instant,
}

/// The error of a client that exceeded its inbound budget.
#[derive(Debug, thiserror::Error)]
#[error("the client sent too much data on a WebSocket watch, which only sends events")]
struct InboundBudgetExceeded;

/// The burst in bytes that a client may send: about 10,000 empty frames.
const BURST_BYTES_MAX: usize = 64 << 10;
/// The budget for inbound bytes that is added per second.
const BYTES_PER_SECOND: usize = 8 << 10;
/// The additional inbound budget per sent event, for clients that acknowledge events.
const BYTES_PER_EVENT: usize = 1 << 10;

impl WebSocketInboundBudget {
    fn new() -> Self {
        Self { left: BURST_BYTES_MAX, since: Instant::now() }
    }

    /// Adds inbound budget for sent events.
    fn record_sent(&mut self, events: usize) {
        self.add(events.saturating_mul(BYTES_PER_EVENT));
    }

    fn add(&mut self, bytes: usize) {
        self.left = self.left.saturating_add(bytes).min(BURST_BYTES_MAX);
    }

    fn spend(&mut self, bytes: usize) -> Result<(), InboundBudgetExceeded> {
        let now = Instant::now();
        let passed = usize::try_from(now.duration_since(self.since).as_millis()).unwrap_or(usize::MAX);
        let earned = passed.saturating_mul(BYTES_PER_SECOND) / 1_000;
        if earned > 0 {
            self.add(earned);
            self.since = now;
        }
        self.left = self.left.checked_sub(bytes).ok_or(InboundBudgetExceeded)?;
        Ok(())
    }
}

impl<I: AsyncRead + Unpin> ReadFilter<I> for WebSocketInboundBudget {
    fn poll_read(&mut self, io: &mut I, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(io).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        Poll::Ready(if read == 0 { Ok(()) } else { self.spend(read).map_err(io::Error::other) })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::io::DuplexStream;
    use tokio::time::advance;

    use super::*;
    use crate::listing::CallerCpuSlices;

    /// Returns the number of messages that are read without waiting.
    async fn read_now(socket: &mut WebSocketStream<DuplexStream>, scan_budget: &mut ScanBudget) -> usize {
        let mut read = 0;
        while let Some(message) = poll_fn(|cx| poll_message(cx, socket, scan_budget)).now_or_never() {
            assert!(matches!(message, Some(Ok(Message::Ping(_)))));
            read += 1;
            // The response to a ping is sent with the next read, which a full pipe would block.
            tokio::task::yield_now().await;
        }
        read
    }

    #[tokio::test(start_paused = true)]
    async fn client_messages_consume_cpu_slices_of_their_user() {
        const FREE: usize = cost::FREE_SCAN_COST / cost::DERIVED;
        const OF_A_SLICE: usize = cost::SLICE / cost::DERIVED;
        let ping = [0x89, 0x80, 0, 0, 0, 0];
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(&ping.repeat(FREE + 2 * OF_A_SLICE + 7)).await.expect("it is open");
        let mut socket = WebSocketStream::from_raw_socket(server, Role::Server, Some(limits())).await;
        let slices = CallerCpuSlices::new(1);
        let mut scan_budget = ScanBudget::new(slices.clone(), None, true);
        let others = slices.take(&None).expect("no slice is taken");
        assert_eq!(read_now(&mut socket, &mut scan_budget).await, FREE);
        advance(Duration::from_secs(1)).await;
        assert_eq!(read_now(&mut socket, &mut scan_budget).await, 0, "another watch has the only slice");
        drop(others);
        for read in [OF_A_SLICE, OF_A_SLICE, 7] {
            advance(Duration::from_secs(2)).await;
            assert_eq!(read_now(&mut socket, &mut scan_budget).await, read);
        }
    }

    #[test]
    fn origin_parsing_matches_go() {
        for origin in
            ["http://localhost", "https://a.example:8443", "file://", "app://x", "/", "http://[::1]:80", "a:b"]
        {
            assert!(is_request_uri(origin), "{origin}");
        }
        for origin in ["", "null", "localhost", "http://[", "http://a:b", "1http://a", "http://[::1]x", "http://a\n"] {
            assert!(!is_request_uri(origin), "{origin}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn inbound_budget_refills_with_time_and_sent_events() {
        let mut budget = WebSocketInboundBudget::new();
        let spends = |budget: &mut WebSocketInboundBudget, bytes| budget.spend(bytes).is_ok();
        assert!(spends(&mut budget, BURST_BYTES_MAX) && !spends(&mut budget, 1));
        advance(Duration::from_secs(1)).await;
        assert!(spends(&mut budget, BYTES_PER_SECOND) && !spends(&mut budget, 1));
        budget.record_sent(3);
        assert!(spends(&mut budget, 3 * BYTES_PER_EVENT) && !spends(&mut budget, 1));
        advance(Duration::from_secs(3_600)).await;
        budget.record_sent(1_000);
        assert!(!spends(&mut budget, BURST_BYTES_MAX + 1) && spends(&mut budget, BURST_BYTES_MAX));
    }
}

mod head_check;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::Either;
use http2::{ConnectionHeadBudget, ConnectionWakeTarget, WakeSet};
use hyper::body::Incoming;
use hyper::server::conn::http1::{self, UpgradeableConnection};
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep};

use self::head_check::{HeadCheckFilter, HeadCheckedIo, Http1HeadCheck, Http1PipelinePolicy};
use super::ConnectionLimits;
use super::connection_driver::{BoxError, ConnectionDriver};
use super::requests::{HttpHandler, RequestDispatcher, RequestTrackingBody, may_become_a_tunnel};

/// The least bytes that a field counts, as in HTTP/2 (RFC 9113 §6.5.2). The limit of a head in bytes is also its limit
/// in fields (R-HTTP-5), because a field takes memory besides its bytes.
const FIELD_BYTES_MIN: usize = 32;

/// The server's end of an HTTP/1 connection, implemented by hyper.
pub(super) struct Http1Connection<I, H: HttpHandler> {
    connection: Pin<Box<HyperHttp1Codec<I, H>>>,
    wake_set: Arc<WakeSet>,
    codec: Waker,
    check: Http1HeadCheck,
    header_max: Duration,
    /// The timer of an unfinished request head. hyper's own timer would also end connections that are idle.
    head_timer: Option<Pin<Box<Sleep>>>,
}

/// hyper's connection.
type HyperHttp1Codec<I, H> = UpgradeableConnection<TokioIo<HeadCheckedIo<I>>, Http1RequestService<H>>;

/// The service that hyper calls for each request.
struct Http1RequestService<H> {
    requests: RequestDispatcher<H>,
    check: Http1HeadCheck,
}

/// The error of a connection whose request head did not arrive in time.
#[derive(Debug, thiserror::Error)]
#[error("no complete request head received within {0:?}")]
struct RequestHeadTimeout(Duration);

/// The error of a connection that is closing and accepts no further requests.
#[derive(Debug, thiserror::Error)]
#[error("the connection is closing and accepts no more requests")]
struct ConnectionClosingError;

impl<I: AsyncRead + AsyncWrite + Unpin + Send + 'static, H: HttpHandler> Http1Connection<I, H> {
    pub(super) fn new(
        io: I,
        limits: &ConnectionLimits,
        heads: Arc<ConnectionHeadBudget>,
        requests: RequestDispatcher<H>,
    ) -> Self {
        let mut builder = http1::Builder::new();
        builder
            .header_read_timeout(None)
            .max_buf_size(limits.header_bytes_max as usize)
            .max_headers(limits.header_bytes_max as usize / FIELD_BYTES_MIN)
            // A client that closes its sending side is treated as gone, as in Go's server (R-DOWNSTREAM-9).
            .half_close(false);
        let check = Http1HeadCheck::new(heads);
        let wake_set = WakeSet::shared();
        let (connection, wake_set_of_reads) = (requests.peer.connection.clone(), wake_set.clone());
        let filter = HeadCheckFilter { connection, wake_set: wake_set_of_reads, check: check.clone() };
        let service = Http1RequestService { requests, check: check.clone() };
        let connection =
            Box::pin(builder.serve_connection(TokioIo::new(HeadCheckedIo { io, filter }), service).with_upgrades());
        let codec = wake_set.waker(ConnectionWakeTarget::Codec);
        Self { connection, codec, wake_set, check, header_max: limits.header_max, head_timer: None }
    }
}

impl<H: HttpHandler> Service<Request<Incoming>> for Http1RequestService<H> {
    type Response = Response<RequestTrackingBody<H::Body>>;
    type Error = ConnectionClosingError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectionClosingError>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let policy = if take_h2c_offer(&mut request) {
            Http1PipelinePolicy::Nothing
        } else if may_become_a_tunnel(&request) {
            Http1PipelinePolicy::Tunnel
        } else {
            Http1PipelinePolicy::Requests
        };
        let is_early = self.check.request_read(policy);
        let response = self.requests.answer(request.map(Either::Right), self.requests.peer.abort.clone());
        if is_early {
            // Bytes that have already arrived may belong to the other protocol, so they are not read as a request.
            self.requests.peer.connection.close();
        }
        Box::pin(async move { Ok(response.ok_or(ConnectionClosingError)?.await) })
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin + Send + 'static, H: HttpHandler> ConnectionDriver for Http1Connection<I, H> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let Self { connection, wake_set, codec, check, header_max, head_timer } = self;
        wake_set.poll_codec(cx, codec, |cx| {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended.map_err(Into::into));
            }
            if !check.has_unfinished_head() {
                *head_timer = None;
                return Poll::Pending;
            }
            let timer = head_timer.get_or_insert_with(|| Box::pin(sleep(*header_max)));
            timer.as_mut().poll(cx).map(|()| Err(RequestHeadTimeout(*header_max).into()))
        })
    }

    fn begin_goaway(&mut self) {
        self.connection.as_mut().graceful_shutdown();
        self.wake_set.mark_woken(ConnectionWakeTarget::Codec);
    }

    fn wake_set(&self) -> &Arc<WakeSet> {
        &self.wake_set
    }
}

/// The client's settings, which accompany the offer.
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Removes an offer to upgrade to HTTP/2 (`h2c`), and returns whether there was one.
///
/// Such offers are obsolete (RFC 9113 §3.1) and may be ignored (RFC 9110 §7.8): the client continues in HTTP/1.1 on the
/// same connection. The JDK's HTTP client sends the offer with each request.
///
/// Any other offer, or one with a body, is kept and ends the connection, because the bytes after it are ambiguous.
fn take_h2c_offer<B>(request: &mut Request<B>) -> bool {
    let is_connect = *request.method() == Method::CONNECT;
    let headers = request.headers_mut();
    if is_connect || headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING) {
        return false;
    }
    let mut offered = headers.get_all(UPGRADE).iter();
    let is_h2c = |protocol: &HeaderValue| protocol.as_bytes().eq_ignore_ascii_case(b"h2c");
    if !offered.next().is_some_and(is_h2c) || !offered.all(is_h2c) {
        return false;
    }
    headers.remove(UPGRADE);
    headers.remove(HTTP2_SETTINGS);
    remove_options(headers);
    true
}

/// Removes the names of the offer from `Connection`.
fn remove_options(headers: &mut HeaderMap) {
    let is_of_offer = |option: &[u8]| {
        [UPGRADE, HTTP2_SETTINGS].iter().any(|name| name.as_str().as_bytes().eq_ignore_ascii_case(option))
    };
    let values = headers.get_all(CONNECTION).iter().map(HeaderValue::as_bytes);
    let options = values.flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    let kept = options.filter(|option| !is_of_offer(option)).collect::<Vec<_>>().join(&b", "[..]);
    headers.remove(CONNECTION);
    if let Some(kept) = HeaderValue::from_bytes(&kept).ok().filter(|kept| !kept.is_empty()) {
        headers.insert(CONNECTION, kept);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::{self, IoSlice};
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Empty, StreamBody};
    use http2::RequestHeadBudget;
    use hyper::body::Frame;
    use parking_lot::Mutex;
    use tokio::io::ReadBuf;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::net::{ConnectionPeer, DownstreamConnection, PeerAddress};
    use base::AbortSignal;

    /// The client's end: the bytes of each write by the client, and of each write to it.
    #[derive(Clone, Default)]
    struct Socket {
        sent: Arc<Mutex<VecDeque<&'static [u8]>>>,
        written_parts: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    impl AsyncRead for Socket {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let Some(sent) = self.sent.lock().pop_front() else { return Poll::Pending };
            into.put_slice(sent);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Socket {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            parts: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let written: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            let length = written.len();
            self.written_parts.lock().push(written);
            Poll::Ready(Ok(length))
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn peer() -> ConnectionPeer {
        ConnectionPeer {
            address: PeerAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 1))),
            certificates: None,
            connection: DownstreamConnection::default(),
            abort: AbortSignal::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_sent_before_h2c_upgrade_response_are_not_parsed() {
        const OFFER: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n";
        // The bytes before the response and those after it.
        for (before, behind, answers) in
            [(OFFER, None, 1), (&OFFER[..5], Some(&OFFER[5..]), 1), (&OFFER[..0], Some(OFFER), 2)]
        {
            let (calls, gate, socket) = (Arc::<AtomicUsize>::default(), Arc::new(Semaphore::new(0)), Socket::default());
            let (called, opened) = (calls.clone(), gate.clone());
            let handler = move |_, _| {
                called.fetch_add(1, Ordering::Relaxed);
                let gate = opened.clone();
                async move {
                    gate.acquire().await.expect("it is open").forget();
                    Response::new(Empty::<Bytes>::new())
                }
            };
            let requests = RequestDispatcher { peer: peer(), late_max: 1, leaving: None, handler };
            let mut connection = Http1Connection::new(
                socket.clone(),
                &ConnectionLimits::default(),
                Arc::<RequestHeadBudget>::default().connection(),
                requests,
            );
            let mut go_on = |sent: Option<&'static [u8]>| {
                socket.sent.lock().extend(sent.filter(|sent| !sent.is_empty()));
                connection.wake_set().mark_woken(ConnectionWakeTarget::Codec);
                let _ = connection.poll(&mut Context::from_waker(Waker::noop()));
            };
            go_on(Some(OFFER));
            assert_eq!(calls.load(Ordering::Relaxed), 1);
            go_on(Some(before));
            gate.add_permits(1);
            go_on(None);
            go_on(behind);
            gate.add_permits(1);
            go_on(None);
            let text = String::from_utf8_lossy(&socket.written_parts.lock().concat()).to_lowercase();
            assert_eq!((calls.load(Ordering::Relaxed), text.matches("http/1.1 200").count()), (answers, answers));
            assert_eq!(text.contains("connection: close"), answers == 1, "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn poll_past_its_slice_reads_no_further_request() {
        const REQUESTS: usize = 3;
        for (is_over, polls) in [(false, 1), (true, REQUESTS)] {
            let (calls, socket) = (Arc::<AtomicUsize>::default(), Socket::default());
            let called = calls.clone();
            let handler = move |_, _| {
                called.fetch_add(1, Ordering::Relaxed);
                async { Response::new(Empty::<Bytes>::new()) }
            };
            let requests = RequestDispatcher { peer: peer(), late_max: 1, leaving: None, handler };
            socket.sent.lock().extend([&b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..]; REQUESTS]);
            let heads = Arc::<RequestHeadBudget>::default().connection();
            let mut connection = Http1Connection::new(socket, &ConnectionLimits::default(), heads, requests);
            for poll in 1..=polls {
                let ends = tokio::time::Instant::now();
                connection.wake_set().limit_turn(is_over.then_some(ends));
                assert!(connection.poll(&mut Context::from_waker(Waker::noop())).is_pending());
                assert_eq!(calls.load(Ordering::Relaxed), if is_over { poll } else { REQUESTS });
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn header_limit_ends_unfinished_heads_and_not_idle_connections() {
        let (limits, socket) = (ConnectionLimits::default(), Socket::default());
        let handler = |_, _| async { Response::new(Empty::<Bytes>::new()) };
        let requests = RequestDispatcher { peer: peer(), late_max: 1, leaving: None, handler };
        let heads = Arc::<RequestHeadBudget>::default().connection();
        let mut connection = Http1Connection::new(socket.clone(), &limits, heads, requests);
        for (sent, waits, is_open) in [
            (&b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..], limits.header_max * 6, true),
            (b"GET / HTTP/1.1\r\nhost: a\r\n", limits.header_max / 2, true),
            (b"\r\n", limits.header_max * 6, true),
            (b"GET /", limits.header_max / 2, true),
            (b" HTTP/1.1\r\n", limits.header_max / 2, false),
        ] {
            socket.sent.lock().push_back(sent);
            for waited in [Duration::ZERO, waits] {
                tokio::time::advance(waited).await;
                connection.wake_set().mark_woken(ConnectionWakeTarget::Codec);
                let polled = connection.poll(&mut Context::from_waker(Waker::noop()));
                assert_eq!(
                    polled.is_pending(),
                    is_open || waited.is_zero(),
                    "{:?}: {polled:?}",
                    sent.escape_ascii().to_string()
                );
            }
        }
        let text = String::from_utf8_lossy(&socket.written_parts.lock().concat()).into_owned();
        assert_eq!(text.matches("HTTP/1.1 200").count(), 2, "{text}");
    }

    /// hyper writes at most 16 buffers at a time.
    const PIECES_OF_A_WRITE: usize = 16;

    #[tokio::test]
    async fn ready_body_frames_are_sent_in_one_write() {
        let socket = Socket::default();
        let handler = |_, _| async {
            let mut pieces: VecDeque<_> = std::iter::repeat_n("event\n", PIECES_OF_A_WRITE).collect();
            let pieces = futures_util::stream::poll_fn(move |_| {
                let piece = pieces.pop_front().map(|piece| Ok::<_, io::Error>(Frame::data(Bytes::from(piece))));
                piece.map_or(Poll::Pending, |piece| Poll::Ready(Some(piece)))
            });
            Response::new(StreamBody::new(pieces).boxed_unsync())
        };
        let requests = RequestDispatcher { peer: peer(), late_max: 1, leaving: None, handler };
        socket.sent.lock().push_back(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let heads = Arc::<RequestHeadBudget>::default().connection();
        let mut connection = Http1Connection::new(socket.clone(), &ConnectionLimits::default(), heads, requests);
        assert!(connection.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let writes = socket.written_parts.lock();
        let text: Vec<_> = writes.iter().map(|write| String::from_utf8_lossy(write)).collect();
        let chunks = text.iter().map(|text| text.matches("6\r\nevent\n\r\n").count());
        assert_eq!(chunks.collect::<Vec<_>>(), [PIECES_OF_A_WRITE], "{text:?}");
    }

    fn request(method: Method, fields: &[(&str, &str)]) -> Request<()> {
        let request = fields.iter().fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
        request.method(method).body(()).expect("a request")
    }

    #[test]
    fn sole_h2c_upgrade_offer_is_removed_with_its_headers() {
        for (connection, kept) in [
            ("Upgrade, HTTP2-Settings", None),
            ("upgrade,http2-settings , keep-alive", Some("keep-alive")),
            ("Authorization, Upgrade", Some("Authorization")),
            ("", None),
        ] {
            let fields =
                [("upgrade", "H2C"), ("http2-settings", "AAMAAABk"), ("connection", connection), ("accept", "*/*")];
            let mut request = request(Method::GET, &fields);
            assert!(take_h2c_offer(&mut request), "{connection}");
            let left = request.headers();
            assert_eq!(left.get(CONNECTION).map(|value| value.to_str().expect("text")), kept, "{connection}");
            assert_eq!(left.len(), 1 + usize::from(kept.is_some()), "{left:?}");
        }
    }

    #[test]
    fn other_upgrade_offers_are_kept() {
        let with = |fields: &[(&'static str, &'static str)]| [&[("connection", "upgrade")], fields].concat();
        for (method, fields) in [
            (Method::GET, with(&[])),
            (Method::GET, with(&[("upgrade", "websocket")])),
            (Method::GET, with(&[("upgrade", "h2c, websocket")])),
            (Method::GET, with(&[("upgrade", "h2c"), ("upgrade", "websocket")])),
            (Method::GET, with(&[("upgrade", "websocket"), ("upgrade", "h2c")])),
            (Method::POST, with(&[("upgrade", "h2c"), ("content-length", "0")])),
            (Method::POST, with(&[("upgrade", "h2c"), ("transfer-encoding", "chunked")])),
            (Method::CONNECT, with(&[("upgrade", "h2c")])),
        ] {
            let mut request = request(method, &fields);
            let before = request.headers().clone();
            assert!(!take_h2c_offer(&mut request), "{fields:?}");
            assert_eq!(*request.headers(), before);
        }
    }
}

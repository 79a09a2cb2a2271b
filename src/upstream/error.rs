use crate::wire::{FeedEncoding, WireError};
use kubeapi::{EventType, Status};

/// The reason that a request to upstream got no usable response.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// There is no connection, or it broke before the response began.
    #[error("upstream cannot be reached: {}", chain(&**.0))]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The connection broke during the response.
    #[error("upstream closed the connection during the response: {0}")]
    ConnectionLost(#[source] hyper::Error),
    /// There was no response in time.
    #[error("upstream did not respond within {0:?}")]
    Timeout(std::time::Duration),
    /// The proxy's credentials could not be read or refreshed. The reason is logged, and not sent to callers.
    #[error("cannot use the upstream credentials: {0}")]
    Credentials(String),
    /// Upstream responded with an error Status.
    #[error("upstream returned {}: {}", .0.code, .0.message)]
    Refused(Box<Status>),
    /// The request cannot be sent with its caller's identity, so nothing was sent.
    #[error(transparent)]
    Unsendable(#[from] UnsendableRequest),
    /// No valid HTTP request can be built, so nothing was sent.
    #[error("cannot build the upstream request: {0}")]
    InvalidRequest(String),
    /// The response body is not the kind of document that belongs to the path.
    #[error("upstream returned an unexpected document for {0}")]
    OtherDocument(String),
    /// The response has another representation than the requested one.
    #[error(
        "upstream returned {}, but {requested} was requested",
        .answered.map_or("an unknown content type", FeedEncoding::as_str)
    )]
    OtherRepresentation { requested: String, answered: Option<FeedEncoding> },
    /// The watch sent an event among the initial events that cannot be one of them.
    #[error("upstream sent {0} among the initial events of a watch (expected ADDED)")]
    NotInitial(EventType),
    /// A page of a LIST names itself as the next page, or many pages in a row are empty.
    #[error("upstream's paginated list does not end: it repeats a continue token or sends empty pages")]
    EndlessPages,
    /// The proxy could read the definitions of custom resources before, and no longer can.
    #[error("the proxy's account may no longer list customresourcedefinitions (RBAC)")]
    HiddenDefinitions,
    /// The response is larger than [`BODY_BYTES_MAX`](super::BODY_BYTES_MAX).
    #[error("upstream's response is larger than {0} bytes")]
    TooLarge(usize),
    /// The response would exceed the memory budget for feeds.
    #[error("the memory budget for feeds is used up; raise feeds.memoryMebibytes")]
    OverBudget,
    /// The response cannot be decoded.
    #[error("cannot decode upstream's response: {0}")]
    Wire(#[from] WireError),
}

/// The error of a connection to upstream that could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {server}")]
pub(super) struct UpstreamConnectError {
    /// The address of the server as `HOST:PORT`.
    pub(super) server: String,
    #[source]
    pub(super) source: Box<dyn std::error::Error + Send + Sync>,
}

impl UpstreamConnectError {
    pub(super) fn new(uri: &http::Uri, source: Box<dyn std::error::Error + Send + Sync>) -> Self {
        let default = if uri.scheme_str() == Some("http") { 80 } else { 443 };
        let server = format!("{}:{}", uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(default));
        Self { server, source }
    }
}

/// The reason that a request cannot be sent with its caller's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnsendableRequest {
    /// The proxy's credentials already impersonate a user, and the request asks for another impersonation.
    #[error("the proxy's own credentials already impersonate a user, and impersonation cannot be nested")]
    Nested,
    #[error("requests with client certificates cannot be forwarded: set delegated.impersonator")]
    NoImpersonator,
    #[error("cannot impersonate the user: its name or a group has characters that HTTP headers do not allow")]
    UnencodableUser,
}

impl UpstreamError {
    /// Returns the text for callers. It reveals neither upstream's address nor the proxy's credentials.
    pub fn for_callers(&self) -> String {
        match self {
            Self::Unreachable(error) => format!("upstream cannot be reached: {}", root_cause(&**error)),
            Self::Credentials(_) => "the proxy cannot load its upstream credentials".to_owned(),
            error => error.to_string(),
        }
    }

    /// Returns the text for readers of the health port: no address, user, path or object.
    pub fn summary(&self) -> String {
        match self {
            Self::Refused(status) => format!("upstream returned {}", status.code),
            Self::Unreachable(_) | Self::Credentials(_) => self.for_callers(),
            Self::ConnectionLost(_) | Self::Timeout(_) | Self::OverBudget | Self::TooLarge(_) => self.to_string(),
            _ => "upstream's response cannot be used".to_owned(),
        }
    }

    /// Whether upstream's certificate is not trusted, or the TLS handshake failed.
    pub fn is_untrusted(&self) -> bool {
        matches!(self, Self::Unreachable(error) if of_tls(&**error).is_some())
    }

    /// Returns the code of the Status with which upstream refused the request.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(status) => u16::try_from(status.code).ok(),
            _ => None,
        }
    }

    /// Whether upstream may have processed the request although there is no response.
    pub fn may_be_processed(&self) -> bool {
        match self {
            Self::Unreachable(error) => {
                let error = error.downcast_ref::<hyper_util::client::legacy::Error>();
                error.is_some_and(|error| !error.is_connect() && !was_not_processed(error))
            }
            Self::ConnectionLost(_) | Self::Timeout(_) => true,
            _ => false,
        }
    }

    /// Whether the server has certainly not processed the request, and another connection to it may carry it. Failures
    /// to connect are not included.
    pub(super) fn is_unprocessed(&self) -> bool {
        let Self::Unreachable(error) = self else { return false };
        match error.downcast_ref::<hyper_util::client::legacy::Error>() {
            Some(error) if error.is_connect() => !has_failed_to_connect(error),
            _ => was_not_processed(&**error),
        }
    }

    /// Whether the same request may succeed later: upstream is unreachable, sheds load, fails, or temporarily rejects
    /// the credentials. Any other error is final.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::ConnectionLost(_) | Self::Timeout(_) | Self::Credentials(_) => true,
            Self::Refused(status) => matches!(status.code, 401 | 408 | 429 | 500..),
            _ => false,
        }
    }

    /// Whether upstream was unreachable, or its response broke off. Then upstream has refused nothing.
    pub fn is_disconnected(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::ConnectionLost(_)) && !self.is_untrusted()
    }

    /// Whether upstream is unreachable or fails for every caller, so that no other credential would help.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Timeout(_) => true,
            Self::Refused(status) => matches!(status.code, 429 | 500 | 502..=504),
            error => error.is_disconnected(),
        }
    }

    /// Whether the requested resourceVersion is no longer available (410, `Expired` or `Gone`).
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_expired())
    }

    /// Whether upstream reports that it has not reached the requested resourceVersion.
    pub fn is_too_large_version(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_too_large_version())
    }

    /// Returns the retry delay that upstream requested, in seconds.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        match self {
            Self::Refused(status) => status.retry_after_seconds().map(u64::from),
            _ => None,
        }
    }
}

/// Returns an error and its causes, outermost first.
pub(super) fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |cause| cause.source())
}

/// Returns the TLS error among the causes, if there is one.
fn of_tls<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    causes(error).find_map(tls_in)
}

/// Returns a TLS error, which may be wrapped in I/O errors. Those do not return it from `source`.
fn tls_in<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    match error.downcast_ref::<std::io::Error>() {
        Some(io) => tls_in(io.get_ref()?),
        None => error.downcast_ref(),
    }
}

/// Returns the texts of an error and all its causes, outermost first. Texts that repeat the end of the previous one are
/// omitted.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in causes(error) {
        // "client error (Connect)" adds nothing to its causes.
        let is_wrapper = cause.is::<hyper_util::client::legacy::Error>() && cause.source().is_some();
        let text = text(cause);
        if !is_wrapper && texts.last().is_none_or(|before| !before.ends_with(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

/// Returns the innermost cause, or the TLS error. Neither names an address; only [`UpstreamConnectError`] does.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    match of_tls(error) {
        Some(tls) => text(tls),
        None => causes(error).last().map_or_else(String::new, text),
    }
}

/// Returns the text of a cause, for operators.
fn text(cause: &(dyn std::error::Error + 'static)) -> String {
    match tls_in(cause) {
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            return "the server does not use TLS".to_owned();
        }
        Some(tls) => return tls.to_string(),
        None => {}
    }
    let io = cause.downcast_ref::<std::io::Error>();
    // The timeout of a connector is "deadline has elapsed".
    let is_timeout = io.is_some_and(|io| io.kind() == std::io::ErrorKind::TimedOut && io.raw_os_error().is_none());
    if is_timeout { "timed out".to_owned() } else { cause.to_string() }
}

/// Whether a request was certainly not processed. Either hyper gave it up before any of it was sent, because its
/// connection had closed. Or the server reports it (RFC 9113 §8.7), by a GOAWAY whose last stream is an earlier one, or
/// by `REFUSED_STREAM`.
///
/// h2 reports a GOAWAY as the error of exactly those streams, and of a request for which it has not opened a stream.
fn was_not_processed(error: &(dyn std::error::Error + 'static)) -> bool {
    // Only hyper's own error counts: the cause of a broken request body may be an error of the caller's connection.
    let Some(hyper) = causes(error).find_map(|cause| cause.downcast_ref::<hyper::Error>()) else { return false };
    let h2 = || std::error::Error::source(hyper).and_then(|cause| cause.downcast_ref::<h2::Error>());
    hyper.is_canceled()
        || hyper.is_closed()
        || h2().is_some_and(|h2| h2.is_remote() && (h2.is_go_away() || h2.reason() == Some(h2::Reason::REFUSED_STREAM)))
}

/// Whether an error of the kind "connect" belongs to a connection that could not be opened. Otherwise the request was
/// waiting for a connection that another request opened, and which had closed by then.
fn has_failed_to_connect(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(error).any(|cause| cause.is::<std::io::Error>() || tls_in(cause).is_some())
}

#[cfg(test)]
impl UpstreamError {
    /// hyper's error for a connection whose peer closed it before the response.
    pub(crate) async fn broken_off() -> hyper::Error {
        let (ours, theirs) = tokio::io::duplex(64);
        drop(theirs);
        let io = hyper_util::rt::TokioIo::new(ours);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.expect("nothing is read yet");
        let request = http::Request::new(http_body_util::Empty::<bytes::Bytes>::new());
        let (result, _) = tokio::join!(sender.send_request(request), connection);
        result.expect_err("the server sends no response")
    }

    /// hyper's error for a connection whose peer closes it as soon as it has read some bytes.
    pub(crate) async fn broken_off_when_read() -> hyper::Error {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let io = hyper_util::rt::TokioIo::new(ours);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.expect("nothing is read yet");
        let request = http::Request::new(http_body_util::Empty::<bytes::Bytes>::new());
        let read_and_go = async move { tokio::io::AsyncReadExt::read_u8(&mut theirs).await };
        let (result, _, read) = tokio::join!(sender.send_request(request), connection, read_and_go);
        read.expect("something was sent");
        result.expect_err("the server sends no response")
    }

    /// hyper's error for a request over HTTP/2 whose server reads the head, sends `frame` and closes the connection.
    pub(crate) async fn after_frame(frame: &[u8]) -> hyper::Error {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let io = hyper_util::rt::TokioIo::new(ours);
        let runtime = hyper_util::rt::TokioExecutor::new();
        let connecting = hyper::client::conn::http2::handshake(runtime, io);
        let server = async move {
            theirs.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.expect("settings are sent");
            theirs.read_exact(&mut [0; 24]).await.expect("a preface");
            let mut head = [0; 9];
            // A HEADERS frame (RFC 9113 §6.2).
            while head[3] != 1 {
                theirs.read_exact(&mut head).await.expect("a frame");
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                theirs.read_exact(&mut vec![0; length]).await.expect("its payload");
            }
            theirs.write_all(frame).await.expect("it is read");
        };
        let (mut sender, connection) = connecting.await.expect("nothing is read yet");
        let request = http::Request::post("http://up/").body(http_body_util::Empty::<bytes::Bytes>::new());
        let (result, _, ()) = tokio::join!(sender.send_request(request.expect("a request")), connection, server);
        result.expect_err("the server sends no response")
    }

    /// hyper's error for a request that the server reports as not processed.
    pub(crate) async fn unprocessed() -> hyper::Error {
        Self::after_frame(&tests::reset(h2::Reason::REFUSED_STREAM)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_classified_as_transient_and_outage() {
        for (code, is_transient, is_outage) in [
            (400, false, false),
            (401, true, false),
            (403, false, false),
            (404, false, false),
            (406, false, false),
            (408, true, false),
            (410, false, false),
            (429, true, true),
            (500, true, true),
            (503, true, true),
            (504, true, true),
            // A loop affects every caller and does not resolve.
            (508, true, false),
        ] {
            let error = UpstreamError::Refused(Box::new(Status { code, ..Status::default() }));
            assert_eq!((error.is_transient(), error.is_outage()), (is_transient, is_outage), "{code}");
        }
        for (error, expected) in [
            (UpstreamError::Timeout(std::time::Duration::ZERO), (true, true)),
            (UpstreamError::Unreachable("connection refused".into()), (true, true)),
            (UpstreamError::Unreachable(rustls::Error::HandshakeNotComplete.into()), (true, false)),
            (UpstreamError::Credentials("a plugin failed".to_owned()), (true, false)),
            (UpstreamError::OtherDocument("/apis".to_owned()), (false, false)),
            (UpstreamError::EndlessPages, (false, false)),
            (UpstreamError::OverBudget, (false, false)),
        ] {
            assert_eq!((error.is_transient(), error.is_outage()), expected, "{error}");
        }
    }

    #[test]
    fn plain_server_and_timeout_are_named_as_such() {
        let plain = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        let late = std::io::Error::new(std::io::ErrorKind::TimedOut, "deadline has elapsed");
        for (error, expected) in [(std::io::Error::other(plain), "the server does not use TLS"), (late, "timed out")] {
            let error = UpstreamConnectError::new(&"https://up".parse().expect("a URI"), error.into());
            let error = UpstreamError::Unreachable(error.into());
            assert_eq!(error.to_string(), format!("upstream cannot be reached: cannot connect to up:443: {expected}"));
            assert_eq!(error.for_callers(), format!("upstream cannot be reached: {expected}"));
        }
    }

    /// The log names the server and every cause; callers and the health port see no address.
    #[test]
    fn failed_connection_names_server_in_logs_only() {
        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        for (server, named) in [
            ("https://api.example", "api.example:443"),
            ("http://10.0.0.1/prefix", "10.0.0.1:80"),
            ("https://[fd00::1]:6443", "[fd00::1]:6443"),
        ] {
            let error = UpstreamConnectError::new(&server.parse().expect("a URI"), refused().into());
            let error = UpstreamError::Unreachable(error.into());
            let expected = format!("upstream cannot be reached: cannot connect to {named}: connection refused");
            assert_eq!(error.to_string(), expected);
            for text in [error.for_callers(), error.summary()] {
                assert_eq!(text, "upstream cannot be reached: connection refused");
            }
        }
        let refused =
            UpstreamError::Refused(Box::new(Status { code: 403, message: "ada".to_owned(), ..Status::default() }));
        assert_eq!(refused.summary(), "upstream returned 403");
    }

    #[tokio::test]
    async fn request_sent_on_closed_connection_is_unprocessed() {
        let unsent = UpstreamError::broken_off().await;
        assert!(was_not_processed(&unsent), "{unsent:?}");
        let sent = UpstreamError::broken_off_when_read().await;
        assert!(!was_not_processed(&sent), "{sent:?}");
    }

    pub(super) fn reset(reason: h2::Reason) -> [u8; 13] {
        let [a, b, c, d] = u32::from(reason).to_be_bytes();
        [0, 0, 4, 3, 0, 0, 0, 0, 1, a, b, c, d]
    }

    /// A GOAWAY with `NO_ERROR`.
    fn go_away(last: u32) -> [u8; 17] {
        let [a, b, c, d] = last.to_be_bytes();
        [0, 0, 8, 7, 0, 0, 0, 0, 0, a, b, c, d, 0, 0, 0, 0]
    }

    #[tokio::test]
    async fn stream_above_goaway_or_refused_is_unprocessed() {
        for (name, frame, is_unprocessed) in [
            ("an earlier stream is the last", &go_away(0)[..], true),
            // These may have been processed, and the connection ends without a response.
            ("this stream is the last", &go_away(1), false),
            ("no stream is refused yet", &go_away((1 << 31) - 1), false),
            ("this stream is refused", &reset(h2::Reason::REFUSED_STREAM), true),
            ("this stream has failed", &reset(h2::Reason::INTERNAL_ERROR), false),
            ("this stream is over", &reset(h2::Reason::NO_ERROR), false),
        ] {
            let error = UpstreamError::after_frame(frame).await;
            assert_eq!(was_not_processed(&error), is_unprocessed, "{name}: {error:?}");
        }
    }
}

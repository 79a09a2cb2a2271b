use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::Request;
use http::header::{CONNECTION, ORIGIN, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use parking_lot::Mutex;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::{BoxedSocket, ConnectionDriverFuture, PendingResponse, ProbeRequestError, ResponseStream};
use crate::target::TargetServer;

/// A connection that can be upgraded to a WebSocket once.
#[derive(Clone)]
pub struct WebSocketSender {
    io: Arc<Mutex<Option<BoxedSocket>>>,
    authority: String,
    origin: String,
}

/// An open WebSocket. Each message is one watch frame.
pub struct WebSocketMessages(WebSocketStream<BoxedSocket>);

pub(super) fn open(io: BoxedSocket, target: &TargetServer) -> (super::HttpRequestSender, ConnectionDriverFuture) {
    let (authority, origin) = (target.authority().to_owned(), target.origin());
    let sender = WebSocketSender { io: Arc::new(Mutex::new(Some(io))), authority, origin };
    // The reader of the messages drives the connection, so the driver has nothing to do.
    (super::HttpRequestSender::Ws(sender), Box::pin(std::future::pending()))
}

impl WebSocketSender {
    pub(super) fn is_used(&self) -> bool {
        self.io.lock().is_none()
    }

    pub(super) async fn send(&self, request: Request<()>) -> Result<PendingResponse, ProbeRequestError> {
        let io = self.io.lock().take().ok_or_else(|| ProbeRequestError::Ws("the connection is used".to_owned()))?;
        let (mut head, ()) = request.into_parts();
        head.uri = format!("ws://{}{}", self.authority, head.uri).parse().map_err(http::Error::from)?;
        // The apiserver requires an Origin but accepts any; a proxy may accept only its own.
        head.headers.insert(ORIGIN, http::HeaderValue::try_from(&self.origin).map_err(http::Error::from)?);
        for (name, value) in [(CONNECTION, "Upgrade"), (UPGRADE, "websocket"), (SEC_WEBSOCKET_VERSION, "13")] {
            head.headers.insert(name, http::HeaderValue::from_static(value));
        }
        let key = http::HeaderValue::try_from(generate_key()).map_err(http::Error::from)?;
        head.headers.insert(SEC_WEBSOCKET_KEY, key);
        match tokio_tungstenite::client_async(Request::from_parts(head, ()), io).await {
            Ok((stream, answer)) => {
                let (status, body) = (http::StatusCode::OK, ResponseStream::Ws(Box::new(WebSocketMessages(stream))));
                Ok(PendingResponse { status, headers: answer.into_parts().0.headers, body })
            }
            // The body is not read, because it may be an endless watch stream in another form.
            Err(Error::Http(answer)) if answer.status().is_success() => Err(ProbeRequestError::Ws(format!(
                "the server responded with {} instead of an upgrade",
                answer.status()
            ))),
            Err(Error::Http(answer)) => {
                let (head, text) = answer.into_parts();
                let body = ResponseStream::Refusal(text.map(Bytes::from));
                Ok(PendingResponse { status: head.status, headers: head.headers, body })
            }
            Err(error) => Err(ProbeRequestError::Ws(error.to_string())),
        }
    }
}

impl WebSocketMessages {
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, ProbeRequestError>> {
        loop {
            match self.0.next().await? {
                Ok(Message::Text(text)) => return Some(Ok(text.into())),
                Ok(Message::Binary(bytes)) => return Some(Ok(bytes)),
                Ok(Message::Close(_)) | Err(Error::ConnectionClosed) => return None,
                // The library answers pings.
                Ok(_) => {}
                Err(error) => return Some(Err(ProbeRequestError::Ws(error.to_string()))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use crate::{EstablishedConnection, FlowControlWindows, RequestSpec, TargetCredentials, WatchProtocol};

    #[tokio::test]
    async fn response_without_upgrade_fails_the_websocket_watch() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let answering = tokio::spawn(async move {
            for status in ["200 OK", "403 Forbidden"] {
                let (mut socket, _) = listener.accept().await.expect("a client");
                let mut read = Vec::new();
                while !read.ends_with(b"\r\n\r\n") {
                    read.push(socket.read_u8().await.expect("a request"));
                }
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
                socket.write_all(answer.as_bytes()).await.expect("a client");
            }
        });
        let target = TargetCredentials::default().target(&url).await.expect("a server");
        let open_watch = async || {
            let windows = FlowControlWindows { stream: 1 << 20, connection: 1 << 20, socket: None, as_go: false };
            let opened = crate::open(&target, WatchProtocol::Ws, windows).await;
            let EstablishedConnection { sender, .. } = opened.expect("a connection");
            sender.get(&target, &RequestSpec::get("/api/v1/pods?watch=1", "application/json")).await
        };
        let why = open_watch().await.err().expect("no watch").to_string();
        assert!(why.contains("responded with 200 OK instead of an upgrade"), "{why}");
        assert_eq!(open_watch().await.expect("a refusal").status, http::StatusCode::FORBIDDEN);
        answering.await.expect("no panic");
    }
}

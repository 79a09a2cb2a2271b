use http::{Request, Version};

/// How the events of a watch are framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum WatchTransport {
    Http1,
    Http2,
    WebSocket,
}

impl WatchTransport {
    /// The protocol of a watch that is asked for so, perhaps as a WebSocket.
    pub(super) fn of<B>(request: &Request<B>, is_websocket: bool) -> Self {
        match (is_websocket, request.version()) {
            (true, _) => Self::WebSocket,
            (false, Version::HTTP_2) => Self::Http2,
            _ => Self::Http1,
        }
    }

    /// Its name in metrics and for operators.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Http1 => "h1",
            Self::Http2 => "h2",
            Self::WebSocket => "websocket",
        }
    }
}

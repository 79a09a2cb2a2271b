use http::{Request, Version};

/// The protocol that frames the events of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum WatchTransport {
    Http1,
    Http2,
    WebSocket,
}

impl WatchTransport {
    /// Returns the transport of a watch request.
    pub(crate) fn of<B>(request: &Request<B>, is_websocket: bool) -> Self {
        match (is_websocket, request.version()) {
            (true, _) => Self::WebSocket,
            (false, Version::HTTP_2) => Self::Http2,
            _ => Self::Http1,
        }
    }

    /// Returns the name used in metrics and on the debug pages.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Http1 => "h1",
            Self::Http2 => "h2",
            Self::WebSocket => "websocket",
        }
    }
}

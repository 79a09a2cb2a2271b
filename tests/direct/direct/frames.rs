//! Frames of a watch, read from a response body or from a WebSocket.

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::event::Ended;
use super::io::Io;

pub enum Frames {
    /// A response body in which each line of JSON is a frame.
    Lines { body: Incoming, buffer: BytesMut },
    /// A WebSocket in which each message is a frame.
    Messages(Box<WebSocketStream<Box<dyn Io>>>),
}

impl Frames {
    pub fn of(body: Incoming) -> Self {
        Self::Lines { body, buffer: BytesMut::new() }
    }

    /// The next complete frame, or how the stream ended.
    pub async fn next(&mut self) -> Result<Bytes, Ended> {
        match self {
            Self::Lines { body, buffer } => line(body, buffer).await,
            Self::Messages(socket) => message(socket).await,
        }
    }
}

async fn line(body: &mut Incoming, buffer: &mut BytesMut) -> Result<Bytes, Ended> {
    loop {
        if let Some(at) = memchr::memchr(b'\n', buffer) {
            return Ok(buffer.split_to(at + 1).freeze());
        }
        match body.frame().await {
            Some(Ok(frame)) => buffer.extend_from_slice(&frame.into_data().unwrap_or_default()),
            Some(Err(error)) => return Err(Ended::Broken(error.to_string())),
            None if buffer.is_empty() => return Err(Ended::Clean),
            None => return Err(Ended::Broken(format!("a clean end after {} bytes of a frame", buffer.len()))),
        }
    }
}

async fn message(socket: &mut WebSocketStream<Box<dyn Io>>) -> Result<Bytes, Ended> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => return Ok(text.into()),
            Some(Ok(Message::Binary(bytes))) => return Ok(bytes),
            Some(Ok(Message::Close(Some(frame)))) if frame.code == CloseCode::Normal && frame.reason.is_empty() => {
                return Err(Ended::Clean);
            }
            Some(Ok(Message::Close(frame))) => return Err(Ended::Broken(format!("closed with {frame:?}"))),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(Ended::Broken(error.to_string())),
            None => return Err(Ended::Broken("the end without a close frame".to_owned())),
        }
    }
}

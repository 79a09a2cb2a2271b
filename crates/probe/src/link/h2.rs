use bytes::Bytes;
use h2::RecvStream;
use h2::client::{Builder, SendRequest};
use http::Request;

use super::go_windows::GoWindows;
use super::{Driver, Io, LinkError, PendingResponse, ResponseStream, Windows};

#[derive(Clone)]
pub struct H2Sender(SendRequest<Bytes>);

pub(super) async fn open(io: Io, windows: Windows) -> Result<(super::Sender, Driver), LinkError> {
    let io: Io = if windows.as_go { Box::new(GoWindows::new(io)) } else { io };
    let (sender, connection) = Builder::new()
        .enable_push(false)
        .initial_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        .handshake::<_, Bytes>(io)
        .await?;
    Ok((super::Sender::H2(H2Sender(sender)), Box::pin(async { drop(connection.await) })))
}

impl H2Sender {
    pub(super) async fn send(&self, request: Request<()>, body: Bytes) -> Result<PendingResponse, LinkError> {
        let mut sender = self.0.clone().ready().await?;
        let (response, mut stream) = sender.send_request(request, body.is_empty())?;
        if !body.is_empty() {
            stream.send_data(body, true)?;
        }
        let (head, body) = response.await?.into_parts();
        Ok(PendingResponse { status: head.status, headers: head.headers, body: ResponseStream::H2(body) })
    }
}

/// Returns the next bytes and releases their flow-control capacity.
pub(super) async fn chunk(body: &mut RecvStream) -> Option<Result<Bytes, LinkError>> {
    let data = match body.data().await? {
        Ok(data) => data,
        Err(error) => return Some(Err(error.into())),
    };
    Some(body.flow_control().release_capacity(data.len()).map(|()| data).map_err(LinkError::from))
}

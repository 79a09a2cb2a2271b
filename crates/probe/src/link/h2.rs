use bytes::Bytes;
use h2::RecvStream;
use h2::client::{Builder, SendRequest};
use http::Request;

use super::go_window_updater::GoWindowUpdater;
use super::{
    BoxedSocket, ConnectionDriverFuture, FlowControlWindows, PendingResponse, ProbeRequestError, ResponseStream,
};

#[derive(Clone)]
pub struct H2Sender(SendRequest<Bytes>);

pub(super) async fn open(
    io: BoxedSocket,
    windows: FlowControlWindows,
) -> Result<(super::HttpRequestSender, ConnectionDriverFuture), ProbeRequestError> {
    let io: BoxedSocket = if windows.as_go { Box::new(GoWindowUpdater::new(io)) } else { io };
    let (sender, connection) = Builder::new()
        .enable_push(false)
        .initial_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        .handshake::<_, Bytes>(io)
        .await?;
    Ok((super::HttpRequestSender::H2(H2Sender(sender)), Box::pin(async { drop(connection.await) })))
}

impl H2Sender {
    pub(super) async fn send(&self, request: Request<()>, body: Bytes) -> Result<PendingResponse, ProbeRequestError> {
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
pub(super) async fn chunk(body: &mut RecvStream) -> Option<Result<Bytes, ProbeRequestError>> {
    let data = match body.data().await? {
        Ok(data) => data,
        Err(error) => return Some(Err(error.into())),
    };
    Some(body.flow_control().release_capacity(data.len()).map(|()| data).map_err(ProbeRequestError::from))
}

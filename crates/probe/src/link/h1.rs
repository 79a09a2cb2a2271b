use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::sync::Mutex;

use super::{BoxedSocket, ConnectionDriverFuture, PendingResponse, ProbeRequestError, ResponseStream};

/// The sender of an HTTP/1.1 connection, which carries one request at a time.
#[derive(Clone)]
pub struct H1Sender(Arc<Mutex<http1::SendRequest<Full<Bytes>>>>);

pub(super) async fn open(
    io: BoxedSocket,
) -> Result<(super::HttpRequestSender, ConnectionDriverFuture), ProbeRequestError> {
    let (sender, connection) = http1::handshake(TokioIo::new(io)).await?;
    let sender = H1Sender(Arc::new(Mutex::new(sender)));
    Ok((super::HttpRequestSender::H1(sender), Box::pin(async { drop(connection.await) })))
}

impl H1Sender {
    pub(super) async fn send(&self, request: Request<()>, body: Bytes) -> Result<PendingResponse, ProbeRequestError> {
        let mut sender = self.0.lock().await;
        sender.ready().await?;
        let response = sender.send_request(request.map(|()| Full::new(body))).await?;
        let (head, body) = response.into_parts();
        Ok(PendingResponse { status: head.status, headers: head.headers, body: ResponseStream::H1(body) })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.try_lock().is_ok_and(|sender| sender.is_closed())
    }
}

pub(super) async fn chunk(body: &mut Incoming) -> Option<Result<Bytes, ProbeRequestError>> {
    loop {
        match body.frame().await? {
            // Trailers are not part of the body.
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    return Some(Ok(data));
                }
            }
            Err(error) => return Some(Err(error.into())),
        }
    }
}

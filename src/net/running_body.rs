use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http2::ParkableBody;
use hyper::body::{Body, Frame, SizeHint};

use super::connection::RunningRequest;
use base::InFlightGuard;

/// The largest response that counts as complete at once. Any object fits, because etcd's limit is 1.5 MiB.
const WHOLE_BYTES_MAX: u64 = 4 << 20;

/// A response body that keeps its request running until the codec has received all of it.
///
/// A body of known, small size counts as received at once, because a codec takes nothing while the client has no
/// window. While the client does not read the rest, its connection is idle like any other. If the client stops reading
/// a larger response, its connection counts as idle after a while, and can be closed to make room.
#[derive(Debug)]
pub(super) struct RunningBody<B> {
    body: B,
    running: Option<(RunningRequest, Option<InFlightGuard>)>,
}

impl<B: Body> RunningBody<B> {
    pub(super) fn new(body: B, running: (RunningRequest, Option<InFlightGuard>)) -> Self {
        let is_small = body.size_hint().exact().is_some_and(|bytes| bytes <= WHOLE_BYTES_MAX);
        let mut running = (!is_small).then_some(running);
        if let Some((request, _)) = &mut running {
            request.waits_for_client();
        }
        Self { body, running }
    }
}

impl<B: ParkableBody + Unpin> Body for RunningBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let this = &mut *self;
        let Some((request, _)) = &mut this.running else { return polled };
        match &polled {
            Poll::Pending => request.is_waited_for(),
            Poll::Ready(Some(Ok(_))) if !this.body.is_end_stream() => {
                // The codec need not poll a parked body again.
                if this.body.is_parked() {
                    request.is_waited_for();
                } else {
                    request.waits_for_client();
                }
            }
            Poll::Ready(_) => this.running = None,
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: ParkableBody + Unpin> ParkableBody for RunningBody<B> {
    fn is_parked(&self) -> bool {
        self.body.is_parked()
    }
}

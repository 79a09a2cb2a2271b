use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};

use super::connection::RequestUnderWay;
use super::parkable_body::ParkableBody;
use crate::base::UnderWay;

/// Any object fits in: etcd takes 1.5 MiB.
const WHOLE_BYTES_MAX: u64 = 4 << 20;

/// The body of an answer. Its request is under way until the codec has all of it, or could have it at once because its
/// size is known and small: a codec takes nothing where the client has no window. While the client does not read the
/// rest, its connection is idle like any other, and makes room for others.
#[derive(Debug)]
pub(super) struct RunningBody<B> {
    body: B,
    running: Option<(RequestUnderWay, Option<UnderWay>)>,
}

impl<B: Body> RunningBody<B> {
    pub(super) fn new(body: B, running: (RequestUnderWay, Option<UnderWay>)) -> Self {
        let is_small = body.size_hint().exact().is_some_and(|bytes| bytes <= WHOLE_BYTES_MAX);
        Self { body, running: (!is_small).then_some(running) }
    }
}

impl<B: Body + Unpin> Body for RunningBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let is_over = match &polled {
            Poll::Pending => false,
            Poll::Ready(None | Some(Err(_))) => true,
            Poll::Ready(Some(Ok(_))) => self.running.is_some() && self.body.is_end_stream(),
        };
        if is_over {
            self.running = None;
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

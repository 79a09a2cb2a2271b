//! Sends cached objects to clients.
//!
//! **Invariant.** All memory that unread responses hold is counted. A response shares its object's bytes. A large
//! response may be the last to keep these bytes alive, so it takes permits for its whole length from its user's LIST
//! pool. Every response has a deadline.

use bytes::Bytes;
use http::Response;

use std::sync::Arc;

use crate::listing::gzip;
use crate::serve::limits::{CompleteBody, ConcurrencyLimits, PIECE_BYTES_MAX, SlowReaderReaper, TOO_SLOW};
use crate::serve::read::request::ReadRequest;
use crate::serve::response::{FeedStatus, LIST_RETRY_SECONDS, ReplyBody, gzipped, too_many};
use crate::wire::{Encoding, Envelope};

/// The size in bytes up to which a response takes no permit. Most responses are far smaller, and few connections have
/// that many streams.
pub(crate) const FREE_BYTES_MAX: usize = 64 << 10;

/// Creates responses from cached objects.
#[derive(Debug)]
pub(crate) struct ObjectResponder {
    pub(crate) concurrency: Arc<ConcurrencyLimits>,
    pub(crate) slow_readers: SlowReaderReaper,
}

impl ObjectResponder {
    /// Returns the response with an object's body. It is compressed if the client accepts that and the body is large
    /// enough.
    pub(crate) async fn show(
        &self,
        request: &ReadRequest,
        envelope: &Envelope,
        (encoding, body): (Encoding, Bytes),
        feed_status: FeedStatus,
    ) -> Response<ReplyBody> {
        let (context, bytes) = (&request.context, envelope.object_len(body.len()));
        if bytes <= FREE_BYTES_MAX {
            // Nothing is allocated for a response that is sent at once, as most are.
            context.cut.within(self.slow_readers.body_max(), TOO_SLOW);
            // A response that fits into one piece is copied as cheaply as shared.
            let body = if bytes <= PIECE_BYTES_MAX {
                ReplyBody::full(envelope.object(&body))
            } else {
                ReplyBody::pieces(envelope.object_pieces(body))
            };
            return context.served(encoding, false, feed_status, body);
        }
        let place = match self.concurrency.whole(request.caller.payer().as_ref(), bytes) {
            Ok(place) => place.into(),
            Err(shed) => return context.status(&too_many(shed, LIST_RETRY_SECONDS)),
        };
        let (slow_readers, cut) = (&self.slow_readers, context.cut.clone());
        if context.compresses(bytes) {
            let compressed = gzip::whole(envelope.object(&body)).await;
            let body = ReplyBody::whole(CompleteBody::of(compressed, vec![place]), slow_readers, cut);
            return gzipped(context.served(encoding, false, feed_status, body));
        }
        let body = ReplyBody::whole(CompleteBody::new(envelope.object_pieces(body), vec![place]), slow_readers, cut);
        context.served(encoding, false, feed_status, body)
    }
}

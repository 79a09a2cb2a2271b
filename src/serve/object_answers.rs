//! Sends an object from memory to the client that asked for it.
//!
//! **Invariant.** All memory that is held by answers that are not taken is counted. An answer shares its object's
//! bytes. A large one has a place among the LISTs of its user for its whole length, since it may be the last that keeps
//! these bytes. Each answer ends in time.

use bytes::Bytes;
use http::Response;

use std::sync::Arc;

use super::body::ReplyBody;
use super::bounded_body::{BodyTimes, PIECE_BYTES_MAX, TOO_SLOW, Whole};
use super::concurrency::ConcurrencyLimits;
use super::read_request::ReadRequest;
use super::response_context::{FeedStatus, gzipped};
use super::statuses::{LIST_RETRY_SECONDS, too_many};
use crate::listing::gzip;
use crate::wire::{Encoding, Envelope};

/// Answers up to this length have no place: most are far smaller, and few connections have so many streams.
pub(super) const FREE_BYTES_MAX: usize = 64 << 10;

/// Hands out objects.
#[derive(Debug)]
pub(super) struct ObjectAnswers {
    pub(super) admission: Arc<ConcurrencyLimits>,
    /// How much time a client has to take an answer.
    pub(super) times: BodyTimes,
}

impl ObjectAnswers {
    /// The answer around an object's body, compressed if that is asked for and worth it.
    pub(super) async fn show(
        &self,
        request: &ReadRequest,
        envelope: &Envelope,
        (encoding, body): (Encoding, Bytes),
        standing: FeedStatus,
    ) -> Response<ReplyBody> {
        let (context, bytes) = (&request.context, envelope.object_len(body.len()));
        if bytes <= FREE_BYTES_MAX {
            // Nothing is noted for an answer that is over at once, as most are.
            context.cut.within(self.times.max(), TOO_SLOW);
            // An answer that is one piece anyway is copied as cheaply as shared.
            let body = if bytes <= PIECE_BYTES_MAX {
                ReplyBody::full(envelope.object(&body))
            } else {
                ReplyBody::pieces(envelope.object_pieces(body))
            };
            return context.served(encoding, false, standing, body);
        }
        let place = match self.admission.whole(request.caller.payer().as_ref(), bytes) {
            Ok(place) => place.into(),
            Err(shed) => return context.status(&too_many(shed, LIST_RETRY_SECONDS)),
        };
        let (times, cut) = (&self.times, context.cut.clone());
        if context.compresses(bytes) {
            let compressed = gzip::whole(envelope.object(&body)).await;
            let body = ReplyBody::whole(Whole::of(compressed, vec![place]), times, cut);
            return gzipped(context.served(encoding, false, standing, body));
        }
        let body = ReplyBody::whole(Whole::new(envelope.object_pieces(body), vec![place]), times, cut);
        context.served(encoding, false, standing, body)
    }
}

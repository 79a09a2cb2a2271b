//! How an object from memory goes out to the client that asked for it.
//!
//! **Invariant.** What a client asks for and does not take holds no more memory than somebody has counted: an answer
//! shares its object's bytes, a large one has a place among the LISTs of its user for all of its length, since it may
//! be the last that keeps them, and each is over in time.

use bytes::Bytes;
use http::Response;

use std::sync::Arc;
use std::time::Duration;

use super::admission::Admission;
use super::body::ReplyBody;
use super::bounded_body::{PIECE_BYTES_MAX, TOO_SLOW, Whole};
use super::read_request::ReadRequest;
use super::refusals::{LIST_RETRY_SECONDS, too_many};
use super::response_context::gzipped;
use crate::base::Tasks;
use crate::listing::gzip;
use crate::wire::{Encoding, Envelope};

/// Answers of no more than this have no place: a codec may hold back as much for any stream
/// (`net::ConnectionLimits::send_buffer_bytes_max`), and most answers are far smaller.
const FREE_BYTES_MAX: usize = 64 << 10;

/// Hands out objects.
#[derive(Debug)]
pub(super) struct ObjectAnswers {
    pub(super) admission: Arc<Admission>,
    pub(super) tasks: Tasks,
    /// How long an answer may take to be taken.
    pub(super) body_max: Duration,
}

impl ObjectAnswers {
    /// The answer around an object's body, compressed if that is asked for and worth it.
    pub(super) async fn show(
        &self,
        visit: &ReadRequest,
        envelope: &Envelope,
        (encoding, body): (Encoding, Bytes),
        stale_seconds: Option<u64>,
    ) -> Response<ReplyBody> {
        let (context, bytes) = (&visit.context, envelope.object_len(body.len()));
        if bytes <= FREE_BYTES_MAX {
            // A task for each would cost more than most of them.
            context.cut.within(self.body_max, TOO_SLOW);
            // What is one piece in any case is copied as cheaply as shared.
            let body = if bytes <= PIECE_BYTES_MAX {
                ReplyBody::full(envelope.object(&body))
            } else {
                ReplyBody::pieces(envelope.object_pieces(body))
            };
            return context.served(encoding, false, stale_seconds, body);
        }
        let place = match self.admission.whole(visit.caller.payer().as_ref(), bytes) {
            Ok(place) => place.into(),
            Err(shed) => return context.status(&too_many(shed, LIST_RETRY_SECONDS)),
        };
        let end = (self.body_max, &self.tasks, context.cut.clone());
        if context.compresses(bytes) {
            let compressed = gzip::whole(envelope.object(&body)).await;
            let body = ReplyBody::whole(Whole::of(compressed, vec![place]), end);
            return gzipped(context.served(encoding, false, stale_seconds, body));
        }
        let body = ReplyBody::whole(Whole::new(envelope.object_pieces(body), vec![place]), end);
        context.served(encoding, false, stale_seconds, body)
    }
}

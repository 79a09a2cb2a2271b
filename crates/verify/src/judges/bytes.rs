//! `TypedBytes`: an object has the same bytes for every client, and the requested encoding.

use std::collections::HashMap;

use super::super::digest::ContentDigest;
use super::super::event_text;
use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::operation::{ReceivedItem, RecordedOperation};
use super::super::record::{ReadVerb, RecordedEncoding, RecordedEventType, RequestServerRole};
use super::super::violation::GuaranteeVerdict;

/// A key for which there is one sequence of bytes: an object at a version, as an event, an item or a whole response.
/// For an event, it includes whether the object was deleted.
type EncodedContentKey<'a> = (&'a str, RecordedEncoding, ReadVerb, super::super::interner::ObjectKeyId, u64, bool);

/// The record in which an object's bytes occurred first.
struct FirstEncodedContent<'a> {
    bytes: ContentDigest,
    line: u32,
    op: &'a RecordedOperation,
}

/// Judges that an object has the same bytes in all responses, including the apiserver's if it was read too. A response
/// must have the requested encoding.
pub(super) fn typed_bytes(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::TypedBytes);
    let mut first: HashMap<EncodedContentKey<'_>, FirstEncodedContent<'_>> = HashMap::new();
    let direct = history.operations.iter().filter(|op| op.server == RequestServerRole::Direct);
    // The apiserver's responses come first, because the others are compared with them.
    for op in direct.chain(history.judged(ApiserverGuarantee::TypedBytes)) {
        let (Some(request), Some(answer)) = (&op.request, op.answered(200)) else { continue };
        let is_judged = op.server.is_judged();
        if let Some(encoding) = answer.encoding.filter(|encoding| is_judged && *encoding != op.encoding) {
            judged.instances += 1;
            judged.violation(op, &[answer.line], || {
                (event_text::encoding(op.encoding).to_owned(), event_text::encoding(encoding).to_owned())
            });
        }
        for received in answer.items.iter().chain(&op.events).filter(|received| received.is_object()) {
            let Some(bytes) = received.bytes else { continue };
            let gone = received.kind == RecordedEventType::Deleted;
            let spelled = (request.collection.as_str(), op.encoding, op.verb, received.key, received.version, gone);
            let Some(seen) = first.get(&spelled) else {
                first.insert(spelled, FirstEncodedContent { bytes, line: received.line, op });
                continue;
            };
            if is_judged {
                judged.instances += 1;
                if seen.bytes != bytes {
                    other(history, op, received, seen, &mut judged);
                }
            }
        }
    }
    judged
}

fn other(
    history: &RunHistory,
    op: &RecordedOperation,
    received: &ReceivedItem,
    seen: &FirstEncodedContent<'_>,
    judged: &mut GuaranteeVerdict,
) {
    judged.violation(op, &[seen.op.line, seen.line, received.line], || {
        let who =
            if seen.op.server == RequestServerRole::Direct { "the apiserver's response" } else { "another response" };
        let encoding = event_text::encoding(op.encoding);
        let object = format!("{} at {} in {encoding}", history.key(received.key), received.version);
        (format!("{object} with the same bytes as in {who}"), "different bytes".to_owned())
    });
}

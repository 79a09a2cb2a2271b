//! Other representations of the same objects, without another upstream stream: JSON from protobuf, and
//! `PartialObjectMetadata` from either.
//!
//! A [`Transcoder`] writes the JSON body that the apiserver would have written of an object whose protobuf body is
//! held; a [`MetadataRenderer`] takes the metadata out of a body. Both take and give bodies in the normal form of
//! [`wire`](super), so that the same [`Envelope`](super::Envelope)s and [`ListFrame`](super::ListFrame)s go around what
//! they write.
//!
//! **Exact or refused.** What is written is what that server would have written, to the byte, or nothing is: an unknown
//! field number, another wire type than the table's or a raw value that JSON cannot carry is [`Refused`], and the
//! caller fetches that representation from upstream instead (R-DERIVE-10). The rules are R-DERIVE-5 to
//! R-DERIVE-9, and are cited where they are kept; the table they work on is made from the API's Go types ([`facts`]).
//!
//! What cannot be known from here: a server that is not the release it says it is. Callers compare samples with what
//! the server itself writes (R-DERIVE-11).

mod custom_metadata;
mod facts;
mod go_json;
mod json_object;
mod metadata;
mod refused;
mod scalar;
mod schema;
mod transcoder;
mod writer;

#[cfg(test)]
mod tests;

pub use facts::is_of_kubernetes;
pub use metadata::MetadataRenderer;
pub use refused::{RefusalReason, Refused};
pub use transcoder::Transcoder;

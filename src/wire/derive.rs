//! Other representations of the same objects, without another upstream watch: JSON from protobuf, and
//! `PartialObjectMetadata` from either.
//!
//! A [`Transcoder`] writes the JSON body that the apiserver would have written for an object whose protobuf body is
//! held. A [`MetadataRenderer`] extracts the metadata from a body. Both take and return bodies in the normal form of
//! [`wire`](super), so the same [`Envelope`](super::Envelope)s and [`ListFrame`](super::ListFrame)s wrap their output.
//!
//! **Exact or refused.** The output is byte for byte that of the server, or there is none. An unknown field number, a
//! wire type other than the table's, or a raw value that JSON cannot express is [`TranscodeError`]. The caller then fetches
//! that representation from upstream, because a client that writes back an incomplete object deletes fields. The rules
//! are R-DERIVE-5 to R-DERIVE-9, cited where they are implemented. Their table is generated from the API's Go types
//! ([`facts`]).
//!
//! This module cannot detect a server whose release differs from its reported one. Callers compare samples with the
//! server's own output (W15).

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
pub use refused::{RefusalReason, TranscodeError};
pub use transcoder::Transcoder;

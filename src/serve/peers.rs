//! What the proxy answers to proxies below it: documents of the apiserver, and reviews of their callers.

mod documents;
mod remembered;
mod reviews;

pub(crate) use documents::{ServerDocuments, health};
pub(crate) use reviews::PeerReviews;

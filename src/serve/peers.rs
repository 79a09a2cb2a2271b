//! What the proxy answers to proxies below it: its health, and reviews of their callers.

mod health;
mod reviews;

pub(crate) use health::health;
pub(crate) use reviews::PeerReviews;

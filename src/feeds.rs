//! Running feeds: their resource, scope, encoding, readers and freshness.
//!
//! [`FeedRegistry`] returns a [`FeedHandle`] for each requested feed. If the feed does not run, it sends a
//! [`FeedStartRequest`] to the supervisor that runs reflectors. A [`Feed`] is one [`cache`](crate::cache) and the facts
//! about it: [`FeedFreshness`] is the time as of which it is proven to be current, and [`DerivedRepresentations`] are
//! the representations that may be derived from it. [`ServerReleaseMatch`] states whether upstream still writes bodies
//! as they are cached, and [`ResumeBackfills`] are the clients that wait for older history.
//!
//! **Invariants.** A feed of another definition is another feed. The registry never returns a feed that has ended. This
//! layer sends no requests to upstream and does not depend on client requests.

mod counts;
mod derived_representations;
mod feed;
mod feed_key;
mod freshness;
mod refused_feeds;
mod registry;
mod resume_backfill;
mod server_release_match;

#[cfg(test)]
mod tests;

pub use counts::{FeedTrafficCounts, LabelledMetric};
pub use derived_representations::{
    DerivedRepresentationMode, DerivedRepresentationModes, DerivedRepresentationRefusal, DerivedRepresentations,
};
pub use feed::{Feed, FeedHandle};
pub use feed_key::{FeedKey, FeedScope, FeedSpec};
pub use freshness::{AwaitedVersions, FeedFreshness};
pub use registry::{FeedRegistry, FeedStartRequest, FeedUnavailable};
pub use resume_backfill::{BackfillOutcome, BackfillRequest, ResumeBackfills};
pub use server_release_match::{EncodingServerBuild, ServerReleaseMatch};

/// The maximum number of running feeds.
pub const FEEDS_MAX: usize = 1_000;

//! Running feeds: their resource, scope, encoding, readers and freshness.
//!
//! [`Feeds`] is the registry. It returns a [`FeedHandle`] for each requested feed. If the feed does not run, it sends a
//! [`FeedStartRequest`] to the supervisor that runs reflectors. A [`Feed`] is one [`cache`](crate::cache) and the facts about it:
//! [`Freshness`] is the time as of which it is proven to be current, and [`Renderings`] are the representations that
//! may be derived from it. [`BodyRelease`] states whether upstream still writes bodies as they are held, and
//! [`ResumeBackfills`] are the clients that wait for older history.
//!
//! **Invariants.** A feed of another definition is another feed. The registry never returns a feed that has ended. This
//! layer sends no requests to upstream and does not depend on client requests.

mod body_release;
mod counts;
mod feed;
mod feed_key;
mod feed_spec;
mod freshness;
mod refusals;
mod registry;
mod renderings;
mod resume_backfill;
mod wanted_versions;

#[cfg(test)]
mod tests;

pub use body_release::{BodyRelease, EncodedBy};
pub use counts::{CountedMetric, FeedCounts};
pub use feed::{Feed, FeedHandle};
pub use feed_key::{FeedKey, Scope};
pub use feed_spec::FeedSpec;
pub use freshness::Freshness;
pub use registry::{FeedStartRequest, FeedUnavailable, Feeds};
pub use renderings::{RenderingMode, RenderingRefusal, Renderings};
pub use resume_backfill::{BackfillOutcome, BackfillRequest, ResumeBackfills};
pub use wanted_versions::WantedVersions;

/// The maximum number of running feeds.
pub const FEEDS_MAX: usize = 1_000;

//! The feeds there are: which resource, how much of it, in which encoding, who reads it and how current it is.
//!
//! [`Feeds`] is the registry. It gives out a [`FeedHandle`] for each feed that somebody wants. If the feed does not
//! run, it sends a [`Demand`] to the supervisor that runs reflectors. A [`Feed`] is one [`cache`](crate::cache) and
//! what is known about it: [`Freshness`] says since when it is proven to be current, [`Renderings`] what may be derived
//! of it, [`BodyRelease`] whether the server that it follows writes bodies as they are held, [`ResumeBackfills`] who waits for
//! older history.
//!
//! **Invariants.** A feed of another definition is another feed. A feed that is over is never handed out. Nothing here
//! asks upstream, and nothing knows of requests.

mod body_release;
mod counts;
mod feed;
mod feed_key;
mod feed_spec;
mod freshness;
mod refusals;
mod refused_for;
mod registry;
mod renderings;
mod resume_backfill;
mod wanted_versions;

#[cfg(test)]
mod tests;

pub use body_release::{BodyRelease, Written};
pub use counts::{CountedMetric, FeedCounts};
pub use feed::{Feed, FeedHandle};
pub use feed_key::{FeedKey, Scope};
pub use feed_spec::FeedSpec;
pub use freshness::Freshness;
pub use registry::{Demand, Feeds, Unavailable};
pub use renderings::{RenderingMode, RenderingRefusal, Renderings};
pub use resume_backfill::{BackfillOutcome, BackfillRequest, ResumeBackfills};
pub use wanted_versions::WantedVersions;

/// How many feeds may run at once.
pub const FEEDS_MAX: usize = 1_000;

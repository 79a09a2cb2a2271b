//! The judges: one for each promise, each a pure function of a history.

mod bookmarks;
mod bytes;
mod continuity;
mod delivery;
mod difference;
mod events;
mod freshness;
mod initial_delivery;
mod initial_events;
mod lengths;
mod lists;
mod order;
mod refusals;
mod relists;
mod silence;
mod versions;

#[cfg(test)]
mod tests;

use super::guarantee::ApiserverGuarantee;
use super::history::RunHistory;
use super::violation::GuaranteeVerdict;

/// The number of nanoseconds, the unit of recorded times, in a second.
const SECOND_NS: u64 = 1_000_000_000;

impl ApiserverGuarantee {
    fn judge(self, history: &RunHistory) -> GuaranteeVerdict {
        match self {
            Self::Ordered => order::ordered(history),
            Self::Unique => order::unique(history),
            Self::Reliable => delivery::reliable(history),
            Self::Filtered => events::filtered(history),
            Self::Typed => events::typed(history),
            Self::Resumable => delivery::resumable(history),
            Self::Expired => refusals::expired(history),
            Self::Future => refusals::future(history),
            Self::Bookmarkable => bookmarks::bookmarkable(history),
            Self::InitialEvents => initial_events::initial_events(history),
            Self::ListSnapshot => lists::list_snapshot(history),
            Self::Continuity => continuity::continuity(history),
            Self::NotOlderThan => versions::not_older_than(history),
            Self::Exact => versions::exact(history),
            Self::Consistent => freshness::consistent(history),
            Self::Monotone => freshness::monotone(history),
            Self::TypedBytes => bytes::typed_bytes(history),
            Self::OneRelist => relists::one_relist(history),
            Self::BeginsOnce => initial_delivery::begins_once(history),
            Self::Timed => lengths::timed(history),
            Self::Steady => silence::steady(history),
        }
    }
}

impl RunHistory {
    /// Judges whether one guarantee was kept.
    pub fn judge(&self, promise: ApiserverGuarantee) -> GuaranteeVerdict {
        promise.judge(self).sorted()
    }

    /// Judges whether every guarantee was kept.
    pub fn judge_all(&self) -> Vec<GuaranteeVerdict> {
        ApiserverGuarantee::ALL.map(|promise| self.judge(promise)).into()
    }
}

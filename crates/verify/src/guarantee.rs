//! The promises by name, with one judge each.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A guarantee of an apiserver, or of a server that replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApiserverGuarantee {
    /// Within a watch, versions never decrease after the initial events, and increase per object (W1).
    Ordered,
    /// No change is delivered twice, including after a resume (W2).
    Unique,
    /// Every matching change between two delivered moments is delivered (W3).
    Reliable,
    /// No event is delivered whose object matches neither before nor after the change (W4).
    Filtered,
    /// Each event has the type and the content that the change has for this selector (W5).
    Typed,
    /// A watch from a version begins with the first matching change after it (W6).
    Resumable,
    /// A 410 is returned only if history may be forgotten, as one event, and ends the watch (W7, W12).
    Expired,
    /// A request for a future version gets nothing at or below it, and is refused only while it is in the future (W8,
    /// L3).
    Future,
    /// A bookmark guarantees that every change up to it was delivered; only watches that request bookmarks get them
    /// (W9).
    Bookmarkable,
    /// The initial events are the state at the version that ends them (W11).
    InitialEvents,
    /// A list is the matching part of the state at its version, in the order of keys (L1).
    ListSnapshot,
    /// A client that lists, watches and resumes holds the correct state at every known moment (L2).
    Continuity,
    /// A response is not older than the requested version (L3).
    NotOlderThan,
    /// A response has exactly the requested version, and so have all pages (L4).
    Exact,
    /// A response to a request without a version contains everything known before the request (L5).
    Consistent,
    /// A response from a cache is not older than an earlier one (L6).
    Monotone,
    /// The bytes of an object are the same in every response, including the apiserver's (W15).
    TypedBytes,
    /// After an incident, the server lists each resource once, independent of the number of its clients (F4).
    OneRelist,
    /// A client that switches servers receives a state once: each server has the changes after another one's version
    /// (F5).
    BeginsOnce,
    /// A watch ends at its timeout, and earlier only with an error (W16).
    Timed,
    /// A watch with bookmarks gets an event at least every minute (W10).
    Steady,
}

impl ApiserverGuarantee {
    pub const ALL: [Self; 21] = [
        Self::Ordered,
        Self::Unique,
        Self::Reliable,
        Self::Filtered,
        Self::Typed,
        Self::Resumable,
        Self::Expired,
        Self::Future,
        Self::Bookmarkable,
        Self::InitialEvents,
        Self::ListSnapshot,
        Self::Continuity,
        Self::NotOlderThan,
        Self::Exact,
        Self::Consistent,
        Self::Monotone,
        Self::TypedBytes,
        Self::OneRelist,
        Self::BeginsOnce,
        Self::Timed,
        Self::Steady,
    ];
}

impl fmt::Display for ApiserverGuarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The derived name is the one in the specification: Ordered, InitialEvents.
        f.pad(&format!("{self:?}"))
    }
}

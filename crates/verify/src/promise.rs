//! What is promised, by name: one judge each.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A promise of an apiserver, or of what stands for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    /// Within a watch versions never decrease behind the initial events, and increase per object (W1).
    Ordered,
    /// No change is delivered twice, nor again after a resume (W2).
    Unique,
    /// Every matching change between two delivered moments is delivered (W3).
    Reliable,
    /// Nothing is delivered that matches neither before nor after the change (W4).
    Filtered,
    /// Each event has the type and the content that the change has for this selector (W5).
    Typed,
    /// A watch from a version begins with the first matching change behind it (W6).
    Resumable,
    /// A 410 comes only where history may have been forgotten, as one event, and ends the watch (W7, W12).
    Expired,
    /// A version of the future gets nothing at or below it, and is refused only while it is one (W8, L3).
    Future,
    /// A bookmark says that everything up to it was delivered; only those who ask get them (W9).
    Bookmarkable,
    /// The initial events are the state of the version that ends them (W11).
    InitialEvents,
    /// A list is the matching part of the state at its version, in the order of keys (L1).
    ListSnapshot,
    /// A client that lists, watches and resumes holds the state at every moment that it knows of (L2).
    Continuity,
    /// An answer is not older than the version that was asked for (L3).
    NotOlderThan,
    /// An answer is of the version that was asked for, and so are all pages (L4).
    Exact,
    /// An answer without a version has everything that was known before it was asked for (L5).
    Consistent,
    /// An answer from memory is not older than an earlier one (L6).
    Monotone,
    /// The bytes of an object are those of every other answer, and of the apiserver behind (W15).
    TypedBytes,
    /// After an incident the server lists each resource once, however many clients it has (F4).
    OneRelist,
    /// A client that goes from server to server begins once: each has what follows the version of another (F5).
    BeginsOnce,
    /// A watch ends when its time is up, and before that with a word (W16).
    Timed,
    /// Who takes bookmarks hears something every minute (W10).
    Steady,
}

impl Promise {
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

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The derived name is that of the specification: Ordered, InitialEvents.
        f.pad(&format!("{self:?}"))
    }
}

//! Ways in which servers have lied, done to a history in which nobody does. Each says whether it found where.

mod reads;
mod streams;

use super::super::promise::Promise;
use super::spoiling::Spoiling;

/// Its name, the promise that it breaks, and itself.
pub(super) type Mutation = (&'static str, Promise, fn(&mut Spoiling<'_>) -> Option<()>);

pub(super) fn all() -> Vec<Mutation> {
    [&streams::MUTATIONS[..], &reads::MUTATIONS[..]].concat()
}

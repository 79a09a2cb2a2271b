//! Errors of real servers, injected into a correct history. Each mutation returns whether it found a place.

mod reads;
mod streams;

use super::super::guarantee::ApiserverGuarantee;
use super::spoiling::Spoiling;

/// The name, the broken promise, and the mutation.
pub(super) type Mutation = (&'static str, ApiserverGuarantee, fn(&mut Spoiling<'_>) -> Option<()>);

pub(super) fn all() -> Vec<Mutation> {
    [&streams::MUTATIONS[..], &reads::MUTATIONS[..]].concat()
}

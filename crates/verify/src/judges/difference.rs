//! Compares delivered objects with the expected state.

use std::collections::BTreeMap;

use super::super::history::RunHistory;
use super::super::interner::ObjectKeyId;
use super::super::operation::ReceivedItem;
use super::super::truth::ResourceGroundTruth;

/// Returns the first difference in the order of keys: the expected and actual object, and the line of the change.
pub(super) fn difference<'a>(
    history: &RunHistory,
    truth: &ResourceGroundTruth,
    expected: impl Iterator<Item = (&'a ObjectKeyId, &'a u32)>,
    received: impl Iterator<Item = (ObjectKeyId, u64)>,
) -> Option<(String, String, u32)> {
    let mut reported_of: BTreeMap<ObjectKeyId, u64> = BTreeMap::new();
    for (key, version) in received {
        if reported_of.insert(key, version).is_some() {
            let key = history.key(key);
            return Some((format!("{key} once"), format!("with {key} twice"), 0));
        }
    }
    for (key, change) in expected {
        let change = &truth.changes[*change as usize];
        let name = || format!("{} at {}", history.key(*key), change.version);
        match reported_of.remove(key) {
            None => return Some((name(), "without it".to_owned(), change.line)),
            Some(version) if version != change.version => {
                return Some((name(), format!("with it at {version}"), change.line));
            }
            Some(_) => {}
        }
    }
    let (key, version) = reported_of.pop_first()?;
    Some((format!("no {}", history.key(key)), format!("with {} at {version}", history.key(key)), 0))
}

/// Converts delivered objects into the input of [`difference`].
pub(super) fn objects(received: &[ReceivedItem]) -> impl Iterator<Item = (ObjectKeyId, u64)> {
    received.iter().map(|received| (received.key, received.version))
}

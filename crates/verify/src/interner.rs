//! Interned texts, so that a history of millions of events stores each key once.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// A table that numbers values in the order of their first use.
#[derive(Debug)]
pub(super) struct Interner<T> {
    values: Vec<Arc<T>>,
    numbers: HashMap<Arc<T>, u32>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { values: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: Eq + Hash> Interner<T> {
    pub(super) fn number(&mut self, value: T) -> u32 {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        let value = Arc::new(value);
        let number = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.values.push(Arc::clone(&value));
        self.numbers.insert(value, number);
        number
    }

    pub(super) fn into_values(self) -> Vec<Arc<T>> {
        self.values
    }
}

/// The number of an object's key. Once a history is complete, numbers have the order of the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ObjectKeyId(pub(super) u32);

/// The object keys of a record, by number.
#[derive(Debug, Default)]
pub(super) struct InternedKeys {
    texts: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
}

impl InternedKeys {
    pub(super) fn number(&mut self, text: &str) -> ObjectKeyId {
        if let Some(number) = self.numbers.get(text) {
            return ObjectKeyId(*number);
        }
        let text: Arc<str> = text.into();
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        ObjectKeyId(number)
    }

    /// Sorts keys by their bytes, as the apiserver does. Returns the new number of each old one.
    pub(super) fn sort(&mut self) -> Vec<ObjectKeyId> {
        self.texts.sort_unstable();
        let mut moved = vec![ObjectKeyId(0); self.texts.len()];
        for (new, text) in self.texts.iter().enumerate() {
            let new = u32::try_from(new).unwrap_or(u32::MAX);
            if let Some(old) = self.numbers.insert(Arc::clone(text), new) {
                moved[old as usize] = ObjectKeyId(new);
            }
        }
        moved
    }

    pub(super) fn text(&self, key: ObjectKeyId) -> &str {
        self.texts.get(key.0 as usize).map_or("", |text| text)
    }

    /// Returns the first key that is not before a text. The keys must be sorted.
    pub(super) fn at_or_behind(&self, text: &str) -> ObjectKeyId {
        ObjectKeyId(u32::try_from(self.texts.partition_point(|key| **key < *text)).unwrap_or(u32::MAX))
    }

    pub(super) fn get(&self, text: &str) -> Option<ObjectKeyId> {
        self.numbers.get(text).copied().map(ObjectKeyId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_keys_follow_apiserver_list_order() {
        let mut keys = InternedKeys::default();
        let old: Vec<_> = ["t1/b", "t1-a/z", "t1/a", "t1/b"].map(|text| keys.number(text)).into();
        let moved = keys.sort();
        let new: Vec<_> = old.iter().map(|key| moved[key.0 as usize]).collect();
        assert_eq!(new, [ObjectKeyId(2), ObjectKeyId(0), ObjectKeyId(1), ObjectKeyId(2)]);
        assert_eq!(new.iter().map(|key| keys.text(*key)).collect::<Vec<_>>(), ["t1/b", "t1-a/z", "t1/a", "t1/b"]);
        assert_eq!(keys.get("t1/a"), Some(ObjectKeyId(1)));
        assert_eq!(["", "t1/a", "t1/a\0", "u"].map(|text| keys.at_or_behind(text).0), [0, 1, 2, 3]);
    }
}

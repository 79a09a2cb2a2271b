use std::ops::Range;

use super::{FieldMatcher, LabelSelector, ObjectKey, SelectableAttributes, ShardSelector};

/// Selects the objects of a collection that a request is about: labels, fields and shard must all match.
///
/// Hashable and comparable, so that requests with the same selector can share work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    pub labels: LabelSelector,
    pub fields: FieldMatcher,
    /// Boxed, because few selectors have one.
    pub shard: Option<Box<ShardSelector>>,
}

impl Selector {
    /// Returns a selector that matches every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Whether the selector checks nothing, so that callers may skip it. False for a selector that matches everything
    /// only by chance, such as `!no-such-label`.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty() && self.shard.is_none()
    }

    /// Whether the selector contradicts itself, so that no object matches.
    pub fn is_contradictory(&self) -> bool {
        self.labels.is_contradictory() || self.fields.is_contradictory()
    }

    /// Returns the maximum number of texts and ranges that [`matches`](Self::matches) compares for an object with
    /// `labels` labels.
    pub fn comparisons(&self, labels: usize) -> usize {
        self.fields.comparisons() + self.labels.comparisons(labels) + self.ranges().len()
    }

    /// The maximum number of comparisons for any object.
    pub fn comparisons_at_most(&self) -> usize {
        self.comparisons(self.labels.keys())
    }

    /// Returns the approximate number of bytes that the selector uses on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.fields.heap_bytes() + self.labels.heap_bytes() + size_of_val(self.ranges())
    }

    /// Whether an object matches. Labels are checked last, because the others are usually decided by one comparison.
    pub fn matches(&self, key: &ObjectKey, attributes: &SelectableAttributes) -> bool {
        self.shard.as_ref().is_none_or(|shard| shard.matches(key, attributes))
            && self.fields.matches(key, attributes)
            && self.labels.matches(attributes)
    }

    fn ranges(&self) -> &[Range<u128>] {
        self.shard.as_ref().map_or(&[], |shard| shard.ranges())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FieldSelector, Gvr, SelectableFieldTable};
    use super::*;

    fn selector(labels: &str, fields: &str) -> Selector {
        let table = SelectableFieldTable::of_builtin(&Gvr::new("", "v1", "pods"));
        Selector {
            labels: LabelSelector::parse(labels).expect("valid"),
            fields: FieldSelector::parse(fields).expect("valid").compile(&table).expect("known fields"),
            shard: None,
        }
    }

    #[test]
    fn selector_requires_labels_and_fields_to_match() {
        let key = ObjectKey::new("shop", "cart-1");
        let attributes = SelectableAttributes::new(&[("app", "cart")], &["node-1"]);
        for (labels, fields, matches) in [
            ("", "", true),
            ("app=cart", "spec.nodeName=node-1", true),
            ("app=cart", "spec.nodeName=node-2", false),
            ("app=other", "spec.nodeName=node-1", false),
        ] {
            assert_eq!(selector(labels, fields).matches(&key, &attributes), matches, "{labels} {fields}");
        }
    }

    #[test]
    fn only_the_empty_selector_is_everything() {
        assert!(Selector::everything().is_everything());
        assert!(selector("", "").is_everything());
        assert!(!selector("!absent", "").is_everything());
        assert!(!selector("", "metadata.name!=x").is_everything());
        assert_eq!(selector("", ""), Selector::everything());
        let whole = "shardRange(object.metadata.uid, '0x0000000000000000', '0x10000000000000000')";
        let shard = ShardSelector::parse(whole).map(Box::new);
        assert!(!Selector { shard, ..Selector::everything() }.is_everything());
    }
}

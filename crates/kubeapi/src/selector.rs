use super::{FieldMatcher, LabelSelector, ObjectKey, SelectableAttributes};

/// Selects the objects of a collection that a request is about: labels and fields must both match.
///
/// Hashable and comparable, so that requests with the same selector can share work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    pub labels: LabelSelector,
    pub fields: FieldMatcher,
}

impl Selector {
    /// Returns a selector that matches every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Whether the selector checks nothing, so that callers may skip it. False for a selector that matches everything
    /// only by chance, such as `!no-such-label`.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether the selector contradicts itself, so that no object matches.
    pub fn is_contradictory(&self) -> bool {
        self.labels.is_contradictory() || self.fields.is_contradictory()
    }

    /// Returns the maximum number of texts that [`matches`](Self::matches) compares for an object with `labels` labels.
    pub fn comparisons(&self, labels: usize) -> usize {
        self.fields.comparisons() + self.labels.comparisons(labels)
    }

    /// The maximum number of comparisons for any object.
    pub fn comparisons_at_most(&self) -> usize {
        self.fields.comparisons() + self.labels.comparisons(self.labels.keys())
    }

    /// Returns the approximate number of bytes that the selector uses on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.fields.heap_bytes() + self.labels.heap_bytes()
    }

    /// Whether an object matches. Fields are checked first, because they are fewer and usually decided by one string
    /// comparison.
    pub fn matches(&self, key: &ObjectKey, attributes: &SelectableAttributes) -> bool {
        self.fields.matches(key, attributes) && self.labels.matches(attributes)
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
    }
}

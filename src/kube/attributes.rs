/// What selectors look at in one object, besides its key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Sorted by key, keys unique.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// One value for each entry of the resource's [`FieldTable::fields`](super::FieldTable::fields), in that order. A
    /// field that the object lacks has its kind's [absent text](super::FieldKind::absent_text), mostly `""`: the
    /// apiserver compares it so (semantics.md §2.2).
    pub fields: Box<[Box<str>]>,
}

impl Attributes {
    pub fn label(&self, key: &str) -> Option<&str> {
        let at = self.labels.binary_search_by(|(candidate, _)| candidate.as_ref().cmp(key)).ok()?;
        Some(&self.labels[at].1)
    }
}

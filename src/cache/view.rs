use crate::wire::ObjectRevision;
use kubeapi::{ObjectKey, Selector};

/// The cost of accessing an object, in text comparisons: in a large collection it is a processor cache miss (`select/a
/// label/100000` of benches/README.md: 0.4 µs an object, of which 0.02 are comparisons).
const OBJECT_ACCESS_COST: usize = 40;
/// The number of labels that most objects do not exceed.
const LABELS: usize = 16;
/// Cost of a selector per object above which it is [expensive](CollectionView::is_expensive): about a microsecond,
/// which is less than waking a watch takes. Ten requirements cost 50 to 80.
const EXPENSIVE_COST: usize = 100;

/// The part of a collection that a reader receives: one namespace or all, and a selector.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectionView {
    namespace: Option<Box<str>>,
    selector: Selector,
    is_expensive: bool,
    depends_only_on_key: bool,
}

impl CollectionView {
    /// Creates a view. `namespace: None` means all namespaces, or a cluster-scoped resource.
    pub fn new(namespace: Option<&str>, selector: Selector) -> Self {
        // A required `metadata.namespace` on a cluster-wide path narrows the scan to it (R-LIST-3).
        let namespace = namespace.or_else(|| selector.fields.required_namespace()).map(Into::into);
        let is_expensive = selector.comparisons_at_most() > EXPENSIVE_COST;
        let goes_by_key = selector.labels.is_empty() && selector.fields.depends_only_on_key(None);
        Self { namespace, selector, is_expensive, depends_only_on_key: goes_by_key }
    }

    /// Returns the same view of a collection in which all objects have the given value in the given field.
    #[must_use]
    pub fn with_fixed_field(mut self, field: &str, value: &str) -> Self {
        self.depends_only_on_key =
            self.selector.labels.is_empty() && self.selector.fields.depends_only_on_key(Some((field, value)));
        self
    }

    /// Returns the same view for a reader that also needs the previous state of each change.
    #[must_use]
    pub fn with_previous_state(mut self) -> Self {
        self.depends_only_on_key = false;
        self
    }

    pub fn everything() -> Self {
        Self::new(None, Selector::everything())
    }

    pub fn is_everything(&self) -> bool {
        self.namespace.is_none() && self.selector.is_everything()
    }

    /// Returns whether an object's key and shard alone decide if the reader sees it. The decision is then the same
    /// before and after every change, so the previous state is not needed.
    pub fn depends_only_on_key(&self) -> bool {
        self.depends_only_on_key
    }

    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Returns the only name that an object in this view can have, if the selector requires one.
    pub fn name(&self) -> Option<&str> {
        self.selector.fields.required_name()
    }

    /// Returns the key of the only object in this view, if the view names it.
    pub fn single(&self, namespaced: bool) -> Option<ObjectKey> {
        let name = self.name()?;
        match (&self.namespace, namespaced) {
            (Some(namespace), true) => Some(ObjectKey::new(namespace, name)),
            (None, false) => Some(ObjectKey::new("", name)),
            _ => None,
        }
    }

    /// Returns the approximate cost of checking `object`, in text comparisons.
    pub fn cost_of(&self, object: &ObjectRevision) -> usize {
        self.cost(object.attributes.labels().len())
    }

    /// Returns the same for an object with the largest common number of labels.
    pub fn cost_estimate(&self) -> usize {
        self.cost(LABELS)
    }

    /// Returns the selector's part of [`cost_estimate`](Self::cost_estimate).
    pub fn comparison_estimate(&self) -> usize {
        self.selector.comparisons(LABELS)
    }

    /// Returns whether the selector costs more than the rest of a delivery. If so, every object compared with it counts
    /// towards the scan budget, whether or not it is sent.
    pub fn is_expensive(&self) -> bool {
        self.is_expensive
    }

    fn cost(&self, labels: usize) -> usize {
        OBJECT_ACCESS_COST + self.selector.comparisons(labels)
    }

    pub fn matches(&self, object: &ObjectRevision) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| object.key.namespace() == namespace)
            && (self.selector.is_everything() || self.selector.matches(&object.key, &object.attributes))
    }
}

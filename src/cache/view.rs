use crate::wire::Object;
use base::mutant;
use kubeapi::{ObjectKey, Selector};

/// What it costs to reach an object, in comparisons of text: in a large collection no processor cache has it (`select/a
/// label/100000` of benches/README.md: 0.4 µs an object, of which 0.02 are comparisons).
const LOOK_COST: usize = 40;
/// A number of labels that most objects do not exceed.
const LABELS: usize = 16;
/// What a selector may cost for one object before it is [dear](View::is_dear): about a microsecond, which is less than
/// it takes to wake a watch. Ten requirements are 50 to 80.
const ORDINARY: usize = 100;

/// The part of a collection that a reader sees: a namespace or all, and a selector.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    namespace: Option<Box<str>>,
    selector: Selector,
    is_dear: bool,
    goes_by_key: bool,
}

impl View {
    /// `namespace: None` means all namespaces, or a cluster-scoped resource.
    pub fn new(namespace: Option<&str>, selector: Selector) -> Self {
        // A required `metadata.namespace` on a cluster-wide path narrows the scan to it (R-LIST-3).
        let namespace = namespace.or_else(|| selector.fields.required_namespace()).map(Into::into);
        let is_dear = selector.comparisons_at_most() > ORDINARY;
        let goes_by_key = selector.labels.is_empty() && selector.fields.goes_by_key(None);
        Self { namespace, selector, is_dear, goes_by_key }
    }

    /// The same view of a collection whose objects all have this value in this field.
    #[must_use]
    pub fn within(mut self, field: &str, value: &str) -> Self {
        self.goes_by_key = self.selector.labels.is_empty() && self.selector.fields.goes_by_key(Some((field, value)));
        self
    }

    /// The same view for a reader who also needs to know what was there before each change.
    #[must_use]
    pub fn knowing_before(mut self) -> Self {
        self.goes_by_key = false;
        self
    }

    pub fn everything() -> Self {
        Self { namespace: None, selector: Selector::everything(), is_dear: false, goes_by_key: true }
    }

    pub fn is_everything(&self) -> bool {
        self.namespace.is_none() && self.selector.is_everything()
    }

    /// Whether an object's key alone decides if the reader sees it. Then it does so before and after every change, and
    /// what was there before need not be known.
    pub fn goes_by_key(&self) -> bool {
        self.goes_by_key
    }

    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// The only name that an object in this view can have, if there is one.
    pub fn name(&self) -> Option<&str> {
        self.selector.fields.required_name()
    }

    /// The only object in this view, if the view names it.
    pub fn single(&self, namespaced: bool) -> Option<ObjectKey> {
        let name = self.name()?;
        match (&self.namespace, namespaced) {
            (Some(namespace), true) => Some(ObjectKey::new(namespace, name)),
            (None, false) => Some(ObjectKey::new("", name)),
            _ => None,
        }
    }

    /// About what it costs to look at `object`, in comparisons of text.
    pub fn cost_of(&self, object: &Object) -> usize {
        self.cost(object.attributes.labels().len())
    }

    /// The same for an object with as many labels as most have at most.
    pub fn usual_cost(&self) -> usize {
        self.cost(LABELS)
    }

    /// The part of [`usual_cost`](Self::usual_cost) that is due to the selector.
    pub fn usual_comparisons(&self) -> usize {
        self.selector.comparisons(LABELS)
    }

    /// Whether the selector costs more than the rest of a delivery: then every object that it is compared with counts,
    /// whether or not it is told.
    pub fn is_dear(&self) -> bool {
        self.is_dear
    }

    fn cost(&self, labels: usize) -> usize {
        LOOK_COST + self.selector.comparisons(labels)
    }

    pub fn matches(&self, object: &Object) -> bool {
        let is_in = |namespace: &str| match object.key.namespace() {
            longer if mutant(25) => longer.starts_with(namespace),
            exact => exact == namespace,
        };
        self.namespace.as_deref().is_none_or(is_in)
            && (self.selector.is_everything() || self.selector.matches(&object.key, &object.attributes))
    }
}

use crate::cache::View;
use crate::wire::Representation;
use kubeapi::{ListPlan, PageStore};

/// A request for one page of a collection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ListRead {
    pub(crate) representation: Representation,
    pub(crate) view: View,
    pub(crate) plan: ListPlan,
    /// Whether the path names a namespace. If so, keys in continue tokens are relative to that namespace.
    pub(crate) in_namespace: bool,
    /// The store whose spelling of continue tokens is used.
    pub(crate) pages: PageStore,
}

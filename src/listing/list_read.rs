use crate::cache::View;
use crate::kube::{ListPlan, PageStore};
use crate::wire::Representation;

/// One page of a collection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ListRead {
    pub(crate) representation: Representation,
    pub(crate) view: View,
    pub(crate) plan: ListPlan,
    /// The path names a namespace, so the keys of continue tokens are relative to it.
    pub(crate) in_namespace: bool,
    /// How those tokens are spelled.
    pub(crate) pages: PageStore,
}

use std::sync::Arc;

use super::FeedKey;
use crate::wire::{Envelope, JsonLayout};
use kubeapi::FieldTable;

/// A feed's key, and what is needed to read its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedSpec {
    pub key: FeedKey,
    pub kind: Arc<str>,
    pub list_kind: Arc<str>,
    /// The edition of the resource's definition, if it has one. Objects that were read under another one may read
    /// differently now.
    pub edition: Option<Arc<str>>,
    pub shape: JsonLayout,
    pub namespaced: bool,
    pub fields: Arc<FieldTable>,
    /// The key of the selectable field by which upstream finds what it lists, if it has such an index.
    pub index_field: Option<Arc<str>>,
}

impl FeedSpec {
    /// The feed of a resource whose objects are written as Pods are.
    #[cfg(test)]
    pub(crate) fn like_pods(key: FeedKey) -> Self {
        Self {
            key,
            kind: "Pod".into(),
            list_kind: "PodList".into(),
            edition: None,
            shape: JsonLayout::BuiltIn,
            namespaced: true,
            fields: Arc::default(),
            index_field: None,
        }
    }

    /// The envelope that the feed's objects are framed with.
    pub fn envelope(&self) -> Envelope {
        Envelope::new(self.key.encoding, &self.key.gvr.api_version(), &self.kind, self.shape)
            .with_list_kind(&self.list_kind)
    }
}

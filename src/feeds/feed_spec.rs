use std::sync::Arc;

use super::FeedKey;
use crate::wire::{FrameEnvelope, JsonLayout};
use kubeapi::SelectableFieldTable;

/// A feed's key, and the schema needed to decode its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedSpec {
    pub key: FeedKey,
    pub kind: Arc<str>,
    pub list_kind: Arc<str>,
    /// The edition of the resource's definition, if it has one. Objects may decode differently under another edition.
    pub edition: Option<Arc<str>>,
    pub shape: JsonLayout,
    pub namespaced: bool,
    pub fields: Arc<SelectableFieldTable>,
    /// The key of the selectable field that upstream has an index for, if any.
    pub index_field: Option<Arc<str>>,
}

impl FeedSpec {
    /// Returns the feed of a resource whose objects are encoded like Pods.
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

    /// Returns the envelope that frames the feed's objects.
    pub fn envelope(&self) -> FrameEnvelope {
        FrameEnvelope::new(self.key.encoding, &self.key.gvr.api_version(), &self.kind, self.shape)
            .with_list_kind(&self.list_kind)
    }
}

//! A resource for the tests of other modules.

use std::sync::Arc;

use super::{ResourceOrigin, UpstreamResource};
use crate::wire::FeedEncoding;
use kubeapi::{Gvr, ListPageSource, SelectableFieldTable};

/// Returns a namespaced resource as upstream serves its own, cached in JSON. Tests change what they are about.
pub(crate) fn upstream_resource(gvr: Gvr, kind: &str) -> UpstreamResource {
    UpstreamResource {
        fields: Arc::new(SelectableFieldTable::of_builtin(&gvr)),
        gvr,
        kind: kind.into(),
        list_kind: format!("{kind}List").into(),
        namespaced: true,
        watchable: true,
        origin: ResourceOrigin::BuiltIn,
        encoding: FeedEncoding::Json,
        pages: ListPageSource::default(),
        edition: None,
        printer: None,
    }
}

//! Authorizes readers of the metrics address for other machines, for `admin`.

use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;

use super::reload::ReloadableSettings;
use crate::admin::{MetricsReaders, ScrapeAccess};
use crate::auth::{Authorizer, RequestSender};
use crate::serve::ScrapeAuthorizer;

/// Returns the callers that may read metrics: those that upstream allows, or all if there is no `authorizer`. Must be called
/// on the runtime that owns the connections to upstream.
pub(super) fn readers(authorizer: Option<Authorizer>, tuned: &ReloadableSettings) -> MetricsReaders {
    match authorizer {
        None => MetricsReaders::Anyone(tuned.ops_browsers.clone()),
        Some(authorizer) => {
            MetricsReaders::Authorized(admittance(ScrapeAuthorizer::new(authorizer, tuned.browsers.clone())))
        }
    }
}

fn admittance(authorizer: ScrapeAuthorizer) -> ScrapeAccess {
    let upstreams = Handle::current();
    Arc::new(move |peer, headers| {
        let asking = upstreams.spawn(authorizer.clone().admit(RequestSender::of(peer), headers.clone()));
        async move { asking.await.ok() }.boxed()
    })
}

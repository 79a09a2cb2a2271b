//! Authorizes readers of the metrics address for other machines, for `admin`.

use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;

use super::reload::Tuned;
use crate::admin::{MetricsReaders, ScrapeAccess};
use crate::auth::{Authorizer, RequestSender};
use crate::serve::ScrapeAuthorizer;

/// Returns the callers that may read metrics: those that upstream allows, or all if there is no `gate`. Must be called
/// on the runtime that owns the connections to upstream.
pub(super) fn readers(gate: Option<Authorizer>, tuned: &Tuned) -> MetricsReaders {
    match gate {
        None => MetricsReaders::Everybody(tuned.ops_browsers.clone()),
        Some(gate) => MetricsReaders::Admitted(admittance(ScrapeAuthorizer::new(gate, tuned.browsers.clone()))),
    }
}

fn admittance(gate: ScrapeAuthorizer) -> ScrapeAccess {
    let upstreams = Handle::current();
    Arc::new(move |peer, headers| {
        let asking = upstreams.spawn(gate.clone().admit(RequestSender::of(peer), headers.clone()));
        async move { asking.await.ok() }.boxed()
    })
}

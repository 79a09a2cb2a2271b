//! Authorizes readers of the debug pages about clients and of the metrics address, for `admin`. The decisions are made
//! on the runtime that owns the connections to upstream, on which these functions must be called.

use std::net::Ipv4Addr;
use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;

use super::reload::ReloadableSettings;
use crate::admin::{ClientActivityPages, MetricsAccess, PageAccessCheck};
use crate::auth::{Authorizer, ClientConnectionInfo};
use crate::net;
use crate::serve::{ActiveWatches, PageAuthorizer};

/// Returns the callers that may read metrics: those that upstream allows, or all if there is no `authorizer`.
pub(super) fn metrics_readers(authorizer: Option<Authorizer>, settings: &ReloadableSettings) -> MetricsAccess {
    authorizer.map_or_else(
        || MetricsAccess::Unauthenticated(settings.ops_browsers.clone()),
        |authorizer| MetricsAccess::Authorized(access_check(authorizer, settings)),
    )
}

/// Returns the debug pages, for senders that upstream allows to `get` their paths.
pub(super) fn private_pages(
    authorizer: Authorizer,
    settings: &ReloadableSettings,
    active_watches: ActiveWatches,
) -> ClientActivityPages {
    ClientActivityPages {
        page: Arc::new(move |name, query| active_watches.page(name, query)),
        access_check: (!authorizer.is_open()).then(|| access_check(authorizer, settings)),
    }
}

fn access_check(authorizer: Authorizer, settings: &ReloadableSettings) -> PageAccessCheck {
    let (authorizer, runtime) = (PageAuthorizer::new(authorizer, settings.browsers.clone()), Handle::current());
    Arc::new(move |peer, path, headers| {
        let mut sender = ClientConnectionInfo::from_peer(peer);
        if net::is_loopback(sender.address) {
            // All processes of this machine share the limit of one source.
            sender.address = Ipv4Addr::LOCALHOST.into();
        }
        let decision = runtime.spawn(authorizer.clone().admit(sender, path.to_owned(), headers.clone()));
        async move { decision.await.ok() }.boxed()
    })
}

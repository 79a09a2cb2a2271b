//! Authorizes readers of the debug pages about clients and of the metrics address, for `admin`. The decisions are made
//! on the runtime that owns the connections to upstream, on which these functions must be called.

use std::net::Ipv4Addr;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::ready;
use http::HeaderMap;
use tokio::runtime::Handle;

use super::reload::ReloadableSettings;
use crate::admin::{ClientActivityPages, MetricsAccess, PageAccessDenied};
use crate::auth::{Authorizer, Caller, ClientConnectionInfo, GrantError};
use crate::serve::{ActiveWatches, ScrapeAuthorizer};
use kubeapi::{RequestInfo, UrlQuery};

/// Returns the callers that may read metrics: those that upstream allows, or all if there is no `authorizer`.
pub(super) fn metrics_readers(authorizer: Option<Authorizer>, settings: &ReloadableSettings) -> MetricsAccess {
    let Some(authorizer) = authorizer else { return MetricsAccess::Unauthenticated(settings.ops_browsers.clone()) };
    let (authorizer, runtime) = (ScrapeAuthorizer::new(authorizer, settings.browsers.clone()), Handle::current());
    MetricsAccess::Authorized(Arc::new(move |peer, headers| {
        let decision = runtime.spawn(authorizer.clone().admit(ClientConnectionInfo::from_peer(peer), headers.clone()));
        async move { decision.await.ok() }.boxed()
    }))
}

/// Returns the debug pages, for senders that upstream allows to `get` their paths.
pub(super) fn private_pages(authorizer: Authorizer, active_watches: ActiveWatches) -> ClientActivityPages {
    let runtime = Handle::current();
    ClientActivityPages {
        page: Arc::new(move |name, query| active_watches.page(name, query)),
        access_check: Arc::new(move |path, headers| {
            if authorizer.is_open() {
                return ready(Err(PageAccessDenied::CallerUnidentified)).boxed();
            }
            let (authorizer, path, headers) = (authorizer.clone(), path.to_owned(), headers.clone());
            let decision = runtime.spawn(async move { check_access(&authorizer, &path, &headers).await });
            async move { decision.await.map_err(|_| PageAccessDenied::Unknown)? }.boxed()
        }),
    }
}

async fn check_access(authorizer: &Authorizer, path: &str, headers: &HeaderMap) -> Result<(), PageAccessDenied> {
    let sender = ClientConnectionInfo { certificates: None, address: Ipv4Addr::LOCALHOST.into() };
    let caller = authorizer.authenticate(sender, headers).await.map_err(|why| refusal(&why))?;
    if !matches!(caller, Caller::Known(_)) {
        return Err(PageAccessDenied::Unauthenticated);
    }
    let info = RequestInfo::parse("GET", path, &UrlQuery::default());
    let info = info.map_err(|_| PageAccessDenied::Unknown)?;
    authorizer.grant(&caller, &info).await.map(drop).map_err(|why| refusal(&why))
}

fn refusal(why: &GrantError) -> PageAccessDenied {
    match why {
        GrantError::Unauthenticated => PageAccessDenied::Unauthenticated,
        GrantError::Denied(_) => PageAccessDenied::Denied,
        GrantError::TooMany { .. } => PageAccessDenied::TooMany,
        GrantError::Unavailable(_) | GrantError::ReviewsForbidden(_) => PageAccessDenied::Unknown,
    }
}

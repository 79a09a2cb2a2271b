//! The debug pages that list clients and their requests. A process that may connect to the admin's unix socket could
//! read this process's memory, and sees them without a check. On other addresses, upstream authorizes the sender.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use http::{HeaderMap, Request, StatusCode};

use super::{AdminPages, AdminResponse, JSON, TEXT, answer, refuse_others};
use crate::auth::CrossOriginCheck;

/// A function that renders a debug page by its name and query, as JSON.
pub type PrivatePageRenderer = Arc<dyn Fn(&str, &str) -> Option<Vec<u8>> + Send + Sync>;

/// A function that decides by a request's path and headers whether its sender may see a debug page.
pub type PageAccessCheck =
    Arc<dyn Fn(&str, &HeaderMap) -> BoxFuture<'static, Result<(), PageAccessDenied>> + Send + Sync>;

/// The debug pages about clients, and the authorization for them.
#[derive(Clone)]
pub struct ClientActivityPages {
    pub page: PrivatePageRenderer,
    pub access_check: PageAccessCheck,
}

/// The reason that a sender may not see a debug page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageAccessDenied {
    /// The listener does not authenticate callers, so it cannot show a private page.
    #[error(
        "this page needs authenticated callers (auth: delegated) or a unix socket (admin: unix:PATH), because every \
         local process can reach this address"
    )]
    CallerUnidentified,
    #[error("authentication required: send a bearer token")]
    Unauthenticated,
    #[error("access denied: you may not get this path (grant get on it in nonResourceURLs)")]
    Denied,
    #[error("too many authentication or authorization requests to the apiserver; try again")]
    TooMany,
    #[error("cannot authenticate or authorize: the apiserver is unreachable")]
    Unknown,
}

const PAGES: [&str; 2] = ["/debug/watches", "/debug/recent"];

impl PageAccessDenied {
    fn code(self) -> StatusCode {
        match self {
            Self::CallerUnidentified | Self::Denied => StatusCode::FORBIDDEN,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Self::Unknown => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl AdminPages {
    /// Like [`answer`](Self::answer), but also serves the debug pages about clients. `browsers` guards a port that web
    /// pages may try to reach. Without it, the socket must be accessible only to the process's own user.
    pub fn handle_private<B>(
        &self,
        browsers: Option<&CrossOriginCheck>,
        request: &Request<B>,
    ) -> BoxFuture<'static, AdminResponse> {
        let path = request.uri().path();
        if let Some(Err(foreign)) = browsers.map(|browsers| browsers.check(request.uri(), request.headers())) {
            return ready(answer(StatusCode::FORBIDDEN, TEXT, format!("{foreign}\n"))).boxed();
        }
        if !PAGES.contains(&path) {
            return ready(self.answer(request)).boxed();
        }
        if let Some(refusal) = refuse_others(request) {
            return ready(refusal).boxed();
        }
        let (name, query) = (path.trim_start_matches("/debug/").to_owned(), request.uri().query().unwrap_or_default());
        let (page, query) = (self.private.page.clone(), query.to_owned());
        let render = move || answer(StatusCode::OK, JSON, page(&name, &query).unwrap_or_default());
        if browsers.is_none() {
            return ready(render()).boxed();
        }
        let decision = (self.private.access_check)(path, request.headers());
        async move {
            match decision.await {
                Ok(()) => render(),
                Err(why) => answer(why.code(), TEXT, format!("{why}\n")),
            }
        }
        .boxed()
    }
}

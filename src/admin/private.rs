//! The debug pages that list clients and their requests. A process that may connect to the admin's unix socket could
//! read this process's memory, and sees them without a check. On other addresses, upstream authorizes the sender.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use http::{Request, StatusCode};

use super::access::{PageAccessCheck, decide, refused};
use super::{AdminPages, AdminResponse, JSON, TEXT, answer, refuse_others};
use crate::auth::CrossOriginCheck;
use crate::net::ConnectionPeer;
use kubeapi::Status;

/// A function that renders a debug page by its name and query, as JSON.
pub type PrivatePageRenderer = Arc<dyn Fn(&str, &str) -> Option<Vec<u8>> + Send + Sync>;

/// The debug pages about clients, and the authorization for them.
#[derive(Clone)]
pub struct ClientActivityPages {
    pub page: PrivatePageRenderer,
    /// `None` if the proxy does not authenticate callers. It then shows these pages on a unix socket only.
    pub access_check: Option<PageAccessCheck>,
}

const PAGES: [&str; 2] = ["/debug/watches", "/debug/recent"];

impl AdminPages {
    /// Like [`answer`](Self::answer), but also serves the debug pages about clients. `browsers` guards a port that web
    /// pages may try to reach. Without it, the socket must be accessible only to the process's own user.
    pub fn handle_private<B>(
        &self,
        browsers: Option<&CrossOriginCheck>,
        peer: &ConnectionPeer,
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
        let Some(access_check) = &self.private.access_check else {
            let why = "this page needs authenticated callers (auth: delegated) or a unix socket (admin: unix:PATH), \
                       because every local process can reach this address";
            return ready(refused(&Status::from_code(403, why))).boxed();
        };
        let decision = decide(access_check(peer, path, request.headers()));
        async move { decision.await.map_or_else(|why| refused(&why), |()| render()) }.boxed()
    }
}

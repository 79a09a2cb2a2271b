//! Decides who may read the proxy's own metrics, by what upstream says.

use http::HeaderMap;

use super::statuses::not_granted;
use crate::auth::{Authorizer, BrowserGuard, NotGranted, RequestSender};
use base::Reloadable;
use kubeapi::{Access, Query, RequestInfo, Status};

/// Lets those read metrics who may `get` their path as upstream says.
#[derive(Clone)]
pub struct ScrapeAuthorizer {
    gate: Authorizer,
    browsers: Reloadable<BrowserGuard>,
}

const PATH: &str = "/metrics";

impl ScrapeAuthorizer {
    /// `browsers` is for senders with client certificates, which a browser shows for any page.
    pub fn new(gate: Authorizer, browsers: Reloadable<BrowserGuard>) -> Self {
        Self { gate, browsers }
    }

    /// Finds out whether the sender of a request may.
    ///
    /// # Errors
    /// It may not, or that cannot be found out.
    pub async fn admit(self, sender: RequestSender, headers: HeaderMap) -> Result<(), Status> {
        let info = RequestInfo::parse("GET", PATH, &Query::default());
        let info = info.map_err(|error| Status::bad_request(error.to_string()))?;
        let refused = |why: &NotGranted, user: &str| not_granted(why, user, &Access::of(&info));
        let caller = self.gate.authenticate(sender, &headers).await.map_err(|why| refused(&why, ""))?;
        if caller.shows_certificate() {
            let site = self.browsers.get().check_site(&headers);
            site.map_err(|foreign| Status::from_code(403, &foreign.to_string()))?;
        }
        let granted = self.gate.grant(&caller, &info).await;
        granted.map(drop).map_err(|why| refused(&why, caller.name()))
    }
}

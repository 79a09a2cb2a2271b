use http::HeaderMap;

use crate::auth::{Authorizer, Caller, ClientConnectionInfo, CrossOriginCheck, GrantError};
use crate::serve::response::denied_status;
use base::Reloadable;
use kubeapi::{AccessAttributes, RequestInfo, Status, UrlQuery};

/// Allows callers to read a page about the proxy, such as `/metrics`, if upstream allows them to `get` its path.
#[derive(Clone)]
pub struct PageAuthorizer {
    authorizer: Authorizer,
    browsers: Reloadable<CrossOriginCheck>,
}

impl PageAuthorizer {
    /// Creates the authorizer. `browsers` checks senders with client certificates, because a browser sends the
    /// certificate for any page.
    pub fn new(authorizer: Authorizer, browsers: Reloadable<CrossOriginCheck>) -> Self {
        Self { authorizer, browsers }
    }

    /// Checks whether the sender of a request may read the page at a path. A sender without a credential may not.
    ///
    /// # Errors
    /// The sender is not authorized, or that cannot be determined.
    pub async fn admit(self, sender: ClientConnectionInfo, path: String, headers: HeaderMap) -> Result<(), Status> {
        let info = RequestInfo::parse("GET", &path, &UrlQuery::default());
        let info = info.map_err(|error| Status::bad_request(error.to_string()))?;
        let refused =
            |error: &GrantError, user: &str| denied_status(error, user, &AccessAttributes::from_request(&info));
        // The listener of the pages has few connections.
        let caller = self.authorizer.authenticate(sender, &headers, &|_| Ok(Box::new(()))).await;
        let caller = caller.map_err(|error| refused(&error, ""))?;
        if !matches!(caller, Caller::Known(_)) {
            return Err(Status::unauthorized());
        }
        if caller.has_client_certificate() {
            let site = self.browsers.get().check_site(&headers);
            site.map_err(|foreign| Status::from_code(403, &foreign.to_string()))?;
        }
        let granted = self.authorizer.grant(&caller, &info).await;
        granted.map(drop).map_err(|error| refused(&error, caller.name()))
    }
}

use std::sync::Arc;

use http::Request;
use tokio::time::Instant;

use crate::auth::Caller;
use crate::net::{ConnectionPeer, RequestBody};
use crate::serve::read::ReadRequest;
use crate::serve::response::ResponseContext;
use crate::serve::serve_config::ListenerRoles;
use kubeapi::{RequestInfo, UrlQuery};

/// A request whose caller is not authenticated yet.
pub(super) struct UnauthenticatedRequest {
    pub(super) http: Request<RequestBody>,
    pub(super) query: Arc<UrlQuery>,
    pub(super) context: ResponseContext,
    pub(super) received: Instant,
    pub(super) listener: ListenerRoles,
}

impl UnauthenticatedRequest {
    /// Creates the request. It is boxed, because it is moved from one future to the next, and each of them would
    /// reserve its size twice.
    pub(super) fn new(peer: &ConnectionPeer, http: Request<RequestBody>) -> Box<Self> {
        let received = Instant::now();
        let query = Arc::new(UrlQuery::parse(http.uri().query().unwrap_or_default()));
        let context = ResponseContext::from_headers(peer, http.headers(), query.clone());
        Box::new(Self { http, query, context, received, listener: ListenerRoles::default() })
    }

    /// Returns the request of an authenticated caller. It takes the boxes, because one whose content is moved out of it
    /// is freed only with the future that has it.
    pub(super) fn with_caller(self: Box<Self>, caller: Caller, info: Box<RequestInfo>) -> Box<ReadRequest> {
        let Self { http, query, context, received, listener } = *self;
        Box::new(ReadRequest { http, caller, info: *info, query, context, received, listener })
    }
}

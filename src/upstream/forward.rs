#[cfg(test)]
mod tests;

use http::header::{CONNECTION, HOST, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response};

use super::identity_headers::{self, RequestIdentity, remove_forwarding_headers, set_user, strip_identity};
use super::pool::{ForwardPoolKind, UpstreamResponseBody};
use super::retryable_request::UpstreamBody;
use super::{HOPS, UnsendableRequest, UpstreamClient, UpstreamError};

/// Forwards callers' requests to upstream.
#[derive(Debug)]
pub struct RequestForwarder {
    own: UpstreamClient,
    /// A client whose identity may only impersonate. If the impersonation headers were lost, the request would have no
    /// permissions.
    impersonator: Option<UpstreamClient>,
}

impl RequestForwarder {
    pub fn new(own: UpstreamClient, impersonator: Option<UpstreamClient>) -> Self {
        Self { own, impersonator }
    }

    /// Passes a request through, streaming in both directions, with exactly `identity`.
    ///
    /// Hop-by-hop headers are removed; for a [`ForwardPoolKind::Tunnel`] the upgrade itself is kept. Ambiguous requests
    /// have been refused before ([`inspect`](super::inspect)).
    ///
    /// # Errors
    /// In addition to upstream's own errors: [`RequestIdentity::User`] without an impersonator, or with a user
    /// that headers cannot carry.
    pub async fn forward(
        &self,
        identity: &RequestIdentity,
        kind: ForwardPoolKind,
        request: Request<UpstreamBody>,
    ) -> Result<Response<UpstreamResponseBody>, UpstreamError> {
        let request = outgoing(identity, kind, request)?;
        let client = match identity {
            RequestIdentity::ProxyItself | RequestIdentity::Bearer(..) | RequestIdentity::Anonymous => &self.own,
            RequestIdentity::User(_) => self.impersonator.as_ref().ok_or(UnsendableRequest::NoImpersonator)?,
        };
        let mut response = client.send(identity, kind, request).await?;
        self.own.record_response();
        if response.status() != http::StatusCode::SWITCHING_PROTOCOLS {
            strip_hop_by_hop(response.headers_mut());
        }
        Ok(response)
    }
}

/// Sets the headers that the request has upstream. Headers that its sender lists as hop-by-hop are removed first,
/// because they could name the identity headers (R-THREAT-1).
fn outgoing(
    identity: &RequestIdentity,
    kind: ForwardPoolKind,
    mut request: Request<UpstreamBody>,
) -> Result<Request<UpstreamBody>, UnsendableRequest> {
    prepare_headers(kind, &mut request);
    apply_identity(identity, request.headers_mut())?;
    Ok(request)
}

/// Removes the headers that must not be forwarded from one connection to the next.
fn prepare_headers(kind: ForwardPoolKind, request: &mut Request<UpstreamBody>) {
    let upgrade = (kind == ForwardPoolKind::Tunnel).then(|| request.headers().get(UPGRADE).cloned()).flatten();
    // `HOPS` is set aside, so that the `Connection` header cannot have it removed.
    let hops = request.headers_mut().remove(HOPS);
    strip_hop_by_hop(request.headers_mut());
    request.headers_mut().extend(hops.map(|hops| (HOPS, hops)));
    request.headers_mut().remove(HOST);
    *request.version_mut() = http::Version::HTTP_11;
    if let Some(protocol) = upgrade {
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        request.headers_mut().insert(UPGRADE, protocol);
    }
}

/// Sets the identity headers of a request. The connection determines the credentials.
fn apply_identity(identity: &RequestIdentity, headers: &mut HeaderMap) -> Result<(), UnsendableRequest> {
    match identity {
        // Impersonation that the sender requests is kept: upstream decides about it.
        RequestIdentity::ProxyItself | RequestIdentity::Bearer(..) | RequestIdentity::Anonymous => {
            remove_forwarding_headers(headers);
        }
        RequestIdentity::User(user) => {
            strip_identity(headers);
            set_user(headers, user)?;
        }
    }
    Ok(())
}

/// Removes the hop-by-hop headers: those that `Connection` lists, then the known ones (RFC 9110 §7.6.1).
///
/// `TE: trailers` is kept, because it shows that the client reads trailers, and HTTP/2 allows no other value.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = identity_headers::listed(headers).collect();
    for name in listed {
        headers.remove(name);
    }
    let known = ["keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization"];
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE].into_iter().chain(known.map(HeaderName::from_static)) {
        headers.remove(name);
    }
    if headers.get(TE).is_some_and(|te| te != "trailers") {
        headers.remove(TE);
    }
}

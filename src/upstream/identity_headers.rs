//! The identity of a request on its way upstream, and its identity headers: which ones are refused, removed and set, in
//! this order. The known privilege escalations of similar proxies came from mistakes here (R-THREAT-1,
//! R-THREAT-2).

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::UnsendableRequest;
use kubeapi::{FlowDistinguisher, User};

/// Identifies a credential within this process. The credential cannot be derived from it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CredentialId([u8; 32]);

/// The identity with which a request is sent upstream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RequestIdentity {
    /// The proxy's own identity: the caller is the same user as the proxy.
    ProxyItself,
    /// The bearer token of the request. The flow distinguisher is the token's user.
    Bearer(CredentialId, FlowDistinguisher),
    /// The request has no identity of the proxy: the user of the request's credential is unknown.
    Anonymous,
    /// A user whose credential cannot be forwarded: the proxy impersonates the user.
    User(Arc<User>),
}

impl RequestIdentity {
    /// Returns the user to which a request is charged; `None` for the proxy itself.
    pub(super) fn flow(&self) -> Option<FlowDistinguisher> {
        match self {
            Self::ProxyItself => None,
            Self::Bearer(_, flow) => Some(flow.clone()),
            Self::Anonymous => Some(FlowDistinguisher::anonymous()),
            Self::User(user) => Some(FlowDistinguisher::per_node(user)),
        }
    }
}

impl CredentialId {
    pub fn new(tag: [u8; 32]) -> Self {
        Self(tag)
    }

    /// The bytes of the identifier, from which other identifiers are derived.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The reason that a request is refused: two servers could read two different callers or requests from its headers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmbiguousHeaders {
    #[error("the Connection header names the identity header {0}, which servers would drop")]
    HopByHop(HeaderName),
    #[error("the header {0} is sent more than once")]
    Repeated(HeaderName),
    #[error("the header {0} is a misspelled identity header: use dashes, not underscores")]
    Misspelled(HeaderName),
    #[error("the request has both a Content-Length and a Transfer-Encoding; send only one")]
    Framing,
}

const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const IMPERSONATE_UID: HeaderName = HeaderName::from_static("impersonate-uid");
const IMPERSONATE_GROUP: HeaderName = HeaderName::from_static("impersonate-group");
/// The headers in which a sender claims the origin of a request. Upstream writes these into its audit log.
const ORIGINS: [&str; 3] = ["forwarded", "x-forwarded-for", "x-real-ip"];
const REMOTE_USER: HeaderName = HeaderName::from_static("x-remote-user");
const REMOTE_UID: HeaderName = HeaderName::from_static("x-remote-uid");
const IMPERSONATE_EXTRA: &str = "impersonate-extra-";

/// Whether a header requests another identity than the caller's.
pub fn is_impersonation(name: &HeaderName) -> bool {
    name.as_str().starts_with("impersonate-")
}

/// Whether a header is one in which a front proxy asserts the caller's identity.
pub fn is_front_proxy_header(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-remote-")
}

/// Whether a header determines the identity of a request.
fn is_identity(name: &HeaderName) -> bool {
    is_impersonation(name) || is_front_proxy_header(name) || *name == AUTHORIZATION
}

/// Refuses headers from which two servers could read two different callers or requests.
pub fn inspect(headers: &HeaderMap) -> Result<(), AmbiguousHeaders> {
    if let Some(name) = listed(headers).find(is_identity) {
        return Err(AmbiguousHeaders::HopByHop(name));
    }
    for name in [HOST, AUTHORIZATION, CONTENT_LENGTH, IMPERSONATE_USER, IMPERSONATE_UID, REMOTE_USER, REMOTE_UID] {
        if headers.get_all(&name).iter().nth(1).is_some() {
            return Err(AmbiguousHeaders::Repeated(name));
        }
    }
    // Some servers read an underscore as a dash.
    let misread = |name: &&HeaderName| {
        name.as_str().contains('_') && name.as_str().replace('_', "-").parse().is_ok_and(|read| is_identity(&read))
    };
    if let Some(name) = headers.keys().find(misread) {
        return Err(AmbiguousHeaders::Misspelled(name.clone()));
    }
    if headers.contains_key(CONTENT_LENGTH) && headers.contains_key(TRANSFER_ENCODING) {
        return Err(AmbiguousHeaders::Framing);
    }
    Ok(())
}

/// Returns the header names that all `Connection` headers list.
pub(super) fn listed(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let values = headers.get_all(CONNECTION).iter().map(HeaderValue::as_bytes);
    values
        .flat_map(|value| value.split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
}

/// Removes all headers that determine the identity of the request.
pub(super) fn strip_identity(headers: &mut HeaderMap) {
    remove_forwarding_headers(headers);
    remove(headers, |name| is_impersonation(name) || *name == AUTHORIZATION);
}

/// Removes the headers in which a proxy asserts an identity or an origin, because no such claim may reach upstream over
/// the proxy's connections.
pub(super) fn remove_forwarding_headers(headers: &mut HeaderMap) {
    remove(headers, |name| is_front_proxy_header(name) || ORIGINS.contains(&name.as_str()));
}

/// Replaces the sender's credentials with the proxy's. Impersonation that the sender requests is kept.
///
/// # Errors
/// The sender requests an impersonation, and the proxy's credentials are one too. Both cannot be combined: their
/// headers together would name a third user.
pub(super) fn set_proxy_credentials(headers: &mut HeaderMap, credentials: HeaderMap) -> Result<(), UnsendableRequest> {
    if credentials.keys().any(is_impersonation) && headers.keys().any(is_impersonation) {
        return Err(UnsendableRequest::Nested);
    }
    headers.remove(AUTHORIZATION);
    headers.extend(credentials);
    Ok(())
}

/// Sets all headers of a user. Every part is set, because one that is not could be left over from another user.
///
/// # Errors
/// The user has no name, or a part that no header can carry unchanged.
pub(super) fn set_user(headers: &mut HeaderMap, user: &User) -> Result<(), UnsendableRequest> {
    remove(headers, is_impersonation);
    if user.name.is_empty() {
        return Err(UnsendableRequest::UnencodableUser);
    }
    headers.insert(IMPERSONATE_USER, value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert(IMPERSONATE_UID, value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append(IMPERSONATE_GROUP, value(group)?);
    }
    for (key, values) in &user.extra {
        let name = HeaderName::try_from(format!("{IMPERSONATE_EXTRA}{}", escaped(key)))
            .map_err(|_| UnsendableRequest::UnencodableUser)?;
        for text in values {
            headers.append(name.clone(), value(text)?);
        }
    }
    Ok(())
}

/// Returns a header value with exactly the given text. Space around it is refused, because it would be stripped in
/// transit, and the rest could be another user's name.
fn value(text: &str) -> Result<HeaderValue, UnsendableRequest> {
    let is_space = |c: char| c == ' ' || c == '\t';
    if text.starts_with(is_space) || text.ends_with(is_space) {
        return Err(UnsendableRequest::UnencodableUser);
    }
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| UnsendableRequest::UnencodableUser)
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// The key of an extra as part of a header name. Upstream lowercases the name and then percent-decodes it
/// (R-IMPERSONATE-1). Therefore capitals are escaped, like all bytes that a header name cannot contain.
fn escaped(key: &str) -> String {
    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push('%');
            text.extend([byte >> 4, byte & 15].map(|digit| char::from(HEX[usize::from(digit)])));
        }
    }
    text
}

fn remove(headers: &mut HeaderMap, which: impl Fn(&HeaderName) -> bool) {
    let names: Vec<_> = headers.keys().filter(|name| which(name)).cloned().collect();
    names.iter().for_each(|name| drop(headers.remove(name)));
}

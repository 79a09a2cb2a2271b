//! The credentials that a request carries, before they are checked.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, HeaderName, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::PeerCertChain;
use crate::net::{ConnectionPeer, PeerAddress};
use kubeapi::{User, unescape};

/// The sender of a request: its address and its certificates.
#[derive(Debug, Clone)]
pub struct ClientConnectionInfo {
    /// The certificates whose key the sender has. They are verified once per connection.
    pub certificates: Option<Arc<PeerCertChain>>,
    /// The address whose limit the sender's token reviews count against.
    pub address: IpAddr,
}

/// A bearer token. It is never displayed, and its memory is wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(Arc<Zeroizing<String>>);

/// A credential that authenticates a caller, and can be checked again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Credential {
    /// The request has no credential.
    Anonymous,
    Token(BearerToken),
    Certificate(Arc<PeerCertChain>),
    /// The user named in identity headers, with the certificate of their sender. They are trusted only from a front
    /// proxy.
    FrontProxy(Arc<PeerCertChain>, Arc<User>),
}

/// The user of a credential, and the time until which the result is valid.
#[derive(Debug, Clone)]
pub(super) struct AuthenticatedIdentity {
    /// The time at which the identity was determined: for a token, a time before its review was sent.
    pub(super) reviewed: Instant,
    pub(super) user: Arc<User>,
    pub(super) expires_at: Option<SystemTime>,
}

/// A malformed credential, which is answered with 401 as by upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MalformedCredential(&'static str);

/// The longest token accepted for review, in bytes.
pub(super) const TOKEN_BYTES_MAX: usize = 16 << 10;
/// The subprotocol in which browsers send a bearer token, because they cannot set headers (R-WS-3).
pub const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";
const REMOTE_USER: HeaderName = HeaderName::from_static("x-remote-user");
const REMOTE_UID: HeaderName = HeaderName::from_static("x-remote-uid");
const REMOTE_GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const REMOTE_EXTRA: &str = "x-remote-extra-";

impl ClientConnectionInfo {
    /// Returns the sender of the requests on a connection.
    pub fn from_peer(peer: &ConnectionPeer) -> Self {
        let address = match peer.address {
            PeerAddress::Tcp(address) => address.ip(),
            // All unix socket peers share a limit, because they run on one machine.
            PeerAddress::Unix { .. } => Ipv4Addr::UNSPECIFIED.into(),
        };
        let chain = |chain: &Arc<[_]>| peer.connection.extension(|| PeerCertChain::new(chain.clone()));
        Self { certificates: peer.certificates.as_ref().map(chain), address }
    }
}

impl Credential {
    /// Returns the credentials of a request, in the order in which they are tried.
    ///
    /// # Errors
    /// The token of a WebSocket is malformed, and there is no other credential.
    pub(super) fn from_request(
        sender: ClientConnectionInfo,
        headers: &HeaderMap,
    ) -> Result<Vec<Self>, MalformedCredential> {
        let mut credentials = Vec::new();
        if let Some(chain) = sender.certificates {
            let user = front_proxy_user(headers).map(Arc::new);
            credentials.extend(user.map(|user| Self::FrontProxy(chain.clone(), user)));
            credentials.push(Self::Certificate(chain));
        }
        match bearer_token(headers) {
            Ok(token) => credentials.extend(token.map(Self::Token)),
            Err(_) if !credentials.is_empty() => {}
            Err(error) => return Err(error),
        }
        Ok(credentials)
    }
}

impl BearerToken {
    pub fn new(text: &str) -> Self {
        Self(Arc::new(Zeroizing::new(text.to_owned())))
    }

    pub(super) fn expose(&self) -> &str {
        &self.0
    }

    /// Whether a text has the token or one of its parts.
    pub(super) fn is_quoted_in(&self, text: &str) -> bool {
        self.0.split('.').any(|part| text.contains(part))
    }

    /// Returns the expiry in the token's own claims, in seconds since 1970, if the token is a JWT. It is trustworthy
    /// only if upstream has accepted the token.
    pub fn expiry_seconds(&self) -> Option<u64> {
        #[derive(serde::Deserialize)]
        struct JwtClaims {
            exp: Option<f64>,
        }
        let claims = self.0.split('.').nth(1)?;
        let claims = Zeroizing::new(BASE64_URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?);
        let claims: JwtClaims = serde_json::from_slice(&claims).ok()?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float is cut to what fits")]
        claims.exp.map(|seconds| seconds as u64)
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(…)")
    }
}

/// Returns the bearer token of a request, by the rules of the apiserver's `bearertoken` and `websocket` authenticators.
///
/// # Errors
/// The token of a WebSocket is malformed. A malformed `Authorization` header counts as none.
pub fn bearer_token(headers: &HeaderMap) -> Result<Option<BearerToken>, MalformedCredential> {
    if let Some(token) = bearer(headers) {
        return Ok(Some(token));
    }
    let is_websocket = headers.get(UPGRADE).and_then(text).is_some_and(|to| to.eq_ignore_ascii_case("websocket"));
    if is_websocket { websocket_token(headers) } else { Ok(None) }
}

fn bearer(headers: &HeaderMap) -> Option<BearerToken> {
    let mut parts = headers.get(AUTHORIZATION).and_then(text)?.trim().splitn(3, ' ');
    let (scheme, token) = (parts.next()?, parts.next()?);
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| BearerToken::new(token))
}

fn websocket_token(headers: &HeaderMap) -> Result<Option<BearerToken>, MalformedCredential> {
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(text);
    let offered = offered.flat_map(|value| value.split(',')).map(str::trim);
    let (tokens, others): (Vec<_>, Vec<_>) = offered.partition(|protocol| protocol.starts_with(BEARER_PROTOCOL));
    let encoded = match tokens.as_slice() {
        [] => return Ok(None),
        [only] => &only[BEARER_PROTOCOL.len()..],
        _ => return Err(MalformedCredential("more than one bearer token in Sec-WebSocket-Protocol")),
    };
    let malformed = MalformedCredential("the bearer token in Sec-WebSocket-Protocol is not base64url");
    let decoded = BASE64_URL_SAFE_NO_PAD.decode(encoded).map_err(|_| malformed)?;
    let token = Zeroizing::new(String::from_utf8(decoded).map_err(|_| malformed)?);
    if others.is_empty() {
        return Err(MalformedCredential("Sec-WebSocket-Protocol has a bearer token but no protocol"));
    }
    Ok((!token.is_empty()).then(|| BearerToken::new(&token)))
}

/// Returns the user that a front proxy names, in the header names that every apiserver is configured with.
pub fn front_proxy_user(headers: &HeaderMap) -> Option<User> {
    let name = headers.get(REMOTE_USER).and_then(text).filter(|name| !name.is_empty())?.to_owned();
    let uid = headers.get(REMOTE_UID).and_then(text).unwrap_or_default().to_owned();
    let groups = headers.get_all(REMOTE_GROUP).iter().filter_map(text).filter(|group| !group.is_empty());
    let mut user = User { name, uid, groups: groups.map(str::to_owned).collect(), ..User::default() };
    for (header, value) in headers {
        // Header names are in lower case here, so a key is lower-cased before it is unescaped, as in upstream.
        if let (Some(key), Some(value)) = (header.as_str().strip_prefix(REMOTE_EXTRA), text(value)) {
            user.extra.entry(unescaped(key)).or_default().push(value.to_owned());
        }
    }
    Some(user.authenticated())
}

/// Decodes the key of an extra from a header name. A badly escaped key stays as it is.
pub(super) fn unescaped(key: &str) -> String {
    let decoded = unescape(key, false).filter(|(_, is_exact)| *is_exact);
    decoded.map_or_else(|| key.to_owned(), |(text, _)| text)
}

/// Returns a header's value, if it is UTF-8. Names and groups need not be ASCII.
pub(super) fn text(value: &HeaderValue) -> Option<&str> {
    std::str::from_utf8(value.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn bearer_token_parsing_matches_the_apiserver() {
        for (value, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            ("  BEARER abc def ", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Bearer  abc", None),
            ("Basic abc", None),
            ("", None),
        ] {
            let token = bearer_token(&headers(&[("authorization", value)])).expect("no WebSocket");
            assert_eq!(token.as_ref().map(BearerToken::expose), expected, "{value:?}");
        }
    }

    #[test]
    fn text_with_a_part_of_a_token_quotes_it() {
        let token = BearerToken::new("head.claims.signature");
        for (text, is_quoted) in [
            ("invalid bearer token", false),
            ("cannot parse head.claims.signature", true),
            ("cannot parse \"claims\"", true),
            ("signature", true),
        ] {
            assert_eq!(token.is_quoted_in(text), is_quoted, "{text}");
        }
    }

    #[test]
    fn websocket_token_is_read_from_the_subprotocol_header() {
        let read = |protocols| {
            let lines = [("upgrade", "websocket"), ("sec-websocket-protocol", protocols)];
            bearer_token(&headers(&lines)).map(|token| token.map(|token| token.expose().to_owned()))
        };
        assert_eq!(read("base64url.bearer.authorization.k8s.io.YWJj, v4"), Ok(Some("abc".to_owned())));
        assert_eq!(read("v4"), Ok(None));
        assert_eq!(
            read("base64url.bearer.authorization.k8s.io.YWJj"),
            Err(MalformedCredential("Sec-WebSocket-Protocol has a bearer token but no protocol"))
        );
        assert_eq!(
            read("base64url.bearer.authorization.k8s.io.Y=, v4"),
            Err(MalformedCredential("the bearer token in Sec-WebSocket-Protocol is not base64url"))
        );
        let two = "base64url.bearer.authorization.k8s.io.YWJj, base64url.bearer.authorization.k8s.io.YWJj, v4";
        assert_eq!(read(two), Err(MalformedCredential("more than one bearer token in Sec-WebSocket-Protocol")));
        let elsewhere = [("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.YWJj, v4")];
        assert_eq!(bearer_token(&headers(&elsewhere)), Ok(None), "without an upgrade it is no WebSocket");
    }

    #[test]
    fn token_exposes_only_its_expiry() {
        let token = |claims: &str| BearerToken::new(&format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims)));
        assert_eq!(token(r#"{"exp":1700000000,"sub":"a"}"#).expiry_seconds(), Some(1_700_000_000));
        assert_eq!(token(r#"{"sub":"a"}"#).expiry_seconds(), None);
        assert_eq!(token("[]").expiry_seconds(), None);
        assert_eq!(BearerToken::new("opaque").expiry_seconds(), None);
        assert_eq!(format!("{:?}", BearerToken::new("secret")), "BearerToken(…)");
    }

    #[test]
    fn front_proxy_headers_yield_user_groups_and_extra() {
        let user = front_proxy_user(&headers(&[
            ("x-remote-user", "ada"),
            ("x-remote-group", "dev"),
            ("x-remote-group", "ops"),
            ("x-remote-group", ""),
            ("x-remote-extra-example.com%2fscopes", "a"),
            ("x-remote-extra-example.com%2f%4bey", "b"),
            ("x-remote-extra-%+1", "c"),
        ]));
        let expected = User {
            name: "ada".to_owned(),
            uid: String::new(),
            groups: ["dev", "ops", User::AUTHENTICATED].map(str::to_owned).to_vec(),
            extra: [("example.com/scopes", "a"), ("example.com/Key", "b"), ("%+1", "c")]
                .map(|(key, value)| (key.to_owned(), vec![value.to_owned()]))
                .into(),
        };
        assert_eq!(user, Some(expected));
        assert_eq!(front_proxy_user(&headers(&[("x-remote-group", "dev")])), None);
    }
}

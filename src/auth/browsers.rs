//! Protection against web pages: a page can make the browser that displays it send requests to sockets that the page
//! itself cannot reach (R-THREAT-17).

#[cfg(test)]
mod tests;

use std::net::Ipv6Addr;
use std::str::FromStr;

use http::header::{HOST, HeaderName, HeaderValue, ORIGIN};
use http::{HeaderMap, Uri};

use crate::net::is_loopback;

/// Recognises requests that a foreign web page has sent.
///
/// It guards sockets where the browser itself provides the authority: access to a local port, or a client certificate.
/// Other programs send neither `Origin` nor `Sec-Fetch-Site`, or an `Origin` equal to the server's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrossOriginCheck {
    scheme: &'static str,
    hosts: AllowedHosts,
    /// The origins of other web pages that may send requests.
    allowed: Vec<WebOrigin>,
}

/// The host names that are accepted on a socket where every client has permissions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedHosts {
    /// The accepted host names besides the loopback ones, in lower case.
    names: Vec<String>,
    /// Whether any IP address is accepted as a host. A page can use a name that resolves to this machine, but no
    /// address other than its own.
    addresses: bool,
}

/// A host and an optional port, as in a Host header or an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Authority {
    /// A host name in lower case, or an IP address in its usual form, without brackets.
    host: String,
    port: Option<u16>,
}

/// The origin of a page, as browsers send it (RFC 6454 §6.2): scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebOrigin {
    scheme: String,
    host: String,
    /// The port of the origin; never `None` for `http` and `https`.
    port: Option<u16>,
}

/// The text is not an origin. `null` and patterns are not origins either.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an origin (expected scheme://host or scheme://host:port)")]
pub struct InvalidWebOrigin(String);

/// The reason that a request is refused as one from a foreign web page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CrossOriginRejection {
    /// The request names a host that resolves to this machine, but is not an allowed host.
    #[error("host {0:?} is not served here; add it to allowedHosts to allow it")]
    Host(String),
    #[error("the request target {target:?} contradicts the Host header {host:?}")]
    TwoHosts { target: String, host: String },
    #[error(
        "the request comes from a web page of another origin ({name}: {value:?}); \
         add the origin to allowedOrigins to allow it"
    )]
    Page { name: HeaderName, value: String },
}

/// The header in which a browser reports the origin of a request. No page can set or change it (W3C Fetch Metadata).
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The maximum number of characters of a header that an error message repeats.
const SHOWN_CHARS_MAX: usize = 100;

impl CrossOriginCheck {
    /// Creates a guard. `tls` states whether the sockets use TLS, which determines the scheme of their own pages.
    pub fn new(tls: bool, hosts: AllowedHosts, allowed: Vec<WebOrigin>) -> Self {
        Self { scheme: if tls { "https" } else { "http" }, hosts, allowed }
    }

    /// Checks a request to a socket where every client has permissions.
    ///
    /// The request must name a host of this machine, and must not come from a page of another origin.
    ///
    /// # Errors
    /// The request names another host, or comes from such a page.
    pub fn check(&self, target: &Uri, headers: &HeaderMap) -> Result<(), CrossOriginRejection> {
        let header = headers.get(HOST).map(|value| value.to_str().unwrap_or_default());
        // The host of `:authority` in HTTP/2, and of an absolute form before.
        let named = target.authority().map(http::uri::Authority::as_str);
        let host = named.or(header);
        // Every browser names a host. A request without one comes from another program, such as HAProxy's HTTP/1.0
        // check.
        if let Some(text) = host
            && Authority::parse(text).is_none_or(|authority| !self.hosts.has(&authority.host))
        {
            return Err(CrossOriginRejection::Host(shortened(text)));
        }
        let own = self.own(host.unwrap_or_default());
        if let (Some(named), Some(header)) = (named, header)
            && (own.is_none() || own != self.own(header))
        {
            return Err(CrossOriginRejection::TwoHosts { target: shortened(named), host: shortened(header) });
        }
        if let Some(value) = only(headers, &ORIGIN)? {
            let Some(origin) = origin(value) else { return Err(CrossOriginRejection::page(ORIGIN, value)) };
            if self.allowed.contains(&origin) {
                return Ok(());
            }
            if own != Some(origin) {
                return Err(CrossOriginRejection::page(ORIGIN, value));
            }
        }
        only(headers, &SEC_FETCH_SITE)?.map_or(Ok(()), is_own)
    }

    /// Checks a request of a caller authenticated by a certificate, which its browser may have sent automatically.
    ///
    /// `Sec-Fetch-Site` is decisive if it names another site. `Origin` alone is not: other programs send any origin,
    /// and the apiserver accepts them all.
    ///
    /// # Errors
    /// It comes from a page of another site that is not allowed.
    pub fn check_site(&self, headers: &HeaderMap) -> Result<(), CrossOriginRejection> {
        match only(headers, &SEC_FETCH_SITE)? {
            None => Ok(()),
            Some(_) if only(headers, &ORIGIN)?.and_then(origin).is_some_and(|named| self.allowed.contains(&named)) => {
                Ok(())
            }
            Some(value) => is_own(value),
        }
    }

    /// Returns the origin of a page that was loaded from this host.
    fn own(&self, host: &str) -> Option<WebOrigin> {
        Authority::parse(host).map(|authority| WebOrigin::new(self.scheme, authority))
    }
}

/// Returns the only value of a header. No browser sends two of them.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, CrossOriginRejection> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (_, Some(second)) => Err(CrossOriginRejection::page(name.clone(), second)),
        (first, None) => Ok(first),
    }
}

fn origin(value: &HeaderValue) -> Option<WebOrigin> {
    value.to_str().ok()?.parse().ok()
}

/// Accepts a request without a page, as from the address bar or a bookmark, or from a page of this origin.
fn is_own(site: &HeaderValue) -> Result<(), CrossOriginRejection> {
    if site == "none" || site == "same-origin" { Ok(()) } else { Err(CrossOriginRejection::page(SEC_FETCH_SITE, site)) }
}

fn shortened(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

impl CrossOriginRejection {
    fn page(name: HeaderName, value: &HeaderValue) -> Self {
        Self::Page { name, value: shortened(&String::from_utf8_lossy(value.as_bytes())) }
    }
}

impl WebOrigin {
    fn new(scheme: &str, authority: Authority) -> Self {
        let scheme = scheme.to_ascii_lowercase();
        let default = match scheme.as_str() {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        Self { host: authority.host, port: authority.port.or(default), scheme }
    }
}

impl FromStr for WebOrigin {
    type Err = InvalidWebOrigin;

    fn from_str(text: &str) -> Result<Self, InvalidWebOrigin> {
        let parse = || {
            let (scheme, authority) = text.split_once("://")?;
            let in_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
            let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(in_scheme);
            Authority::parse(authority).filter(|_| is_scheme).map(|authority| Self::new(scheme, authority))
        };
        parse().ok_or_else(|| InvalidWebOrigin(shortened(text)))
    }
}

impl AllowedHosts {
    /// Allows loopback addresses, `localhost` and the given names, as `kubectl proxy` does.
    pub fn new(names: &[String]) -> Self {
        Self { names: names.iter().map(|name| name.to_ascii_lowercase()).collect(), addresses: false }
    }

    /// Also allows any IP address, because a relay of a scrape or a probe may keep the original Host header.
    #[must_use]
    pub fn or_any_address(self) -> Self {
        Self { addresses: true, ..self }
    }

    fn has(&self, host: &str) -> bool {
        match host.parse() {
            Ok(address) => self.addresses || is_loopback(address),
            Err(_) => host == "localhost" || self.names.iter().any(|name| name == host),
        }
    }
}

impl Authority {
    /// Parses a host and a port. Returns `None` if there is anything else, such as user info, or if the text is not in
    /// URL syntax.
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(literal) => {
                let (address, port) = literal.split_once(']')?;
                let address: Ipv6Addr = address.parse().ok()?;
                (address.to_string(), port.strip_prefix(':').or(port.is_empty().then_some(""))?)
            }
            None => {
                let (host, port) = text.split_once(':').unwrap_or((text, ""));
                let in_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
                if host.is_empty() || !host.bytes().all(in_name) {
                    return None;
                }
                (host.to_ascii_lowercase(), port)
            }
        };
        let port = match port {
            "" => None,
            port if port.bytes().all(|byte| byte.is_ascii_digit()) => Some(port.parse().ok()?),
            _ => return None,
        };
        Some(Self { host, port })
    }
}

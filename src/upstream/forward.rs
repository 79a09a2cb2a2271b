use http::header::{CONNECTION, HOST, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response};

use super::pool::{Body, ResponseBody};
use super::{Client, Error, HOPS};

/// Which connections a passed-through request uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Answered within seconds: many share a connection.
    Short,
    /// Read for as long as the client likes: a connection of its own.
    Stream,
    /// Becomes a byte tunnel: a connection of its own, used once.
    Tunnel,
}

impl Client {
    /// Passes a request on with our credentials, streaming both ways.
    ///
    /// Only for callers that *are* our identity (`--auth none`): whatever identity their headers name is removed.
    /// Hop-by-hop headers do not cross; for a [`Lane::Tunnel`] the upgrade itself does.
    pub async fn forward(&self, lane: Lane, mut request: Request<Body>) -> Result<Response<ResponseBody>, Error> {
        let upgrade = (lane == Lane::Tunnel).then(|| request.headers().get(UPGRADE).cloned()).flatten();
        // The way a request has come is not for its `Connection` header to forget.
        let hops = request.headers_mut().remove(HOPS);
        strip_hop_by_hop(request.headers_mut());
        request.headers_mut().extend(hops.map(|hops| (HOPS, hops)));
        request.headers_mut().remove(HOST);
        *request.version_mut() = http::Version::HTTP_11;
        if let Some(protocol) = upgrade {
            request.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            request.headers_mut().insert(UPGRADE, protocol);
        }
        let mut response = self.send(lane, request).await?;
        if response.status() != http::StatusCode::SWITCHING_PROTOCOLS {
            strip_hop_by_hop(response.headers_mut());
        }
        Ok(response)
    }
}

/// Removes what belongs to one connection: the names that `Connection` lists, then the known ones (RFC 9110 §7.6.1).
///
/// `TE: trailers` is kept: it is how a client says that it reads trailers, and HTTP/2 allows just that.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in listed {
        headers.remove(name);
    }
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization"] {
        headers.remove(name);
    }
    if headers.get(TE).is_some_and(|te| te != "trailers") {
        headers.remove(TE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_connection_lists_does_not_cross() {
        let mut headers = HeaderMap::new();
        headers.append(CONNECTION, HeaderValue::from_static("keep-alive, X-Secret"));
        headers.append(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert("x-secret", HeaderValue::from_static("1"));
        headers.insert("keep-alive", HeaderValue::from_static("timeout=5"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert("x-kept", HeaderValue::from_static("1"));
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-kept"]);
    }
}

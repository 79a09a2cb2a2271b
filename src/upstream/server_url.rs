use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::Scheme;

use crate::net::is_loopback;

/// The address of one server of upstream in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl(Uri);

/// The reason that a text is not a server address.
#[derive(Debug, thiserror::Error)]
pub enum ServerUrlError {
    #[error("{0:?} is not a server URL (expected, for example, https://10.0.0.1:6443)")]
    Invalid(String),
    #[error(
        "{0} does not use TLS: credentials and objects would be sent in clear text; use an https:// URL (http:// is \
         allowed for loopback addresses only)"
    )]
    Plaintext(Uri),
}

impl ServerUrl {
    pub(super) fn uri(&self) -> &Uri {
        &self.0
    }
}

impl FromStr for ServerUrl {
    type Err = ServerUrlError;

    fn from_str(text: &str) -> Result<Self, ServerUrlError> {
        let invalid = || ServerUrlError::Invalid(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(invalid)?;
        let is_http = matches!(uri.scheme_str(), Some("https" | "http"));
        // The part before an `@` would be logged, and would not be sent.
        if !is_http || authority.as_str().contains('@') || uri.query().is_some() {
            return Err(invalid());
        }
        if is_private(&uri) { Ok(Self(uri)) } else { Err(ServerUrlError::Plaintext(uri)) }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_string().trim_end_matches('/'))
    }
}

/// Whether the traffic to a server is protected: by TLS, or because it does not leave this machine.
pub(super) fn is_private(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    let is_local = host.eq_ignore_ascii_case("localhost") || address.is_ok_and(is_loopback);
    server.scheme() == Some(&Scheme::HTTPS) || is_local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plaintext_server_url_is_allowed_only_on_loopback() {
        for server in [
            "https://10.0.0.1:6443",
            "https://kubernetes.default.svc",
            "HTTPS://kubernetes.default.svc",
            "http://127.0.0.1:8001",
            "http://127.9.9.9",
            "http://localhost:8001/prefix",
            "http://LOCALHOST:8001",
            "http://[::1]:8001",
            "http://[::ffff:127.0.0.1]:8001",
        ] {
            assert!(is_private(&server.parse().expect(server)), "{server}");
        }
        for server in [
            "http://10.0.0.1:6443",
            "http://kubernetes.default.svc",
            "http://0.0.0.0:8001",
            "http://[::]:8001",
            "http://127.1:8001",
            "http://127.0.0.1.nip.io",
            "http://127.0.0.1:80@evil.example",
            "http://localhost.:8001",
            "http://localhost.evil.example",
            "HTTP://evil.example",
            "evil.example:80",
        ] {
            assert!(!is_private(&server.parse().expect(server)), "{server}");
        }
    }

    #[test]
    fn server_url_requires_tls_or_loopback() {
        for text in ["https://10.0.0.1:6443", "https://kube.example/k8s/c1", "http://127.0.0.1:8001", "http://[::1]:80"]
        {
            assert_eq!(text.parse::<ServerUrl>().expect(text).to_string(), text);
        }
        assert_eq!("https://a:6443/".parse::<ServerUrl>().expect("a URL").to_string(), "https://a:6443");
        for text in
            ["", "a", "a:6443", "/x", "https://", "https://:6443", "ftp://a", "https://me:pw@a", "https://a?b=c"]
        {
            assert!(matches!(text.parse::<ServerUrl>(), Err(ServerUrlError::Invalid(_))), "{text}");
        }
        let refused = "http://10.0.0.1:6443".parse::<ServerUrl>().expect_err("without TLS").to_string();
        assert!(refused.contains("http://10.0.0.1:6443") && refused.contains("does not use TLS"), "{refused}");
    }
}

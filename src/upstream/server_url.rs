use std::fmt;
use std::str::FromStr;

use http::Uri;

use super::credentials::is_private;

/// The address of one server of upstream in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl(Uri);

/// The reason that a text is not a server address.
#[derive(Debug, thiserror::Error)]
pub enum ServerUrlError {
    #[error("{0:?} is not a server URL (expected, for example, https://10.0.0.1:6443)")]
    NotOne(String),
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
        let not_one = || ServerUrlError::NotOne(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| not_one())?;
        let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(not_one)?;
        let is_http = matches!(uri.scheme_str(), Some("https" | "http"));
        // The part before an `@` would be logged, and would not be sent.
        if !is_http || authority.as_str().contains('@') || uri.query().is_some() {
            return Err(not_one());
        }
        if is_private(&uri) { Ok(Self(uri)) } else { Err(ServerUrlError::Plaintext(uri)) }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_string().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(matches!(text.parse::<ServerUrl>(), Err(ServerUrlError::NotOne(_))), "{text}");
        }
        let refused = "http://10.0.0.1:6443".parse::<ServerUrl>().expect_err("without TLS").to_string();
        assert!(refused.contains("http://10.0.0.1:6443") && refused.contains("does not use TLS"), "{refused}");
    }
}

use std::net::IpAddr;
use std::path::PathBuf;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, HOST};
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// The address of a running proxy's pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminPageAddress {
    /// The host and the port of a TCP address, as in a URL.
    Tcp(String),
    Unix(PathBuf),
}

/// The status and the body of a response.
type AdminPageFetchResult = Result<(StatusCode, String), Box<dyn std::error::Error + Send + Sync>>;

const HTTP_PORT: u16 = 80;

impl AdminPageAddress {
    /// Parses `http://HOST[:PORT][/PATH]` or `unix:PATH`. Returns the address, and the path if the URL has one.
    ///
    /// # Errors
    /// The text is neither.
    pub fn parse(url: &str) -> Result<(Self, Option<String>), String> {
        if let Some(path) = url.strip_prefix("unix:") {
            return Ok((Self::Unix(path.into()), None));
        }
        let wrong = || format!("{url:?} is neither http://HOST:PORT, with a path or without, nor unix:PATH");
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?;
        let address = Self::Tcp(format!("{host}:{}", uri.port_u16().unwrap_or(HTTP_PORT)));
        Ok((address, uri.path_and_query().map(ToString::to_string).filter(|path| path != "/")))
    }

    /// Whether requests to this page address stay on this machine.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp(host) => {
                let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name).trim_matches(['[', ']']);
                name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
        }
    }

    /// Requests a page once, on a separate connection, without a timeout. A body of more than `bytes_max` is an error.
    ///
    /// # Errors
    /// The connection fails, or the response is not HTTP/1.1.
    pub async fn read(&self, path: &str, token: Option<&str>, bytes_max: usize) -> AdminPageFetchResult {
        let request = |host: &str| {
            let mut request = Request::get(path).header(HOST, host).header(CONNECTION, "close");
            if let Some(token) = token {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            request.body(Empty::new())
        };
        match self {
            Self::Tcp(host) => fetch(TcpStream::connect(host).await?, request(host)?, bytes_max).await,
            Self::Unix(socket) => fetch(UnixStream::connect(socket).await?, request("localhost")?, bytes_max).await,
        }
    }
}

async fn fetch(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
    bytes_max: usize,
) -> AdminPageFetchResult {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let fetching = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), bytes_max).collect().await?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    tokio::pin!(fetching);
    tokio::select! {
        response = &mut fetching => response,
        ended = connection => {
            ended?;
            fetching.await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_parses_with_and_without_path() {
        let tcp =
            |host: &str, path: Option<&str>| Ok((AdminPageAddress::Tcp(host.to_owned()), path.map(str::to_owned)));
        for (url, expected) in [
            ("http://127.0.0.1:10256", tcp("127.0.0.1:10256", None)),
            ("http://127.0.0.1:10256/", tcp("127.0.0.1:10256", None)),
            ("http://fanout.internal/readyz?verbose", tcp("fanout.internal:80", Some("/readyz?verbose"))),
            ("http://[::1]:7/healthz", tcp("[::1]:7", Some("/healthz"))),
            ("unix:/run/admin.sock", Ok((AdminPageAddress::Unix("/run/admin.sock".into()), None))),
        ] {
            assert_eq!(AdminPageAddress::parse(url), expected, "{url}");
        }
        for url in ["https://127.0.0.1:10256", "127.0.0.1:10256", "/livez", "", "http://"] {
            assert!(AdminPageAddress::parse(url).is_err(), "{url}");
        }
    }
}

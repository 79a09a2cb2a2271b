use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::http::Target;

impl Target {
    /// Opens a TLS connection with this ALPN protocol, without sending anything.
    pub async fn connect(&self, protocol: &str) -> TlsStream<TcpStream> {
        self.try_connect(protocol).await.unwrap_or_else(|error| panic!("{}: {error}", self.url))
    }

    /// Like [`Self::connect`], for a server that may refuse the connection.
    pub async fn try_connect(&self, protocol: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let mut tls = self.tls();
        tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let tcp = TcpStream::connect(self.host()).await?;
        let name = ServerName::try_from("127.0.0.1").expect("an address");
        TlsConnector::from(Arc::new(tls)).connect(name, tcp).await
    }
}

/// Reads until the end, until nothing has arrived for `quiet`, or until `bytes_max` bytes have arrived. The bytes alone
/// do not show when a server has finished.
pub async fn read_until_quiet(mut io: impl AsyncRead + Unpin, quiet: Duration, bytes_max: usize) -> Vec<u8> {
    let (mut received, mut part) = (Vec::new(), vec![0; 16 << 10]);
    while received.len() < bytes_max {
        match timeout(quiet, io.read(&mut part)).await {
            Ok(Ok(read)) if read > 0 => received.extend_from_slice(&part[..read]),
            _ => break,
        }
    }
    received
}

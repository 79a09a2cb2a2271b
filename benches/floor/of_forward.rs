use std::path::Path;
use std::sync::Arc;

use kube_client::Config;
use kube_client::client::ConfigExt as _;
use kube_client::config::Kubeconfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Failure;

/// The server to forward to, with the client certificate of the kubeconfig.
#[derive(Clone)]
pub(super) struct Target {
    address: String,
    name: ServerName<'static>,
    tls: TlsConnector,
}

impl Target {
    pub(super) fn of(kubeconfig: &Path) -> Result<Self, Failure> {
        let config = Config::try_from(Kubeconfig::read_from(kubeconfig)?)?;
        let mut tls = config.rustls_client_config()?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let host = config.cluster_url.host().ok_or("a server without a host")?;
        let port = config.cluster_url.port_u16().unwrap_or(443);
        Ok(Self {
            address: format!("{host}:{port}"),
            name: ServerName::try_from(host.to_owned())?,
            tls: TlsConnector::from(Arc::new(tls)),
        })
    }

    async fn connect(&self) -> std::io::Result<impl AsyncRead + AsyncWrite + use<>> {
        let socket = TcpStream::connect(&self.address).await?;
        socket.set_nodelay(true)?;
        self.tls.connect(self.name.clone(), socket).await
    }
}

/// Forwards bytes without parsing them: each connection has one of its own to the apiserver.
pub(super) async fn connection<I: AsyncRead + AsyncWrite + Unpin>(mut io: I, target: Target) {
    let Ok(mut theirs) = target.connect().await else { return };
    // One side has disconnected.
    let _ = copy_bidirectional(&mut io, &mut theirs).await;
}

//! A TLS server in front of another server, with the certificate and the relay behaviour that a test needs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use kube_fanout::upstream::CredentialSource;
use parking_lot::Mutex;
use rcgen::{CertificateParams, CertifiedKey, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::Dir;
use super::io::Pair;
use crate::process::kubeconfig;

/// A connection that a proxy has opened to a front.
pub type Near = TlsStream<TcpStream>;

/// A running front. Dropping it stops the front and its connections.
pub struct Front {
    address: SocketAddr,
    certificate_config: Arc<Mutex<Arc<ServerConfig>>>,
    _connections: JoinSet<()>,
}

/// A CA that signs the certificates of fronts, and kubeconfigs that trust it.
pub struct Signer {
    dir: Dir,
    ca: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Signer {
    pub fn new() -> Self {
        let dir = Dir::new();
        let (key, mut params) = (KeyPair::generate().expect("a key"), CertificateParams::default());
        // Distinct names, because a client also selects a CA by name.
        params.distinguished_name.push(DnType::CommonName, dir.join("ca").display().to_string());
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("signed");
        let ca = dir.file("ca.pem", &certificate.pem());
        Self { dir, ca, issuer: Issuer::new(params, key) }
    }

    /// A certificate for a name, with the parameters modified by `change`.
    pub fn sign(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let (signing_key, mut params) =
            (KeyPair::generate().expect("a key"), CertificateParams::new(vec![name.to_owned()]).expect("a name"));
        change(&mut params);
        CertifiedKey { cert: params.signed_by(&signing_key, &self.issuer).expect("signed"), signing_key }
    }

    /// A valid certificate for the loopback address.
    pub fn good(&self) -> Pair {
        self.sign("127.0.0.1", |_| {})
    }

    /// A kubeconfig for a front that trusts this CA.
    pub fn kubeconfig(&self, front: &Front) -> PathBuf {
        kubeconfig(&self.dir, &front.url(), &format!("    certificate-authority: {}\n", self.ca.display()))
    }

    pub fn credentials(&self, front: &Front) -> CredentialSource {
        CredentialSource::File(self.kubeconfig(front))
    }
}

fn config(pair: &Pair) -> Arc<ServerConfig> {
    let key = PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der());
    let config = ServerConfig::builder().with_no_client_auth();
    let mut config = config.with_single_cert(vec![pair.cert.der().clone()], key.into()).expect("a certificate");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

impl Front {
    /// Relays all bytes unchanged.
    pub async fn passing(to: SocketAddr, pair: &Pair) -> Self {
        let pass = |mut near: Near, mut far: TcpStream| async move {
            let _ = copy_bidirectional(&mut near, &mut far).await;
        };
        Self::start(to, pair, pass).await
    }

    /// Runs `relay` between each connection and a new connection to the server behind the front.
    pub async fn start<F, R>(to: SocketAddr, pair: &Pair, relay: F) -> Self
    where
        F: Fn(Near, TcpStream) -> R + Clone + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let certificate_config = Arc::new(Mutex::new(config(pair)));
        let (mut connections, showing) = (JoinSet::new(), certificate_config.clone());
        connections.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, relay) = (TlsAcceptor::from(showing.lock().clone()), relay.clone());
                open.spawn(async move {
                    let _ = stream.set_nodelay(true);
                    // A failed handshake has no connection to relay.
                    let Ok(near) = acceptor.accept(stream).await else { return };
                    let Ok(far) = TcpStream::connect(to).await else { return };
                    relay(near, far).await;
                });
            }
        });
        Self { address, certificate_config, _connections: connections }
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Presents another certificate from now on.
    pub fn show(&self, pair: &Pair) {
        *self.certificate_config.lock() = config(pair);
    }
}

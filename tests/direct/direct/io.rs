//! Addresses of listeners, connections to them, and temporary directories.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, UnixStream};
use tokio_rustls::TlsConnector;

/// A byte stream of any kind.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// An address to connect to.
#[derive(Clone, Debug)]
pub enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Trust roots of a TLS client, and its client certificate, if it has one.
#[derive(Clone)]
pub struct Trust(Arc<ClientConfig>);

/// Kernel receive buffer in bytes for a client that will stall.
const NARROW_BYTES: u32 = 4096;

impl Place {
    /// Parses an address as the application reports it: `http://IP:PORT`, `https://IP:PORT` or `unix:PATH`.
    pub fn parse(url: &str) -> Self {
        match url.strip_prefix("unix:") {
            Some(path) => Self::Unix(path.into()),
            None => {
                let (_, address) = url.split_once("://").expect("a URL");
                Self::Tcp(address.parse().expect("an address with a port"))
            }
        }
    }

    pub fn host(&self) -> String {
        match self {
            Self::Tcp(address) => address.to_string(),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }

    pub async fn connect(&self, trust: Option<&Trust>, protocol: &[u8], narrow: bool) -> std::io::Result<Box<dyn Io>> {
        match (self, trust) {
            (Self::Unix(path), _) => Ok(Box::new(UnixStream::connect(path).await?)),
            (Self::Tcp(address), None) => Ok(Box::new(tcp(*address, narrow).await?)),
            (Self::Tcp(address), Some(Trust(config))) => {
                let mut config = ClientConfig::clone(config);
                config.alpn_protocols = vec![protocol.to_vec()];
                let name = ServerName::from(address.ip());
                let stream = tcp(*address, narrow).await?;
                Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
            }
        }
    }
}

async fn tcp(address: SocketAddr, narrow: bool) -> std::io::Result<tokio::net::TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if narrow {
        socket.set_recv_buffer_size(NARROW_BYTES)?;
    }
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Trust {
    pub fn in_file(path: &Path) -> Self {
        Self::of(path, ConfigBuilder::<ClientConfig, _>::with_no_client_auth)
    }

    /// Trusts the certificate in a file, and presents a client certificate.
    pub fn showing(path: &Path, identity: &Pair) -> Self {
        Self::showing_chain(path, identity, &[])
    }

    /// Does the same, and also presents the certificates above it in the chain.
    pub fn showing_chain(path: &Path, identity: &Pair, above: &[CertificateDer<'static>]) -> Self {
        let key = PrivatePkcs8KeyDer::from(identity.signing_key.serialize_der());
        let chain: Vec<_> = std::iter::once(identity.cert.der()).chain(above).cloned().collect();
        Self::of(path, |builder| builder.with_client_auth_cert(chain, key.into()).expect("a certificate and its key"))
    }

    /// The rustls configuration, for a test that performs the handshake itself.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.0.clone()
    }

    fn of(path: &Path, finish: impl FnOnce(ConfigBuilder<ClientConfig, WantsClientCert>) -> ClientConfig) -> Self {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_file(path).expect("the certificate was written");
        roots.add(certificate).expect("a usable certificate");
        Self(Arc::new(finish(ClientConfig::builder().with_root_certificates(roots))))
    }
}

/// A self-signed certificate and its key.
pub type Pair = rcgen::CertifiedKey<rcgen::KeyPair>;

/// Generates a self-signed certificate for the loopback address.
pub fn pair() -> Pair {
    rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate")
}

/// A new directory, which is removed when this value is dropped.
pub struct Dir(PathBuf);

/// Maximum number of names to try for a temporary directory.
const NAMES_MAX: usize = 100;

impl Dir {
    pub fn new() -> Self {
        // Two runs in containers may share this directory and have the same process ids. A name that exists belongs to
        // another run.
        let random = || std::env::temp_dir().join(format!("kube-fanout-direct-{:016x}", fastrand::u64(..)));
        let free = (0..NAMES_MAX).map(|_| random()).find_map(|path| match std::fs::create_dir(&path) {
            Ok(()) => Some(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => None,
            Err(error) => panic!("no temporary directory {}: {error}", path.display()),
        });
        Self(free.expect("an unused name"))
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, text).expect("a file can be written");
        path
    }

    /// Writes an executable file and returns its path.
    pub fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name, text);
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("it is ours");
        path
    }

    /// A `PATH` in which the programs of this directory come first.
    pub fn before_others(&self) -> String {
        format!("{}:{}", self.0.display(), std::env::var("PATH").expect("there is one"))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

/// How a listener speaks TLS: 1.3 and 1.2, HTTP/2 and HTTP/1.1 by ALPN.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    /// The certificate that clients are to trust, when we made it.
    self_signed_pem: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path}: {reason}")]
    File { path: PathBuf, reason: String },
    #[error("certificate and key: {0}")]
    Mismatch(#[from] rustls::Error),
    #[error("self-signed certificate: {0}")]
    SelfSigned(#[from] rcgen::Error),
}

impl Tls {
    /// From PEM files: a certificate chain and its key.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let fail = |path: &Path, reason: String| TlsError::File { path: path.to_owned(), reason };
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| fail(certificate, error.to_string()))?;
        if chain.is_empty() {
            return Err(fail(certificate, "no certificate in it".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| fail(key, error.to_string()))?;
        Self::from_parts(chain, key, None)
    }

    /// A certificate of our own for these names and addresses, made anew at every start.
    pub fn self_signed(names: Vec<String>) -> Result<Self, TlsError> {
        let made = rcgen::generate_simple_self_signed(names)?;
        let pem = made.cert.pem();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Self::from_parts(vec![made.cert.der().clone()], key.into(), Some(pem))
    }

    /// The certificate of [`self_signed`](Self::self_signed), for clients to trust.
    pub fn self_signed_pem(&self) -> Option<&str> {
        self.self_signed_pem.as_deref()
    }

    pub(super) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }

    fn from_parts(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        self_signed_pem: Option<String>,
    ) -> Result<Self, TlsError> {
        let mut config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), self_signed_pem })
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("self_signed", &self.self_signed_pem.is_some()).finish_non_exhaustive()
    }
}

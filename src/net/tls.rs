use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, CipherSuite, DigitallySignedStruct, DistinguishedName, OtherError, ServerConfig, SignatureScheme,
};
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{ASN1Time, FromDer as _, X509Certificate};

use super::metrics::certificate_expires;
use base::{FileLoadError, WallClock, WatchedFile};

/// The TLS configuration of a listener: TLS 1.3 and 1.2, HTTP/2 and HTTP/1.1 by ALPN. Handshakes use the current
/// certificate; connections keep the one they began with.
#[derive(Clone)]
pub struct ListenerTls {
    config: WatchedFile<ServerConfig>,
    /// The self-signed certificate that clients must trust, if there is one.
    self_signed_pem: Option<String>,
}

/// Whether the server requests client certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    Ignored,
    /// A client may send a certificate, and must prove that it has the key.
    ///
    /// Any issuer is accepted: each request decides with the authorities trusted at that time (R-AUTHN-1). Sessions are
    /// not resumed, so that each connection proves possession again.
    Requested,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {path}: {reason}")]
    File { path: PathBuf, reason: String },
    #[error("tls.key does not match tls.certificate ({key}, {certificate})")]
    Mismatch { certificate: PathBuf, key: PathBuf },
    #[error("cannot use the certificate and key: {0}")]
    Unusable(#[from] rustls::Error),
    #[error("cannot create a self-signed certificate: {0}")]
    SelfSigned(#[from] rcgen::Error),
}

/// A verifier like Go's `RequestClientCert`: it requests a certificate, does not require one, and accepts any issuer.
///
/// The client must prove that it has the key. Only a chain that would be expensive to verify is refused. A client
/// without a certificate is accepted, because it may send a token on the same port. The trusted authorities may change
/// while a connection lives, so each request decides about the issuer, and not the handshake.
#[derive(Debug)]
struct AnyIssuerVerifier {
    algorithms: WebPkiSupportedAlgorithms,
}

/// A certificate chain that is longer than any client needs, and expensive to verify.
#[derive(Debug, thiserror::Error)]
#[error(
    "the certificate chain is too long: {certificates} certificates (at most {CHAIN_CERTIFICATES_MAX}), {bytes} bytes (at \
     most {CHAIN_BYTES_MAX})"
)]
struct CertificateChainTooLong {
    certificates: usize,
    bytes: usize,
}

/// The most certificates in a chain, including the client's own. Clients have two or three.
///
/// The search for a path to an authority may have to try the certificates in every order, so its steps grow like
/// permutations. Five certificates take 64 steps (0.1 ms), but nine take 200,000 steps (a third of a second).
pub const CHAIN_CERTIFICATES_MAX: usize = 5;
/// The maximum number of bytes of a certificate chain, which is kept as long as its connection lives.
const CHAIN_BYTES_MAX: usize = 32 << 10;

/// The buffer of a handshake in memory.
const HANDSHAKE_BYTES: usize = 16 << 10;

impl ListenerTls {
    /// Reads a certificate chain and its key from PEM files. [`watch`](Self::watch) reloads them. `what` names them
    /// in logs and metrics.
    pub fn from_files(
        what: &'static str,
        certificate: &Path,
        key: &Path,
        clients: ClientCertificates,
    ) -> Result<Self, TlsError> {
        let paths = [certificate.to_owned(), key.to_owned()];
        let read = {
            let paths = paths.clone();
            move |contents: &[Vec<u8>]| {
                let (config, validity) = server_config(&paths, contents, clients)?;
                // An expired certificate is served all the same, because a client may ignore the expiry.
                CertificateValidity::report(validity, what);
                Ok(config)
            }
        };
        let config = WatchedFile::load(what, paths.into(), read).map_err(|error| match error {
            FileLoadError::File { path, source } => TlsError::File { path, reason: source.to_string() },
            FileLoadError::Content(error) => error,
        })?;
        Ok(Self { config, self_signed_pem: None })
    }

    /// Creates a new self-signed certificate for the given names and addresses.
    pub fn self_signed(names: Vec<String>, clients: ClientCertificates) -> Result<Self, TlsError> {
        let made = rcgen::generate_simple_self_signed(names)?;
        let self_signed_pem = Some(made.cert.pem());
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let config = from_parts(vec![made.cert.der().clone()], key.into(), clients)?;
        Ok(Self { config: WatchedFile::fixed(config), self_signed_pem })
    }

    /// The certificate of [`self_signed`](Self::self_signed), for clients to trust.
    pub fn self_signed_pem(&self) -> Option<&str> {
        self.self_signed_pem.as_deref()
    }

    /// Reloads the files whenever they change. Call it once.
    pub async fn watch(self, every: Duration) {
        self.config.watch(every).await;
    }

    /// Makes a handshake in memory, as a client with these settings that connects to this name or address.
    ///
    /// # Errors
    /// The client rejects the certificate.
    pub async fn shake(&self, client: &rustls::ClientConfig, host: ServerName<'static>) -> std::io::Result<()> {
        let (near, far) = tokio::io::duplex(HANDSHAKE_BYTES);
        let connect = tokio_rustls::TlsConnector::from(Arc::new(client.clone())).connect(host, near);
        let (connected, _) = tokio::join!(connect, self.acceptor().accept(far));
        connected.map(drop)
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.current())
    }
}

fn server_config(
    [certificate, key]: &[PathBuf; 2],
    contents: &[Vec<u8>],
    clients: ClientCertificates,
) -> Result<(ServerConfig, Option<CertificateValidity>), TlsError> {
    let [chain, secret] = contents else { unreachable!("two files were named") };
    let fail = |path: &Path, reason: String| TlsError::File { path: path.to_owned(), reason };
    let chain = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| fail(certificate, error.to_string()))?;
    let Some(own) = chain.first() else {
        let why = "no certificate found (expected a PEM block \"CERTIFICATE\")";
        return Err(fail(certificate, why.to_owned()));
    };
    let validity = CertificateValidity::of(own);
    let secret = PrivateKeyDer::from_pem_slice(secret).map_err(|error| fail(key, error.to_string()))?;
    let config = from_parts(chain, secret, clients).map_err(|error| match error {
        TlsError::Unusable(rustls::Error::InconsistentKeys(_)) => {
            TlsError::Mismatch { certificate: certificate.clone(), key: key.clone() }
        }
        error => error,
    })?;
    Ok((config, validity))
}

fn from_parts(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clients: ClientCertificates,
) -> Result<ServerConfig, TlsError> {
    let mut provider = ring::default_provider();
    // As in Go's server, AES-128 is preferred: an event is encrypted once for each reader, and AES-128 takes ten rounds
    // where AES-256 takes fourteen.
    provider.cipher_suites.sort_by_key(|suite| !is_aes_128(suite.suite()));
    let provider = Arc::new(provider);
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let mut config = match clients {
        ClientCertificates::Ignored => builder.with_no_client_auth().with_single_cert(chain, key)?,
        ClientCertificates::Requested => {
            let verifier = Arc::new(AnyIssuerVerifier { algorithms: provider.signature_verification_algorithms });
            let mut config = builder.with_client_cert_verifier(verifier).with_single_cert(chain, key)?;
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            config
        }
    };
    config.ignore_client_order = true;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn is_aes_128(suite: CipherSuite) -> bool {
    use CipherSuite::{
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS13_AES_128_GCM_SHA256,
    };
    matches!(
        suite,
        TLS13_AES_128_GCM_SHA256 | TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 | TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
    )
}

impl ClientCertVerifier for AnyIssuerVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // No hints are sent, so a client sends whatever certificate it has.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let certificates = 1 + intermediates.len();
        let bytes = end_entity.len() + intermediates.iter().map(|certificate| certificate.len()).sum::<usize>();
        if certificates > CHAIN_CERTIFICATES_MAX || bytes > CHAIN_BYTES_MAX {
            let why = OtherError(Arc::new(CertificateChainTooLong { certificates, bytes }));
            return Err(rustls::Error::InvalidCertificate(CertificateError::Other(why)));
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerTls").field("self_signed", &self.self_signed_pem.is_some()).finish_non_exhaustive()
    }
}

/// The validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateValidity {
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

/// The reason that a certificate is not valid now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CertificateInvalid {
    #[error("expired on {0}")]
    Expired(UtcTime),
    #[error("not valid before {0}")]
    NotYetValid(UtcTime),
}

/// A time that is formatted in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UtcTime(SystemTime);

impl CertificateValidity {
    /// Reads the first certificate of a PEM file, which is the holder's own; `None` if no certificate can be read.
    pub fn of_pem(pem: &[u8]) -> Option<Self> {
        Self::of(&CertificateDer::pem_slice_iter(pem).next()?.ok()?)
    }

    fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let validity = certificate.validity();
        Some(Self { not_before: time(validity.not_before), not_after: time(validity.not_after) })
    }

    /// Checks that the certificate is valid at a time.
    ///
    /// # Errors
    /// The certificate has expired, or is not valid yet.
    pub fn check(&self, now: SystemTime) -> Result<(), CertificateInvalid> {
        if now >= self.not_after {
            return Err(CertificateInvalid::Expired(UtcTime(self.not_after)));
        }
        if now < self.not_before {
            return Err(CertificateInvalid::NotYetValid(UtcTime(self.not_before)));
        }
        Ok(())
    }

    /// Sets the expiry metric of a loaded certificate, and logs a warning if it is not valid now. `what` names it in
    /// logs and metrics. Without a certificate, the metric is infinite, because a series cannot be removed.
    pub fn report(loaded: Option<Self>, what: &'static str) {
        let Some(validity) = loaded else { return certificate_expires(what, f64::INFINITY) };
        let expiry = validity.not_after.duration_since(UNIX_EPOCH).unwrap_or_default();
        certificate_expires(what, expiry.as_secs_f64());
        match validity.check(WallClock::default().now()) {
            Ok(()) => tracing::debug!(what, expires = %UtcTime(validity.not_after), "certificate loaded"),
            Err(why) => {
                tracing::warn!(
                    what,
                    reason = %why,
                    "certificate is expired or not yet valid; peers reject it until it is replaced"
                );
            }
        }
    }
}

impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let time = i64::try_from(seconds).ok().and_then(|seconds| ASN1Time::from_timestamp(seconds).ok());
        match time {
            Some(time) => write!(f, "{time}"),
            None => write!(f, "{seconds} s after 1970"),
        }
    }
}

fn time(time: ASN1Time) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or(0))
}

#[cfg(test)]
mod tests;

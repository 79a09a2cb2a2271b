use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};

/// A verifier like Go's `RequestClientCert`: it requests a certificate, does not require one, and accepts any issuer.
///
/// The client must prove that it has the key. Only a chain that would be expensive to verify is refused. A client
/// without a certificate is accepted, because it may send a token on the same port. The trusted authorities may change
/// while a connection lives, so each request decides about the issuer, and not the handshake.
#[derive(Debug)]
pub(super) struct AnyIssuer {
    algorithms: WebPkiSupportedAlgorithms,
}

/// The most certificates in a chain, including the client's own. Clients have two or three.
///
/// The search for a path to an authority may have to try the certificates in every order, so its steps grow like
/// permutations. Five certificates take 64 steps (0.1 ms), but nine take 200,000 steps (a third of a second).
pub const CERTIFICATES_MAX: usize = 5;
/// The maximum number of bytes of a certificate chain, which is kept as long as its connection lives.
pub(super) const CHAIN_BYTES_MAX: usize = 32 << 10;

/// A certificate chain that is longer than any client needs, and expensive to verify.
#[derive(Debug, thiserror::Error)]
#[error(
    "the certificate chain is too long: {certificates} certificates (at most {CERTIFICATES_MAX}), {bytes} bytes (at \
     most {CHAIN_BYTES_MAX})"
)]
struct ChainTooLong {
    certificates: usize,
    bytes: usize,
}

impl AnyIssuer {
    pub(super) fn new(algorithms: WebPkiSupportedAlgorithms) -> Self {
        Self { algorithms }
    }
}

impl ClientCertVerifier for AnyIssuer {
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
    ) -> Result<ClientCertVerified, Error> {
        let certificates = 1 + intermediates.len();
        let bytes = end_entity.len() + intermediates.iter().map(|certificate| certificate.len()).sum::<usize>();
        if certificates > CERTIFICATES_MAX || bytes > CHAIN_BYTES_MAX {
            let why = OtherError(Arc::new(ChainTooLong { certificates, bytes }));
            return Err(Error::InvalidCertificate(CertificateError::Other(why)));
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

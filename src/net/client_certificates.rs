use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};

/// A verifier like Go's `RequestClientCert`: a certificate is asked for and not required, its key must be proven, and
/// any issuer is accepted. Only a chain that would be dear to look at is refused.
///
/// Tokens may come by the same port, so a client without a certificate is welcome. Which authorities are trusted may
/// change while a connection lives, so the handshake would be the wrong moment to decide.
#[derive(Debug)]
pub(super) struct AnyIssuer {
    algorithms: WebPkiSupportedAlgorithms,
}

/// The most certificates in a chain, the client's own included. A search for a path from the client's certificate to an
/// authority may have to try them in every order, and its steps grow as permutations do: 64 for five certificates, 0.1
/// ms, but 200,000 and a third of a second for nine. Clients have two or three.
pub const CERTIFICATES_MAX: usize = 5;
/// The most bytes of a chain, which is held for as long as its connection lives.
pub(super) const CHAIN_BYTES_MAX: usize = 32 << 10;

/// The chain is longer than anybody needs, and dear to look at.
#[derive(Debug, thiserror::Error)]
#[error("a chain of {certificates} certificates and {bytes} bytes")]
struct TooLong {
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
        // No hints are sent: a client shows whatever it has.
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
            let why = OtherError(Arc::new(TooLong { certificates, bytes }));
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

//! Client certificates, as apiserver's authenticator `x509` takes them: verified with every request against the
//! authorities of that moment, for a connection may be older than they are.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::credential::Chain;
use crate::kube::User;

/// Whose signatures make a certificate a credential.
pub struct Authorities {
    verifier: Arc<dyn ClientCertVerifier>,
    /// Another one for every set: what was verified by one says nothing of the next.
    edition: u64,
    roots: Vec<CertificateDer<'static>>,
}

/// Somebody, until then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) user: Arc<User>,
    pub(super) until: SystemTime,
}

/// Why a file holds no authorities.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthoritiesError {
    #[error("no certificate in it")]
    Empty,
    #[error("{0}")]
    Unreadable(String),
}

/// Why a certificate is nobody's. For logs: the caller is told as little as upstream tells it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Untrusted {
    #[error("no certificate")]
    None,
    #[error("certificate: {0}")]
    Invalid(String),
    #[error("the certificate names nobody")]
    Nameless,
}

/// A user's UID in a certificate's subject (KEP-4193's neighbour, `AllowParsingUserUIDFromCertAuth`).
const UID: &[u64] = &[1, 3, 6, 1, 4, 1, 57683, 2];
/// What upstream adds about the credential itself (`authentication.kubernetes.io/credential-id`).
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

impl Authorities {
    /// From PEM, all certificates in it.
    pub fn from_pem(pem: &[u8]) -> Result<Self, AuthoritiesError> {
        static EDITIONS: AtomicU64 = AtomicU64::new(0);
        let unreadable = |error: &dyn fmt::Display| AuthoritiesError::Unreadable(error.to_string());
        let roots: Vec<_> = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .map_err(|error: rustls::pki_types::pem::Error| unreadable(&error))?;
        if roots.is_empty() {
            return Err(AuthoritiesError::Empty);
        }
        let mut store = RootCertStore::empty();
        for root in &roots {
            store.add(root.clone()).map_err(|error| unreadable(&error))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(store.into(), provider)
            .build()
            .map_err(|error| unreadable(&error))?;
        Ok(Self { verifier, edition: EDITIONS.fetch_add(1, Ordering::Relaxed), roots })
    }

    pub(super) fn edition(&self) -> u64 {
        self.edition
    }

    /// Whether a certificate is an authority in both.
    pub fn shares_with(&self, other: &Self) -> bool {
        self.roots.iter().any(|root| other.roots.contains(root))
    }

    /// Whose certificate this is, now.
    pub(super) fn verify(&self, chain: &Chain, now: SystemTime) -> Result<Holder, Untrusted> {
        let (leaf, intermediates) = chain.split_first().ok_or(Untrusted::None)?;
        let invalid = |error: &dyn fmt::Display| Untrusted::Invalid(error.to_string());
        let since = now.duration_since(UNIX_EPOCH).map_err(|_| invalid(&"the clock is before 1970"))?;
        self.verifier
            .verify_client_cert(leaf, intermediates, UnixTime::since_unix_epoch(since))
            .map_err(|error| invalid(&error))?;
        let (_, parsed) = X509Certificate::from_der(leaf).map_err(|error| invalid(&error))?;
        let not_after = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        let user = Arc::new(subject(leaf, &parsed).ok_or(Untrusted::Nameless)?);
        // It is good to the end of its last second.
        Ok(Holder { user, until: UNIX_EPOCH + Duration::from_secs(not_after.saturating_add(1)) })
    }
}

/// The user that a certificate names: its common name, its organizations as groups.
fn subject(leaf: &CertificateDer<'_>, parsed: &X509Certificate<'_>) -> Option<User> {
    let subject = parsed.subject();
    // Go keeps the last common name.
    let name = subject.iter_common_name().filter_map(|name| name.as_str().ok()).last()?.to_owned();
    if name.is_empty() {
        return None;
    }
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok()).map(str::to_owned).collect();
    let is_uid = |oid: &x509_parser::oid_registry::Oid<'_>| oid.iter().is_some_and(|arcs| arcs.eq(UID.iter().copied()));
    let mut uids = subject.iter_attributes().filter(|attribute| is_uid(attribute.attr_type()));
    let uid = uids.next().and_then(|uid| uid.as_str().ok()).unwrap_or_default().to_owned();
    let digest = ring::digest::digest(&ring::digest::SHA256, leaf);
    let digest = digest.as_ref().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let extra = [(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={digest}")])].into();
    Some(User { name, uid, groups, extra }.authenticated())
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorities").field("count", &self.roots.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

    use super::*;

    struct Authority {
        issuer: Issuer<'static, KeyPair>,
        pem: String,
    }

    fn authority(name: &str) -> Authority {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("signed").pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    fn leaf(by: &Authority, name: Option<&str>, usage: ExtendedKeyUsagePurpose) -> Chain {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(name) = name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.distinguished_name.push(DnType::OrganizationName, "dev");
        params.distinguished_name.push(DnType::CustomDnType(UID.to_vec()), "u-7");
        params.extended_key_usages = vec![usage];
        Arc::from([params.signed_by(&key, &by.issuer).expect("signed").der().clone()])
    }

    #[test]
    fn a_certificate_of_an_authority_names_its_holder() {
        let ours = authority("ours");
        let authorities = Authorities::from_pem(ours.pem.as_bytes()).expect("an authority");
        let chain = leaf(&ours, Some("ada"), ExtendedKeyUsagePurpose::ClientAuth);
        let holder = authorities.verify(&chain, SystemTime::now()).expect("trusted");
        assert_eq!((holder.user.name.as_str(), holder.user.uid.as_str()), ("ada", "u-7"));
        assert_eq!(holder.user.groups, ["dev", User::AUTHENTICATED]);
        assert!(holder.user.extra[CREDENTIAL_ID][0].starts_with("X509SHA256="));
        let late = holder.until + Duration::from_secs(1);
        assert!(matches!(authorities.verify(&chain, late), Err(Untrusted::Invalid(_))), "it has ended");
    }

    #[test]
    fn other_certificates_are_nobodys() {
        let (ours, theirs) = (authority("ours"), authority("theirs"));
        let authorities = Authorities::from_pem(ours.pem.as_bytes()).expect("an authority");
        for (what, chain) in [
            ("another authority's", leaf(&theirs, Some("ada"), ExtendedKeyUsagePurpose::ClientAuth)),
            ("a server's", leaf(&ours, Some("ada"), ExtendedKeyUsagePurpose::ServerAuth)),
            ("nameless", leaf(&ours, None, ExtendedKeyUsagePurpose::ClientAuth)),
            ("garbage", Arc::from([CertificateDer::from(vec![0x30, 0x82])])),
            ("none", Arc::from([])),
        ] {
            assert!(authorities.verify(&chain, SystemTime::now()).is_err(), "{what}");
        }
        assert!(!authorities.shares_with(&Authorities::from_pem(theirs.pem.as_bytes()).expect("one")));
        let both = format!("{}{}", theirs.pem, ours.pem);
        assert!(authorities.shares_with(&Authorities::from_pem(both.as_bytes()).expect("two")));
        assert!(Authorities::from_pem(b"").is_err());
        let cut = &ours.pem.as_bytes()[..ours.pem.len() / 2];
        assert!(Authorities::from_pem(cut).is_err(), "half a file is none");
    }
}

//! Client certificates, as in the apiserver's `x509` authenticator. They are verified against the current authorities,
//! which may be newer than the connection.
//!
//! webpki builds the paths. This module adds the checks that Go makes and webpki does not: the authority's own
//! validity, whether it may sign certificates, whether it is for clients, and its path length.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use ring::digest;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    AlgorithmIdentifier, CertificateDer, InvalidSignature, SignatureVerificationAlgorithm, TrustAnchor, UnixTime,
};
use webpki::{EndEntityCert, KeyUsage, VerifiedPath, anchor_from_trusted_cert};
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

use super::sha256::sha256_of;
use crate::upstream::CredentialId;
use kubeapi::User;

/// A certificate chain, leaf first. Its sender has proven possession of the leaf's key; nothing else is verified.
pub type CertificateChain = Arc<[CertificateDer<'static>]>;

/// The authorities that sign client certificates.
pub struct CertificateAuthorities {
    algorithms: &'static [&'static dyn SignatureVerificationAlgorithm],
    /// A digest of all certificates. The result of a verification by other authorities is not valid for these.
    id: [u8; 32],
    /// The authorities in webpki's form, and in the same order the properties that webpki ignores.
    anchors: Vec<TrustAnchor<'static>>,
    roots: Vec<CaProperties>,
}

/// The checked properties of an authority besides its name and key.
#[derive(Debug)]
struct CaProperties {
    /// The first and the last second in which the authority is valid, since 1970.
    validity: RangeInclusive<u64>,
    /// Whether the authority may sign certificates.
    is_authority: bool,
    /// Whether the authority may sign client certificates; true if it has no extended key usage.
    for_clients: bool,
    /// The maximum number of intermediate authorities between the authority and the client.
    path_len_max: Option<u32>,
}

/// A signature algorithm that checks each signature only once while one chain is verified.
///
/// webpki checks a signature for every path that contains it, and certificates of one name form as many paths as they
/// have orders. With P-384, a check takes two milliseconds. webpki stops after a hundred checks, which bounds the
/// memory.
#[derive(Debug)]
struct SignatureCheckCache<'a> {
    algorithm: &'a dyn SignatureVerificationAlgorithm,
    /// The cached results of signature checks, by a digest of key, message and signature. One thread verifies a chain;
    /// the trait requires the lock.
    results: Mutex<HashMap<[u8; 32], bool>>,
}

/// The user that a chain authenticates, until a given time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateIdentity {
    pub user: Arc<User>,
    /// The time at which the first certificate of the path expires, including the authority's.
    pub expires_at: SystemTime,
}

/// A certificate chain that a client has sent, and the result of its verification. It is stored with the connection, so
/// that the chain is verified once and not with every request.
#[derive(Debug)]
pub struct PeerCertChain {
    chain: CertificateChain,
    id: OnceLock<CredentialId>,
    /// The last verification in each role.
    verified: [Mutex<Option<CachedVerification>>; CertificateAuthorityRole::COUNT],
}

/// The result of a chain's verification, valid for one set of authorities and a period.
#[derive(Debug, Clone)]
struct CachedVerification {
    authorities_id: [u8; 32],
    from: SystemTime,
    until: SystemTime,
    holder: Result<CertificateIdentity, CertificateRejection>,
}

/// The reason that a file contains no usable authorities, or none for their role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CertificateAuthoritiesError(String);

/// The reason that a certificate is not accepted, for logs. The caller gets no more details than from upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateRejection {
    #[error("invalid client certificate: {0}")]
    Invalid(String),
    #[error("the client certificate has no common name")]
    NoCommonName,
}

/// The purpose of a set of authorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateAuthorityRole {
    Client,
    FrontProxy,
}

/// Keeps the sets of authorities of both roles apart, by their keys: an authority in both would make every client a
/// front proxy.
#[derive(Debug, Clone, Default)]
pub struct CaOverlapChecker(Arc<Mutex<[Vec<Vec<u8>>; CertificateAuthorityRole::COUNT]>>);

/// The same authority would be trusted for clients and for front proxies.
const OVERLAP: &str = "delegated.clientCA and delegated.frontProxyCA share a certificate authority, so every client \
                       could claim any identity; use separate authorities";
/// The longest time that the refusal of a chain is cached. It ends earlier when a certificate becomes valid.
const REJECTION_TTL_MAX: Duration = Duration::from_secs(60);
/// The field of a certificate's subject that has a user's UID (`AllowParsingUserIDFromCertAuth`).
const UID: &[u64] = &[1, 3, 6, 1, 4, 1, 57683, 2];
/// The extra in which upstream identifies the credential.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

impl CertificateAuthorities {
    /// Reads all certificates in a PEM file.
    ///
    /// # Errors
    /// The file has no certificate, or one that cannot be parsed.
    pub fn from_pem(pem: &[u8]) -> Result<Self, CertificateAuthoritiesError> {
        let unreadable =
            |error: &dyn fmt::Display| CertificateAuthoritiesError(format!("cannot parse a certificate: {error}"));
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
            .collect::<Result<_, _>>()
            .map_err(|error: rustls::pki_types::pem::Error| unreadable(&error))?;
        if certificates.is_empty() {
            let empty = "no certificate found (expected a PEM block \"CERTIFICATE\")";
            return Err(CertificateAuthoritiesError(empty.to_owned()));
        }
        let mut authorities = Vec::new();
        for der in &certificates {
            let anchor = anchor_from_trusted_cert(der).map_err(|error| unreadable(&error))?.to_owned();
            let (_, parsed) = X509Certificate::from_der(der).map_err(|error| unreadable(&error))?;
            authorities.push((anchor, CaProperties::from_certificate(&parsed)));
        }
        // Of two authorities with one name and key, the one that expires later is tried first.
        authorities.sort_by_key(|(_, root)| std::cmp::Reverse(*root.validity.end()));
        let (anchors, roots) = authorities.into_iter().unzip();
        let id = sha256_of(&certificates);
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms.all;
        Ok(Self { algorithms, id, anchors, roots })
    }

    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.anchors.iter().map(|anchor| anchor.subject_public_key_info.as_ref())
    }

    /// Verifies a chain, and returns the holder of its first certificate.
    pub fn verify(
        &self,
        chain: &CertificateChain,
        now: SystemTime,
    ) -> Result<CertificateIdentity, CertificateRejection> {
        let invalid = |error: &dyn fmt::Display| CertificateRejection::Invalid(error.to_string());
        let (leaf, intermediates) = chain.split_first().ok_or_else(|| invalid(&"it is empty"))?;
        let since = now.duration_since(UNIX_EPOCH).map_err(|_| invalid(&"the clock is before 1970"))?;
        let time = UnixTime::since_unix_epoch(since);
        let end = EndEntityCert::try_from(leaf).map_err(|error| invalid(&error))?;
        let permits = |path: &VerifiedPath<'_>| self.permits(path, time);
        let usage = KeyUsage::client_auth();
        let checks: Vec<_> = self.algorithms.iter().map(|algorithm| SignatureCheckCache::new(*algorithm)).collect();
        let algorithms: Vec<_> = checks.iter().map(|check| check as &dyn SignatureVerificationAlgorithm).collect();
        let path = end
            .verify_for_usage(&algorithms, &self.anchors, intermediates, time, usage, None, Some(&permits))
            .map_err(|error| invalid(&error))?;
        let (_, parsed) = X509Certificate::from_der(leaf).map_err(|error| invalid(&error))?;
        let user = Arc::new(subject(leaf, &parsed).ok_or(CertificateRejection::NoCommonName)?);
        let root = self.root(path.anchor()).map_or(0, |root| *root.validity.end());
        let between = path.intermediate_certificates().map(|it| validity_of(&it.der()).map_or(0, |valid| *valid.end()));
        let last = between.chain([root, *validity(&parsed).end()]).min().unwrap_or(0);
        // A certificate is valid to the end of its last second.
        Ok(CertificateIdentity { user, expires_at: UNIX_EPOCH + Duration::from_secs(last.saturating_add(1)) })
    }

    /// Returns the earliest time after `now` at which a certificate of the chain or an authority becomes valid.
    pub fn next_start(&self, chain: &CertificateChain, now: SystemTime) -> Option<SystemTime> {
        let validities = chain.iter().filter_map(validity_of);
        let starts = validities.chain(self.roots.iter().map(|root| root.validity.clone()));
        let starts = starts.map(|validity| UNIX_EPOCH + Duration::from_secs(*validity.start()));
        starts.filter(|start| *start > now).min()
    }

    /// Whether Go would accept a path that webpki has found (`x509.Certificate.Verify`). If not, webpki tries another
    /// path.
    fn permits(&self, path: &VerifiedPath<'_>, time: UnixTime) -> Result<(), webpki::Error> {
        let root = self.root(path.anchor()).ok_or(webpki::Error::UnknownIssuer)?;
        let (from, to) = (*root.validity.start(), *root.validity.end());
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        if time.as_secs() < from {
            return Err(webpki::Error::CertNotValidYet { time, not_before: at(from) });
        }
        if time.as_secs() > to {
            return Err(webpki::Error::CertExpired { time, not_after: at(to) });
        }
        let between = path.intermediate_certificates().count();
        if root.path_len_max.is_some_and(|max| between > max as usize) {
            return Err(webpki::Error::PathLenConstraintViolated);
        }
        let signs =
            |der: &CertificateDer<'_>| X509Certificate::from_der(der).is_ok_and(|(_, parsed)| may_sign(&parsed));
        let all_sign = root.is_authority && path.intermediate_certificates().all(|it| signs(&it.der()));
        if all_sign && root.for_clients { Ok(()) } else { Err(webpki::Error::EndEntityUsedAsCa) }
    }

    fn root(&self, anchor: &TrustAnchor<'_>) -> Option<&CaProperties> {
        let at = self.anchors.iter().position(|one| std::ptr::eq::<TrustAnchor<'_>>(one, anchor))?;
        self.roots.get(at)
    }
}

impl CertificateAuthorityRole {
    const COUNT: usize = 2;

    /// For logs.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::FrontProxy => "front_proxy",
        }
    }
}

impl CaOverlapChecker {
    /// Sets the authorities of a role, unless one of them has the other role too.
    ///
    /// # Errors
    /// An authority has the other role. The previous authorities stay.
    pub fn set_authorities(
        &self,
        role: CertificateAuthorityRole,
        authorities: &CertificateAuthorities,
    ) -> Result<(), CertificateAuthoritiesError> {
        let mut all = self.0.lock();
        let (own, keys) = (role as usize, authorities.keys().map(<[u8]>::to_vec).collect::<Vec<_>>());
        if keys.iter().any(|key| all[1 - own].contains(key)) {
            return Err(CertificateAuthoritiesError(OVERLAP.to_owned()));
        }
        all[own] = keys;
        Ok(())
    }
}

impl PeerCertChain {
    pub fn new(chain: CertificateChain) -> Self {
        Self { chain, id: OnceLock::new(), verified: Default::default() }
    }

    /// Returns the chain's identifier, which is computed once.
    pub(super) fn id(&self, make: impl FnOnce(&CertificateChain) -> CredentialId) -> CredentialId {
        *self.id.get_or_init(|| make(&self.chain))
    }

    /// Returns the holder of the chain, by the given authorities and time.
    ///
    /// # Errors
    /// The chain is not trusted now.
    pub(super) fn holder(
        &self,
        role: CertificateAuthorityRole,
        authorities: &CertificateAuthorities,
        now: SystemTime,
    ) -> Result<CertificateIdentity, CertificateRejection> {
        let mut cached = self.verified[role as usize].lock();
        if let Some(cached) = cached.as_ref().filter(|cached| cached.is_valid(authorities, now)) {
            return cached.holder.clone();
        }
        let holder = authorities.verify(&self.chain, now);
        let until = match &holder {
            Ok(holder) => holder.expires_at,
            Err(error) => {
                tracing::debug!(%error, role = role.as_str(), "client certificate not accepted in this role");
                let soon = now + REJECTION_TTL_MAX;
                authorities.next_start(&self.chain, now).map_or(soon, |start| start.min(soon))
            }
        };
        *cached = Some(CachedVerification { authorities_id: authorities.id, from: now, until, holder: holder.clone() });
        holder
    }
}

impl CachedVerification {
    /// Whether the result is still valid: the authorities are the same, and the time is within its period. This also
    /// detects a clock that was set back.
    fn is_valid(&self, authorities: &CertificateAuthorities, now: SystemTime) -> bool {
        self.authorities_id == authorities.id && (self.from..self.until).contains(&now)
    }
}

/// Compares the certificate chains only.
impl PartialEq for PeerCertChain {
    fn eq(&self, other: &Self) -> bool {
        self.chain == other.chain
    }
}

impl Eq for PeerCertChain {}

impl CaProperties {
    fn from_certificate(parsed: &X509Certificate<'_>) -> Self {
        let constraints = parsed.basic_constraints().ok().flatten();
        let usage = parsed.extended_key_usage().ok().flatten();
        Self {
            validity: validity(parsed),
            // Version 1 has no extensions.
            is_authority: may_sign(parsed)
                && constraints.as_ref().map_or(parsed.version() != X509Version::V3, |constraints| constraints.value.ca),
            for_clients: usage.is_none_or(|usage| usage.value.any || usage.value.client_auth),
            path_len_max: constraints.and_then(|constraints| constraints.value.path_len_constraint),
        }
    }
}

impl<'a> SignatureCheckCache<'a> {
    fn new(algorithm: &'a dyn SignatureVerificationAlgorithm) -> Self {
        Self { algorithm, results: Mutex::default() }
    }
}

impl SignatureVerificationAlgorithm for SignatureCheckCache<'_> {
    fn verify_signature(&self, key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        let inputs = sha256_of(&(key, message, signature));
        let check = || self.algorithm.verify_signature(key, message, signature).is_ok();
        if *self.results.lock().entry(inputs).or_insert_with(check) { Ok(()) } else { Err(InvalidSignature) }
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.signature_alg_id()
    }
}

/// Returns the first and the last second in which a certificate is valid, since 1970.
fn validity(parsed: &X509Certificate<'_>) -> RangeInclusive<u64> {
    let seconds = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0);
    seconds(parsed.validity().not_before)..=seconds(parsed.validity().not_after)
}

fn validity_of(der: &CertificateDer<'_>) -> Option<RangeInclusive<u64>> {
    X509Certificate::from_der(der).ok().map(|(_, parsed)| validity(&parsed))
}

/// Whether the key usage, if present, allows signing certificates.
fn may_sign(parsed: &X509Certificate<'_>) -> bool {
    parsed
        .key_usage()
        .is_ok_and(|usage| usage.is_none_or(|usage| usage.value.flags == 0 || usage.value.key_cert_sign()))
}

/// Returns the user that a certificate names, regardless of its signature. Only [`CertificateAuthorities::verify`]
/// authenticates a user.
pub fn named_user(leaf: &CertificateDer<'_>) -> Option<User> {
    subject(leaf, &X509Certificate::from_der(leaf).ok()?.1)
}

/// Returns the user that a certificate names: its common name is the user's name, and its organizations are groups.
fn subject(leaf: &CertificateDer<'_>, parsed: &X509Certificate<'_>) -> Option<User> {
    let subject = parsed.subject();
    // Go uses the last common name.
    let name = subject.iter_common_name().filter_map(|name| name.as_str().ok()).last()?.to_owned();
    if name.is_empty() {
        return None;
    }
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok()).map(str::to_owned).collect();
    let is_uid = |oid: &x509_parser::oid_registry::Oid<'_>| oid.iter().is_some_and(|arcs| arcs.eq(UID.iter().copied()));
    let mut uids = subject.iter_attributes().filter(|attribute| is_uid(attribute.attr_type()));
    let uid = uids.next().and_then(|uid| uid.as_str().ok()).unwrap_or_default().to_owned();
    let hash = digest::digest(&digest::SHA256, leaf);
    let digest = hash.as_ref().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let extra = [(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={digest}")])].into();
    Some(User { name, uid, groups, extra }.authenticated())
}

impl fmt::Debug for CertificateAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthorities").field("count", &self.anchors.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests;

mod peer_cert_chain;

use std::cell::Cell;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{AlgorithmIdentifier, InvalidSignature};
use webpki::ring::ECDSA_P256_SHA256;

use super::*;
use crate::net::CHAIN_CERTIFICATES_MAX;

type Change<'a> = &'a dyn Fn(&mut CertificateParams);

/// A certificate authority.
pub(in crate::auth) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(in crate::auth) der: CertificateDer<'static>,
    pub(in crate::auth) pem: String,
}

impl Authority {
    pub(in crate::auth) fn new(name: &str) -> Self {
        Self::with(name, KeyPair::generate().expect("key"), &|_| {})
    }

    fn with(name: &str, key: KeyPair, change: Change<'_>) -> Self {
        let params = authority(name, change);
        let certificate = params.self_signed(&key).expect("signed");
        let (der, pem) = (certificate.der().clone(), certificate.pem());
        Self { issuer: Issuer::new(params, key), der, pem }
    }

    /// Creates an authority below this one.
    pub(in crate::auth) fn appoint(&self, name: &str, change: Change<'_>) -> Self {
        let (params, key) = (authority(name, change), KeyPair::generate().expect("key"));
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let (der, pem) = (certificate.der().clone(), certificate.pem());
        Self { issuer: Issuer::new(params, key), der, pem }
    }

    /// Issues Ada's certificate.
    pub(in crate::auth) fn issue(&self, change: Change<'_>) -> CertificateDer<'static> {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "ada");
        params.distinguished_name.push(DnType::OrganizationName, "dev");
        params.distinguished_name.push(DnType::CustomDnType(UID.to_vec()), "u-7");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        params.signed_by(&key, &self.issuer).expect("signed").der().clone()
    }

    pub(in crate::auth) fn trusted(&self) -> CertificateAuthorities {
        CertificateAuthorities::from_pem(self.pem.as_bytes()).expect("an authority")
    }
}

fn authority(name: &str, change: Change<'_>) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).expect("params");
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    params
}

/// Seconds from a moment that all of these tests share.
pub(in crate::auth) fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

/// Valid from one second to another, both included.
pub(in crate::auth) fn valid(from: u64, to: u64) -> impl Fn(&mut CertificateParams) {
    move |params| (params.not_before, params.not_after) = (at(from).into(), at(to).into())
}

thread_local! {
    static CHECKS: Cell<usize> = const { Cell::new(0) };
}

/// ECDSA that counts its signature checks.
#[derive(Debug)]
struct Counting;

static COUNTING: [&dyn SignatureVerificationAlgorithm; 1] = [&Counting];

impl SignatureVerificationAlgorithm for Counting {
    fn verify_signature(&self, key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        CHECKS.set(CHECKS.get() + 1);
        ECDSA_P256_SHA256.verify_signature(key, message, signature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        ECDSA_P256_SHA256.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        ECDSA_P256_SHA256.signature_alg_id()
    }
}

/// The same authorities, with their signature checks counted by [`checks`].
pub(in crate::auth) fn counted(authorities: CertificateAuthorities) -> CertificateAuthorities {
    CertificateAuthorities { algorithms: &COUNTING, ..authorities }
}

/// The number of signatures checked during `work`.
pub(in crate::auth) fn checks<T>(work: impl FnOnce() -> T) -> (usize, T) {
    CHECKS.set(0);
    let done = work();
    (CHECKS.get(), done)
}

fn chain<const N: usize>(certificates: [&CertificateDer<'static>; N]) -> CertificateChain {
    certificates.into_iter().cloned().collect()
}

#[test]
fn trusted_certificate_yields_user_until_expiry() {
    let ours = Authority::new("ours");
    let authorities = ours.trusted();
    let chain = chain([&ours.issue(&valid(0, 100))]);
    let holder = authorities.verify(&chain, at(100)).expect("trusted");
    assert_eq!((holder.user.name.as_str(), holder.user.uid.as_str()), ("ada", "u-7"));
    assert_eq!(holder.user.groups, ["dev", User::AUTHENTICATED]);
    assert!(holder.user.extra[CREDENTIAL_ID][0].starts_with("X509SHA256="));
    assert_eq!(holder.expires_at, at(101), "it is good to the end of its last second");
    assert!(matches!(authorities.verify(&chain, at(101)), Err(CertificateRejection::Invalid(_))), "it has ended");
}

#[test]
fn untrusted_or_unusable_certificates_are_rejected() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let authorities = ours.trusted();
    let for_servers = |params: &mut CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    };
    let nameless = |params: &mut CertificateParams| params.distinguished_name = DistinguishedName::new();
    for (what, presented) in [
        ("another authority's", chain([&theirs.issue(&|_| {})])),
        ("a server's", chain([&ours.issue(&for_servers)])),
        ("nameless", chain([&ours.issue(&nameless)])),
        ("garbage", chain([&CertificateDer::from(vec![0x30, 0x82])])),
        ("none", chain([])),
    ] {
        assert!(authorities.verify(&presented, at(0)).is_err(), "{what}");
    }
    assert!(CertificateAuthorities::from_pem(b"").is_err());
    let cut = &ours.pem.as_bytes()[..ours.pem.len() / 2];
    assert!(CertificateAuthorities::from_pem(cut).is_err(), "half a file is none");
}

/// Every byte of a certificate is covered by its signature, so any change is detected, without a panic.
#[test]
fn certificate_with_any_byte_changed_is_rejected() {
    let ours = Authority::new("ours");
    let (authorities, leaf) = (ours.trusted(), ours.issue(&valid(0, 100)));
    authorities.verify(&chain([&leaf]), at(0)).expect("trusted as it is");
    for at_byte in 0..leaf.len() {
        for change in [1, 0x20, 0x80, 0xff] {
            let mut damaged = leaf.to_vec();
            damaged[at_byte] ^= change;
            let presented = chain([&CertificateDer::from(damaged)]);
            assert!(authorities.verify(&presented, at(0)).is_err(), "byte {at_byte} changed by {change:#x}");
        }
        let cut = CertificateDer::from(leaf[..at_byte].to_vec());
        assert!(authorities.verify(&chain([&cut]), at(0)).is_err(), "cut at {at_byte}");
    }
}

#[test]
fn shared_authorities_are_detected_by_public_key() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let overlaps = |one: &CertificateAuthorities, other: &CertificateAuthorities| {
        let checker = CaOverlapChecker::default();
        checker.set_authorities(CertificateAuthorityRole::Client, one).expect("the first");
        checker.set_authorities(CertificateAuthorityRole::FrontProxy, other).is_err()
    };
    assert!(!overlaps(&ours.trusted(), &theirs.trusted()));
    let both = CertificateAuthorities::from_pem(format!("{}{}", theirs.pem, ours.pem).as_bytes()).expect("two");
    assert!(overlaps(&ours.trusted(), &both) && overlaps(&both, &theirs.trusted()));
    let key = || KeyPair::from_pem(&theirs.issuer.key().serialize_pem()).expect("a key");
    let renewed = Authority::with("another name", key(), &valid(0, 1000));
    assert!(overlaps(&renewed.trusted(), &theirs.trusted()));
}

#[test]
fn chain_expires_with_its_earliest_expiring_certificate() {
    for (root, between, leaf, until) in
        [(100, 200, 300, 101), (200, 100, 300, 101), (300, 200, 100, 101), (300, 300, 300, 301)]
    {
        let root = Authority::with("root", KeyPair::generate().expect("key"), &valid(0, root));
        let between = root.appoint("between", &valid(0, between));
        let (authorities, chain) = (root.trusted(), chain([&between.issue(&valid(0, leaf)), &between.der]));
        let holder = authorities.verify(&chain, at(50)).expect("trusted");
        assert_eq!(holder.expires_at, at(until));
        assert!(authorities.verify(&chain, at(until)).is_err(), "and no longer");
    }
}

#[test]
fn expired_authorities_are_ignored_and_the_longest_valid_wins() {
    let key = KeyPair::generate().expect("key");
    let again = || KeyPair::from_pem(&key.serialize_pem()).expect("a key");
    let old = Authority::with("root", again(), &valid(0, 100));
    let new = Authority::with("root", again(), &valid(50, 200));
    let leaf = chain([&new.issue(&valid(0, 1000))]);
    for (what, pem, expected) in [
        ("the old one", old.pem.clone(), [Some(101), Some(101), None]),
        ("the new one", new.pem.clone(), [None, Some(201), Some(201)]),
        ("both", format!("{}{}", old.pem, new.pem), [Some(101), Some(201), Some(201)]),
        ("both, the other way", format!("{}{}", new.pem, old.pem), [Some(101), Some(201), Some(201)]),
    ] {
        let authorities = CertificateAuthorities::from_pem(pem.as_bytes()).expect("authorities");
        let until = [25, 75, 150].map(|now| authorities.verify(&leaf, at(now)).ok().map(|holder| holder.expires_at));
        assert_eq!(until, expected.map(|until| until.map(at)), "{what}");
    }
}

/// Paths that Go refuses and webpki accepts.
#[test]
fn ca_constraints_and_key_usages_are_enforced_like_go() {
    let no_authority = |params: &mut CertificateParams| params.is_ca = IsCa::ExplicitNoCa;
    let says_nothing = |params: &mut CertificateParams| params.is_ca = IsCa::NoCa;
    let signs_no_certificates = |params: &mut CertificateParams| params.key_usages = vec![KeyUsagePurpose::CrlSign];
    let signs = |params: &mut CertificateParams| params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let for_servers = |params: &mut CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    };
    let for_any = |params: &mut CertificateParams| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Any];
    let over_none = |params: &mut CertificateParams| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let over_one = |params: &mut CertificateParams| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    let nothing = |_: &mut CertificateParams| {};
    let rows: [(&str, Change<'_>, Change<'_>, [bool; 2]); 10] = [
        ("an authority", &nothing, &nothing, [true, true]),
        ("a root that is none", &no_authority, &nothing, [false, false]),
        ("a root that does not say that it is one", &says_nothing, &nothing, [false, false]),
        ("a root that signs other things", &signs_no_certificates, &nothing, [false, false]),
        ("a root that signs certificates", &signs, &signs, [true, true]),
        ("a root for servers", &for_servers, &nothing, [false, false]),
        ("a root for anything", &for_any, &nothing, [true, true]),
        ("a root over clients alone", &over_none, &nothing, [true, false]),
        ("a root over one authority", &over_one, &nothing, [true, true]),
        ("one between that signs other things", &nothing, &signs_no_certificates, [true, false]),
    ];
    for (what, root, between, expected) in rows {
        let root = Authority::with("root", KeyPair::generate().expect("key"), root);
        let between = root.appoint("between", between);
        let authorities = root.trusted();
        let direct = chain([&root.issue(&nothing)]);
        let below = chain([&between.issue(&nothing), &between.der]);
        let trusted = [direct, below].map(|chain| authorities.verify(&chain, at(0)).is_ok());
        assert_eq!(trusted, expected, "{what}");
    }
}

/// A chain of the maximum length in which all certificates have one name. Each may be the issuer of any other, so every
/// order is tried.
#[test]
fn worst_case_chain_costs_one_signature_check_per_certificate() {
    let root = Authority::new("x");
    let strangers: Vec<_> = (1..CHAIN_CERTIFICATES_MAX).map(|_| Authority::new("x")).collect();
    let leaf = strangers[0].issue(&|_| {});
    let chain: CertificateChain = std::iter::once(&leaf).chain(strangers.iter().map(|one| &one.der)).cloned().collect();
    let authorities = counted(root.trusted());
    let (checks, verified) = checks(|| authorities.verify(&chain, at(0)));
    assert!(verified.is_err());
    assert_eq!((checks, chain.len()), (CHAIN_CERTIFICATES_MAX, CHAIN_CERTIFICATES_MAX));
}

/// The same with valid certificates, in both orders.
#[test]
fn chain_of_maximum_length_verifies_in_either_order() {
    let root = Authority::new("root");
    let mut all = vec![root.appoint("1", &|_| {})];
    for at in 2..CHAIN_CERTIFICATES_MAX {
        all.push(all[at - 2].appoint(&at.to_string(), &|_| {}));
    }
    let leaf = all[all.len() - 1].issue(&|_| {});
    let authorities = root.trusted();
    for reversed in [true, false] {
        let mut above: Vec<_> = all.iter().map(|one| one.der.clone()).collect();
        if reversed {
            above.reverse();
        }
        let chain: CertificateChain = std::iter::once(leaf.clone()).chain(above).collect();
        assert!(authorities.verify(&chain, at(0)).is_ok(), "{reversed}");
    }
}

#[test]
fn next_start_returns_when_the_next_certificate_becomes_valid() {
    let root = Authority::with("root", KeyPair::generate().expect("key"), &valid(10, 100));
    let presented = chain([&root.issue(&valid(20, 100))]);
    let authorities = root.trusted();
    for (now, next) in [(0, Some(10)), (9, Some(10)), (10, Some(20)), (20, None), (99, None)] {
        assert_eq!(authorities.next_start(&presented, at(now)), next.map(at), "at {now}");
    }
    assert_eq!(authorities.next_start(&chain([&CertificateDer::from(vec![0x30])]), at(50)), None);
}

#[test]
fn authority_cannot_serve_both_clients_and_front_proxies() {
    let [one, other, third] = ["one", "other", "third"].map(|name| Authority::new(name).trusted());
    let apart = CaOverlapChecker::default();
    for (what, role, authorities, admitted) in [
        ("clients of one", CertificateAuthorityRole::Client, &one, true),
        ("proxies of the same", CertificateAuthorityRole::FrontProxy, &one, false),
        ("proxies of another", CertificateAuthorityRole::FrontProxy, &other, true),
        ("clients of what proxies have", CertificateAuthorityRole::Client, &other, false),
        ("the first ones again, which stayed", CertificateAuthorityRole::Client, &one, true),
        ("proxies of a third", CertificateAuthorityRole::FrontProxy, &third, true),
        ("clients of what proxies had", CertificateAuthorityRole::Client, &other, true),
    ] {
        assert_eq!(apart.set_authorities(role, authorities).is_ok(), admitted, "{what}");
    }
}

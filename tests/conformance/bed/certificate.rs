//! Client certificates for any caller, including many groups and unusual names. Certificate libraries do not support
//! these, so this module writes DER itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use base64::Engine;
use rcgen::{KeyPair, PublicKeyData, SigningKey};

use super::identity::Identity;
use super::plane::Plane;
use super::unique;

/// A certificate authority.
pub struct Authority {
    name: String,
    key: KeyPair,
    /// The directory for the certificates that this authority signs.
    dir: PathBuf,
}

// DER tags.
const INTEGER: u8 = 0x02;
const BITS: u8 = 0x03;
const OCTETS: u8 = 0x04;
const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

// DER values with their tags and lengths: object identifiers, and a boolean.
const COMMON_NAME: [u8; 5] = [0x06, 3, 0x55, 4, 3];
const ORGANIZATION: [u8; 5] = [0x06, 3, 0x55, 4, 10];
const BASIC_CONSTRAINTS: [u8; 5] = [0x06, 3, 0x55, 29, 19];
const EXTENDED_USAGE: [u8; 5] = [0x06, 3, 0x55, 29, 37];
const CLIENT_AUTH: [u8; 10] = [0x06, 8, 0x2b, 6, 1, 5, 5, 7, 3, 2];
const ECDSA_SHA256: [u8; 10] = [0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
const TRUE: [u8; 3] = [0x01, 1, 0xff];

const HOUR: Duration = Duration::from_secs(3600);

impl Authority {
    /// The control plane's own authority.
    pub fn of(plane: &Plane) -> Self {
        let key = fs::read_to_string(plane.dir.join("ca.key")).expect("the test bed keeps it");
        let key = KeyPair::from_pem(&key).expect("a key");
        Self { name: "kube-testbed".to_owned(), key, dir: plane.dir.clone() }
    }

    /// A new authority that the control plane does not trust.
    pub fn foreign(plane: &Plane) -> Self {
        let key = KeyPair::generate().expect("ring has randomness");
        Self { name: unique("foreign-ca"), key, dir: plane.dir.clone() }
    }

    /// A new authority with the same name. A verifier that looks for the issuer by name finds both.
    pub fn namesake(&self) -> Self {
        let key = KeyPair::generate().expect("ring has randomness");
        Self { name: self.name.clone(), key, dir: self.dir.clone() }
    }

    /// The authority's own certificate.
    pub fn pem(&self) -> String {
        let (name, constraints) = (self.subject(), extension(&BASIC_CONSTRAINTS, &der(SEQUENCE, &[&TRUE])));
        pem("CERTIFICATE", &self.sign(&name, &self.key, SystemTime::now() + HOUR, &constraints))
    }

    /// Issues a certificate for this user and these groups, valid for an hour.
    pub fn issue(&self, user: &str, groups: &[&str]) -> Identity {
        self.issue_until(user, groups, SystemTime::now() + HOUR)
    }

    /// Like [`Self::issue`], with a certificate that expires at `until`, which may be in the past.
    pub fn issue_until(&self, user: &str, groups: &[&str], until: SystemTime) -> Identity {
        let key = KeyPair::generate().expect("ring has randomness");
        let named = |of: &[u8], text: &str| der(SET, &[&der(SEQUENCE, &[of, &der(UTF8, &[text.as_bytes()])])]);
        let mut parts: Vec<_> = groups.iter().map(|group| named(&ORGANIZATION, group)).collect();
        parts.push(named(&COMMON_NAME, user));
        let usage = extension(&EXTENDED_USAGE, &der(SEQUENCE, &[&CLIENT_AUTH]));
        let certificate = self.sign(&der(SEQUENCE, &[&parts.concat()]), &key, until, &usage);
        let path = self.dir.join(format!("{}.pem", unique("caller")));
        fs::write(&path, pem("CERTIFICATE", &certificate) + &key.serialize_pem()).expect("a file");
        Identity::certificate(&format!("{user:?} of {groups:?} by {}", self.name), path)
    }

    /// The authority's name in DER, with the same string type as in the control plane's own certificate.
    fn subject(&self) -> Vec<u8> {
        let part = der(SEQUENCE, &[&COMMON_NAME, &der(PRINTABLE, &[self.name.as_bytes()])]);
        der(SEQUENCE, &[&der(SET, &[&part])])
    }

    fn sign(&self, subject: &[u8], key: &KeyPair, until: SystemTime, extensions: &[u8]) -> Vec<u8> {
        let algorithm = der(SEQUENCE, &[&ECDSA_SHA256]);
        let since = (SystemTime::now() - HOUR).min(until - HOUR);
        let to_be_signed = [
            &der(0xa0, &[&der(INTEGER, &[&[2]])]),
            &der(INTEGER, &[&[&[1][..], &fastrand::u64(..).to_be_bytes()].concat()]),
            &algorithm,
            &self.subject(),
            &der(SEQUENCE, &[&time(since), &time(until)]),
            subject,
            &key.subject_public_key_info(),
            &der(0xa3, &[&der(SEQUENCE, &[extensions])]),
        ];
        let to_be_signed = der(SEQUENCE, &to_be_signed.map(|part: &[u8]| part));
        let signature = self.key.sign(&to_be_signed).expect("an ECDSA key signs");
        der(SEQUENCE, &[&to_be_signed, &algorithm, &der(BITS, &[&[0], &signature])])
    }
}

/// Writes a bundle of certificates to a file, atomically.
pub fn write_bundle(path: &Path, certificates: &[String]) {
    let temporary = path.with_extension("new");
    fs::write(&temporary, certificates.concat()).expect("a file");
    fs::rename(temporary, path).expect("in the same directory");
}

fn extension(id: &[u8], value: &[u8]) -> Vec<u8> {
    der(SEQUENCE, &[id, &TRUE, &der(OCTETS, &[value])])
}

fn time(at: SystemTime) -> Vec<u8> {
    let text = humantime::format_rfc3339_seconds(at).to_string();
    let digits: String = text.chars().filter(|c| c.is_ascii_digit() || *c == 'Z').collect();
    der(TIME, &[digits.as_bytes()])
}

fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length = parts.iter().map(|part| part.len()).sum::<usize>();
    let length = u16::try_from(length).expect("a short certificate");
    let [high, low] = length.to_be_bytes();
    let mut der = vec![tag];
    match length {
        0..=0x7f => der.push(low),
        0x80..=0xff => der.extend([0x81, low]),
        _ => der.extend([0x82, high, low]),
    }
    der.extend(parts.iter().flat_map(|part| part.iter()));
    der
}

fn pem(kind: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", lines.join("\n"))
}

use std::collections::HashMap;

use parking_lot::Mutex;
use ring::digest;
use rustls::pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm};

/// A signature algorithm that checks each signature only once while one chain is verified.
///
/// webpki checks a signature for every path that contains it, and certificates of one name form as many paths as they
/// have orders. With P-384, a check takes two milliseconds. webpki gives up after a hundred checks, which bounds the
/// memory.
#[derive(Debug)]
pub(super) struct Once<'a> {
    algorithm: &'a dyn SignatureVerificationAlgorithm,
    /// Results by a digest of key, message and signature. One thread verifies a chain; the trait requires the lock.
    known: Mutex<HashMap<[u8; 32], bool>>,
}

impl<'a> Once<'a> {
    pub(super) fn new(algorithm: &'a dyn SignatureVerificationAlgorithm) -> Self {
        Self { algorithm, known: Mutex::default() }
    }
}

impl SignatureVerificationAlgorithm for Once<'_> {
    fn verify_signature(&self, key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        let mut asked = digest::Context::new(&digest::SHA256);
        // Lengths first, so that no two inputs have the same encoding.
        for part in [key, message, signature] {
            asked.update(&(part.len() as u64).to_be_bytes());
            asked.update(part);
        }
        let asked = asked.finish().as_ref().try_into().expect("SHA-256 has 32 bytes");
        let check = || self.algorithm.verify_signature(key, message, signature).is_ok();
        if *self.known.lock().entry(asked).or_insert_with(check) { Ok(()) } else { Err(InvalidSignature) }
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.signature_alg_id()
    }
}

use std::hash::{Hash, Hasher};

use ring::digest;

/// Hashes a value with SHA-256. The derived `Hash` of two values that differ feeds different bytes.
struct Sha256Hasher(digest::Context);

pub(super) fn sha256_of(value: &impl Hash) -> [u8; 32] {
    let mut hasher = Sha256Hasher(digest::Context::new(&digest::SHA256));
    value.hash(&mut hasher);
    hasher.0.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

impl Hasher for Sha256Hasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finish();
        digest.as_ref().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

//! The keys with which the cluster signs tokens, and its issuer.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use parking_lot::{Mutex, RwLock};
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde::Deserialize;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::upstream::{UpstreamClient, UpstreamError, UpstreamRequestCause, UpstreamRequestKind};
use base::{BackoffBounds, random};

/// The keys and the issuer as upstream publishes them.
#[derive(Debug, Clone)]
pub(super) struct PublishedKeys {
    pub(super) issuer: String,
    keys: Vec<Arc<SigningKey>>,
    read: Instant,
}

/// A public key, for one algorithm.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SigningKey {
    kid: String,
    alg: String,
    public: PublicKey,
}

#[derive(Debug, PartialEq, Eq)]
enum PublicKey {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point.
    Elliptic(Vec<u8>),
}

/// The keys, which are read again while they are used.
#[derive(Debug)]
pub(super) struct TokenKeys {
    published: RwLock<Option<Arc<PublishedKeys>>>,
    /// Notified when the keys were read.
    was_read: Notify,
    schedule: Mutex<JwksRefreshState>,
}

#[derive(Debug)]
struct JwksRefreshState {
    is_reading: bool,
    /// The number of reads that have begun, and the number of the last one that succeeded. One runs at a time.
    begun: u64,
    succeeded: u64,
    /// Whether the keys must be read again after the current read.
    is_outdated: bool,
    /// The time from which a use of the keys reads them again.
    due: Instant,
    /// The time from which an unknown key does.
    due_if_unknown: Instant,
    /// The number of failures in a row.
    failures: u32,
}

#[derive(Deserialize)]
struct JwkSet {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    #[serde(default)]
    kid: String,
    #[serde(default)]
    alg: String,
    #[serde(default = "sig", rename = "use")]
    usage: String,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Deserialize)]
struct OpenIdConfiguration {
    issuer: String,
}

/// The longest time between two reads of keys that are used. A key that is no longer published is accepted for as long.
pub(super) const READ_INTERVAL: Duration = Duration::from_secs(300);
/// The shortest time between two reads because of tokens with an unknown key.
const UNKNOWN_KEY_INTERVAL: Duration = Duration::from_secs(60);
/// The maximum size of a document, and the maximum number of keys.
const DOCUMENT_BYTES_MAX: usize = 256 << 10;
const KEYS_MAX: usize = 64;
const CONFIGURATION_PATH: &str = "/.well-known/openid-configuration";
const KEYS_PATH: &str = "/openid/v1/jwks";

fn sig() -> String {
    "sig".to_owned()
}

impl PublishedKeys {
    /// Parses the two documents; `None` if they cannot be used.
    pub(super) fn parse(configuration: &[u8], keys: &[u8], before: Option<&Self>) -> Option<Self> {
        let OpenIdConfiguration { issuer } = serde_json::from_slice(configuration).ok()?;
        let JwkSet { keys } = serde_json::from_slice(keys).ok()?;
        // The apiserver publishes an issuer only if it is such a URL. Tokens of others are legacy ones.
        if !issuer.starts_with("https://") || keys.len() > KEYS_MAX {
            return None;
        }
        let is_unique = |kid: &str| keys.iter().filter(|key| key.kid == kid).count() == 1;
        let usable = keys.iter().filter(|key| !key.kid.is_empty() && key.usage == "sig" && is_unique(&key.kid));
        let kept = |key: SigningKey| {
            // What was verified with a key stays verified while the key is the same.
            let same = before.and_then(|before| before.keys.iter().find(|same| ***same == key));
            same.cloned().unwrap_or_else(|| Arc::new(key))
        };
        let keys = usable.filter_map(SigningKey::parse).map(kept).collect();
        Some(Self { issuer, keys, read: Instant::now() })
    }

    pub(super) fn find(&self, kid: &str) -> Option<&Arc<SigningKey>> {
        self.keys.iter().find(|key| key.kid == kid)
    }

    /// Whether this very key is still published.
    pub(super) fn has(&self, key: &Arc<SigningKey>) -> bool {
        self.keys.iter().any(|published| Arc::ptr_eq(published, key))
    }
}

impl SigningKey {
    fn parse(jwk: &Jwk) -> Option<Self> {
        let bytes = |text: &Option<String>| BASE64_URL_SAFE_NO_PAD.decode(text.as_ref()?).ok();
        let point = |len| {
            let (x, y) = (bytes(&jwk.x)?, bytes(&jwk.y)?);
            (x.len() == len && y.len() == len).then(|| PublicKey::Elliptic([&[4][..], &x, &y].concat()))
        };
        let public = match jwk.alg.as_str() {
            "RS256" | "RS384" | "RS512" => PublicKey::Rsa { n: bytes(&jwk.n)?, e: bytes(&jwk.e)? },
            "ES256" => point(32)?,
            "ES384" => point(48)?,
            _ => return None,
        };
        Some(Self { kid: jwk.kid.clone(), alg: jwk.alg.clone(), public })
    }

    /// Whether the signature is one of this key over `signed`. The token's own `alg` must be the key's.
    pub(super) fn verifies(&self, alg: &str, signed: &[u8], signature: &[u8]) -> bool {
        if alg != self.alg {
            return false;
        }
        match &self.public {
            PublicKey::Rsa { n, e } => {
                let parameters: &RsaParameters = match alg {
                    "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
                    _ => &signature::RSA_PKCS1_2048_8192_SHA512,
                };
                RsaPublicKeyComponents { n, e }.verify(parameters, signed, signature).is_ok()
            }
            PublicKey::Elliptic(point) => {
                let algorithm: &dyn VerificationAlgorithm = match alg {
                    "ES256" => &signature::ECDSA_P256_SHA256_FIXED,
                    _ => &signature::ECDSA_P384_SHA384_FIXED,
                };
                UnparsedPublicKey::new(algorithm, point).verify(signed, signature).is_ok()
            }
        }
    }
}

impl TokenKeys {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let schedule = JwksRefreshState {
            is_reading: false,
            begun: 0,
            succeeded: 0,
            is_outdated: false,
            due: now,
            due_if_unknown: now,
            failures: 0,
        };
        Self { published: RwLock::default(), was_read: Notify::new(), schedule: Mutex::new(schedule) }
    }

    /// Returns the keys, unless they were last read longer than `READ_INTERVAL + grace` ago.
    pub(super) fn published(&self, grace: Duration) -> Option<Arc<PublishedKeys>> {
        let published = self.published.read().clone();
        published.filter(|keys| keys.read.elapsed() < READ_INTERVAL + grace)
    }

    /// Completes when a read has succeeded that began after the first `begun` ones. `begin` begins one if it is due.
    pub(super) async fn read_after(&self, begun: u64, begin: impl Fn()) {
        loop {
            let was_read = self.was_read.notified();
            if self.schedule.lock().succeeded > begun {
                return;
            }
            begin();
            was_read.await;
        }
    }

    /// Whether the caller must now [`read`](Self::read) the keys. It is true for one caller at a time.
    pub(super) fn begin_read(&self, is_unknown: bool) -> bool {
        let (now, mut schedule) = (Instant::now(), self.schedule.lock());
        let is_due = schedule.due <= now || is_unknown && schedule.due_if_unknown <= now;
        !schedule.is_reading && is_due && {
            schedule.is_reading = true;
            schedule.begun += 1;
            schedule.is_outdated = false;
            schedule.due_if_unknown = now + UNKNOWN_KEY_INTERVAL;
            true
        }
    }

    /// Makes the next use of the keys read them again. Returns the number of reads that have begun, whose results are too
    /// old.
    pub(super) fn expire(&self) -> u64 {
        let mut schedule = self.schedule.lock();
        schedule.is_outdated = schedule.is_reading;
        if schedule.failures == 0 {
            schedule.due = Instant::now();
        }
        schedule.begun
    }

    /// Reads the keys after [`begin_read`](Self::begin_read).
    pub(super) async fn read(&self, client: &UpstreamClient) {
        let (configuration, keys) = (document(client, CONFIGURATION_PATH).await, document(client, KEYS_PATH).await);
        let before = self.published.read().clone();
        let read = configuration.and_then(|configuration| {
            let unusable = || UpstreamError::OtherDocument(KEYS_PATH.to_owned());
            PublishedKeys::parse(&configuration, &keys?, before.as_deref()).ok_or_else(unusable)
        });
        let mut schedule = self.schedule.lock();
        match read {
            Ok(keys) => self.succeed(&mut schedule, keys),
            Err(error) => {
                if schedule.failures == 0 {
                    tracing::warn!(%error, "cannot read the cluster's token keys; tokens are reviewed by the apiserver");
                }
                schedule.failures = schedule.failures.saturating_add(1);
                schedule.due = Instant::now() + BackoffBounds::REFUSED.after(schedule.failures);
                schedule.due_if_unknown = schedule.due;
            }
        }
        schedule.is_reading = false;
    }

    /// Publishes the keys of the current read.
    fn succeed(&self, schedule: &mut JwksRefreshState, keys: PublishedKeys) {
        let now = Instant::now();
        let next = now + READ_INTERVAL.mul_f64(1.0 - 0.2 * random::f64());
        schedule.due = if schedule.is_outdated { now } else { next };
        (schedule.succeeded, schedule.failures) = (schedule.begun, 0);
        *self.published.write() = Some(Arc::new(keys));
        self.was_read.notify_waiters();
    }
}

async fn document(client: &UpstreamClient, path: &str) -> Result<bytes::Bytes, UpstreamError> {
    let accept = "application/json,application/jwk-set+json";
    let response = client.open(UpstreamRequestCause::Identity, UpstreamRequestKind::Short, path, accept).await?;
    client.read_at_most(response, DOCUMENT_BYTES_MAX).await
}

#[cfg(test)]
impl TokenKeys {
    /// Publishes the keys of the current read, or of one that has just begun. Another one does not begin by itself.
    pub(super) fn publish_for_tests(&self, keys: PublishedKeys, has_just_begun: bool) {
        let mut schedule = self.schedule.lock();
        schedule.begun += u64::from(has_just_begun);
        self.succeed(&mut schedule, keys);
    }

    /// Begins a read, which a test answers.
    pub(super) fn begin_read_for_tests(&self) {
        self.schedule.lock().begun += 1;
    }

    /// Ends a read that a test has answered.
    pub(super) fn end_read_for_tests(&self) {
        let mut schedule = self.schedule.lock();
        schedule.is_reading = false;
        schedule.due = if schedule.is_outdated { Instant::now() } else { Instant::now() + READ_INTERVAL };
    }
}

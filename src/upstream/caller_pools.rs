use std::sync::Arc;
use std::time::Duration;

use http::Response;
use tokio::sync::OwnedSemaphorePermit;

use super::credentials::UpstreamCredentials;
use super::identity_headers::{CredentialId, RequestIdentity};
use super::pool::{ConnectionPool, ForwardPoolKind, Traffic, UpstreamResponseBody};
use super::retryable_request::CountedRequest;
use super::{CredentialError, UpstreamError};
use base::KeyedSemaphores;
use kubeapi::FlowDistinguisher;

/// Connections for requests that carry their own credential, or none.
///
/// They are separate from the proxy's own connections and do not present its client certificate, which upstream would
/// take for the caller's credential. No two credentials share a connection, because upstream closes a connection when
/// it rejects a credential on it (R-HTTP-2).
#[derive(Debug)]
pub(super) struct CallerConnectionPools {
    credentials: UpstreamCredentials,
    pools: moka::sync::Cache<CredentialId, Arc<CallerPoolPair>>,
    /// Limits how many pools the credentials of one user may have.
    shares: KeyedSemaphores<FlowDistinguisher>,
    /// Opens a new connection for each request.
    once: ConnectionPool,
}

#[derive(Debug)]
struct CallerPoolPair {
    short: ConnectionPool,
    /// The pool for streams, of which each has its own connection.
    long: ConnectionPool,
    _place: OwnedSemaphorePermit,
}

/// The maximum number of credentials with their own connections. Above it, the cache evicts; requests in progress on
/// evicted connections continue.
const CREDENTIALS_MAX: u64 = 20_000;
const IDLE_MAX: Duration = Duration::from_secs(90);
/// The maximum number of these credentials per user. A user can obtain any number of tokens, and one token has several
/// spellings. Requests with further credentials use connections that are not kept.
const CREDENTIALS_OF_A_USER_MAX: usize = 256;
/// The number of idle connections that one credential keeps for its next streams.
const IDLE_STREAMS_MAX: usize = 4;

impl CallerConnectionPools {
    /// Creates empty pools. Only the address and the server verification are taken from `credentials`, which are the
    /// proxy's own.
    pub(super) fn new(credentials: &UpstreamCredentials) -> Result<Self, CredentialError> {
        let credentials = credentials.without_identity();
        let once = ConnectionPool::new(&credentials, Traffic::Once)?;
        let pools = moka::sync::Cache::builder().max_capacity(CREDENTIALS_MAX).time_to_idle(IDLE_MAX).build();
        Ok(Self { credentials, pools, shares: KeyedSemaphores::new(CREDENTIALS_OF_A_USER_MAX), once })
    }

    /// Sends a request that carries its own credential, on connections that only that credential uses. Without a
    /// credential of a known user, it uses a connection that is not reused.
    pub(super) async fn send(
        &self,
        acting_as: &RequestIdentity,
        lane: ForwardPoolKind,
        outgoing: CountedRequest,
    ) -> Result<Response<UpstreamResponseBody>, UpstreamError> {
        let pools = match acting_as {
            RequestIdentity::Bearer(credential, payer) => self.pools(*credential, payer)?,
            RequestIdentity::Anonymous | RequestIdentity::ProxyItself | RequestIdentity::User(_) => None,
        };
        match (pools, lane) {
            (Some(pools), ForwardPoolKind::Short) => pools.short.send(outgoing).await,
            (Some(pools), ForwardPoolKind::Stream) => pools.long.send(outgoing).await,
            // If the upgrade to a tunnel fails, the state of the connection is uncertain, so it is not reused.
            (Some(_), ForwardPoolKind::Tunnel) | (None, _) => self.once.send(outgoing).await,
        }
    }

    /// Returns the connections of a credential; `None` if its user has reached [`CREDENTIALS_OF_A_USER_MAX`].
    fn pools(
        &self,
        credential: CredentialId,
        payer: &FlowDistinguisher,
    ) -> Result<Option<Arc<CallerPoolPair>>, UpstreamError> {
        if let Some(pools) = self.pools.get(&credential) {
            return Ok(Some(pools));
        }
        let place = self.place(payer).or_else(|| {
            // The cache drops idle pools only when it is used, and they may hold this user's permits.
            self.pools.run_pending_tasks();
            self.place(payer)
        });
        let Some(place) = place else { return Ok(None) };
        let pools = self.pools.try_get_with(credential, || self.fresh(place).map(Arc::new));
        pools.map(Some).map_err(|error| UpstreamError::Credentials(error.to_string()))
    }

    fn place(&self, payer: &FlowDistinguisher) -> Option<OwnedSemaphorePermit> {
        self.shares.of(payer).try_acquire_owned().ok()
    }

    fn fresh(&self, place: OwnedSemaphorePermit) -> Result<CallerPoolPair, CredentialError> {
        let short = ConnectionPool::new(&self.credentials, Traffic::Forwards)?;
        let long = ConnectionPool::new(&self.credentials, Traffic::Streams { idle_max: IDLE_STREAMS_MAX })?;
        Ok(CallerPoolPair { short, long, _place: place })
    }
}

#[cfg(test)]
mod tests {
    use super::super::CredentialSource;
    use super::*;
    use kubeapi::User;

    /// A timeout that ends a hang.
    const STUCK: Duration = Duration::from_secs(60);

    fn payer(name: &str) -> FlowDistinguisher {
        FlowDistinguisher::of(&User { name: name.to_owned(), ..User::default() })
    }

    fn id(number: usize) -> CredentialId {
        let mut tag = [0; 32];
        tag[..8].copy_from_slice(&number.to_be_bytes());
        CredentialId::new(tag)
    }

    #[tokio::test]
    async fn credential_pools_per_user_are_limited() {
        let source = CredentialSource::Anonymous("http://127.0.0.1:1".parse().expect("an address"));
        let credentials = UpstreamCredentials::load(&source, &[]).expect("nothing to read");
        let caller_pools = CallerConnectionPools::new(&credentials[0]).expect("nothing is asked");
        let (ada, bob) = (payer("ada"), payer("bob"));
        let has = |number, payer| caller_pools.pools(id(number), payer).expect("made").is_some();
        let of_ada = (0..2 * CREDENTIALS_OF_A_USER_MAX).filter(|number| has(*number, &ada)).count();
        assert_eq!(of_ada, CREDENTIALS_OF_A_USER_MAX);
        assert!(has(0, &ada), "those that are there stay");
        assert!(has(usize::MAX, &bob));
        caller_pools.pools.invalidate(&id(0));
        // The cache frees dropped entries only once no thread reads it, including threads of other tests. A descheduled
        // thread may delay that.
        let began = std::time::Instant::now();
        while !has(usize::MAX - 1, &ada) {
            assert!(began.elapsed() < STUCK, "one that has gone leaves its place to the next");
            std::thread::yield_now();
        }
    }
}

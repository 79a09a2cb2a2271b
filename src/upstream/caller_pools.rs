use std::sync::Arc;
use std::time::Duration;

use http::Response;
use tokio::sync::OwnedSemaphorePermit;

use super::credentials::UpstreamCredentials;
use super::identity_headers::{CredentialId, RequestIdentity};
use super::pool::{ConnectionPool, ForwardPoolKind, PoolTrafficClass, UpstreamResponseBody};
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
    permits_per_user: KeyedSemaphores<FlowDistinguisher>,
    /// Opens a new connection for each request.
    unpooled: ConnectionPool,
}

#[derive(Debug)]
struct CallerPoolPair {
    short: ConnectionPool,
    /// The pool for streams. Each stream has its own connection.
    streams: ConnectionPool,
    _permit: OwnedSemaphorePermit,
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
        let unpooled = ConnectionPool::new(&credentials, PoolTrafficClass::SingleUse)?;
        let pools = moka::sync::Cache::builder().max_capacity(CREDENTIALS_MAX).time_to_idle(IDLE_MAX).build();
        Ok(Self { credentials, pools, permits_per_user: KeyedSemaphores::new(CREDENTIALS_OF_A_USER_MAX), unpooled })
    }

    /// Sends a request that carries its own credential, on connections that only that credential uses. Without a
    /// credential of a known user, it uses a connection that is not reused.
    pub(super) async fn send(
        &self,
        identity: &RequestIdentity,
        kind: ForwardPoolKind,
        request: CountedRequest,
    ) -> Result<Response<UpstreamResponseBody>, UpstreamError> {
        let pools = match identity {
            RequestIdentity::Bearer(credential, flow) => self.pools(*credential, flow)?,
            RequestIdentity::Anonymous | RequestIdentity::ProxyItself | RequestIdentity::User(_) => None,
        };
        match (pools, kind) {
            (Some(pools), ForwardPoolKind::Short) => pools.short.send(request).await,
            (Some(pools), ForwardPoolKind::Stream) => pools.streams.send(request).await,
            // If the upgrade to a tunnel fails, the state of the connection is uncertain, so it is not reused.
            (Some(_), ForwardPoolKind::Tunnel) | (None, _) => self.unpooled.send(request).await,
        }
    }

    /// Returns the connections of a credential; `None` if its user has reached [`CREDENTIALS_OF_A_USER_MAX`].
    fn pools(
        &self,
        credential: CredentialId,
        flow: &FlowDistinguisher,
    ) -> Result<Option<Arc<CallerPoolPair>>, UpstreamError> {
        if let Some(pools) = self.pools.get(&credential) {
            return Ok(Some(pools));
        }
        let permit = self.permit(flow).or_else(|| {
            // The cache drops idle pools only when it is used, and they may hold this user's permits.
            self.pools.run_pending_tasks();
            self.permit(flow)
        });
        let Some(permit) = permit else { return Ok(None) };
        let pools = self.pools.try_get_with(credential, || self.new_pools(permit).map(Arc::new));
        pools.map(Some).map_err(|error| UpstreamError::Credentials(error.to_string()))
    }

    fn permit(&self, flow: &FlowDistinguisher) -> Option<OwnedSemaphorePermit> {
        self.permits_per_user.get(flow).try_acquire_owned().ok()
    }

    fn new_pools(&self, permit: OwnedSemaphorePermit) -> Result<CallerPoolPair, CredentialError> {
        let short = ConnectionPool::new(&self.credentials, PoolTrafficClass::Forwards)?;
        let streams = ConnectionPool::new(&self.credentials, PoolTrafficClass::Streams { idle_max: IDLE_STREAMS_MAX })?;
        Ok(CallerPoolPair { short, streams, _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CredentialNames, CredentialSource};
    use super::*;
    use kubeapi::User;

    /// A timeout that ends a hang.
    const STUCK: Duration = Duration::from_secs(60);

    fn flow(name: &str) -> FlowDistinguisher {
        FlowDistinguisher::from_user(&User { name: name.to_owned(), ..User::default() })
    }

    fn id(number: usize) -> CredentialId {
        let mut tag = [0; 32];
        tag[..8].copy_from_slice(&number.to_be_bytes());
        CredentialId::new(tag)
    }

    #[tokio::test]
    async fn credential_pools_per_user_are_limited() {
        let source = CredentialSource::Anonymous("http://127.0.0.1:1".parse().expect("an address"));
        let credentials = UpstreamCredentials::load(&source, &[], CredentialNames::OWN).expect("nothing to read");
        let caller_pools = CallerConnectionPools::new(&credentials[0]).expect("no request is sent");
        let (ada, bob) = (flow("ada"), flow("bob"));
        let has = |number, flow| caller_pools.pools(id(number), flow).expect("made").is_some();
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

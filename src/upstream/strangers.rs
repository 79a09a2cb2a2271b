use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};

use super::behalf::CredentialId;
use super::credentials::Credentials;
use super::pool::{Body, Pool, Protocol, ResponseBody};
use super::{CredentialError, Error, Lane};

/// Connections for requests that carry a credential of their own, or none.
///
/// They share nothing with ours: neither the certificate that we would show, which upstream would take for the caller's
/// credential, nor a connection, which upstream closes when it refuses a credential on it (reliability.md §0,
/// finding 6). Nor do two credentials share one.
#[derive(Debug)]
pub(super) struct Strangers {
    credentials: Credentials,
    pools: moka::sync::Cache<CredentialId, Arc<Pools>>,
    /// A connection a request.
    once: Pool,
}

#[derive(Debug)]
struct Pools {
    short: Pool,
    /// Streams and tunnels: a connection each.
    long: Pool,
}

/// Credentials that have connections of their own at a time. The one that has been idle for longest goes first; what
/// runs on its connections goes on.
const CREDENTIALS_MAX: u64 = 20_000;
const IDLE_MAX: Duration = Duration::from_secs(90);

impl Strangers {
    /// `credentials`: ours, of which only the way to upstream is kept.
    pub(super) fn new(credentials: &Credentials) -> Result<Self, CredentialError> {
        let credentials = credentials.without_identity();
        let once = Pool::new(&credentials, Protocol::Once)?;
        let pools = moka::sync::Cache::builder().max_capacity(CREDENTIALS_MAX).time_to_idle(IDLE_MAX).build();
        Ok(Self { credentials, pools, once })
    }

    /// Sends what the bearer of `credential` asks, on connections that only its requests use.
    pub(super) async fn send(
        &self,
        credential: CredentialId,
        lane: Lane,
        request: Request<Body>,
    ) -> Result<Response<ResponseBody>, Error> {
        let pools = self.pools.try_get_with(credential, || self.fresh().map(Arc::new));
        let pools = pools.map_err(|error| Error::Credentials(error.to_string()))?;
        match lane {
            Lane::Short => pools.short.send(request).await,
            Lane::Stream => pools.long.send(request).await,
            // What was to become a tunnel and did not is not trusted with another request.
            Lane::Tunnel => self.once.send(request).await,
        }
    }

    /// Sends what nobody in particular asks, on a connection that is not used again.
    pub(super) async fn send_once(&self, request: Request<Body>) -> Result<Response<ResponseBody>, Error> {
        self.once.send(request).await
    }

    fn fresh(&self) -> Result<Pools, CredentialError> {
        let pool = |protocol| Pool::new(&self.credentials, protocol);
        Ok(Pools { short: pool(Protocol::Multiplexed)?, long: pool(Protocol::Single)? })
    }
}

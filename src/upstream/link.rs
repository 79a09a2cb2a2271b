use std::sync::OnceLock;
use std::time::Duration;

use http::Uri;

use super::caller_pools::CallerPools;
use super::credentials::UpstreamCredentials;
use super::pool::{Pool, PoolProtocol};
use super::{CredentialError, CredentialSource};
use crate::base::{LoadError, Reloaded};

/// Credentials, and the connections that were made with them.
///
/// When the files behind the credentials change there is a new link, which requests use from then on. What runs on the
/// old one goes on until it ends, and its connections with it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) credentials: UpstreamCredentials,
    pub(super) watches: Pool,
    /// Our own questions.
    pub(super) short: Pool,
    /// Requests of others that are answered within seconds.
    pub(super) forwards: Pool,
    /// Streams of others: followed logs, watches that are passed through. A connection each, so that one that is not
    /// read can stall only itself.
    pub(super) long: Pool,
    pub(super) tunnels: Pool,
    /// Requests that carry a credential of their own.
    pub(super) caller_pools: CallerPools,
}

/// The link as the credentials are now.
#[derive(Debug, Clone)]
pub(super) struct Links {
    current: Reloaded<Link>,
}

/// Tells whenever there are new credentials.
#[derive(Debug)]
pub struct CredentialChanges(Reloaded<Link>);

impl CredentialChanges {
    /// Completes when there are others than at the last time; never where they are in no file.
    pub async fn changed(&mut self) {
        self.0.changed().await;
    }
}

impl Links {
    pub(super) fn load(source: &CredentialSource) -> Result<Self, CredentialError> {
        if source.files().is_empty() {
            return Ok(Self::fixed(Link::new(UpstreamCredentials::load(source)?)?));
        }
        let (listed, read, upstream) = (source.clone(), source.clone(), OnceLock::new());
        // kube-client reads the files once more. Should they have changed in between, the next look finds that out.
        let read = move |_: &[Vec<u8>]| {
            let credentials = UpstreamCredentials::load(&read)?;
            stay_at(&upstream, &credentials.base)?;
            Link::new(credentials)
        };
        let current = Reloaded::load_listed("upstream_credentials", move || listed.files(), read);
        let current = current.map_err(|error| match error {
            LoadError::File { path, source } => CredentialError::Kubeconfig { path, reason: source.to_string() },
            LoadError::Content(error) => error,
        })?;
        Ok(Self { current })
    }

    /// One that stays as it is.
    pub(super) fn fixed(link: Link) -> Self {
        Self { current: Reloaded::fixed(link) }
    }

    pub(super) fn current(&self) -> std::sync::Arc<Link> {
        self.current.current()
    }

    pub(super) fn changes(&self) -> CredentialChanges {
        CredentialChanges(self.current.clone())
    }

    pub(super) async fn keep_up(self, every: Duration) {
        self.current.keep_up(every).await;
    }
}

impl Link {
    pub(super) fn new(credentials: UpstreamCredentials) -> Result<Self, CredentialError> {
        Ok(Self {
            watches: Pool::new(&credentials, PoolProtocol::Multiplexed)?,
            short: Pool::new(&credentials, PoolProtocol::Multiplexed)?,
            forwards: Pool::new(&credentials, PoolProtocol::Multiplexed)?,
            long: Pool::new(&credentials, PoolProtocol::Single)?,
            tunnels: Pool::new(&credentials, PoolProtocol::Once)?,
            caller_pools: CallerPools::new(&credentials)?,
            credentials,
        })
    }
}

/// Another address may be another cluster, whose versions mean something else than those that feeds and clients hold.
fn stay_at(upstream: &OnceLock<Uri>, named: &Uri) -> Result<(), CredentialError> {
    let first = upstream.get_or_init(|| named.clone());
    if first == named {
        return Ok(());
    }
    Err(CredentialError::Elsewhere { first: first.clone(), named: named.clone() })
}

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
/// When the files of the credentials change there is a new link, which requests use from then on. Requests that run on
/// the old one go on, and its connections close after them.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) credentials: UpstreamCredentials,
    pub(super) watches: Pool,
    /// For our own short requests.
    pub(super) short: Pool,
    /// For callers' requests that are answered within seconds.
    pub(super) forwards: Pool,
    /// For callers' streams: followed logs, watches that are passed through. Each has a connection of its own, so that
    /// a stream that is not read stalls only itself.
    pub(super) long: Pool,
    pub(super) tunnels: Pool,
    /// For requests that carry a credential of their own.
    pub(super) caller_pools: CallerPools,
}

/// The link as the credentials are now.
#[derive(Debug, Clone)]
pub(super) struct Links {
    current: Reloaded<Link>,
}

/// Notifies of new credentials.
#[derive(Debug)]
pub struct CredentialChanges(Reloaded<Link>);

impl CredentialChanges {
    /// Completes when the credentials have changed since the last call. Credentials that are in no file never change.
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

    /// A link that never changes.
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
            watches: Pool::new(&credentials, PoolProtocol::FOR_US)?,
            short: Pool::new(&credentials, PoolProtocol::FOR_US)?,
            forwards: Pool::new(&credentials, PoolProtocol::FOR_OTHERS)?,
            long: Pool::new(&credentials, PoolProtocol::Single)?,
            tunnels: Pool::new(&credentials, PoolProtocol::Once)?,
            caller_pools: CallerPools::new(&credentials)?,
            credentials,
        })
    }
}

/// Refuses another address than the first: it may be another cluster, where the versions that feeds and clients hold
/// mean something else.
fn stay_at(upstream: &OnceLock<Uri>, named: &Uri) -> Result<(), CredentialError> {
    let first = upstream.get_or_init(|| named.clone());
    if first == named {
        return Ok(());
    }
    Err(CredentialError::Elsewhere { first: first.clone(), named: named.clone() })
}

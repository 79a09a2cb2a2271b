//! Who callers are, and with whose rights their requests go on: out of files, into `auth` and `upstream`.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;

use super::StartError;
use crate::auth::{Authorities, Delegated, FrontProxy, Gate, Mode, Trusted};
use crate::base::Tasks;
use crate::config::Serve;
use crate::upstream::{Client, Forwarder, Source};

/// Who decides about callers.
pub(super) fn gate(config: &Serve, client: &Client, tasks: &Tasks) -> Result<Gate, StartError> {
    if config.auth == Mode::None {
        return Ok(Gate::open());
    }
    let delegated = &config.delegated;
    let client_authorities = delegated.client_ca.as_deref().map(trusted).transpose()?;
    let front_proxy = match &delegated.front_proxy_ca {
        Some(path) => Some(FrontProxy { authorities: trusted(path)?, names: delegated.front_proxy_names.clone() }),
        None => None,
    };
    let parts = Delegated { client: client.clone(), client_authorities, front_proxy, tasks: tasks.clone() };
    Ok(Gate::delegated(delegated.auth.clone(), parts))
}

/// Who passes requests on.
pub(super) async fn forwarder(config: &Serve, client: &Client) -> Result<Forwarder, StartError> {
    let impersonator = match &config.delegated.impersonator {
        Some(path) => Some(Client::connect(&Source::File(path.clone())).await?),
        None => None,
    };
    Ok(Forwarder::new(client.clone(), impersonator)?)
}

fn trusted(path: &Path) -> Result<Trusted, StartError> {
    let fail = |reason: String| StartError::Authorities { path: path.to_owned(), reason };
    let pem = std::fs::read(path).map_err(|error| fail(error.to_string()))?;
    let authorities = Authorities::from_pem(&pem).map_err(|error| fail(error.to_string()))?;
    Ok(watch::Sender::new(Arc::new(authorities)).subscribe())
}

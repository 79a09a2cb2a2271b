//! Who callers are, and with whose rights their requests go on: out of files, into `auth` and `upstream`.

use std::path::{Path, PathBuf};

use super::StartError;
use crate::auth::{Authorities, Delegated, FrontProxy, Gate, Mode, Trusted};
use crate::base::{Reloaded, Tasks};
use crate::config::Serve;
use crate::upstream::{Client, Forwarder, Source};

/// Who decides about callers.
pub(super) fn gate(config: &Serve, client: &Client, tasks: &Tasks) -> Result<Gate, StartError> {
    if config.auth == Mode::None {
        return Ok(Gate::open());
    }
    let delegated = &config.delegated;
    let trusted = |what, path: &Path| {
        let trusted = trusted(what, path)?;
        tasks.spawn(what, trusted.clone().keep_up(config.look_every));
        Ok::<_, StartError>(trusted)
    };
    let client_authorities = delegated.client_ca.as_deref().map(|path| trusted("client_ca", path)).transpose()?;
    let front_proxy = match &delegated.front_proxy_ca {
        Some(path) => {
            let authorities = trusted("front_proxy_ca", path)?;
            Some(FrontProxy { authorities, names: delegated.front_proxy_names.clone() })
        }
        None => None,
    };
    let parts = Delegated { client: client.clone(), client_authorities, front_proxy, tasks: tasks.clone() };
    Ok(Gate::delegated(delegated.auth.clone(), parts))
}

/// Who passes requests on.
pub(super) fn forwarder(config: &Serve, client: &Client, tasks: &Tasks) -> Result<Forwarder, StartError> {
    let connect = |path: &PathBuf| Client::connect(&Source::File(path.clone()));
    let impersonator = config.delegated.impersonator.as_ref().map(connect).transpose()?;
    if let Some(impersonator) = &impersonator {
        tasks.spawn("impersonator credentials", impersonator.clone().keep_up(config.look_every));
    }
    Ok(Forwarder::new(client.clone(), impersonator))
}

fn trusted(what: &'static str, path: &Path) -> Result<Trusted, StartError> {
    let read = |contents: &[Vec<u8>]| Authorities::from_pem(&contents.concat());
    Reloaded::load(what, vec![path.to_owned()], read).map_err(|error| StartError::Authorities(error.to_string()))
}

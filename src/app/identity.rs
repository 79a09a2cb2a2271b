//! Loads the credentials and authorities for `auth` and `upstream` from files: those that authenticate callers, and
//! those that forwarded requests use.

use std::path::{Path, PathBuf};

use super::StartError;
use crate::auth::{
    AuthConfig, AuthMode, Authorizer, CaOverlapChecker, CertificateAuthorities, CertificateAuthorityRole,
    DelegatedAuthDeps, FrontProxyConfig, ReloadableAuthorities,
};
use crate::config::ServeSettings;
use crate::upstream::{CredentialNames, CredentialSource, RequestForwarder, UpstreamClient, UpstreamCostTotals};
use base::{BackgroundTasks, WallClock, WatchedFile};

/// The authorizers, which authenticate and authorize callers.
pub(super) struct Authorizers {
    pub(super) clients: Authorizer,
    /// The authorizer for scrapers. Its caches and its limits are separate, so that a port that many can reach takes
    /// nothing from clients. `None` if every caller that reaches that port may read metrics.
    pub(super) scrapes: Option<Authorizer>,
}

impl Authorizers {
    /// Loads the authorities that verify certificates, and creates the authorizers.
    pub(super) fn of(
        config: &ServeSettings,
        client: &UpstreamClient,
        tasks: &BackgroundTasks,
    ) -> Result<Self, StartError> {
        if config.auth == AuthMode::None && config.scrapes.is_none() {
            return Ok(Self { clients: Authorizer::open(), scrapes: None });
        }
        let parts = delegation(config, client, tasks)?;
        let authorizer = |auth: &AuthConfig| Authorizer::delegated(auth.clone(), parts.clone());
        let clients = match config.auth {
            AuthMode::None => Authorizer::open(),
            AuthMode::Delegated => authorizer(&config.delegated.auth),
        };
        Ok(Self { clients, scrapes: config.scrapes.as_ref().map(authorizer) })
    }
}

/// Returns the parts that all authorizers share.
fn delegation(
    config: &ServeSettings,
    client: &UpstreamClient,
    tasks: &BackgroundTasks,
) -> Result<DelegatedAuthDeps, StartError> {
    let delegated = &config.delegated;
    let overlap_check = CaOverlapChecker::default();
    let load = |what, role, path: &Path| {
        let authorities = load_authorities(what, path, role, overlap_check.clone())?;
        tasks.spawn_critical(what, authorities.clone().watch(config.file_check_interval));
        Ok::<_, StartError>(authorities)
    };
    let clients = delegated.client_ca.as_deref().map(|path| load("client_ca", CertificateAuthorityRole::Client, path));
    let client_authorities = clients.transpose()?;
    let front_proxy = match &delegated.front_proxy_ca {
        Some(path) => {
            let authorities = load("front_proxy_ca", CertificateAuthorityRole::FrontProxy, path)?;
            Some(FrontProxyConfig { authorities, names: delegated.front_proxy_names.clone() })
        }
        None => None,
    };
    let (client, clock) = (client.clone(), WallClock::default());
    let node = config.serve.coverage.node.as_deref().map(Into::into);
    Ok(DelegatedAuthDeps { client, client_authorities, front_proxy, node, clock, tasks: tasks.clone() })
}

/// Creates the forwarder, which forwards requests to upstream.
pub(super) fn forwarder(
    config: &ServeSettings,
    client: &UpstreamClient,
    costs: &UpstreamCostTotals,
    tasks: &BackgroundTasks,
) -> Result<RequestForwarder, StartError> {
    let connect = |path: &PathBuf| {
        let source = CredentialSource::File(path.clone());
        UpstreamClient::connect_to(
            &source,
            CredentialNames::IMPERSONATOR,
            client.endpoints().clone(),
            costs.clone(),
            tasks.clone(),
        )
    };
    let impersonator = config.delegated.impersonator.as_ref().map(connect).transpose()?;
    if let Some(impersonator) = &impersonator {
        tasks.spawn_critical(
            "impersonator credentials",
            impersonator.clone().reload_credentials(config.file_check_interval),
        );
    }
    Ok(RequestForwarder::new(client.clone(), impersonator))
}

/// Loads authorities from a file that is reloaded when it changes. A file is rejected, at the start and later, if one
/// of its authorities also has the other role.
fn load_authorities(
    what: &'static str,
    path: &Path,
    role: CertificateAuthorityRole,
    overlap_check: CaOverlapChecker,
) -> Result<ReloadableAuthorities, StartError> {
    let read = move |contents: &[Vec<u8>]| {
        let authorities = CertificateAuthorities::from_pem(&contents.concat()).map_err(|error| error.to_string())?;
        overlap_check.set_authorities(role, &authorities).map_err(|error| error.to_string())?;
        Ok::<_, String>(authorities)
    };
    WatchedFile::load(what, vec![path.to_owned()], read).map_err(|error| StartError::Authorities(error.to_string()))
}

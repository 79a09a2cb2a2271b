//! Loads credentials, authorities and certificates from files: those that authenticate callers, those that forwarded
//! requests use, and those that listeners present.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use super::StartError;
use crate::auth::{
    AuthConfig, AuthMode, Authorizer, CaOverlapChecker, CertificateAuthorities, CertificateAuthorityRole,
    DelegatedAuthDeps, FrontProxyConfig, ReloadableAuthorities,
};
use crate::config::{ServeSettings, TlsCertificateSource};
use crate::net::{ClientCertificates, ListenAddress, ListenerTls};
use crate::upstream::{RequestForwarder, UpstreamClient};
use base::{BackgroundTasks, WallClock, WatchedFile};

/// Loads the authorities that verify certificates, and creates the authorizers for clients and for scrapers.
///
/// The caches and the limits of the latter are separate, so that a port that many can reach takes nothing from clients.
/// There is none if every caller that reaches that port may read metrics.
pub(super) fn authorizers(
    config: &ServeSettings,
    client: &UpstreamClient,
    tasks: &BackgroundTasks,
) -> Result<(Authorizer, Option<Authorizer>), StartError> {
    if config.auth == AuthMode::None && config.scrapes.is_none() {
        return Ok((Authorizer::open(), None));
    }
    let parts = delegation(config, client, tasks)?;
    let authorizer = |auth: &AuthConfig| Authorizer::delegated(auth.clone(), parts.clone());
    let clients = match config.auth {
        AuthMode::None => Authorizer::open(),
        AuthMode::Delegated => authorizer(&config.delegated.auth),
    };
    Ok((clients, config.scrapes.as_ref().map(authorizer)))
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
    tasks: &BackgroundTasks,
) -> Result<RequestForwarder, StartError> {
    let impersonator = config.delegated.impersonator.as_ref().map(|path| client.impersonator(path)).transpose()?;
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

/// The TLS configuration of the listeners.
pub(super) struct ListenerCertificates {
    pub(super) listeners: Option<ListenerTls>,
    /// The TLS settings of the metrics port; `None` if metrics have no certificate of their own.
    metrics: Option<ListenerTls>,
}

impl ListenerCertificates {
    /// Loads the certificates, or generates them.
    ///
    /// # Errors
    /// A file cannot be used, or a generated certificate cannot be written.
    pub(super) fn of(config: &ServeSettings) -> Result<Self, StartError> {
        let takes_certificates = config.delegated.client_ca.is_some() || config.delegated.front_proxy_ca.is_some();
        let requested = if takes_certificates { ClientCertificates::Requested } else { ClientCertificates::Ignored };
        let ips = config.listen.iter().filter_map(|address| match address {
            ListenAddress::Tcp(tcp) => Some(tcp.ip()),
            ListenAddress::Unix(_) => None,
        });
        let of_clients = |source| load_or_generate(source, "listener_certificate", names(config, ips), requested);
        let listeners = config.tls.as_ref().map(of_clients).transpose()?;
        let of_scrapes = |source| {
            // A client certificate is requested only if scrapers are authenticated.
            let requested = if config.scrapes.is_some() { requested } else { ClientCertificates::Ignored };
            let ips = config.metrics.iter().map(SocketAddr::ip);
            load_or_generate(source, "metrics_certificate", names(config, ips), requested)
        };
        let metrics = config.metrics_tls.as_ref().map(of_scrapes).transpose()?;
        Ok(Self { listeners, metrics })
    }

    /// Returns the TLS configuration for metrics. Without their own certificate, metrics share that of the client
    /// listeners, provided that scrapers are authenticated.
    pub(super) fn of_metrics(&self, config: &ServeSettings) -> Option<ListenerTls> {
        let shared = self.listeners.as_ref().filter(|_| config.scrapes.is_some());
        self.metrics.as_ref().or(shared).cloned()
    }

    /// Reloads the certificate files whenever they change.
    pub(super) fn watch(self, every: Duration, tasks: &BackgroundTasks) {
        if let Some(tls) = self.listeners {
            tasks.spawn_critical("listener certificate", tls.watch(every));
        }
        if let Some(tls) = self.metrics {
            tasks.spawn_critical("metrics certificate", tls.watch(every));
        }
    }
}

/// Returns the names in a generated certificate.
fn names(config: &ServeSettings, ips: impl Iterator<Item = IpAddr>) -> Vec<String> {
    let mut names: Vec<_> = ["localhost", "127.0.0.1", "::1"].into_iter().map(str::to_owned).collect();
    names.extend(config.allowed_hosts.iter().cloned());
    names.extend(ips.map(|ip| ip.to_string()));
    names.sort();
    names.dedup();
    names
}

fn load_or_generate(
    source: &TlsCertificateSource,
    what: &'static str,
    names: Vec<String>,
    clients: ClientCertificates,
) -> Result<ListenerTls, StartError> {
    Ok(match source {
        TlsCertificateSource::Files { certificate, key } => ListenerTls::from_files(what, certificate, key, clients)?,
        TlsCertificateSource::SelfSigned { out } => {
            let tls = ListenerTls::self_signed(names, clients)?;
            if let (Some(path), Some(pem)) = (out, tls.self_signed_pem()) {
                std::fs::write(path, pem).map_err(|source| StartError::Write { path: path.clone(), source })?;
            }
            tls
        }
    })
}

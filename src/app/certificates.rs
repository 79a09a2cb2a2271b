//! The certificates that the proxy's listeners present to clients and scrapers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::StartError;
use crate::config::{ServeSettings, TlsCertificateSource};
use crate::net::{ClientCertificates, ListenAddress, ListenerTls};
use base::BackgroundTasks;

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

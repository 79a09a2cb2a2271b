use std::path::PathBuf;

use super::ConfigProblems;
use crate::auth::{self, CertificateAuthorities};

/// The keys under `delegated`: how callers are authenticated, and with which identity their requests are forwarded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DelegatedAuthKeys {
    /// The file of CA certificates that verify client certificates, in PEM.
    pub client_ca: Option<PathBuf>,
    /// The file of CA certificates that verify trusted front proxies, in PEM.
    pub front_proxy_ca: Option<PathBuf>,
    /// The accepted common names of front proxies; any if empty.
    pub front_proxy_names: Vec<String>,
    /// The kubeconfig of an identity that may only impersonate.
    pub impersonator: Option<PathBuf>,
    pub auth: auth::AuthConfig,
}

impl DelegatedAuthKeys {
    /// Reports unreadable files, and a CA that is trusted for both clients and front proxies
    /// (docs/SECURITY.md, "Deployment modes").
    pub(super) fn check(&self, problems: &mut ConfigProblems) {
        let mut read = |what: &str, path: &Option<PathBuf>| {
            let path = path.as_ref()?;
            let what = format!("{what}: {}", path.display());
            let pem = problems.check(&what, std::fs::read(path))?;
            problems.check(&what, CertificateAuthorities::from_pem(&pem))
        };
        let clients = read("delegated.clientCA", &self.client_ca);
        let proxies = read("delegated.frontProxyCA", &self.front_proxy_ca);
        if let (Some(clients), Some(proxies)) = (clients, proxies)
            && clients.overlaps(&proxies)
        {
            problems.add(
                "delegated.frontProxyCA: shares a certificate authority with delegated.clientCA, so every client could \
                 claim any identity; use a separate authority for front proxies",
            );
        }
        if !self.front_proxy_names.is_empty() && self.front_proxy_ca.is_none() {
            problems.add("delegated.frontProxyNames: requires delegated.frontProxyCA");
        }
    }
}

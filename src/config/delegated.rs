use std::path::PathBuf;

use super::Problems;
use crate::auth::{self, Authorities};

/// How callers are told apart, and with whose rights their requests go on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DelegatedKeys {
    /// Authorities of client certificates, PEM.
    pub client_ca: Option<PathBuf>,
    /// Authorities of proxies whose word about a caller is taken, PEM.
    pub front_proxy_ca: Option<PathBuf>,
    /// Common names of those proxies; empty: any.
    pub front_proxy_names: Vec<String>,
    /// A kubeconfig whose only right is impersonation.
    pub impersonator: Option<PathBuf>,
    pub auth: auth::AuthConfig,
}

impl DelegatedKeys {
    /// The same, with the files that flags name.
    pub(super) fn with(self, client_ca: Option<PathBuf>, impersonator: Option<PathBuf>) -> Self {
        let (client_ca, impersonator) = (client_ca.or(self.client_ca), impersonator.or(self.impersonator));
        Self { client_ca, impersonator, ..self }
    }

    /// Files that are none, and authorities whose word would count twice (R-MODE-2).
    pub(super) fn check(&self, problems: &mut Problems) {
        let mut read = |what: &str, path: &Option<PathBuf>| {
            let path = path.as_ref()?;
            let what = format!("{what}: {}", path.display());
            let pem = problems.check(&what, std::fs::read(path))?;
            problems.check(&what, Authorities::from_pem(&pem))
        };
        let clients = read("delegated.clientCA", &self.client_ca);
        let proxies = read("delegated.frontProxyCA", &self.front_proxy_ca);
        if let (Some(clients), Some(proxies)) = (clients, proxies)
            && clients.shares_with(&proxies)
        {
            problems.add(
                "delegated.frontProxyCA: an authority of clients is in it, so every client could say that it is \
                 somebody else; proxies need an authority of their own",
            );
        }
        if !self.front_proxy_names.is_empty() && self.front_proxy_ca.is_none() {
            problems.add("delegated.frontProxyNames: they mean nothing without delegated.frontProxyCA");
        }
    }
}

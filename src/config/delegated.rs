use std::path::PathBuf;

use super::ConfigProblems;
use crate::auth::{self, CaOverlapChecker, CertificateAuthorities, CertificateAuthorityRole};

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
        let checker = CaOverlapChecker::default();
        let mut read = |what: &str, role, path: &Option<PathBuf>| {
            let path = path.as_ref()?;
            let what = format!("{what}: {}", path.display());
            let pem = problems.check(&what, std::fs::read(path))?;
            let authorities = problems.check(&what, CertificateAuthorities::from_pem(&pem))?;
            problems.check(&what, checker.set_authorities(role, &authorities))
        };
        read("delegated.clientCA", CertificateAuthorityRole::Client, &self.client_ca);
        read("delegated.frontProxyCA", CertificateAuthorityRole::FrontProxy, &self.front_proxy_ca);
        if !self.front_proxy_names.is_empty() && self.front_proxy_ca.is_none() {
            problems.add("delegated.frontProxyNames: requires delegated.frontProxyCA");
        }
    }
}

use std::path::PathBuf;
use std::time::Duration;

use super::Problems;
use super::section::Section;
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

/// Shorter, and upstream is asked without end; longer, and a right lives on for longer than anybody remembers.
const DURATION_MIN: Duration = Duration::from_millis(10);
const DURATION_MAX: Duration = Duration::from_secs(3600);
/// Questions a second, at most.
const REVIEWS_MAX: u32 = 100_000;

impl DelegatedKeys {
    pub(super) fn read(&mut self, delegated: &mut Section<'_>) {
        delegated.put_some("clientCA", &mut self.client_ca);
        delegated.put_some("frontProxyCA", &mut self.front_proxy_ca);
        delegated.put("frontProxyNames", &mut self.front_proxy_names);
        delegated.put_some("impersonator", &mut self.impersonator);
        let auth = &mut self.auth;
        delegated.put("audiences", &mut auth.audiences);
        delegated.put("anonymous", &mut auth.anonymous);
        delegated.put_duration("tokenTTL", &mut auth.token_ttl);
        delegated.put_duration("allowedTTL", &mut auth.allowed_ttl);
        delegated.put_duration("deniedTTL", &mut auth.denied_ttl);
        delegated.put_duration("recheck", &mut auth.recheck);
        delegated.put_duration("outageGrace", &mut auth.outage_grace);
        delegated.put_bounded("accessesPerSecondPerUser", &mut auth.accesses_per_user, 1, REVIEWS_MAX);
        delegated.put_bounded("accessesBurstPerUser", &mut auth.accesses_burst_per_user, 1, REVIEWS_MAX);
        delegated.put_bounded("accessesPerSecond", &mut auth.accesses, 1, REVIEWS_MAX);
        delegated.put_bounded("reviewsPerSecond", &mut auth.reviews, 1, REVIEWS_MAX);
        delegated.put_bounded("reviewsPerSecondPerSource", &mut auth.reviews_per_source, 1, REVIEWS_MAX);
        delegated.put_bounded("reviewsBurstPerSource", &mut auth.reviews_burst_per_source, 1, REVIEWS_MAX);
        delegated.put_bounded("leaseReviewsPerSecond", &mut auth.lease_reviews, 1, REVIEWS_MAX);
        delegated.put_bounded("namespacesPerSecond", &mut auth.namespaces, 1, REVIEWS_MAX);
        delegated.put_bounded("namespacesPerSecondPerUser", &mut auth.namespaces_per_user, 1, REVIEWS_MAX);
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
        let auth = &self.auth;
        for (key, duration) in [
            ("tokenTTL", auth.token_ttl),
            ("allowedTTL", auth.allowed_ttl),
            ("deniedTTL", auth.denied_ttl),
            ("recheck", auth.recheck),
            ("outageGrace", auth.outage_grace),
        ] {
            if !(DURATION_MIN..=DURATION_MAX).contains(&duration) {
                problems
                    .add(format!("delegated.{key}: {duration:?} is not within {DURATION_MIN:?}..={DURATION_MAX:?}"));
            }
        }
        if !self.front_proxy_names.is_empty() && self.front_proxy_ca.is_none() {
            problems.add("delegated.frontProxyNames: they mean nothing without delegated.frontProxyCA");
        }
    }
}

use std::num::NonZeroU32;
use std::path::PathBuf;

use super::Problems;
use super::file::Section;
use crate::auth::{self, Authorities};

/// How callers are told apart, and with whose rights their requests go on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delegated {
    /// Authorities of client certificates, PEM.
    pub client_ca: Option<PathBuf>,
    /// Authorities of proxies whose word about a caller is taken, PEM.
    pub front_proxy_ca: Option<PathBuf>,
    /// Common names of those proxies; empty: any.
    pub front_proxy_names: Vec<String>,
    /// A kubeconfig whose only right is impersonation.
    pub impersonator: Option<PathBuf>,
    pub auth: auth::Config,
}

/// What a review may cost upstream, for those who would count in requests a second.
const REVIEWS_MAX: usize = 100_000;

impl Delegated {
    pub(super) fn read(&mut self, section: &mut Section<'_>) {
        section.put_some("clientCA", &mut self.client_ca);
        section.put_some("impersonator", &mut self.impersonator);
        section.within("frontProxy", |front| {
            front.put_some("ca", &mut self.front_proxy_ca);
            front.put("names", &mut self.front_proxy_names);
        });
        let auth = &mut self.auth;
        section.put("audiences", &mut auth.audiences);
        section.put("anonymous", &mut auth.anonymous);
        section.put_duration("tokenTTL", &mut auth.token_ttl);
        section.put_duration("allowedTTL", &mut auth.allowed_ttl);
        section.put_duration("deniedTTL", &mut auth.denied_ttl);
        section.put_duration("outageGrace", &mut auth.outage_grace);
        put_rate(section, "reviewsPerSecond", &mut auth.reviews);
        put_rate(section, "reviewsPerSecondPerSource", &mut auth.reviews_per_source);
        put_rate(section, "reviewsBurstPerSource", &mut auth.reviews_burst_per_source);
    }

    /// Files that are none, and authorities whose word would count twice (reliability.md §3.2).
    pub(super) fn check(&self, problems: &mut Problems) {
        let mut read = |what: &str, path: &Option<PathBuf>| {
            let path = path.as_ref()?;
            let what = format!("{what}: {}", path.display());
            let pem = problems.check(&what, std::fs::read(path))?;
            problems.check(&what, Authorities::from_pem(&pem))
        };
        let clients = read("delegated.clientCA", &self.client_ca);
        let proxies = read("delegated.frontProxy.ca", &self.front_proxy_ca);
        if let (Some(clients), Some(proxies)) = (clients, proxies)
            && clients.shares_with(&proxies)
        {
            problems.add(
                "delegated.frontProxy.ca: an authority of clients is in it, so every client could say that it is \
                 somebody else; proxies need an authority of their own",
            );
        }
        if !self.front_proxy_names.is_empty() && self.front_proxy_ca.is_none() {
            problems.add("delegated.frontProxy.names: they mean nothing without delegated.frontProxy.ca");
        }
    }
}

fn put_rate(section: &mut Section<'_>, key: &str, rate: &mut NonZeroU32) {
    let mut number = rate.get() as usize;
    section.put_bounded(key, &mut number, 1, REVIEWS_MAX);
    *rate = u32::try_from(number).ok().and_then(NonZeroU32::new).unwrap_or(*rate);
}

//! The `check` command: preflight checks of a configuration and its upstream.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::time::{Instant, timeout};

use super::refusal_backoff;
use crate::auth::{AuthMode, TokenIdentification, authorizer_chain};
use crate::config::{CheckArguments, MemoryLimit, ServeSettings, TlsCertificateSource};
use crate::net::{ClientCertificates, ListenerTls, TlsError};
use crate::preflight::{
    CachedResource, CertificateFile, CheckFinding, CheckOutcome, PermissionNeeds, certificates, cost, identity,
    permissions, review_cost, sizes, trust,
};
use crate::serve::{CacheCoverage, NotCoveredReason};
use crate::upstream::{ResourceCatalog, UpstreamClient, UpstreamCostTotals, UpstreamEndpoints, UpstreamResource};
use base::{BackgroundTasks, WallClock};

/// The output of the `check` command: its text and its verdict.
pub struct CheckOutput {
    pub text: String,
    pub verdict: PreflightVerdict,
}

/// The overall result of the `check` command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreflightVerdict {
    Passes,
    Fails,
    /// No check failed, but at least one check could not be made.
    Inconclusive,
}

/// The objects that tokens are bound to. Tokens that are bound to a Secret may be reviewed (docs/SECURITY.md).
const BOUND_OBJECTS: [&str; 3] = ["serviceaccounts", "pods", "nodes"];

/// The timeout of all checks of the `check` command together.
const CHECK_MAX: Duration = Duration::from_secs(120);

/// Checks everything that a proxy needs.
///
/// # Errors
/// The checks take longer than `CHECK_MAX`.
#[inline(never)]
pub fn check(arguments: CheckArguments) -> LocalBoxFuture<'static, Result<CheckOutput, String>> {
    Box::pin(async move {
        let config = match arguments.serve.clone().resolve() {
            Ok(config) => config,
            Err(problems) => {
                let failed = problems.iter().map(|problem| CheckFinding::failed("configuration", problem));
                return Ok(output(&failed.collect::<Vec<_>>(), &arguments));
            }
        };
        let found = timeout(CHECK_MAX, findings(&config, &arguments)).await;
        Ok(output(&found.map_err(|_| format!("the checks took longer than {CHECK_MAX:?}"))?, &arguments))
    })
}

/// Runs the checks one after another. A failure does not end them unless the others would fail for the same reason.
async fn findings(config: &ServeSettings, arguments: &CheckArguments) -> Vec<CheckFinding> {
    let mut found = vec![CheckFinding::ok("configuration", "valid")];
    found.extend(of_certificates(config));
    let endpoints = UpstreamEndpoints::new(config.endpoints.clone());
    let (costs, tasks) = (UpstreamCostTotals::default(), BackgroundTasks::new());
    let client = match UpstreamClient::connect_to(&config.upstream, endpoints, costs, tasks) {
        Ok(client) => client,
        Err(error) => {
            found.push(CheckFinding::failed("upstream", error.to_string()));
            return found;
        }
    };
    found.extend(of_client_certificate(&client));
    if !arguments.client_host.is_empty()
        && let Some((certificate, Ok(listener))) = listener(config.tls.as_ref())
        && let Some(verification) = client.server_verification()
    {
        found.extend(trust(&listener, certificate, &verification, &arguments.client_host).await);
    }
    let (identity_findings, is_usable) = identity(&client).await;
    found.extend(identity_findings);
    if !is_usable {
        return found;
    }
    if let Some(path) = &config.delegated.impersonator {
        match client.impersonator(path) {
            Ok(client) => found.extend(of_impersonator(&client).await),
            Err(error) => found.push(CheckFinding::failed("rights", format!("delegated.impersonator: {error}"))),
        }
    }
    let catalog = ResourceCatalog::new(client.clone(), refusal_backoff(config));
    let is_known = match catalog.refresh(Instant::now()).await {
        Ok(_) => true,
        Err(error) => {
            found.push(CheckFinding::request_failed("upstream", "cannot discover its resources", &error));
            false
        }
    };
    let (needs, plan_findings) = plan(config, is_known.then_some(&catalog));
    found.extend(plan_findings);
    found.extend(permissions(&client, &needs).await);
    if needs.authenticates_callers && needs.follows_cluster {
        found.extend(authorizer_chain(&client, config.delegated.auth.decide).await);
    }
    let counted: Vec<_> = needs.cacheable().cloned().collect();
    let budget = config.memory.as_ref().map_or(config.cache.memory_bytes_max, MemoryLimit::budget_bytes);
    if is_known {
        found.extend(sizes(&client, &counted, budget).await);
    }
    let feeds = counted.len() as u64;
    let nodes = arguments.nodes.max(1);
    found.push(cost(nodes, feeds, needs.own_streams()));
    if needs.authenticates_callers {
        found.push(review_cost(nodes, arguments.agents, &config.delegated.auth.review_settings()));
    }
    found
}

/// Checks the account of `delegated.impersonator` and its permissions.
async fn of_impersonator(client: &UpstreamClient) -> Vec<CheckFinding> {
    match client.own_user().await {
        Ok(user) => {
            let message = format!("delegated.impersonator is authenticated as {}", user.name);
            let needs = PermissionNeeds { impersonated: &["users", "groups"], ..PermissionNeeds::default() };
            let mut found = vec![CheckFinding::ok("rights", message)];
            found.extend(permissions(client, &needs).await);
            found
        }
        Err(why) => vec![CheckFinding::failed("rights", format!("delegated.impersonator: {why}"))],
    }
}

/// Checks the client certificate in the kubeconfig. The apiserver rejects an expired one with 401 and no reason.
fn of_client_certificate(client: &UpstreamClient) -> Option<CheckFinding> {
    let validity = client.client_certificate()?;
    Some(match validity.check(WallClock::default().now()) {
        Ok(()) => CheckFinding::ok("certificates", "upstream.kubeconfig: the client certificate is valid"),
        Err(why) => CheckFinding::failed("certificates", format!("upstream.kubeconfig: the client certificate {why}")),
    })
}

/// Returns the upstream permissions and resources that a configuration needs, and what is wrong with it. Without a
/// catalog, these are only the permissions that every proxy of this mode needs.
fn plan(config: &ServeSettings, catalog: Option<&ResourceCatalog>) -> (PermissionNeeds, Vec<CheckFinding>) {
    let coverage = &config.serve.coverage;
    let on_node = coverage.node.is_some();
    let (mut needs, mut findings) = (PermissionNeeds::default(), Vec::new());
    needs.authenticates_callers = config.auth == AuthMode::Delegated;
    needs.authenticates_scrapes = config.scrapes.is_some();
    needs.follows_cluster = !on_node;
    let Some(catalog) = catalog else { return (needs, findings) };
    for (key, names) in [("preload", &config.preload), ("feeds.resources", &coverage.resources)] {
        for name in names {
            match catalog.find_by_name(name).map(|resource| cached_resource(coverage, &resource)) {
                Some(Ok(resource)) if needs.named.contains(&resource) => {}
                Some(Ok(resource)) => needs.named.push(resource),
                Some(Err(why)) => {
                    findings.push(CheckFinding::failed("configuration", format!("{key}: {name}: {why}")));
                }
                None => {
                    let message = format!("{key}: {name}: upstream serves no such resource");
                    findings.push(CheckFinding::failed("configuration", message));
                }
            }
        }
    }
    // `preload` does not limit what is cached on demand.
    if coverage.resources.is_empty() {
        let all = catalog.all().into_iter().filter(|resource| resource.watchable);
        needs.others = all.filter_map(|resource| cached_resource(coverage, &resource).ok()).collect();
        needs.others.retain(|resource| !needs.named.contains(resource));
        needs.others.sort_by(|a, b| a.gvr.cmp(&b.gvr));
    }
    if config.delegated.auth.identify == TokenIdentification::Local {
        let whole = CacheCoverage { node: coverage.node.clone(), ..CacheCoverage::default() };
        let bound = BOUND_OBJECTS.iter().filter_map(|name| catalog.find_by_name(name));
        needs.bound_objects = bound.filter_map(|resource| cached_resource(&whole, &resource).ok()).collect();
    }
    (needs, findings)
}

fn cached_resource(coverage: &CacheCoverage, resource: &UpstreamResource) -> Result<CachedResource, NotCoveredReason> {
    let selector = coverage.scope(resource)?.selector();
    Ok(CachedResource { gvr: resource.gvr.clone(), selector })
}

fn of_certificates(config: &ServeSettings) -> Vec<CheckFinding> {
    let file = |key, path: &std::path::Path, is_chain| CertificateFile { key, path: path.to_owned(), is_chain };
    let mut files = Vec::new();
    let mut found = Vec::new();
    for (section, key_of_chain, source) in
        [("tls", "tls.certificate", &config.tls), ("metrics.tls", "metrics.tls.certificate", &config.metrics_tls)]
    {
        let Some((certificate, listener)) = listener(source.as_ref()) else { continue };
        files.push(file(key_of_chain, certificate, true));
        if let Err(error) = listener {
            found.push(CheckFinding::failed("certificates", format!("{section}: {error}")));
        }
    }
    let keys = &config.delegated;
    files.extend(keys.client_ca.as_ref().map(|path| file("delegated.clientCA", path, false)));
    files.extend(keys.front_proxy_ca.as_ref().map(|path| file("delegated.frontProxyCA", path, false)));
    found.extend(certificates(&files, WallClock::default().now()));
    found
}

/// The certificate file of a listener, and the listener with it.
fn listener(source: Option<&TlsCertificateSource>) -> Option<(&Path, Result<ListenerTls, TlsError>)> {
    let Some(TlsCertificateSource::Files { certificate, key }) = source else { return None };
    Some((certificate, ListenerTls::from_files("certificate", certificate, key, ClientCertificates::Ignored)))
}

fn output(findings: &[CheckFinding], arguments: &CheckArguments) -> CheckOutput {
    let fails = |finding: &&CheckFinding| match finding.outcome {
        CheckOutcome::Ok | CheckOutcome::Unknown => false,
        CheckOutcome::Warning => arguments.strict,
        CheckOutcome::Failed => true,
    };
    let failed = findings.iter().filter(fails).count();
    let unknown = findings.iter().filter(|finding| finding.outcome == CheckOutcome::Unknown).count();
    let verdict = match (failed, unknown) {
        (0, 0) => PreflightVerdict::Passes,
        (0, _) => PreflightVerdict::Inconclusive,
        _ => PreflightVerdict::Fails,
    };
    if arguments.json {
        let json = serde_json::json!({"passes": verdict == PreflightVerdict::Passes, "findings": findings});
        return CheckOutput { text: format!("{json:#}\n"), verdict };
    }
    let mut text = String::new();
    for CheckFinding { outcome, area, message, remedy } in findings {
        let _ = writeln!(text, "{:<6} {area}: {message}", outcome.mark());
        if let Some(remedy) = remedy {
            let _ = writeln!(text, "       fix: {remedy}");
        }
    }
    let _ = match (failed, unknown) {
        (0, 0) => writeln!(text, "all checks passed"),
        (0, _) => writeln!(text, "inconclusive: {unknown} of the checks could not be made"),
        (1, _) => writeln!(text, "1 check failed"),
        _ => writeln!(text, "{failed} checks failed"),
    };
    CheckOutput { text, verdict }
}

use super::CheckFinding;
use crate::upstream::{KubernetesRelease, UpstreamClient};

const AREA: &str = "upstream";
/// The first release that streams lists by default and serves older pages from its own cache.
const STREAMS_LISTS: KubernetesRelease = KubernetesRelease { major: 1, minor: 34 };
/// The first release that is supported: it has aggregated discovery of `apidiscovery.k8s.io/v2`.
const SUPPORTED_SINCE: KubernetesRelease = KubernetesRelease { major: 1, minor: 30 };

/// Reports the release of the apiserver, and the user that it authenticates the proxy as. Also returns whether the
/// apiserver responds and accepts the credentials. If not, every other check would fail the same way.
pub async fn identity(client: &UpstreamClient) -> (Vec<CheckFinding>, bool) {
    let url = client.server_url();
    let mut findings = Vec::new();
    match client.release().await {
        Ok(release) => findings.push(of_release(&url, release)),
        Err(error) if error.code().is_none_or(|code| code == 401) => {
            return (vec![CheckFinding::request_failed(AREA, &url, &error)], false);
        }
        Err(error) => findings.push(CheckFinding::request_failed(AREA, format!("{url}: /version"), &error)),
    }
    let is_usable = match client.own_user().await {
        Ok(user) => {
            findings.push(CheckFinding::ok(AREA, format!("authenticated as {}", user.name)));
            true
        }
        // A server before 1.28 has no such review, and a cluster may not allow it.
        Err(error) if matches!(error.code(), Some(403 | 404)) => {
            findings.push(CheckFinding::warning(
                AREA,
                format!("cannot determine the user that the proxy is authenticated as: {error}"),
            ));
            true
        }
        Err(error) => {
            findings.push(CheckFinding::request_failed(AREA, "cannot determine the proxy's user", &error));
            error.code().is_some_and(|code| code != 401)
        }
    };
    (findings, is_usable)
}

fn of_release(url: &str, release: KubernetesRelease) -> CheckFinding {
    let named = format!("kube-apiserver {}.{} at {url}", release.major, release.minor);
    if release < SUPPORTED_SINCE {
        CheckFinding::failed(AREA, format!("{named} is older than 1.30, the oldest supported release"))
    } else if release < STREAMS_LISTS {
        let message = format!(
            "{named} may not stream lists (WatchList, on by default since 1.34): the proxy reads lists in pages"
        );
        CheckFinding::warning(AREA, message)
    } else {
        CheckFinding::ok(AREA, named)
    }
}

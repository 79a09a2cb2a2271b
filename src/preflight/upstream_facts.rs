use super::CheckFinding;
use crate::upstream::{Client, Release};

/// The apiserver's release, and the proxy's account there.
#[derive(Debug, Clone)]
pub struct UpstreamIdentity {
    pub findings: Vec<CheckFinding>,
    /// Whether it responds and accepts the credentials; otherwise all other checks would fail in the same way.
    pub is_usable: bool,
}

const ABOUT: &str = "upstream";
/// The first release that streams lists by default, and serves older pages from its own cache.
const STREAMS_LISTS: Release = Release { major: 1, minor: 34 };
/// The oldest release that was tested.
const TRIED_SINCE: Release = Release { major: 1, minor: 30 };

/// Determines the apiserver's release, and the user that it authenticates the proxy as.
pub async fn identity(client: &Client) -> UpstreamIdentity {
    let url = client.server_url();
    let mut findings = Vec::new();
    match client.release().await {
        Ok(release) => findings.push(of_release(&url, release)),
        Err(error) if error.code().is_none_or(|code| code == 401) => {
            let findings = vec![CheckFinding::unanswered(ABOUT, &url, &error)];
            return UpstreamIdentity { findings, is_usable: false };
        }
        Err(error) => findings.push(CheckFinding::unanswered(ABOUT, format!("{url}: /version"), &error)),
    }
    let is_usable = match client.who_am_i().await {
        Ok(user) => {
            findings.push(CheckFinding::ok(ABOUT, format!("authenticated as {}", user.name)));
            true
        }
        // Servers before 1.28 lack this review, and a cluster may deny it to every user.
        Err(error) if matches!(error.code(), Some(403 | 404)) => {
            findings
                .push(CheckFinding::note(ABOUT, format!("cannot tell as whom the proxy is authenticated: {error}")));
            true
        }
        Err(error) => {
            findings.push(CheckFinding::unanswered(ABOUT, "the proxy's own identity", &error));
            error.code().is_some_and(|code| code != 401)
        }
    };
    UpstreamIdentity { findings, is_usable }
}

fn of_release(url: &str, release: Release) -> CheckFinding {
    let named = format!("kube-apiserver {}.{} at {url}", release.major, release.minor);
    if release < TRIED_SINCE {
        CheckFinding::note(ABOUT, format!("{named} is older than any that this was tried with (1.30)"))
    } else if release < STREAMS_LISTS {
        let what =
            format!("{named} may not stream lists (WatchList, on by default since 1.34): they are read in pages");
        CheckFinding::note(ABOUT, what)
    } else {
        CheckFinding::ok(ABOUT, named)
    }
}

use super::CheckFinding;
use crate::upstream::{Client, Error};

/// Who is asked, and who asks.
#[derive(Debug, Clone)]
pub struct UpstreamIdentity {
    pub findings: Vec<CheckFinding>,
    pub user: String,
}

const ABOUT: &str = "upstream";
/// The first release that streams lists unless told otherwise, and answers older pages of its own cache.
const STREAMS_LISTS: (u32, u32) = (1, 34);
/// Before this, Kubernetes has no API that the proxy reads by selectors in reviews, and nobody has tried.
const TRIED_SINCE: (u32, u32) = (1, 30);

/// Finds out who upstream takes us for, and which release it runs.
///
/// # Errors
/// Upstream cannot be reached, or lets us do nothing.
pub async fn identity(client: &Client) -> Result<UpstreamIdentity, Error> {
    let release = client.release().await?;
    let user = client.who_am_i().await?.name;
    let version = (release.major, release.minor);
    let named = format!("kube-apiserver {}.{}", version.0, version.1);
    let finding = if version < TRIED_SINCE {
        CheckFinding::note(ABOUT, format!("{named} is older than any that this was tried with (1.30)"))
    } else if version < STREAMS_LISTS {
        let what =
            format!("{named} may not stream lists (WatchList, on by default since 1.34): they are read in pages");
        CheckFinding::note(ABOUT, what)
    } else {
        CheckFinding::ok(ABOUT, named)
    };
    Ok(UpstreamIdentity {
        findings: vec![finding, CheckFinding::ok(ABOUT, format!("it takes the proxy for {user}"))],
        user,
    })
}

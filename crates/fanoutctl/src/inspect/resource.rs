use serde_json::Value;

use super::InspectError;
use super::server::ApiserverConnection;

/// Returns the path of a collection for a short name: `pods`, `deployments.apps`, `widgets.v1.example.com`.
pub(super) async fn path(
    server: &ApiserverConnection,
    name: &str,
    namespace: Option<&str>,
) -> Result<String, InspectError> {
    let (plural, rest) = name.split_once('.').unwrap_or((name, ""));
    let within = namespace.map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
    let (first, group) = rest.split_once('.').unwrap_or((rest, ""));
    let prefix = match (is_version(first), group) {
        _ if rest.is_empty() => "/api/v1".to_owned(),
        (true, "") => format!("/api/{first}"),
        (true, group) => format!("/apis/{group}/{first}"),
        (false, _) => format!("/apis/{}", preferred(server, rest).await?),
    };
    Ok(format!("{prefix}{within}/{plural}"))
}

/// Returns a group with the version that the server prefers, as `group/version`.
async fn preferred(server: &ApiserverConnection, group: &str) -> Result<String, InspectError> {
    let path = format!("/apis/{group}");
    let answer = server.get(&path, "application/json").await?.success(&path)?;
    let api_group: Value = serde_json::from_slice(&answer.body).map_err(|error| InspectError::of(&path, error))?;
    let preferred = api_group["preferredVersion"]["groupVersion"].as_str();
    preferred
        .map(str::to_owned)
        .ok_or_else(|| InspectError::of(&path, "no such group (expected PLURAL.GROUP, such as deployments.apps)"))
}

/// Whether the text is an API version such as `v1` or `v2beta3`.
fn is_version(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('v') else { return false };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let stage = rest.split_once("alpha").or_else(|| rest.split_once("beta"));
    stage.map_or_else(|| digits(rest), |(major, minor)| digits(major) && digits(minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_versions_are_distinguished_from_groups() {
        for (text, expected) in
            [("v1", true), ("v2beta1", true), ("v1alpha12", true), ("v", false), ("vbeta1", false), ("apps", false)]
        {
            assert_eq!(is_version(text), expected, "{text}");
        }
    }
}

use super::MediaType;
use super::clauses::clauses;

/// The maximum number of different clauses in an Accept header for discovery; client-go sends three.
const CLAUSES_MAX: usize = 3;
/// The versions of `apidiscovery.k8s.io` that a clause may request.
const VERSIONS: [&str; 2] = ["v2", "v2beta1"];

/// Normalizes the Accept header of a discovery request: the clauses in the order in which the apiserver tries them,
/// each once. `None` if the header requests anything that discovery clients do not request. The number of normalized
/// forms is small, so a cache whose keys contain one is bounded.
pub fn discovery_accept(accept: Option<&str>) -> Option<String> {
    let accept = accept.filter(|accept| !accept.is_empty()).unwrap_or(MediaType::Json.as_str());
    let mut known: Vec<String> = Vec::new();
    for clause in clauses(accept) {
        let media = [MediaType::Json.as_str(), MediaType::Protobuf.as_str(), "*/*"];
        let media = media.into_iter().find(|media| clause.names(media))?;
        let asked = ["as", "g", "v"].map(|name| clause.parameter(name));
        let text = match asked {
            [None, None, None] => media.to_owned(),
            [Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some(version)]
                if VERSIONS.contains(&version) =>
            {
                format!("{media};g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList")
            }
            _ => return None,
        };
        if clause.has_others(&["as", "g", "v"]) {
            return None;
        }
        if !known.contains(&text) {
            known.push(text);
        }
    }
    (1..=CLAUSES_MAX).contains(&known.len()).then(|| known.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovery_accept_is_normalized_or_unsupported() {
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let v2beta1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        let client_go = format!("{v2},{v2beta1},application/json");
        for (accept, expected) in [
            (None, Some("application/json")),
            (Some(""), Some("application/json")),
            (Some("*/*"), Some("*/*")),
            (Some("application/json, */*"), Some("application/json,*/*")),
            (Some("*/*;q=0.1,application/json"), Some("application/json,*/*")),
            (Some("application/json,application/json;q=0.5"), Some("application/json")),
            (Some(client_go.as_str()), Some(client_go.as_str())),
            (Some("application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io"), Some(v2)),
            (Some("application/vnd.kubernetes.protobuf"), Some("application/vnd.kubernetes.protobuf")),
            (Some("application/json;as=APIGroupDiscoveryList;v=v3;g=apidiscovery.k8s.io"), None),
            (Some("application/json;as=Table;v=v1;g=meta.k8s.io"), None),
            (Some("application/json;x=1"), None),
            (Some("application/yaml"), None),
            (Some("text/html"), None),
            (Some(","), None),
        ] {
            assert_eq!(discovery_accept(accept).as_deref(), expected, "{accept:?}");
        }
    }
}

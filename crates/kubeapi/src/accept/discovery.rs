use super::clauses::clauses;
use super::{SupportedMediaTypes, router_accepts};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

macro_rules! aggregated {
    ($version:literal) => {
        concat!("application/json;g=apidiscovery.k8s.io;v=", $version, ";as=APIGroupDiscoveryList")
    };
}

/// The Accept headers that discovery clients send, in their normal form.
const FORMS: [&str; 9] = [
    JSON,
    PROTOBUF,
    "application/vnd.kubernetes.protobuf,application/json",
    aggregated!("v2"),
    concat!(aggregated!("v2"), ",application/json"),
    aggregated!("v2beta1"),
    concat!(aggregated!("v2beta1"), ",application/json"),
    concat!(aggregated!("v2"), ",", aggregated!("v2beta1")),
    concat!(aggregated!("v2"), ",", aggregated!("v2beta1"), ",application/json"),
];

/// Normalizes the Accept header of a discovery request: the clauses in the order in which the apiserver tries them, up
/// to plain JSON, which it always accepts. `None` if the result is not one of a few forms, or if the apiserver's router
/// refuses the header. So a cache whose keys contain one is bounded.
pub fn discovery_accept(accept: Option<&str>) -> Option<&'static str> {
    let accept = accept.filter(|accept| !accept.is_empty()).unwrap_or(JSON);
    if !router_accepts(Some(accept), SupportedMediaTypes::BUILTIN) {
        return None;
    }
    let mut known: Vec<&str> = Vec::new();
    for clause in clauses(accept) {
        if clause.has_others(&["as", "g", "v"]) {
            return None;
        }
        let media = [JSON, PROTOBUF, "*/*"].into_iter().find(|media| clause.names(media))?;
        let form = match (media, ["as", "g", "v"].map(|name| clause.parameter(name))) {
            // Of all media types the apiserver prefers JSON.
            (JSON | "*/*", [None, None, None]) => JSON,
            (media, [None, None, None]) => media,
            (JSON, [Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")]) => aggregated!("v2"),
            (JSON, [Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2beta1")]) => {
                aggregated!("v2beta1")
            }
            _ => return None,
        };
        known.push(form);
        if form == JSON {
            break;
        }
    }
    let known = known.join(",");
    FORMS.into_iter().find(|form| *form == known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovery_accept_has_one_of_few_forms_or_none() {
        const V2: &str = aggregated!("v2");
        let v2beta1 = aggregated!("v2beta1");
        let client_go = format!("{V2},{v2beta1},application/json");
        let json = Some(JSON);
        for (accept, expected) in [
            (None, json),
            (Some(""), json),
            (Some("*/*"), json),
            (Some("application/json, */*"), json),
            (Some("*/*;q=0.1,application/json"), json),
            (Some("application/json,application/json;q=0.5"), json),
            (Some("application/json,text/html;q=0.5"), json),
            (Some(client_go.as_str()), Some(client_go.as_str())),
            (Some(&format!("{V2},{v2beta1},*/*")), Some(client_go.as_str())),
            (Some(&format!("{V2},{V2}")), None),
            (Some("application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io"), Some(V2)),
            (Some(PROTOBUF), Some(PROTOBUF)),
            (Some(&format!("{PROTOBUF},*/*")), Some(&format!("{PROTOBUF},application/json"))),
            (Some(&format!("{v2beta1},{V2}")), None),
            (Some(&format!("{PROTOBUF},{V2},application/json")), None),
            (Some("application/json;as=APIGroupDiscoveryList;v=v3;g=apidiscovery.k8s.io"), None),
            (Some("application/json;as=Table;v=v1;g=meta.k8s.io"), None),
            (Some("application/json;x=1"), None),
            (Some("*"), None),
            (Some("application /json"), None),
            (Some("application/yaml"), None),
            (Some("text/html"), None),
            (Some(","), None),
        ] {
            assert_eq!(discovery_accept(accept), expected, "{accept:?}");
        }
    }
}

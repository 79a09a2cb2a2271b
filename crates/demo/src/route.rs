//! Finds the target of a request on this server. `kubeapi` parses the request; the resource is looked up in the table.

use super::kinds::{KINDS, position};
use kubeapi::{RequestInfo, RequestInfoError, RequestVerb, UrlQuery};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DemoRoute {
    Collection {
        kind: usize,
        namespace: String,
        /// Whether the deprecated `/watch/` form or the query requests a watch.
        watch: bool,
    },
    /// A request for one object, or a watch of it in the deprecated `/watch/` form.
    Object {
        kind: usize,
        namespace: String,
        name: String,
        subresource: String,
        watch: bool,
    },
    Discovery(DiscoveryRoute),
    /// A request for health, version or another fixed path.
    Fixed(String),
    /// A path below a group that this server has, but not a resource, which is answered with 404 and a Status.
    NoResource,
    /// A path that no API group owns, which is answered with 404 in plain text.
    NoGroup,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DiscoveryRoute {
    Api,
    Apis,
    Group(String),
    Version(String, String),
}

/// Returns the query without its selectors. The demo parses those itself, because the checker of guarantees judges by
/// them. An error of `kubeapi` must not hide there.
pub(crate) fn without_selectors(query: &UrlQuery) -> UrlQuery {
    let is_selector = |pair: &str| {
        let name = pair.split('=').next().unwrap_or_default();
        matches!(name, "labelSelector" | "fieldSelector")
    };
    let rest: Vec<_> = query.raw().split('&').filter(|pair| !is_selector(pair)).collect();
    UrlQuery::parse(&rest.join("&"))
}

/// Determines the target of a request.
///
/// # Errors
/// The apiserver refuses the request before it determines the target.
pub(crate) fn route(method: &str, path: &str, query: &UrlQuery) -> Result<DemoRoute, RequestInfoError> {
    let info = RequestInfo::parse(method, path, &without_selectors(query))?;
    if path.starts_with("//") {
        return Ok(DemoRoute::NoGroup);
    }
    if info.is_resource {
        return Ok(resource(&info));
    }
    let path = info.path.trim_matches('/');
    let parts: Vec<&str> = path.split('/').collect();
    Ok(match parts.as_slice() {
        ["api"] => DemoRoute::Discovery(DiscoveryRoute::Api),
        ["api", "v1"] => version("", "v1"),
        ["apis"] => DemoRoute::Discovery(DiscoveryRoute::Apis),
        ["apis", group] if served(group) => DemoRoute::Discovery(DiscoveryRoute::Group((*group).to_owned())),
        ["apis", group, version_name] if served(group) => version(group, version_name),
        ["api" | "apis", ..] => DemoRoute::NoGroup,
        _ => DemoRoute::Fixed(path.to_owned()),
    })
}

fn served(group: &str) -> bool {
    !group.is_empty() && KINDS.iter().any(|kind| kind.group == group)
}

fn version(group: &str, version: &str) -> DemoRoute {
    if KINDS.iter().any(|kind| kind.group == group && kind.version == version) {
        DemoRoute::Discovery(DiscoveryRoute::Version(group.to_owned(), version.to_owned()))
    } else {
        unknown(group)
    }
}

/// Chooses the 404 for an unknown resource. Another router of the apiserver serves custom groups, and it answers in
/// plain text.
fn unknown(group: &str) -> DemoRoute {
    if KINDS.iter().any(|kind| kind.group == group && kind.custom) { DemoRoute::NoGroup } else { DemoRoute::NoResource }
}

fn resource(info: &RequestInfo) -> DemoRoute {
    let RequestInfo { prefix, group, version, resource, name, subresource, .. } = info;
    let is_served = if prefix == "api" { version == "v1" } else { served(group) };
    if !is_served {
        return DemoRoute::NoGroup;
    }
    let Some(kind) = position(group, version, resource).filter(|_| info.verb != RequestVerb::Proxy) else {
        return unknown(group);
    };
    let depth = format!("{}/", info.path.trim_end_matches('/')).matches("/namespaces/").count();
    // `kubeapi` reads a Namespace as an object in itself. It has no namespace here, and cannot be inside another one.
    let is_namespace = resource == "namespaces" && depth < 2;
    let namespace = if is_namespace { String::new() } else { info.namespace.clone() };
    let namespaced = KINDS[kind].namespaced;
    if (!namespaced && !is_namespace && depth > 0) || !ends_with(info) {
        return DemoRoute::NoResource;
    }
    if name.is_empty() {
        return DemoRoute::Collection { kind, namespace, watch: info.verb == RequestVerb::Watch };
    }
    if namespaced == namespace.is_empty() {
        return DemoRoute::NoResource;
    }
    let (name, subresource) = (name.clone(), subresource.clone());
    DemoRoute::Object { kind, namespace, name, subresource, watch: info.watch_via_path }
}

/// Whether the path has no segments after the parsed ones. `kubeapi` ignores segments after a subresource; the
/// apiserver's router answers 404.
fn ends_with(info: &RequestInfo) -> bool {
    let RequestInfo { resource, name, subresource, .. } = info;
    let end = match (name.as_str(), subresource.as_str()) {
        ("", "") => resource.clone(),
        (name, "") => format!("{resource}/{name}"),
        ("", _) => return false,
        (name, subresource) => format!("{resource}/{name}/{subresource}"),
    };
    info.path.trim_matches('/').ends_with(&end)
}

#[cfg(test)]
mod tests {
    use super::super::kinds::by_plural;
    use super::*;

    fn get(path: &str) -> Result<DemoRoute, RequestInfoError> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        route("GET", path, &UrlQuery::parse(query))
    }

    #[test]
    fn paths_resolve_to_the_same_resources_as_in_the_apiserver() {
        let collection = |plural, namespace: &str, watch| DemoRoute::Collection {
            kind: by_plural(plural).unwrap(),
            namespace: namespace.to_owned(),
            watch,
        };
        let object = |plural, namespace: &str, name: &str, subresource: &str| DemoRoute::Object {
            kind: by_plural(plural).unwrap(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: subresource.to_owned(),
            watch: false,
        };
        for (path, expected) in [
            ("/api/v1/pods", collection("pods", "", false)),
            ("/api/v1/namespaces/t1/pods/", collection("pods", "t1", false)),
            ("/api/v1/namespaces//pods", collection("pods", "", false)),
            ("/api/v1/watch/namespaces/t1/pods", collection("pods", "t1", true)),
            ("/api/v1/pods?watch=1", collection("pods", "", true)),
            ("/api/v1/pods?fieldSelector=metadata.name%3Da", collection("pods", "", false)),
            ("/api/v1/namespaces", collection("namespaces", "", false)),
            ("/api/v1/namespaces/t1", object("namespaces", "", "t1", "")),
            ("/api/v1/namespaces/t1/status", object("namespaces", "", "t1", "status")),
            ("/api/v1/namespaces/t1/pods/a", object("pods", "t1", "a", "")),
            ("/api/v1/namespaces/t1/pods/a%2Flog", object("pods", "t1", "a", "log")),
            ("/apis/apps/v1/deployments", collection("deployments", "", false)),
            ("/api/v1/foos", DemoRoute::NoResource),
            ("/apis/apps/v9/deployments", DemoRoute::NoResource),
            ("/api/v1/namespaces/t1/nodes", DemoRoute::NoResource),
            ("/api/v1/namespaces//nodes", DemoRoute::NoResource),
            ("/api/v1/namespaces/t1/namespaces", DemoRoute::NoResource),
            ("/api/v1/namespaces/t1/namespaces/t1", DemoRoute::NoResource),
            ("/api/v1/namespaces/t1/status/x", DemoRoute::NoResource),
            ("/api/v1/namespaces/t1/pods/a/log/x", DemoRoute::NoResource),
            ("/api/v1/namespaces/t1/pods//log", DemoRoute::NoResource),
            ("/api/v1/proxy/nodes/n", DemoRoute::NoResource),
            ("/api/v1/pods/a", DemoRoute::NoResource),
            ("/api/v1/namespaces/t1//pods", DemoRoute::NoResource),
            ("/apis/demo.kube-fanout.io/v9/widgets", DemoRoute::NoGroup),
            ("/apis/nope/v1/x", DemoRoute::NoGroup),
            ("/api/v2/pods", DemoRoute::NoGroup),
            ("//api/v1/pods", DemoRoute::NoGroup),
            ("/apis/", DemoRoute::Discovery(DiscoveryRoute::Apis)),
            ("/readyz", DemoRoute::Fixed("readyz".to_owned())),
        ] {
            assert_eq!(get(path), Ok(expected), "{path}");
        }
        assert!(matches!(get("/api/v1/watch"), Err(RequestInfoError::NoResource(_))));
    }

    #[test]
    fn selectors_are_stripped_from_the_query() {
        let query = UrlQuery::parse("labelSelector=a%3Db&limit=5&fieldSelector=,&watch=1&labelSelector");
        let rest = without_selectors(&query);
        assert_eq!(rest.raw(), "limit=5&watch=1");
        assert_eq!(without_selectors(&rest), rest);
    }
}

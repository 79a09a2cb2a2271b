//! From a URL path to what it names.

use super::kinds::{KINDS, position};
use super::query::unescape;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Route {
    Collection {
        kind: usize,
        namespace: String,
        forced_watch: bool,
    },
    /// With the deprecated `/watch/` form, a watch of this one object.
    Object {
        kind: usize,
        namespace: String,
        name: String,
        subresource: String,
        forced_watch: bool,
    },
    Discovery(Discovery),
    /// Health, version and what else has a fixed path.
    Fixed(String),
    /// A path below a group that we serve, but not a resource: 404 with a Status.
    NoResource,
    /// A path that no API group owns: 404 in plain text.
    NoGroup,
    /// `/api/v1/watch` with nothing behind it: 500 in plain text.
    Broken,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Discovery {
    Api,
    Apis,
    Group(String),
    Version(String, String),
}

pub(crate) fn route(path: &str) -> Route {
    if path.starts_with("//") {
        return Route::NoGroup;
    }
    let decoded = unescape(path, false);
    let trimmed = decoded.trim_matches('/');
    let parts: Vec<&str> = trimmed.split('/').collect();
    match parts.as_slice() {
        ["api"] => Route::Discovery(Discovery::Api),
        ["api", "v1"] => version("", "v1"),
        ["api", "v1", rest @ ..] => resource("", "v1", rest),
        ["apis"] => Route::Discovery(Discovery::Apis),
        ["apis", group] if served(group) => Route::Discovery(Discovery::Group((*group).to_owned())),
        ["apis", group, version_name] if served(group) => version(group, version_name),
        ["apis", group, version_name, rest @ ..] if served(group) => resource(group, version_name, rest),
        ["api" | "apis", ..] => Route::NoGroup,
        _ => Route::Fixed(trimmed.to_owned()),
    }
}

fn served(group: &str) -> bool {
    !group.is_empty() && KINDS.iter().any(|kind| kind.group == group)
}

fn version(group: &str, version: &str) -> Route {
    if KINDS.iter().any(|kind| kind.group == group && kind.version == version) {
        Route::Discovery(Discovery::Version(group.to_owned(), version.to_owned()))
    } else {
        unknown(group)
    }
}

/// Custom groups are not behind the router of the built-in ones, and answer in text.
fn unknown(group: &str) -> Route {
    if KINDS.iter().any(|kind| kind.group == group && kind.custom) { Route::NoGroup } else { Route::NoResource }
}

fn resource(group: &str, version: &str, parts: &[&str]) -> Route {
    let (forced_watch, parts) = match parts {
        ["watch"] => return Route::Broken,
        ["watch", rest @ ..] => (true, rest),
        _ => (false, parts),
    };
    let (namespace, parts) = match parts {
        ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => (None, parts),
        ["namespaces", namespace, rest @ ..] => (Some(*namespace), rest),
        _ => (None, parts),
    };
    let Some(kind) = parts.first().and_then(|plural| position(group, version, plural)) else {
        return unknown(group);
    };
    let namespaced = KINDS[kind].namespaced;
    if !namespaced && namespace.is_some() {
        return Route::NoResource;
    }
    let namespace = namespace.unwrap_or_default().to_owned();
    match parts {
        [_] => Route::Collection { kind, namespace, forced_watch },
        [_, name] | [_, name, _] if !name.is_empty() && namespaced != namespace.is_empty() => Route::Object {
            kind,
            namespace,
            name: (*name).to_owned(),
            subresource: parts.get(2).map(|part| (*part).to_owned()).unwrap_or_default(),
            forced_watch,
        },
        _ => Route::NoResource,
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::by_plural;
    use super::*;

    #[test]
    fn paths_name_what_the_apiserver_says_they_name() {
        let collection = |plural, namespace: &str, forced_watch| Route::Collection {
            kind: by_plural(plural).unwrap(),
            namespace: namespace.to_owned(),
            forced_watch,
        };
        let object = |plural, namespace: &str, name: &str, subresource: &str| Route::Object {
            kind: by_plural(plural).unwrap(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: subresource.to_owned(),
            forced_watch: false,
        };
        for (path, expected) in [
            ("/api/v1/pods", collection("pods", "", false)),
            ("/api/v1/namespaces/t1/pods/", collection("pods", "t1", false)),
            ("/api/v1/namespaces//pods", collection("pods", "", false)),
            ("/api/v1/watch/namespaces/t1/pods", collection("pods", "t1", true)),
            ("/api/v1/namespaces/t1", object("namespaces", "", "t1", "")),
            ("/api/v1/namespaces/t1/status", object("namespaces", "", "t1", "status")),
            ("/api/v1/namespaces/t1/pods/a", object("pods", "t1", "a", "")),
            ("/api/v1/namespaces/t1/pods/a%2Flog", object("pods", "t1", "a", "log")),
            ("/apis/apps/v1/deployments", collection("deployments", "", false)),
            ("/api/v1/foos", Route::NoResource),
            ("/apis/apps/v9/deployments", Route::NoResource),
            ("/api/v1/namespaces/t1/nodes", Route::NoResource),
            ("/api/v1/pods/a", Route::NoResource),
            ("/api/v1/namespaces/t1//pods", Route::NoResource),
            ("/apis/demo.kube-fanout.io/v9/widgets", Route::NoGroup),
            ("/apis/nope/v1/x", Route::NoGroup),
            ("//api/v1/pods", Route::NoGroup),
            ("/api/v1/watch", Route::Broken),
            ("/apis/", Route::Discovery(Discovery::Apis)),
            ("/readyz", Route::Fixed("readyz".to_owned())),
        ] {
            assert_eq!(route(path), expected, "{path}");
        }
    }
}

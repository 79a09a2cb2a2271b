//! Parses a request into what it reads: which objects, and at which version.

use std::borrow::Cow;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::record::{CallRecord, ReadVerb};
use super::selection::ObjectSelection;

/// A request as a server must understand it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParsedRequest {
    /// The resource of the request, such as `configmaps` or `deployments.apps`.
    pub(super) resource: String,
    /// The collection across all namespaces, which identifies a version of a group: `/apis/apps/v1/deployments`.
    pub(super) collection: String,
    pub(super) selection: ObjectSelection,
    /// The key of the object that a GET names.
    pub(super) key: String,
    pub(super) plan: ExpectedReadVersion,
    /// The first key that may be on a continued page.
    pub(super) first: String,
    pub(super) limit: u64,
    pub(super) bookmarks: bool,
    /// Whether `sendInitialEvents=true` is in the request, not only implied.
    pub(super) explicit: bool,
    /// The requested duration of a watch in seconds; 0 if the server may choose. `None` if it is not a number or is
    /// negative.
    pub(super) timeout_seconds: Option<u64>,
}

/// The version that a response must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedReadVersion {
    /// The request is a list or a GET, with this freshness requirement.
    Read(FreshnessRequirement),
    /// The request is a list at exactly this version.
    Exact(u64),
    /// The request is for a continued page, at a version.
    Page(u64),
    /// The request is a watch that begins with initial events.
    State(FreshnessRequirement),
    /// The request is a watch that begins after a version.
    Behind(u64),
    /// The request is a watch that begins with the next event.
    Next(FreshnessRequirement),
}

/// The required freshness of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FreshnessRequirement {
    /// The read may return any cached version.
    Any,
    NotOlderThan(u64),
    /// The read must return the most recent state.
    Consistent,
}

impl ParsedRequest {
    /// Parses a call. Returns `None` if the path names no collection or object, or a parameter is malformed: such
    /// requests are not judged.
    pub(super) fn parse(call: &CallRecord) -> Option<Self> {
        let target = RequestPathParts::parse(&call.path)?;
        let query = QueryParameters::parse(&call.query);
        let first = |name| query.first(name).unwrap_or_default();
        let namespace = target.namespace;
        let (key, selection) = match (call.verb, target.name) {
            (ReadVerb::Get, "") => return None,
            (ReadVerb::Get, name) if namespace.is_empty() => (name.to_owned(), ObjectSelection::default()),
            (ReadVerb::Get, name) => (format!("{namespace}/{name}"), ObjectSelection::default()),
            (ReadVerb::List | ReadVerb::Watch, "") => {
                let selection = ObjectSelection::parse(namespace, first("labelSelector"), first("fieldSelector"))?;
                (String::new(), selection.of_shards(first("shardSelector"))?)
            }
            (ReadVerb::List | ReadVerb::Watch, _) => return None,
        };
        let limit = number(first("limit"))?;
        let truth = |name| query.first(name).map(is_true);
        let token = match first("continue") {
            "" => None,
            token => Some(ParsedContinueToken::parse(token)?),
        };
        // With a limit on a single object, the version is not matched exactly.
        let exact_by = if selection.is_of_one() { 0 } else { limit };
        Some(Self {
            resource: target.resource(),
            collection: target.collection(),
            selection,
            key,
            plan: plan(call.verb, &query, exact_by, token.as_ref())?,
            first: token.map(|token| token.first(namespace)).unwrap_or_default(),
            limit,
            bookmarks: truth("allowWatchBookmarks") == Some(true),
            explicit: truth("sendInitialEvents") == Some(true),
            timeout_seconds: number(first("timeoutSeconds")),
        })
    }
}

fn plan(
    verb: ReadVerb,
    query: &QueryParameters<'_>,
    limit: u64,
    token: Option<&ParsedContinueToken>,
) -> Option<ExpectedReadVersion> {
    let first = |name| query.first(name).unwrap_or_default();
    let version = number(first("resourceVersion"))?;
    let fresh = match first("resourceVersion") {
        "" => FreshnessRequirement::Consistent,
        _ if version == 0 => FreshnessRequirement::Any,
        _ => FreshnessRequirement::NotOlderThan(version),
    };
    let matching = first("resourceVersionMatch");
    match verb {
        ReadVerb::Get => Some(ExpectedReadVersion::Read(fresh)),
        ReadVerb::List => match (token, matching) {
            (Some(token), _) => Some(token.plan()),
            (None, "Exact") => (version > 0).then_some(ExpectedReadVersion::Exact(version)),
            // This is the rule from before `resourceVersionMatch` existed: a limit implies an exact match.
            (None, "") if version > 0 && limit > 0 => Some(ExpectedReadVersion::Exact(version)),
            (None, "" | "NotOlderThan") => Some(ExpectedReadVersion::Read(fresh)),
            (None, _) => None,
        },
        ReadVerb::Watch => match query.first("sendInitialEvents").map(is_true) {
            Some(true) => Some(ExpectedReadVersion::State(fresh)),
            // Without a version, a watch begins with initial events. Since Kubernetes 1.34 they come as if they were
            // requested.
            None if version == 0 => Some(ExpectedReadVersion::State(fresh)),
            Some(false) if version == 0 => Some(ExpectedReadVersion::Next(fresh)),
            _ => Some(ExpectedReadVersion::Behind(version)),
        },
    }
}

/// The decoded parameters of a query. The first of several with the same name counts.
struct QueryParameters<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> QueryParameters<'a> {
    fn parse(query: &'a str) -> Self {
        Self(form_urlencoded::parse(query.as_bytes()).collect())
    }

    fn first(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(candidate, _)| candidate == name).map(|(_, value)| &**value)
    }
}

/// The relevant fields of a continue token.
#[derive(Deserialize)]
struct ParsedContinueToken {
    rv: i64,
    start: String,
}

impl ParsedContinueToken {
    fn parse(text: &str) -> Option<Self> {
        serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }

    fn plan(&self) -> ExpectedReadVersion {
        // −1 means the current version.
        u64::try_from(self.rv)
            .map_or(ExpectedReadVersion::Read(FreshnessRequirement::Consistent), ExpectedReadVersion::Page)
    }

    /// Returns the first possible key, with its namespace. Tokens contain it relative to the collection, with or
    /// without a leading slash.
    fn first(&self, namespace: &str) -> String {
        let relative = self.start.strip_prefix('/').unwrap_or(&self.start);
        if namespace.is_empty() { relative.to_owned() } else { format!("{namespace}/{relative}") }
    }
}

/// Parses a number; absent and empty mean zero.
fn number(text: &str) -> Option<u64> {
    if text.is_empty() { Some(0) } else { text.parse().ok() }
}

/// Whether a query value means true: every value except `false` and `0` does.
fn is_true(text: &str) -> bool {
    !text.eq_ignore_ascii_case("false") && text != "0"
}

/// The components of a request path.
struct RequestPathParts<'a> {
    /// The root of the API: `/api/v1`, `/apis/apps/v1`.
    root: &'a str,
    /// The API group; empty for the core group.
    group: &'a str,
    namespace: &'a str,
    plural: &'a str,
    name: &'a str,
}

impl<'a> RequestPathParts<'a> {
    fn parse(path: &'a str) -> Option<Self> {
        let parts: Vec<_> = path.strip_prefix('/')?.split('/').collect();
        let (group, rest) = match parts.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => return None,
        };
        let (namespace, plural, name) = match rest {
            ["namespaces", namespace, plural] => (*namespace, *plural, ""),
            ["namespaces", namespace, plural, name] => (*namespace, *plural, *name),
            [plural] => ("", *plural, ""),
            [plural, name] => ("", *plural, *name),
            _ => return None,
        };
        let behind: usize = rest.iter().map(|part| part.len() + 1).sum();
        Some(Self { root: &path[..path.len() - behind], group, namespace, plural, name })
    }

    fn resource(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    fn collection(&self) -> String {
        format!("{}/{}", self.root, self.plural)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(verb: ReadVerb, path: &str, query: &str) -> Option<ParsedRequest> {
        ParsedRequest::parse(&CallRecord { verb, path: path.into(), query: query.into(), ..CallRecord::default() })
    }

    #[test]
    fn paths_parse_into_resource_namespace_and_name() {
        let list = parsed(ReadVerb::List, "/apis/apps/v1/namespaces/a/deployments", "labelSelector=app%3Dx").unwrap();
        assert_eq!(
            (list.resource.as_str(), list.collection.as_str()),
            ("deployments.apps", "/apis/apps/v1/deployments")
        );
        assert!(list.selection.covers("a/x") && !list.selection.covers("b/x") && list.selection.is_selective());
        let get = parsed(ReadVerb::Get, "/api/v1/namespaces/a/configmaps/x", "").unwrap();
        assert_eq!((get.resource.as_str(), get.key.as_str()), ("configmaps", "a/x"));
        assert_eq!(parsed(ReadVerb::Get, "/api/v1/namespaces/a", "").unwrap().key, "a");
        assert_eq!(parsed(ReadVerb::Watch, "/api/v1/namespaces", "").unwrap().resource, "namespaces");
        for path in ["/healthz", "/api/v1", "/api/v1/namespaces/a/pods/x/log"] {
            assert_eq!(parsed(ReadVerb::Get, path, ""), None, "{path}");
        }
    }

    #[test]
    fn list_parameters_map_to_read_plans() {
        let token = |rv| BASE64_URL_SAFE_NO_PAD.encode(format!(r#"{{"v":"meta.k8s.io/v1","rv":{rv},"start":"x"}}"#));
        let rows = [
            (String::new(), ExpectedReadVersion::Read(FreshnessRequirement::Consistent)),
            ("limit=5".to_owned(), ExpectedReadVersion::Read(FreshnessRequirement::Consistent)),
            ("resourceVersion=0&limit=5".to_owned(), ExpectedReadVersion::Read(FreshnessRequirement::Any)),
            ("resourceVersion=7".to_owned(), ExpectedReadVersion::Read(FreshnessRequirement::NotOlderThan(7))),
            ("resourceVersion=7&limit=5".to_owned(), ExpectedReadVersion::Exact(7)),
            (
                "resourceVersion=7&limit=5&resourceVersionMatch=NotOlderThan".to_owned(),
                ExpectedReadVersion::Read(FreshnessRequirement::NotOlderThan(7)),
            ),
            ("resourceVersion=7&resourceVersionMatch=Exact".to_owned(), ExpectedReadVersion::Exact(7)),
            (format!("limit=5&continue={}", token(9)), ExpectedReadVersion::Page(9)),
            (format!("limit=5&continue={}", token(-1)), ExpectedReadVersion::Read(FreshnessRequirement::Consistent)),
        ];
        for (query, plan) in rows {
            assert_eq!(parsed(ReadVerb::List, "/api/v1/pods", &query).unwrap().plan, plan, "{query}");
        }
        let one = "resourceVersion=7&limit=5&fieldSelector=metadata.name%3Dx";
        let plan_of = |path| parsed(ReadVerb::List, path, one).unwrap().plan;
        assert_eq!(
            plan_of("/api/v1/namespaces/a/pods"),
            ExpectedReadVersion::Read(FreshnessRequirement::NotOlderThan(7))
        );
        assert_eq!(plan_of("/api/v1/pods"), ExpectedReadVersion::Exact(7), "of many namespaces it may be many");
        let page = parsed(ReadVerb::List, "/api/v1/namespaces/a/pods", &format!("continue={}", token(9))).unwrap();
        assert_eq!(page.first, "a/x");
        assert_eq!(parsed(ReadVerb::List, "/api/v1/pods", "resourceVersionMatch=Exact&resourceVersion=0"), None);
        assert_eq!(parsed(ReadVerb::List, "/api/v1/pods", "resourceVersion=x"), None);
    }

    #[test]
    fn watch_parameters_map_to_read_plans() {
        let rows = [
            ("", ExpectedReadVersion::State(FreshnessRequirement::Consistent)),
            ("resourceVersion=0", ExpectedReadVersion::State(FreshnessRequirement::Any)),
            ("resourceVersion=7", ExpectedReadVersion::Behind(7)),
            ("sendInitialEvents=false", ExpectedReadVersion::Next(FreshnessRequirement::Consistent)),
            ("sendInitialEvents=false&resourceVersion=0", ExpectedReadVersion::Next(FreshnessRequirement::Any)),
            ("sendInitialEvents=false&resourceVersion=7", ExpectedReadVersion::Behind(7)),
            ("sendInitialEvents=true", ExpectedReadVersion::State(FreshnessRequirement::Consistent)),
            ("sendInitialEvents=true&resourceVersion=0", ExpectedReadVersion::State(FreshnessRequirement::Any)),
            (
                "sendInitialEvents=1&resourceVersion=7",
                ExpectedReadVersion::State(FreshnessRequirement::NotOlderThan(7)),
            ),
        ];
        for (query, plan) in rows {
            assert_eq!(parsed(ReadVerb::Watch, "/api/v1/pods", query).unwrap().plan, plan, "{query}");
        }
    }
}

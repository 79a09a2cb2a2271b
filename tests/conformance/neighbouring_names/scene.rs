//! Objects with similar names, and callers with permissions for some of them.

use serde_json::{Value, json};

use crate::bed::rbac::{binding, collection, may, subject};
use crate::bed::{Authority, Bed, Http, Pair, Plan, Plane, Protocol, RequestSpec, eventually};
use crate::differential::compare::Servers;

pub const MAPS: &str = "configmaps";
/// Prefixes, successors and look-alikes: `-` and `.` sort before `/`, and `0` directly after it.
pub const NAMESPACES: [&str; 4] = ["n1", "n1-x", "n10", "n1a"];
pub const NAMES: [&str; 6] = ["a", "a-b", "a.b", "a0", "aa", "b"];

pub struct Scene {
    pub pair: Pair<Box<Plane>>,
    pub callers: Vec<Caller>,
    /// The versions before and after all writes.
    pub versions: (u64, u64),
}

/// A caller with permissions for some objects.
pub struct Caller {
    pub name: &'static str,
    /// A client of the proxy.
    pub http: Http,
    pub servers: Servers,
    may: May,
    /// Whether the caller may list or watch, so that the cache can answer.
    pub asks_cache: bool,
}

/// A caller's permissions: for these configmaps, and optionally for nodes of the same name.
#[derive(Debug, Clone, Copy)]
pub struct May {
    namespace: Option<&'static str>,
    name: Option<&'static str>,
    nodes: bool,
    verbs: &'static [&'static str],
}

const FORMS: [&str; 2] = ["application/json", "application/vnd.kubernetes.protobuf"];
const ALL: &[&str] = &["get", "list", "watch"];

pub const CALLERS: [(&str, May); 6] = [
    ("one-name", May { namespace: None, name: Some("a"), nodes: true, verbs: ALL }),
    ("one-namespace", May { namespace: Some("n1"), name: None, nodes: false, verbs: ALL }),
    ("the-next-namespace", May { namespace: Some("n10"), name: None, nodes: false, verbs: ALL }),
    ("one-name-in-one-namespace", May { namespace: Some("n1"), name: Some("a"), nodes: false, verbs: ALL }),
    ("to-watch-one-name", May { namespace: Some("n1"), name: Some("a"), nodes: false, verbs: &["watch"] }),
    ("to-get-one-name", May { namespace: Some("n1"), name: Some("a"), nodes: false, verbs: &["get"] }),
];

impl Scene {
    pub async fn set(bed: Bed<Box<Plane>>, plan: Plan) -> Self {
        let pair = Pair::with(plan, bed).await;
        let direct = &pair.direct;
        // The proxy's feeds start before all writes, so that their history contains them.
        for collection in [path(MAPS, None), path("nodes", None)] {
            for accept in FORMS {
                eventually("the proxy holds it", async || {
                    pair.through.fetch(RequestSpec::get(&collection).accept(accept)).await.is_cached().then_some(())
                })
                .await;
            }
        }
        let before = direct.version("/api/v1/namespaces").await;
        for namespace in NAMESPACES {
            direct.create("/api/v1/namespaces", json!({"metadata": {"name": namespace}})).await;
            for name in NAMES {
                direct.create(&path(MAPS, Some(namespace)), object(MAPS, namespace, name)).await;
            }
        }
        for name in NAMES {
            direct.create("/api/v1/nodes", object("nodes", "", name)).await;
        }
        let mut callers = Vec::new();
        let authority = Authority::of(&pair.bed);
        for (name, rights) in CALLERS {
            give(direct, name, rights).await;
            let identity = authority.issue(name, &[]);
            let http = Http::new(pair.proxy.target().by(&identity), Protocol::H2);
            let servers = Servers::by(&pair, &identity);
            let asks_cache = rights.verbs.contains(&"watch");
            callers.push(Caller { name, http, servers, may: rights, asks_cache });
        }
        let now = direct.version("/api/v1/namespaces").await;
        settle(&pair, now).await;
        Self { callers, versions: (before, now), pair }
    }
}

/// Waits until the proxy has reached a version. The apiserver has, because the write went to it.
async fn settle(pair: &Pair<Box<Plane>>, version: u64) {
    for collection in [path(MAPS, None), path("nodes", None)] {
        for (http, accept) in FORMS.iter().flat_map(|accept| [(&pair.direct, accept), (&pair.through, accept)]) {
            let request = RequestSpec::get(&format!("{collection}?resourceVersion={version}")).accept(accept);
            http.until_ok("both have it", request.clone()).await;
        }
    }
}

/// Grants the permissions, and waits until the apiserver applies them.
async fn give(direct: &Http, user: &str, rights: May) {
    let rule = |resource: &str| {
        let mut rule = json!({"apiGroups": [""], "resources": [resource], "verbs": rights.verbs});
        rights.name.into_iter().for_each(|name| rule["resourceNames"] = json!([name]));
        rule
    };
    let resources = if rights.nodes { vec![MAPS, "nodes"] } else { vec![MAPS] };
    let rules: Vec<_> = resources.into_iter().map(rule).collect();
    let kind = if rights.namespace.is_some() { "Role" } else { "ClusterRole" };
    let role = json!({"metadata": {"name": user}, "rules": rules});
    direct.create(&collection(rights.namespace, "roles"), role).await;
    let bound = binding(user, kind, user, &subject("User", user));
    direct.create(&collection(rights.namespace, "rolebindings"), bound).await;
    let attributes = json!({"verb": rights.verbs[0], "resource": MAPS, "namespace": rights.namespace.unwrap_or_default(),
        "name": rights.name.unwrap_or_default()});
    may(direct, json!({"user": user, "resourceAttributes": attributes})).await;
}

impl Caller {
    /// The namespace and the name of the permission, if it is limited to them.
    pub fn place(&self) -> (Option<&'static str>, Option<&'static str>) {
        (self.may.namespace, self.may.name)
    }

    /// The markers of objects that the caller may not read.
    pub fn not_for(&self, bytes: &[u8]) -> Vec<String> {
        marks(bytes).into_iter().filter(|(resource, place)| !self.may(resource, place)).map(|(_, of)| of).collect()
    }

    /// The markers of objects that the caller may read.
    pub fn own_marks(&self, bytes: &[u8]) -> Vec<String> {
        marks(bytes).into_iter().filter(|(resource, place)| self.may(resource, place)).map(|(_, of)| of).collect()
    }

    fn may(&self, resource: &str, place: &str) -> bool {
        let (namespace, name) = place.split_once('/').unwrap_or_default();
        let right_name = self.may.name.is_none_or(|own| own == name);
        let right_place = self.may.namespace.is_none_or(|own| own == namespace);
        right_name && right_place && (resource == MAPS || self.may.nodes)
    }

    /// Watches of objects that the caller may read, in every form, each with a marker that must arrive.
    pub fn live(&self, version: u64) -> Vec<(RequestSpec, String)> {
        let place = path(MAPS, self.may.namespace);
        let fields = self.may.name.map_or_else(String::new, |name| format!("&fieldSelector=metadata.name%3D{name}"));
        let needs = mark(MAPS, self.may.namespace.unwrap_or("n1"), "a");
        let starts = [
            format!("resourceVersion={version}"),
            "resourceVersion=0".to_owned(),
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true".to_owned(),
            format!("resourceVersion={version}&labelSelector=turn!%3D1"),
            format!("resourceVersion={version}&labelSelector=l+in+(a,aa)"),
        ];
        let forms = ["application/json", "application/vnd.kubernetes.protobuf;stream=watch", super::drawn::METADATA];
        let asks = starts.iter().flat_map(|start| forms.map(|form| (start.clone(), form)));
        asks.map(|(start, form)| {
            let request = RequestSpec::get(&format!("{place}?watch=1&{start}{fields}")).accept(form);
            (request, needs.clone())
        })
        .collect()
    }
}

/// The path of a collection, in one namespace or in all.
pub fn path(resource: &str, namespace: Option<&str>) -> String {
    namespace.map_or_else(|| format!("/api/v1/{resource}"), |within| format!("/api/v1/namespaces/{within}/{resource}"))
}

/// The marker of an object, which is in its metadata and so in every form.
pub fn mark(resource: &str, namespace: &str, name: &str) -> String {
    format!("mark({resource}/{namespace}/{name})")
}

pub fn object(resource: &str, namespace: &str, name: &str) -> Value {
    let annotations = json!({"mark": mark(resource, namespace, name)});
    json!({"metadata": {"name": name, "annotations": annotations, "labels": {"l": name, "in": "all"}}})
}

/// The distinct markers in an answer: resource, and namespace with name.
fn marks(bytes: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(bytes);
    let mut marks: Vec<_> = text
        .split("mark(")
        .skip(1)
        .filter_map(|rest| rest.split_once(')')?.0.split_once('/'))
        .map(|(resource, place)| (resource.to_owned(), place.to_owned()))
        .collect();
    marks.sort();
    marks.dedup();
    marks
}

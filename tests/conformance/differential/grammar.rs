//! Requests that read, as they are and as they should not be.

use base64::Engine;
use serde_json::json;

use crate::bed::Ask;

/// What there is to read.
pub struct World {
    pub namespace: String,
    pub next: String,
    /// Of a custom resource, `widgets`.
    pub group: String,
    /// Versions at which something happened, in order.
    pub versions: Vec<u64>,
}

/// A request, and how its answers compare.
#[derive(Debug, Clone)]
pub struct Reading {
    pub ask: Ask,
    pub watch: bool,
    /// Asks for exactly one version.
    pub exact: bool,
}

pub struct Grammar {
    world: World,
    random: fastrand::Rng,
}

const LABELS: [&str; 18] = [
    "app=x",
    "app==x",
    "app!=x",
    "app",
    "!app",
    "app in (x,y)",
    "app notin (x)",
    "app in ()",
    "tier=x,app!=p1",
    "none=1",
    "app=",
    "a in",
    "a=b c",
    "a===b",
    "-a=b",
    "app=-x",
    "a>1",
    "a/b/c=d",
];

const FIELDS: [&str; 27] = [
    "metadata.name=cm-a",
    "metadata.name==p1",
    "metadata.name!=p1",
    "metadata.namespace=default",
    "spec.nodeName=n1",
    "spec.nodeName=",
    "spec.nodeName!=n1",
    "spec.host=n1",
    "status.phase=Pending",
    "spec.restartPolicy=Always,spec.nodeName=n1",
    "spec.hostNetwork=false",
    "spec.clusterIP=None",
    "spec.type=ClusterIP",
    "status.podIPs=1",
    "foo=bar",
    "foo",
    "metadata.name=a\\q",
    "metadata.name=a=b",
    "metadata.name=cm-a,metadata.name=cm-c",
    ",,metadata.name=cm-a",
    "spec.color=red",
    "spec.color!=red,spec.on=false",
    "spec.size=3",
    "spec.unschedulable=false",
    "status.phase=Active",
    "metadata.namespace=",
    "name=cm-a",
];

const ACCEPTS: [&str; 14] = [
    "application/json",
    "application/json",
    "application/json",
    "application/vnd.kubernetes.protobuf",
    "application/vnd.kubernetes.protobuf",
    "application/vnd.kubernetes.protobuf,application/json",
    "application/json;q=0.1,application/vnd.kubernetes.protobuf;q=0.9",
    "*/*",
    "",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
    "application/yaml",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json",
    "text/plain",
];

impl Grammar {
    pub fn new(world: World, seed: u64) -> Self {
        Self { world, random: fastrand::Rng::with_seed(seed) }
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.random.u32(..n) == 0
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.random.usize(..from.len())]
    }

    pub fn draw(&mut self) -> Reading {
        let (path, is_collection, forced) = self.path();
        let mut query = Vec::new();
        let watch = if is_collection { self.watch(&mut query, forced) } else { false };
        let exact = self.versions(&mut query, watch, is_collection);
        if is_collection {
            self.selectors(&mut query);
        }
        let exact = exact && !reads_one_key(&query);
        self.oddities(&mut query);
        patient(&mut query);
        self.random.shuffle(&mut query);
        let encode = |(name, value): &(&str, String)| format!("{name}={}", escaped(value));
        let query = query.iter().map(encode).collect::<Vec<_>>().join("&");
        let accept = self.pick(&ACCEPTS);
        let path = if query.is_empty() { path } else { format!("{path}?{query}") };
        Reading { ask: Ask::get(&path).accept(accept), watch, exact }
    }

    /// A path, whether it is a collection, and whether its form alone makes it a watch.
    fn path(&mut self) -> (String, bool, bool) {
        let (namespace, next) = (self.world.namespace.clone(), self.world.next.clone());
        let within = |resource: &str| format!("/api/v1/namespaces/{namespace}/{resource}");
        let maps = within("configmaps");
        let group = self.world.group.clone();
        match self.random.u32(..28) {
            0..=5 => (maps, true, false),
            6 => ("/api/v1/configmaps".to_owned(), true, false),
            7 => (format!("/api/v1/namespaces/{next}/configmaps"), true, false),
            8..=10 => (within("pods"), true, false),
            11 => (within("services"), true, false),
            12 => ("/api/v1/namespaces/nope/configmaps".to_owned(), true, false),
            13 => (format!("/api/v1/watch/namespaces/{namespace}/configmaps"), true, true),
            14 => (format!("/api/v1/watch/namespaces/{namespace}/configmaps/cm-a"), true, true),
            20..=21 => (format!("/apis/{group}/v1/namespaces/{namespace}/widgets"), true, false),
            22 => (format!("/apis/{group}/v1/namespaces/{namespace}/widgets/red"), false, false),
            23 => ("/api/v1/namespaces".to_owned(), true, false),
            24 => (format!("/api/v1/namespaces/{namespace}"), false, false),
            25 => ("/api/v1/nodes".to_owned(), true, false),
            26 => (format!("/apis/apps/v1/namespaces/{namespace}/deployments"), true, false),
            27 => (format!("/apis/apps/v9/namespaces/{namespace}/deployments"), false, false),
            15 => (within("nonsense"), false, false),
            16 => (format!("{maps}/missing"), false, false),
            17 => (within("pods/p1"), false, false),
            _ => (format!("{maps}/cm-a"), false, false),
        }
    }

    /// Every watch ends, after a second.
    fn watch(&mut self, query: &mut Vec<(&'static str, String)>, forced: bool) -> bool {
        let asked = self.one_in(2);
        if asked {
            query.push(("watch", self.pick(&["1", "true", "", "yes", "True"]).to_owned()));
        } else if self.one_in(8) {
            query.push(("watch", self.pick(&["0", "false", "False"]).to_owned()));
        }
        let watch = asked || forced;
        if watch {
            query.push(("timeoutSeconds", "1".to_owned()));
            if self.one_in(2) {
                query.push(("allowWatchBookmarks", self.pick(&["1", "true", "false"]).to_owned()));
            }
        }
        if self.one_in(if watch { 3 } else { 20 }) {
            query.push(("sendInitialEvents", self.pick(&["true", "1", "false"]).to_owned()));
            if !self.one_in(4) {
                query.push(("resourceVersionMatch", "NotOlderThan".to_owned()));
            }
        }
        watch
    }

    /// Version, match, limit and token; whether together they ask for exactly one version.
    fn versions(&mut self, query: &mut Vec<(&'static str, String)>, watch: bool, is_collection: bool) -> bool {
        let known = self.world.versions[self.random.usize(..self.world.versions.len())];
        let version = match self.random.u32(..16) {
            0..=4 => None,
            5..=7 => Some("0".to_owned()),
            8..=12 => Some(known.to_string()),
            // Not for watches: a window begins with the first list, here and there (see `expired.rs`).
            13 if !watch => Some("1".to_owned()),
            13 | 14 => Some((known + 10_000_000).to_string()),
            _ => Some(self.pick(&["abc", "-1", "1.5", "18446744073709551616", ""]).to_owned()),
        };
        query.extend(version.clone().map(|version| ("resourceVersion", version)));
        let at_known = version.as_deref().is_some_and(|version| !matches!(version, "" | "0"));
        if !is_collection {
            return false;
        }
        let mut exactly = false;
        let has_match = query.iter().any(|(name, _)| *name == "resourceVersionMatch");
        if !has_match && self.one_in(4) {
            let how = self.pick(&["Exact", "Exact", "NotOlderThan", "Nonsense"]);
            query.push(("resourceVersionMatch", how.to_owned()));
            exactly = how == "Exact";
        }
        let matched = has_match || query.iter().any(|(name, _)| *name == "resourceVersionMatch");
        if self.one_in(4) {
            let limit = self.pick(&["1", "2", "500", "0", "-1", "abc"]);
            query.push(("limit", limit.to_owned()));
            exactly |= matches!(limit, "1" | "2" | "500") && at_known && !matched;
        }
        if self.one_in(10) {
            query.push(("continue", self.token(known)));
            exactly = true;
        }
        exactly && !watch
    }

    fn token(&mut self, version: u64) -> String {
        let encode = |token: String| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token);
        let token = |rv: i64, start: &str| encode(json!({"v": "meta.k8s.io/v1", "rv": rv, "start": start}).to_string());
        let version = i64::try_from(version).expect("small");
        match self.random.u32(..6) {
            0..=1 => token(version, "cm-a\0"),
            2 => token(version, "/cm-a\0"),
            3 => token(0, "cm-a\0"),
            4 => token(version, "../x\0"),
            _ => "nonsense".to_owned(),
        }
    }

    fn selectors(&mut self, query: &mut Vec<(&'static str, String)>) {
        if self.one_in(3) {
            query.push(("labelSelector", self.pick(&LABELS).to_owned()));
        }
        if self.one_in(3) {
            query.push(("fieldSelector", self.pick(&FIELDS).to_owned()));
        }
    }

    fn oddities(&mut self, query: &mut Vec<(&'static str, String)>) {
        if self.one_in(12) {
            let odd =
                [("pretty", "true"), ("pretty", "false"), ("foo", "bar"), ("limit", "x y"), ("LabelSelector", "a in")];
            let (name, value) = odd[self.random.usize(..odd.len())];
            query.push((name, value.to_owned()));
        }
    }
}

/// A list of one name reads one key, and a version beside a limit does not mean "exactly" for that.
fn reads_one_key(query: &[(&'static str, String)]) -> bool {
    let has = |name: &str, text: &str| query.iter().any(|(at, value)| *at == name && value.contains(text));
    has("fieldSelector", "metadata.name=") && !has("resourceVersionMatch", "Exact")
}

/// Initial events of a version in the future take three seconds to be refused; whether a watch that is over before that
/// is told is a matter of luck at the apiserver.
fn patient(query: &mut [(&'static str, String)]) {
    let future = query.iter().any(|(name, value)| *name == "resourceVersion" && value.len() >= 8);
    let initial = query.iter().any(|(name, _)| *name == "sendInitialEvents");
    let seconds = query.iter_mut().find(|(name, _)| *name == "timeoutSeconds");
    if let (true, Some((_, seconds))) = (future && initial, seconds) {
        "6".clone_into(seconds);
    }
}

/// As a careful client writes it.
fn escaped(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let written = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    value.bytes().map(written).collect()
}

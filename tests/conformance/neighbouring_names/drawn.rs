//! Requests drawn from a grammar of all ways to name a part of a collection.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fastrand::Rng;
use serde_json::json;

use super::scene::{Caller, MAPS, NAMES, NAMESPACES, path};
use crate::differential::probe::{Over, Parameter, Probe};

pub const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,\
                            application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

const FORMS: [&str; 8] = [
    "application/json",
    "application/json",
    "application/vnd.kubernetes.protobuf",
    "application/vnd.kubernetes.protobuf;stream=watch",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
];

/// Terms of field selectors; `@` is replaced by a name, `#` by a namespace.
const FIELDS: [&str; 19] = [
    "metadata.name=@",
    "metadata.name=@",
    "metadata.name=a",
    "metadata.name==@",
    "metadata.name!=@",
    "metadata.name=",
    "metadata.name=@/",
    "metadata.name=@/../@",
    "metadata.name=..",
    "metadata.name=@%00",
    "metadata.name= @",
    "metadata.name=@\\,@",
    "metadata.name=@\\=",
    "metadata.name=a\u{0}",
    "metadata.namespace=#",
    "metadata.namespace=#",
    "metadata.namespace!=#",
    "metadata.namespace=#/@",
    "Metadata.name=@",
];

const LABELS: [&str; 12] = [
    "l=@",
    "l==@,l=@",
    "l!=@",
    "l in (@,@)",
    "l in (@)",
    "l notin (@)",
    "l",
    "!l",
    "in=all,l in (@,@)",
    "in in (all)",
    "l in (@",
    "l=@,metadata.name=@",
];

/// Draws callers and requests.
pub struct Draws {
    random: Rng,
    tokens: Vec<String>,
    versions: (u64, u64),
    /// The namespace and the name of the caller's permission, if it has any. They are drawn more often.
    lean: (Option<&'static str>, Option<&'static str>),
}

impl Draws {
    pub fn new(seed: u64, tokens: Vec<String>, versions: (u64, u64)) -> Self {
        Self { random: Rng::with_seed(seed), tokens, versions, lean: (None, None) }
    }

    pub fn caller<'a>(&mut self, callers: &'a [Caller]) -> &'a Caller {
        &callers[self.random.usize(..callers.len())]
    }

    /// A request of this caller. Two of three match or almost match its permissions.
    pub fn probe(&mut self, caller: &Caller) -> Probe {
        let leans = !self.one_in(3);
        self.lean = if leans { caller.place() } else { (None, None) };
        let over = [Over::H1, Over::H2, Over::H2][self.random.usize(..3)];
        let mut headers = vec![("user-agent", "neighbours".to_owned()), ("accept", self.form())];
        let resource = if self.one_in(10) { "nodes" } else { MAPS };
        let namespace = Some(self.namespace()).filter(|_| resource == MAPS);
        let namespace = namespace.filter(|_| leans && caller.place().0.is_some() || !self.one_in(3));
        let collection = path(resource, namespace);
        let mut query = Vec::new();
        if self.one_in(6) {
            let name = self.name();
            query.extend(self.one_in(2).then(|| Parameter::Value("resourceVersion", "0".to_owned())));
            return Probe {
                method: "GET",
                path: format!("{collection}/{name}"),
                query,
                headers,
                body: String::new(),
                over,
            };
        }
        query.extend(self.selectors());
        let by_path = self.one_in(12);
        if by_path || self.one_in(2) {
            query.extend((!by_path || self.one_in(2)).then(|| Parameter::Value("watch", "true".to_owned())));
            query.push(Parameter::Value("timeoutSeconds", "2".to_owned()));
            self.start(&mut query);
            let over = if self.one_in(4) { Over::WebSocket } else { over };
            let path = if by_path { self.watched(&collection) } else { collection };
            if over == Over::WebSocket {
                headers.push(("origin", "http://localhost".to_owned()));
            }
            return Probe { method: "GET", path, query, headers, body: String::new(), over };
        }
        self.page(&mut query);
        Probe { method: "GET", path: collection, query, headers, body: String::new(), over }
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.random.u32(..count) == 0
    }

    fn form(&mut self) -> String {
        FORMS[self.random.usize(..FORMS.len())].to_owned()
    }

    /// Draws a name, mostly one with a permission.
    fn name(&mut self) -> &'static str {
        if self.random.bool() { "a" } else { NAMES[self.random.usize(..NAMES.len())] }
    }

    fn namespace(&mut self) -> &'static str {
        if let Some(namespace) = self.lean.0.filter(|_| !self.one_in(8)) {
            namespace
        } else if self.random.bool() {
            "n1"
        } else {
            NAMESPACES[self.random.usize(..NAMESPACES.len())]
        }
    }

    fn filled(&mut self, pattern: &str) -> String {
        let filled = pattern.chars().map(|c| match c {
            '@' => self.name().to_owned(),
            '#' => self.namespace().to_owned(),
            other => other.to_string(),
        });
        filled.collect()
    }

    fn selectors(&mut self) -> Vec<Parameter> {
        let mut query = Vec::new();
        // Often the selector that a permission for one name needs, alone or with others.
        if let Some(name) = self.lean.1 {
            let own = format!("metadata.name={name}");
            let more = if self.one_in(4) { format!(",{}", self.term(&FIELDS)) } else { String::new() };
            query.push(Parameter::Value("fieldSelector", own + &more));
        } else if self.one_in(4) {
            query.push(Parameter::Value("fieldSelector", "metadata.name=a".to_owned()));
        } else if self.random.bool() {
            let count = self.random.usize(1..=3);
            let terms: Vec<_> = (0..count).map(|_| self.term(&FIELDS)).collect();
            query.push(Parameter::Value("fieldSelector", terms.join(",")));
        }
        if self.one_in(3) {
            let labels = self.term(&LABELS);
            query.push(Parameter::Value("labelSelector", labels));
        }
        // Of two selectors only the first counts, so their order is drawn too.
        if self.one_in(8) {
            let fields = self.term(&FIELDS);
            let at = self.random.usize(..=query.len());
            query.insert(at, Parameter::Value("fieldSelector", fields));
        }
        query
    }

    fn term(&mut self, patterns: &[&str]) -> String {
        let pattern = patterns[self.random.usize(..patterns.len())];
        self.filled(pattern)
    }

    fn start(&mut self, query: &mut Vec<Parameter>) {
        let (before, now) = self.versions;
        let value = |name, value: String| Parameter::Value(name, value);
        match self.random.u32(..5) {
            0 => query.push(value("resourceVersion", before.to_string())),
            1 => query.push(value("resourceVersion", now.to_string())),
            2 => query.push(value("resourceVersion", "0".to_owned())),
            3 => {
                query.push(value("sendInitialEvents", "true".to_owned()));
                query.push(value("resourceVersionMatch", "NotOlderThan".to_owned()));
                query.push(value("allowWatchBookmarks", "true".to_owned()));
            }
            _ => {}
        }
        if self.one_in(3) {
            let include = ["None", "Metadata", "Object"][self.random.usize(..3)];
            query.push(value("includeObject", include.to_owned()));
        }
        if self.one_in(8) {
            let token = self.token();
            query.push(value("continue", token));
        }
    }

    fn page(&mut self, query: &mut Vec<Parameter>) {
        let value = |name, value: String| Parameter::Value(name, value);
        if self.one_in(3) {
            let limit = [1, 2, 3, 500][self.random.usize(..4)];
            query.push(value("limit", limit.to_string()));
        }
        match self.random.u32(..6) {
            0 | 1 => {
                let token = self.token();
                query.push(value("continue", token));
            }
            2 => query.push(value("resourceVersion", "0".to_owned())),
            3 => {
                query.push(value("resourceVersion", self.versions.1.to_string()));
                let how = ["Exact", "NotOlderThan"][self.random.usize(..2)];
                query.push(value("resourceVersionMatch", how.to_owned()));
            }
            _ => {}
        }
    }

    fn token(&mut self) -> String {
        self.tokens[self.random.usize(..self.tokens.len())].clone()
    }

    /// The deprecated watch path, of a collection or of one name.
    fn watched(&mut self, collection: &str) -> String {
        let watched = collection.replacen("/api/v1/", "/api/v1/watch/", 1);
        if self.random.bool() { format!("{watched}/{}", self.name()) } else { watched }
    }
}

/// Tokens for positions at which no list of the collection could have ended.
pub fn forged(version: u64) -> Vec<String> {
    let starts = [
        "a\0",
        "a",
        "/a\0",
        "a-",
        "\0",
        "n1/",
        "n1/a\0",
        "n1",
        "t0",
        "n10/a\0",
        "/n10/a\0",
        "../n10/a\0",
        "a/../../n10/a",
        "a/../b",
        "./a",
        "//n10/a",
        "n1\0",
        "n1-x/\0",
        "\u{10ffff}",
        "n10",
        "n1/../n10/a\0",
        "b\0/",
        "%2e%2e/n10/a",
    ];
    let token = |start: &&str| {
        URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": version, "start": start}).to_string())
    };
    let latest =
        |start: &&str| URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": -1, "start": start}).to_string());
    starts.iter().map(token).chain(starts[..6].iter().map(latest)).collect()
}

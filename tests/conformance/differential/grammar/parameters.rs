//! Draws query parameters, except for selectors.

use base64::Engine;
use serde_json::json;

use super::super::probe::Parameter;
use super::super::world::Served;
use super::{About, Grammar};

/// Query pieces that are not well-formed parameters, and parameters that no server reads.
const RAW: [&str; 14] = [
    "",
    "&",
    "=",
    "foo",
    "foo=bar",
    "foo=%",
    "foo=%zz",
    "limit=1;labelSelector=app",
    "LabelSelector=a%20in",
    "labelselector=a",
    "labelSelector=app+in+(x)",
    "Limit=1",
    "export=1",
    "exact=true",
];

fn put(query: &mut Vec<Parameter>, name: &'static str, value: impl Into<String>) {
    query.push(Parameter::Value(name, value.into()));
}

impl Grammar<'_> {
    /// Draws whether the request is a watch.
    pub(super) fn watch(&mut self, query: &mut Vec<Parameter>, about: About) -> bool {
        let has_watch = self.one_in(3);
        if has_watch {
            put(query, "watch", self.pick(&["1", "1", "true", "true", "", "yes", "True"]));
        } else if self.one_in(10) {
            put(query, "watch", self.pick(&["0", "false", "False", "FALSE"]));
        }
        let watch = has_watch || about == About::WatchPath;
        if watch && !self.careful && self.one_in(15) {
            put(query, "timeoutSeconds", self.pick(&["abc", "-", "1.5", "99999999999999999999", "1s"]));
            let last = query.pop().expect("just put");
            query.insert(0, last);
        }
        if self.one_in(if watch { 2 } else { 30 }) {
            put(query, "allowWatchBookmarks", self.pick(&["1", "true", "true", "false", "", "no"]));
        }
        if (watch || !self.careful) && self.one_in(if watch { 3 } else { 30 }) {
            put(query, "sendInitialEvents", self.pick(&["true", "1", "true", "false", "", "0"]));
            if self.careful || !self.one_in(4) {
                put(query, "resourceVersionMatch", "NotOlderThan");
            }
        }
        watch
    }

    fn known(&mut self) -> u64 {
        self.world.versions[self.random.usize(..self.world.versions.len())]
    }

    pub(super) fn versions(&mut self, query: &mut Vec<Parameter>, watch: bool, about: About, resource: &Served) {
        let known = self.known();
        match self.random.u32(..if self.careful { 58 } else { 70 }) {
            0..=23 => {}
            24..=37 => put(query, "resourceVersion", "0"),
            38..=57 => put(query, "resourceVersion", known.to_string()),
            // Not for watches, because the proxy's history begins with its first list (see `expired.rs`).
            58 if !watch => put(query, "resourceVersion", "1"),
            58 => put(query, "resourceVersion", ""),
            // A future version blocks both servers until their timeout.
            59 if watch || self.one_in(4) => put(query, "resourceVersion", (known + 10_000_000).to_string()),
            _ => put(
                query,
                "resourceVersion",
                self.pick(&["abc", "-1", "1.5", "18446744073709551616", "", "00", "0x1", "+1", " 1"]),
            ),
        }
        if about == About::Object && !self.one_in(10) {
            return;
        }
        if self.careful {
            return self.careful_versions(query, watch, known, resource);
        }
        let has_match = query.iter().any(|parameter| parameter.is("resourceVersionMatch"));
        if !has_match && self.one_in(5) {
            let how = ["Exact", "Exact", "NotOlderThan", "NotOlderThan", "Nonsense", "exact", ""];
            put(query, "resourceVersionMatch", self.pick(&how));
        }
        if self.one_in(4) {
            let limits =
                ["1", "1", "2", "3", "500", "0", "-1", "abc", "", "9223372036854775807", "9223372036854775808"];
            put(query, "limit", self.pick(&limits));
        }
        if self.one_in(12) {
            let token = self.token(known, resource);
            put(query, "continue", token);
        }
    }

    /// Draws parameters that are valid together.
    fn careful_versions(&mut self, query: &mut Vec<Parameter>, watch: bool, known: u64, resource: &Served) {
        if watch {
            return;
        }
        let given = query.iter().find(|parameter| parameter.is("resourceVersion"));
        let zero = given.is_some_and(|version| *version == Parameter::Value("resourceVersion", "0".to_owned()));
        match given {
            Some(_) if self.one_in(3) => {
                let how = if zero || self.one_in(2) { "NotOlderThan" } else { "Exact" };
                put(query, "resourceVersionMatch", how);
            }
            None if self.one_in(6) => {
                let token = self.token(known, resource);
                put(query, "continue", token);
            }
            _ => {}
        }
        if self.one_in(3) {
            put(query, "limit", self.pick(&["1", "2", "3", "5", "500"]));
        }
    }

    /// A continue token: for a known version, the latest one or a version that never existed, or an invalid token.
    fn token(&mut self, version: u64, resource: &Served) -> String {
        let (namespace, name) = match resource.objects.as_slice() {
            [] => ("world".to_owned(), "a".to_owned()),
            objects => objects[self.random.usize(..objects.len())].clone(),
        };
        let encode = |token: String| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token);
        let token = |v: &str, rv: i64, start: &str| encode(json!({"v": v, "rv": rv, "start": start}).to_string());
        let (version, current) = (i64::try_from(version).expect("small"), "meta.k8s.io/v1");
        let everywhere = self.one_in(3);
        let start = if everywhere { format!("{namespace}/{name}\0") } else { format!("{name}\0") };
        match self.random.u32(..if self.careful { 9 } else { 16 }) {
            0..=4 => token(current, version, &start),
            5..=6 => token(current, version, &format!("/{start}")),
            7..=8 => token(current, -1, &start),
            9 => token(current, 0, &start),
            10 => token(current, version, "../x\0"),
            11 => token(current, version, ""),
            12 => token("meta.k8s.io/v9", version, &start),
            13 => encode("{".to_owned()),
            14 => String::new(),
            _ => self.pick(&["nonsense", "!!!", "bm9uc2Vuc2U", "e30", "AA=="]).to_owned(),
        }
    }

    pub(super) fn oddities(&mut self, query: &mut Vec<Parameter>) {
        if self.one_in(12) {
            put(query, "pretty", self.pick(&["true", "1", "false", "0", "", "T", "nonsense"]));
        }
        if self.one_in(24) {
            put(query, "includeObject", self.pick(&["None", "Metadata", "Object", "nonsense", "none", ""]));
        }
        if self.one_in(60) {
            let all = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')";
            put(query, "shardSelector", self.pick(&[all, "nonsense", ""]));
        }
        if !self.careful && self.one_in(20) {
            put(query, "timeout", self.pick(&["30s", "1m", "0", "0s", "-1s", "abc", "10", "", "1h30m", "1.5h"]));
        }
        if !self.careful && self.one_in(12) {
            query.push(Parameter::Raw(self.pick(&RAW)));
        }
        if self.one_in(100) {
            put(query, "dryRun", "All");
        }
        // If a parameter is repeated, the first value counts.
        if !self.careful && self.one_in(30) {
            put(query, "limit", "2");
        }
        if !self.careful && self.one_in(30) {
            put(query, "labelSelector", "app=y");
        }
    }
}

use std::fmt::Write as _;

use super::option_values::{SelectorKind, WorkloadObjectKind};
use super::plan::{BenchPlan, ResolvedWatchGroup};
use kubeapi::WRITE_TIME;

/// The label whose values are spread over the objects, and the annotation that pads them to their size.
const SLOT: &str = "kube-fanout.io/slot";
const PADDING: &str = "kube-fanout.io/padding";

/// The objects that are written: their names, namespaces and content. All of it follows from an index.
#[derive(Clone, Debug)]
pub(super) struct WorkloadObjects {
    pub(super) shape: WorkloadObjectKind,
    pub(super) count: usize,
    namespace: String,
    namespaces: usize,
    spread: usize,
}

impl WorkloadObjects {
    /// Derives the objects from a plan. Objects of another size or spread get namespaces of their own.
    pub(super) fn of(plan: &BenchPlan) -> Self {
        let BenchPlan { namespace, shape, objects, object_bytes, namespaces, spread, .. } = plan;
        let kind = shape.collection();
        Self {
            shape: *shape,
            count: *objects,
            namespace: format!("{namespace}-{kind}-{objects}-{object_bytes}-{namespaces}-{spread}"),
            namespaces: *namespaces,
            spread: *spread,
        }
    }

    pub(super) fn namespaces(&self) -> impl Iterator<Item = String> {
        (0..self.namespaces).map(|n| self.nth_namespace(n))
    }

    fn nth_namespace(&self, n: usize) -> String {
        format!("{}-{n}", self.namespace)
    }

    fn name(n: usize) -> String {
        format!("bench-{n:06}")
    }

    fn node(n: usize) -> String {
        format!("bench-node-{n}")
    }

    fn slot(n: usize) -> String {
        format!("slot-{n}")
    }

    /// Returns the path of a namespace's collection.
    pub(super) fn collection(&self, namespace: &str) -> String {
        match self.shape {
            WorkloadObjectKind::Node => "/api/v1/nodes".to_owned(),
            shape => format!("/api/v1/namespaces/{namespace}/{}", shape.collection()),
        }
    }

    /// Returns the path that selects the workload's own objects of a namespace.
    pub(super) fn own(&self, namespace: &str) -> String {
        with(&self.collection(namespace), &format!("labelSelector=app%3Dbench,{}", SLOT.replace('/', "%2F")))
    }

    /// Returns the path of the collection that holds the `n`-th object.
    pub(super) fn collection_of(&self, n: usize) -> String {
        self.collection(&self.nth_namespace(n % self.namespaces))
    }

    /// Returns the path of the `n`-th object.
    pub(super) fn path(&self, n: usize) -> String {
        format!("{}/{}", self.collection_of(n), Self::name(n))
    }

    /// Returns the `n`-th object as it is created, with this many bytes of padding.
    pub(super) fn document(&self, n: usize, padding: usize) -> String {
        let (name, slot, node) = (Self::name(n), Self::slot(n % self.spread), Self::node(n % self.spread));
        let padding = filler(n, padding);
        let annotations = format!(r#"{{"{WRITE_TIME}":"0","{PADDING}":"{padding}"}}"#);
        let labels = format!(r#"{{"app":"bench","{SLOT}":"{slot}"}}"#);
        let meta = format!(r#""metadata":{{"name":"{name}","labels":{labels},"annotations":{annotations}}}"#);
        match self.shape {
            WorkloadObjectKind::Configmap => {
                format!(r#"{{"apiVersion":"v1","kind":"ConfigMap",{meta},"data":{{"slot":"{slot}"}}}}"#)
            }
            WorkloadObjectKind::Pod => {
                let container = r#"{"name":"main","image":"registry.example/bench:1","args":["serve"]}"#;
                let spec = format!(
                    r#"{{"nodeName":"{node}","automountServiceAccountToken":false,"containers":[{container}]}}"#
                );
                format!(r#"{{"apiVersion":"v1","kind":"Pod",{meta},"spec":{spec}}}"#)
            }
            WorkloadObjectKind::Event => {
                let namespace = self.nth_namespace(n % self.namespaces);
                let pod = format!(r#"{{"apiVersion":"v1","kind":"Pod","name":"{name}","namespace":"{namespace}"}}"#);
                let event = r#""type":"Warning","reason":"BackOff","message":"Back-off restarting failed container""#;
                format!(r#"{{"apiVersion":"v1","kind":"Event",{meta},"involvedObject":{pod},{event}}}"#)
            }
            WorkloadObjectKind::Node => format!(r#"{{"apiVersion":"v1","kind":"Node",{meta}}}"#),
        }
    }

    /// Returns the path of the `n`-th watch of a kind, with the query that selects its objects.
    pub(super) fn question(&self, kind: &ResolvedWatchGroup, n: usize) -> String {
        let path = kind.path.replace("{i}", &n.to_string());
        let value = |value: fn(usize) -> String, of: usize| {
            if kind.non_matching { format!("nobody-{n}") } else { value(n % of) }
        };
        match kind.select {
            SelectorKind::All => path,
            SelectorKind::Namespace => within(&path, &self.watched_namespace(kind, n)),
            SelectorKind::Node => {
                with(&path, &format!("fieldSelector=spec.nodeName%3D{}", value(Self::node, self.spread)))
            }
            SelectorKind::Label => {
                let slot = SLOT.replace('/', "%2F");
                with(&path, &format!("labelSelector={slot}%3D{}", value(Self::slot, self.spread)))
            }
            SelectorKind::Name => {
                let namespace = self.nth_namespace(n % self.count % self.namespaces);
                let name = value(Self::name, self.count);
                with(&within(&path, &namespace), &format!("fieldSelector=metadata.name%3D{name}"))
            }
        }
    }

    fn watched_namespace(&self, kind: &ResolvedWatchGroup, n: usize) -> String {
        if kind.non_matching { format!("nobody-{n}") } else { self.nth_namespace(n % self.namespaces) }
    }
}

/// Returns text of this length that compresses like the JSON of real pods: deflate leaves about a fifth.
fn filler(n: usize, bytes: usize) -> String {
    const NAMES: [&str; 16] = [
        "f:metadata",
        "f:labels",
        "f:annotations",
        "f:spec",
        "f:containers",
        "f:env",
        "f:resources",
        "f:limits",
        "f:volumeMounts",
        "f:mountPath",
        "f:status",
        "f:conditions",
        "f:lastTransitionTime",
        "f:podIPs",
        "f:terminationMessagePolicy",
        "f:ownerReferences",
    ];
    /// The number of names that stand in the same order, as in every object of a kind.
    const RUN: usize = 3;
    let (mut random, mut text) = (fastrand::Rng::with_seed(n as u64), String::with_capacity(bytes + 64));
    while text.len() < bytes {
        let first = random.usize(..NAMES.len() - RUN);
        for name in &NAMES[first..first + RUN] {
            text.push_str(name);
            text.push('.');
        }
        let _ = write!(text, "{:04x};", random.u16(..));
    }
    text.truncate(bytes);
    text
}

/// Restricts the path of a collection to one namespace.
fn within(path: &str, namespace: &str) -> String {
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let mut out = String::with_capacity(path.len() + namespace.len() + 16);
    match path.rsplit_once('/') {
        Some((before, collection)) if !path.contains("/namespaces/") => {
            let _ = write!(out, "{before}/namespaces/{namespace}/{collection}");
        }
        _ => out.push_str(path),
    }
    if let Some(query) = query {
        let _ = write!(out, "?{query}");
    }
    out
}

/// Appends a query parameter to a path.
pub(super) fn with(path: &str, parameter: &str) -> String {
    let joint = if path.contains('?') { '&' } else { '?' };
    format!("{path}{joint}{parameter}")
}

/// Counts of writes, grouped by the selections of watches.
#[derive(Debug)]
pub(super) struct WriteCounts<'a> {
    objects: &'a WorkloadObjects,
    by_object: Vec<u64>,
    by_namespace: Vec<u64>,
    by_slot: Vec<u64>,
    total: u64,
}

impl<'a> WriteCounts<'a> {
    pub(super) fn new(objects: &'a WorkloadObjects, by_object: Vec<u64>) -> Self {
        let (mut by_namespace, mut by_slot) = (vec![0; objects.namespaces], vec![0; objects.spread]);
        for (n, writes) in by_object.iter().enumerate() {
            by_namespace[n % objects.namespaces] += writes;
            by_slot[n % objects.spread] += writes;
        }
        let total = by_object.iter().sum();
        Self { objects, by_object, by_namespace, by_slot, total }
    }

    /// Returns how many events the `n`-th watch of a kind should receive.
    pub(super) fn expected(&self, kind: &ResolvedWatchGroup, n: usize) -> u64 {
        match kind.select {
            _ if kind.non_matching || !kind.hears_writes => 0,
            SelectorKind::All => self.total,
            SelectorKind::Namespace => self.by_namespace[n % self.objects.namespaces],
            SelectorKind::Node | SelectorKind::Label => self.by_slot[n % self.objects.spread],
            SelectorKind::Name => self.by_object[n % self.objects.count],
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(more: &serde_json::Value) -> BenchPlan {
        BenchPlan::of_layers([more.as_object().unwrap()]).unwrap()
    }

    #[test]
    fn expected_event_count_matches_the_watch_selector() {
        let objects = WorkloadObjects::of(&plan(&json!({"objects": 6, "namespaces": 2, "spread": 3})));
        let written = WriteCounts::new(&objects, vec![1, 2, 3, 4, 5, 6]);
        let rows = [
            ("all", "/api/v1/pods", 21),
            ("namespace", "/api/v1/namespaces/kube-fanout-bench-pods-6-2500-2-3-1/pods", 12),
            ("node", "/api/v1/pods?fieldSelector=spec.nodeName%3Dbench-node-1", 7),
            ("label", "/api/v1/pods?labelSelector=kube-fanout.io%2Fslot%3Dslot-1", 7),
        ];
        for (select, path, expected) in rows {
            let kind = &plan(&json!({"select": select})).kinds()[0];
            assert_eq!((objects.question(kind, 1).as_str(), written.expected(kind, 1)), (path, expected), "{select}");
            let unmatched = &plan(&json!({"select": select, "non-matching": true})).kinds()[0];
            assert_eq!(written.expected(unmatched, 1), 0);
            assert_eq!(objects.question(unmatched, 7).contains("nobody-7"), select != "all");
        }
        let kind = &plan(&json!({"select": "name"})).kinds()[0];
        let named =
            "/api/v1/namespaces/kube-fanout-bench-pods-6-2500-2-3-1/pods?fieldSelector=metadata.name%3Dbench-000001";
        assert_eq!((objects.question(kind, 7).as_str(), written.expected(kind, 7)), (named, 2));
    }

    #[test]
    fn padding_compresses_like_real_objects() {
        use std::io::Write as _;
        let text = filler(1, 14_500);
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        let share = encoder.finish().unwrap().len() as f64 / text.len() as f64;
        assert!((0.15..0.25).contains(&share), "{share}");
        assert_eq!((text.len(), filler(1, 100) == filler(2, 100)), (14_500, false));
    }

    #[test]
    fn documents_are_json() {
        for shape in ["pod", "configmap", "event", "node"] {
            let objects = WorkloadObjects::of(&plan(&json!({"shape": shape})));
            let document: serde_json::Value = serde_json::from_str(&objects.document(3, 10)).unwrap();
            assert_eq!(document["metadata"]["annotations"][PADDING], filler(3, 10));
            assert_eq!(document["metadata"]["annotations"][WRITE_TIME], "0");
            let (path, own) = (objects.path(3), objects.own("default"));
            assert_eq!(path.contains("/namespaces/"), shape != "node", "{path}");
            assert!(own.ends_with("?labelSelector=app%3Dbench,kube-fanout.io%2Fslot"), "{own}");
        }
    }
}

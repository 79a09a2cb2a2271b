use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::option_values::{
    ObjectEncoding, RequestStormKind, SelectorKind, WatchStartMode, WorkloadObjectKind, WriteMethod, WriteRate,
};
use probe::{FlowControlWindows, WatchProtocol};

/// A workload: everything except which server it runs against.
///
/// The keys of scenario files and the names of the flags are those of the fields, in kebab case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own")]
pub struct BenchPlan {
    /// A description of the plan in one line.
    pub about: String,
    pub watches: usize,
    /// The number of connections. 0 means one for each watch.
    pub connections: usize,
    pub protocol: WatchProtocol,
    pub encoding: ObjectEncoding,
    /// The path of each watch, in which `{i}` is the watch's number. `None` means the collection of the written
    /// objects.
    pub path: Option<String>,
    pub select: SelectorKind,
    pub non_matching: bool,
    pub watch_list: bool,
    /// Whether watches accept gzip.
    pub gzip: bool,
    /// The percentage of connections whose compressed events are counted and not decompressed, so that the generator
    /// does not compete with the server for the CPU. Latency is measured on the others.
    pub gzip_raw: u32,
    /// The kinds of watches, if there are several instead of one.
    pub groups: Vec<WatchGroup>,
    /// The number of connections and watches that are opened at the same time.
    pub opening: usize,
    pub stream_window_kib: u32,
    pub connection_window_kib: u32,
    /// Whether HTTP/2 windows are refreshed as Go's client does it: with two updates for every 4 KiB that were read.
    pub go_windows: bool,
    /// The percentage of connections whose watches are opened and never read.
    pub stuck: u32,
    /// The percentage of connections that are read slowly.
    pub slow: u32,
    pub slow_kib_per_s: u32,
    /// Additional watches on connections of their own, whose deliveries are not counted.
    pub companions: usize,
    /// The reconnect interval of companions. 0 means never.
    pub companion_reconnect_ms: u64,
    pub companion_reads: bool,
    pub rate: WriteRate,
    pub writers: usize,
    pub write_with: WriteMethod,
    pub objects: usize,
    pub object_bytes: usize,
    pub shape: WorkloadObjectKind,
    pub namespace: String,
    pub namespaces: usize,
    /// The number of different nodes and label values among the objects.
    pub spread: usize,
    pub warmup: f64,
    pub seconds: f64,
    /// The timeout of the last deliveries, and of opening, in seconds.
    pub patience: f64,
    pub storm: Option<RequestStormKind>,
    /// The total number of requests in a storm of LISTs or GETs. 0 means as many as the duration allows.
    pub requests: usize,
    /// The number of concurrent requests on each connection.
    pub in_flight: usize,
}

/// Watches of one kind among several. Missing values come from the plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct WatchGroup {
    pub name: String,
    pub watches: usize,
    pub path: Option<String>,
    pub select: Option<SelectorKind>,
    pub non_matching: bool,
    pub encoding: Option<ObjectEncoding>,
}

/// A group whose values are all resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResolvedWatchGroup {
    pub(super) watches: usize,
    pub(super) path: String,
    pub(super) select: SelectorKind,
    pub(super) non_matching: bool,
    pub(super) encoding: ObjectEncoding,
    /// Whether the written objects can be among the watched ones.
    pub(super) hears_writes: bool,
}

/// Every problem that makes a benchmark plan invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchPlanErrors(pub Vec<String>);

const WATCHES_MAX: usize = 200_000;
const OBJECTS_MAX: usize = 1_000_000;
const OBJECT_BYTES_MAX: usize = 1 << 20;
const RATE_MAX: f64 = 1e6;
/// The windows of Go's client: 4 MiB and 1 GiB. The codec here counts its updates later than the server does, so the
/// first is larger than the content of any socket.
const GO_WINDOWS: (u32, u32) = (64 << 20, 1 << 30);
const SECONDS_MAX: f64 = 86_400.0;

impl Default for BenchPlan {
    fn default() -> Self {
        Self {
            about: String::new(),
            watches: 100,
            connections: 0,
            protocol: WatchProtocol::H2,
            encoding: ObjectEncoding::Json,
            path: None,
            select: SelectorKind::All,
            non_matching: false,
            watch_list: false,
            gzip: false,
            gzip_raw: 0,
            groups: Vec::new(),
            opening: 64,
            stream_window_kib: 1024,
            connection_window_kib: 16 * 1024,
            go_windows: false,
            stuck: 0,
            slow: 0,
            slow_kib_per_s: 64,
            companions: 0,
            companion_reconnect_ms: 0,
            companion_reads: false,
            rate: WriteRate::PerSecond(50.0),
            writers: 4,
            write_with: WriteMethod::Patch,
            objects: 100,
            object_bytes: 2500,
            shape: WorkloadObjectKind::Pod,
            namespace: "kube-fanout-bench".to_owned(),
            namespaces: 1,
            spread: 100,
            warmup: 2.0,
            seconds: 10.0,
            patience: 60.0,
            storm: None,
            requests: 0,
            in_flight: 1,
        }
    }
}

impl BenchPlan {
    /// Builds a plan from layers of keys; later layers override earlier ones.
    ///
    /// # Errors
    /// All problems at once: unknown keys, values of the wrong kind, and combinations that are not supported.
    pub fn of_layers<'a>(layers: impl IntoIterator<Item = &'a Map<String, Value>>) -> Result<Self, BenchPlanErrors> {
        let mut merged = Map::new();
        layers.into_iter().for_each(|layer| merged.extend(layer.clone()));
        // Each key is parsed separately, because serde stops at the first problem.
        let alone = |(key, value): (&String, &Value)| {
            let one = Map::from_iter([(key.clone(), value.clone())]);
            serde_json::from_value::<Self>(Value::Object(one)).err().map(|error| format!("{key}: {error}"))
        };
        let problems: Vec<_> = merged.iter().filter_map(alone).collect();
        if !problems.is_empty() {
            return Err(BenchPlanErrors(problems));
        }
        let plan: Self =
            serde_json::from_value(Value::Object(merged)).map_err(|error| BenchPlanErrors(vec![error.to_string()]))?;
        plan.check()?;
        Ok(plan)
    }

    /// Checks that the plan can be run.
    ///
    /// # Errors
    /// One sentence for each problem.
    pub fn check(&self) -> Result<(), BenchPlanErrors> {
        let mut problems = Vec::new();
        self.check_bounds(&mut problems);
        let mut refuse = |wrong: bool, why: &str| problems.extend(wrong.then(|| why.to_owned()));
        refuse(
            self.stuck + self.slow > 100,
            "stuck and slow are percentages of the same connections: at most 100 together",
        );
        refuse(self.stuck + self.slow == 100 && self.storm.is_none(), "stuck and slow leave no connection to measure");
        let one_each = !self.protocol.shares_connections();
        refuse(
            one_each && self.connections != 0 && self.connections != self.watch_count() && !self.is_of_requests(),
            "connections: over HTTP/1.1 and WebSocket each watch has its own",
        );
        refuse(self.connections > WATCHES_MAX, "connections: too many");
        refuse(
            self.protocol == WatchProtocol::Ws && self.is_of_requests(),
            "protocol: WebSocket carries watches, not LISTs and GETs",
        );
        refuse(
            self.storm == Some(RequestStormKind::Join) && self.protocol == WatchProtocol::Ws && !self.watch_list,
            "protocol: an informer over WebSocket joins by watch-list only",
        );
        refuse(self.is_of_requests() && !self.groups.is_empty(), "groups: a storm of requests has one kind");
        refuse(
            self.storm == Some(RequestStormKind::List) && self.requests == 0,
            "requests is required for a storm of LISTs",
        );
        let of_pods =
            self.kinds().iter().any(|kind| kind.select == SelectorKind::Node && !kind.path.ends_with("/pods"));
        refuse(of_pods, "select: only pods are on nodes");
        refuse(self.gzip_raw > 99 || self.gzip_raw > 0 && !self.gzip, "gzip-raw: needs gzip, and is at most 99");
        let in_namespace =
            |kind: &ResolvedWatchGroup| matches!(kind.select, SelectorKind::Namespace | SelectorKind::Name);
        let has_none = self.shape == WorkloadObjectKind::Node && self.kinds().iter().any(in_namespace);
        refuse(has_none, "select: nodes are in no namespace");
        refuse(
            self.gzip && (self.protocol == WatchProtocol::Ws || self.is_of_requests()),
            "gzip: only watches over HTTP can be compressed",
        );
        refuse(self.namespace.is_empty(), "namespace: it needs a name");
        if problems.is_empty() { Ok(()) } else { Err(BenchPlanErrors(problems)) }
    }

    fn check_bounds(&self, problems: &mut Vec<String>) {
        let counts = [
            ("watches", self.watch_count(), 0, WATCHES_MAX),
            ("opening", self.opening, 1, WATCHES_MAX),
            ("companions", self.companions, 0, 1_000),
            ("writers", self.writers, 1, 1_000),
            ("objects", self.objects, 1, OBJECTS_MAX),
            ("object-bytes", self.object_bytes, 0, OBJECT_BYTES_MAX),
            ("namespaces", self.namespaces, 1, 1_000),
            ("spread", self.spread, 1, OBJECTS_MAX),
            ("in-flight", self.in_flight, 1, 1_000),
            ("stream-window-kib", self.stream_window_kib as usize, 1, 1 << 20),
            ("connection-window-kib", self.connection_window_kib as usize, 64, 1 << 20),
            ("slow-kib-per-s", self.slow_kib_per_s as usize, 1, 1 << 20),
        ];
        let out = counts.into_iter().filter(|(_, value, min, max)| !(min..=max).contains(&value));
        problems.extend(
            out.map(|(name, value, min, max)| format!("{name} {value} is out of range: expected {min} to {max}")),
        );
        let times = [("warmup", self.warmup, 0.0), ("seconds", self.seconds, 0.1), ("patience", self.patience, 0.1)];
        let out = times.into_iter().filter(|(_, value, min)| !(*min..=SECONDS_MAX).contains(value));
        problems.extend(
            out.map(|(name, value, min)| format!("{name} {value} is out of range: expected {min} to {SECONDS_MAX}")),
        );
        if let WriteRate::PerSecond(rate) = self.rate
            && !(0.0..=RATE_MAX).contains(&rate)
        {
            problems.push(format!("rate {rate} is out of range: expected 0 to {RATE_MAX} per second, or max"));
        }
    }

    /// Whether the plan sends LISTs or GETs instead of holding watches.
    pub(super) fn is_of_requests(&self) -> bool {
        matches!(self.storm, Some(RequestStormKind::List | RequestStormKind::Get))
    }

    /// Returns the position at which the plan's watches start.
    pub(super) fn start(&self) -> WatchStartMode {
        match (self.watch_list, self.storm) {
            (true, _) => WatchStartMode::WatchList,
            (false, Some(RequestStormKind::Join)) => WatchStartMode::List,
            (false, _) => WatchStartMode::Now,
        }
    }

    /// Returns the windows of a reader that reads as fast as it can.
    pub(super) fn windows(&self) -> FlowControlWindows {
        let configured = (self.stream_window_kib << 10, self.connection_window_kib << 10);
        let (stream, connection) = if self.go_windows { GO_WINDOWS } else { configured };
        FlowControlWindows { stream, connection, socket: None, as_go: self.go_windows }
    }

    /// Returns the number of counted watches, of all groups.
    pub fn watch_count(&self) -> usize {
        if self.groups.is_empty() { self.watches } else { self.groups.iter().map(|group| group.watches).sum() }
    }

    /// Returns the number of connections of the counted watches.
    pub(super) fn connection_count(&self) -> usize {
        let needed = if self.is_of_requests() { self.connections.max(1) } else { self.watch_count() };
        match self.connections {
            0 => needed,
            _ if !self.protocol.shares_connections() && !self.is_of_requests() => needed,
            some => some.min(needed.max(1)),
        }
    }

    /// Returns the groups, or the plan itself as the only group.
    pub(super) fn kinds(&self) -> Vec<ResolvedWatchGroup> {
        let only = WatchGroup { watches: self.watches, non_matching: self.non_matching, ..WatchGroup::default() };
        let groups = if self.groups.is_empty() { std::slice::from_ref(&only) } else { &self.groups };
        groups.iter().map(|group| self.kind(group)).collect()
    }

    fn kind(&self, group: &WatchGroup) -> ResolvedWatchGroup {
        let written = self.shape.collection();
        let path = group.path.clone().or_else(|| self.path.clone()).unwrap_or_else(|| format!("/api/v1/{written}"));
        let collection = path.split('?').next().unwrap_or_default();
        ResolvedWatchGroup {
            watches: group.watches,
            select: group.select.unwrap_or(self.select),
            non_matching: group.non_matching,
            encoding: group.encoding.unwrap_or(self.encoding),
            hears_writes: collection.ends_with(&format!("/{written}")),
            path,
        }
    }
}

impl fmt::Display for BenchPlanErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for BenchPlanErrors {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(value: &Value) -> Result<BenchPlan, BenchPlanErrors> {
        BenchPlan::of_layers([value.as_object().unwrap()])
    }

    #[test]
    fn empty_plan_equals_the_default() {
        assert_eq!(of(&json!({})).unwrap(), BenchPlan::default());
    }

    #[test]
    fn all_problems_are_reported_together() {
        let wrong = of(&json!({"watches": "many", "colour": "red", "protocol": "h3"})).unwrap_err();
        assert_eq!(wrong.0.len(), 3, "{wrong}");
        let wrong = of(&json!({"opening": 0, "stuck": 60, "slow": 50, "rate": -1, "storm": "list"})).unwrap_err();
        for word in ["opening 0 is out of range", "stuck and slow", "rate -1 is out of range", "requests"] {
            assert!(wrong.0.iter().any(|problem| problem.contains(word)), "{word}: {wrong}");
        }
        assert_eq!(wrong.0.len(), 4, "{wrong}");
    }

    #[test]
    fn later_layers_override_earlier_ones() {
        let (file, flags) = (json!({"watches": 5, "rate": "max"}), json!({"watches": 7}));
        let plan = BenchPlan::of_layers([&file, &flags].map(|layer| layer.as_object().unwrap())).unwrap();
        assert_eq!((plan.watches, plan.rate), (7, WriteRate::Max));
    }

    #[test]
    fn groups_inherit_unset_options_from_the_plan() {
        let groups = json!([{"watches": 2, "select": "node"}, {"watches": 3, "path": "/api/v1/services"}]);
        let plan = of(&json!({"groups": groups, "encoding": "protobuf", "select": "label"})).unwrap();
        let kinds = plan.kinds();
        assert_eq!((plan.watch_count(), kinds.len()), (5, 2));
        assert_eq!((kinds[0].path.as_str(), kinds[0].select), ("/api/v1/pods", SelectorKind::Node));
        assert_eq!((kinds[1].encoding, kinds[1].select), (ObjectEncoding::Protobuf, SelectorKind::Label));
        assert!(kinds[0].hears_writes && !kinds[1].hears_writes);
    }
}

//! The metrics of docs/METRICS.md, parsed from its tables and the paragraphs below them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

pub type Labels = BTreeSet<String>;
pub type Metrics = BTreeMap<String, Metric>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricType {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Debug, Clone)]
pub struct Metric {
    pub of_type: MetricType,
    pub labels: Labels,
    /// Label values that the document lists, by label.
    values: BTreeMap<String, Labels>,
    /// Section of the metric. Text below the section's table applies to it as well.
    section: usize,
}

/// A paragraph about a label: its section, its metric if it concerns only one, and the label's values.
struct Paragraph {
    section: usize,
    of_metric: Option<String>,
    label: String,
    values: Labels,
}

const MONITOR: &str = include_str!("../../../deploy/kustomize/components/service-monitor/metrics.yaml");
const DOCUMENT: &str = include_str!("../../../docs/METRICS.md");
/// Labels that Prometheus adds to every scraped series.
const SCRAPED: [&str; 2] = ["job", "instance"];
const OF_FEEDS: [&str; 4] = ["resource", "namespace", "selector", "form"];

impl Metric {
    /// Whether the label may have this value, as far as the document says.
    pub fn has(&self, label: &str, value: &str) -> bool {
        match label {
            "job" => value == job(),
            "selector" => value.is_empty(),
            "code" => value.len() == 3 && value.parse::<u16>().is_ok(),
            _ => self.values.get(label).is_some_and(|values| values.contains(value)),
        }
    }

    fn scraped(of_type: MetricType, labels: impl IntoIterator<Item = String>) -> Self {
        let labels = labels.into_iter().chain(SCRAPED.map(str::to_owned)).collect();
        Self { of_type, labels, values: BTreeMap::new(), section: 0 }
    }

    fn of_row(section: usize, of_feeds: bool, cells: &[&str]) -> Option<Self> {
        let [names, label_cell, meaning] = cells else { return None };
        let name = in_backticks(names)
            .next()
            .filter(|name| ["kube_fanout_", "process_"].iter().any(|of| name.starts_with(of)))?;
        let of_type = if name.ends_with("_total") {
            MetricType::Counter
        } else if meaning.starts_with("Histogram: ") {
            MetricType::Histogram
        } else {
            MetricType::Gauge
        };
        let (own, mut values) = labels_of(label_cell);
        let base = if of_feeds && !label_cell.starts_with("only ") { &OF_FEEDS[..] } else { &[] };
        for label in own.iter().filter(|label| *label != "resource") {
            values.entry(label.clone()).or_insert_with(|| in_backticks(meaning).collect());
        }
        let labels = own.into_iter().chain(base.iter().map(|label| (*label).to_owned()));
        Some(Self { values, section, ..Self::scraped(of_type, labels) })
    }
}

/// The job of the targets of the `ServiceMonitor`. The Prometheus operator takes it from the Service label that
/// `jobLabel` names; without that label it is the Service's name.
pub fn job() -> String {
    let documents: Vec<Value> =
        MONITOR.split("\n---\n").map(|text| serde_saphyr::from_str(text).expect("YAML")).collect();
    let of_kind = |kind: &str| documents.iter().find(|it| it["kind"] == kind).expect("there is one of each");
    let (service, monitor) = (&of_kind("Service")["metadata"], &of_kind("ServiceMonitor")["spec"]);
    let label = monitor["jobLabel"].as_str().and_then(|label| service["labels"][label].as_str());
    label.or(service["name"].as_str()).expect("a name").to_owned()
}

/// Every documented metric, and `up`, which Prometheus adds.
pub fn metrics() -> Metrics {
    let mut found = BTreeMap::from([("up".to_owned(), Metric::scraped(MetricType::Gauge, []))]);
    let (mut section, mut of_feeds, mut in_reasons, mut reasons) = (0, false, false, Labels::new());
    for line in DOCUMENT.lines() {
        section += usize::from(line.starts_with('#'));
        let Some(row) = line.strip_prefix("| ").and_then(|row| row.strip_suffix('|')) else { continue };
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        match cells[..] {
            ["Metric", labels, _] => of_feeds = labels.starts_with("Labels besides resource, namespace"),
            ["Reason", "When"] => in_reasons = true,
            [reason, _] if in_reasons => reasons.extend(in_backticks(reason)),
            _ => {}
        }
        if let Some(metric) = Metric::of_row(section, of_feeds, &cells) {
            found.extend(in_backticks(cells[0]).map(|name| (name, metric.clone())));
        }
    }
    assert!(found.len() > 50 && reasons.len() > 20, "the tables were not found");
    for paragraph in paragraphs() {
        let about = |(name, metric): &(&String, &mut Metric)| {
            let of_this = paragraph.of_metric.as_ref().is_none_or(|of| of == *name);
            of_this && metric.section == paragraph.section && metric.labels.contains(&paragraph.label)
        };
        for (_, metric) in found.iter_mut().filter(about) {
            metric.values.entry(paragraph.label.clone()).or_default().extend(paragraph.values.clone());
        }
    }
    let forwarded = found.get_mut("kube_fanout_forwarded_total").expect("it is documented");
    forwarded.values.insert("reason".to_owned(), reasons);
    found
}

/// The metrics by the names that queries use: a histogram by the names of its parts.
pub fn series() -> Metrics {
    let mut found = BTreeMap::new();
    for (name, metric) in metrics() {
        if metric.of_type != MetricType::Histogram {
            found.insert(name, metric);
            continue;
        }
        let part = |more: Option<&str>| {
            let labels = metric.labels.iter().cloned().chain(more.map(str::to_owned)).collect();
            Metric { of_type: MetricType::Counter, labels, ..metric.clone() }
        };
        found.insert(format!("{name}_bucket"), part(Some("le")));
        found.insert(format!("{name}_sum"), part(None));
        found.insert(format!("{name}_count"), part(None));
    }
    found
}

/// The labels of a table cell, and the values in parentheses after them: `` `what`, `outcome` (`replaced`, `failed`)
/// ``.
fn labels_of(cell: &str) -> (Labels, BTreeMap<String, Labels>) {
    let (mut labels, mut values) = (Labels::new(), BTreeMap::<String, Labels>::new());
    let mut last = String::new();
    for part in cell.split('(') {
        let (inside, outside) = part.split_once(')').unwrap_or(("", part));
        if !inside.is_empty() {
            values.insert(last.clone(), in_backticks(inside).collect());
        }
        for label in in_backticks(outside) {
            last.clone_from(&label);
            labels.insert(label);
        }
    }
    (labels, values)
}

/// Paragraphs that begin with a label and then list its values: `` `kind`: `objects` with … · `events` what … ``. A
/// paragraph without a list has its values in the first column of the table below it.
fn paragraphs() -> Vec<Paragraph> {
    let mut found = Vec::new();
    let mut section = 0;
    let mut blocks = DOCUMENT.split("\n\n").peekable();
    while let Some(paragraph) = blocks.next() {
        section += paragraph.lines().filter(|line| line.starts_with('#')).count();
        let text = paragraph.replace('\n', " ");
        let table = blocks.peek().filter(|next| next.starts_with("| Value |"));
        let (head, items) = match (text.split_once(": `"), table) {
            (Some((head, rest)), _) => (head, format!("`{rest}").split(" · ").map(str::to_owned).collect::<Vec<_>>()),
            (None, Some(table)) => (text.as_str(), table.lines().map(str::to_owned).collect()),
            (None, None) => continue,
        };
        let mut quoted = in_backticks(head);
        let Some(label) = quoted.next().filter(|_| head.starts_with('`')) else { continue };
        let values = items.iter().filter_map(|item| in_backticks(item).next()).collect();
        found.push(Paragraph { section, of_metric: quoted.next(), label, values });
    }
    found
}

fn in_backticks(text: &str) -> impl Iterator<Item = String> + use<> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>().into_iter()
}

#[test]
fn metrics_document_parser_reads_labels_and_values() {
    let all = series();
    let labels = |name: &str| all[name].labels.iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(labels("up"), ["instance", "job"]);
    assert_eq!(labels("process_max_fds"), ["instance", "job"]);
    let of_feeds = ["form", "instance", "job", "namespace", "reason", "resource", "selector"];
    assert_eq!(labels("kube_fanout_upstream_failures_total"), of_feeds);
    let only = ["instance", "job", "outcome", "representation", "resource"];
    assert_eq!(labels("kube_fanout_representation_checks_total"), only);
    assert!(labels("kube_fanout_watch_delivery_seconds_bucket").contains(&"le"));
    for (name, label, value) in [
        ("kube_fanout_reloads_total", "outcome", "failed"),
        ("kube_fanout_reloads_total", "what", "client_ca"),
        ("kube_fanout_connections_failed_total", "reason", "evicted"),
        ("kube_fanout_connections_failed_total", "reason", "uid_not_allowed"),
        ("kube_fanout_upstream_failures_total", "reason", "idle_timeout"),
        ("kube_fanout_upstream_requests_total", "cause", "forwarded"),
        ("kube_fanout_history_backfills_total", "outcome", "extended"),
        ("kube_fanout_history_gaps_total", "outcome", "rewound"),
        ("kube_fanout_feed_state", "state", "syncing"),
        ("kube_fanout_memory_used_bytes", "kind", "staged"),
        ("kube_fanout_memory_evictions_total", "what", "feed"),
        ("kube_fanout_representation_mode", "mode", "pending"),
        ("kube_fanout_representation_mode", "mode", "not_comparable"),
        ("kube_fanout_watches_ended_total", "reason", "expired"),
        ("kube_fanout_watches_open", "protocol", "websocket"),
        ("kube_fanout_forwarded_total", "reason", "no_proof"),
        ("kube_fanout_auth_refused_total", "reason", "reviews_forbidden"),
        ("kube_fanout_refused_total", "code", "429"),
    ] {
        assert!(all[name].has(label, value), "{name} {label} {value}: {:?}", all[name].values);
        assert!(!all[name].has(label, "nothing"), "{name} {label}");
    }
    assert!(!all["kube_fanout_history_gaps_total"].has("outcome", "extended"), "it is another metric's");
}

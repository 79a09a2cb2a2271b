//! The alerts and the dashboard of deploy/monitoring: they query existing metrics, and each alert has its section in
//! docs/RUNBOOK.md.

mod documented;
mod promql;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

pub use self::documented::metrics;
use self::documented::{Labels, series};
use self::promql::Answer;
use crate::direct::{self, Dir, PODS};
use crate::process::Process;

const RULES: &str = include_str!("../../deploy/monitoring/rules.yaml");
const RULES_TEST: &str = include_str!("../../deploy/monitoring/rules_test.yaml");
const MONITOR_PATCH: &str = include_str!("../../deploy/kustomize/components/metrics-auth/monitor.yaml");
const CHART_MONITOR: &str = include_str!("../../deploy/chart/templates/metrics.yaml");
const DASHBOARD: &str = include_str!("../../deploy/monitoring/dashboard.json");
const RUNBOOK: &str = include_str!("../../docs/RUNBOOK.md");
const RUNBOOK_URL: &str = "https://github.com/kube-fanout/kube-fanout/blob/main/docs/RUNBOOK.md#";

/// A query of the dashboard, and the labels that its legend shows.
struct Query {
    panel: String,
    expression: String,
    legend: String,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text is expected: {value}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("a list is expected: {value}"))
}

fn alerts() -> Vec<Value> {
    let rules: Value = serde_saphyr::from_str(RULES).expect("YAML");
    let found: Vec<_> = list(&rules["groups"]).iter().flat_map(|group| list(&group["rules"])).cloned().collect();
    assert!(found.len() > 20, "the alerts were not found");
    found
}

fn dashboard() -> Value {
    serde_json::from_str(DASHBOARD).expect("JSON")
}

fn queries(dashboard: &Value) -> Vec<Query> {
    let of_panel = |panel: &Value| {
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        let query = |target: Value| Query {
            panel: text(&panel["title"]).to_owned(),
            expression: text(&target["expr"]).to_owned(),
            legend: text(&target["legendFormat"]).to_owned(),
        };
        targets.into_iter().map(query).collect::<Vec<_>>()
    };
    let found: Vec<_> = list(&dashboard["panels"]).iter().flat_map(of_panel).collect();
    assert!(found.len() > 40, "the queries were not found");
    found
}

/// The query as Grafana sends it: the interval becomes a duration.
fn as_grafana_sends(expression: &str) -> String {
    expression.replace("$__rate_interval", "5m")
}

/// The names after each `begin` in a template, such as labels.
fn named<'a>(template: &'a str, begin: &str) -> BTreeSet<&'a str> {
    let of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name = |rest: &'a str| &rest[..rest.find(|c| !of_name(c)).unwrap_or(rest.len())];
    template.split(begin).skip(1).map(name).collect()
}

/// Labels in a template that the result of its query lacks.
fn unknown<'a>(used: BTreeSet<&'a str>, answer: &Answer) -> Vec<&'a str> {
    let none = Labels::new();
    let labels = if let Answer::Vector(labels) = answer { labels } else { &none };
    used.into_iter().filter(|label| !labels.contains(*label)).collect()
}

fn assert_none(what: &str, problems: &[String]) {
    assert!(problems.is_empty(), "{what}:\n  {}\n", problems.join("\n  "));
}

#[test]
fn alert_expressions_query_existing_metrics_and_labels() {
    let series = series();
    let mut problems = Vec::new();
    for alert in alerts() {
        let (name, expression) = (text(&alert["alert"]), text(&alert["expr"]));
        match promql::check(expression, &series) {
            Err(why) => problems.push(format!("{name}: {why}")),
            Ok((answer, _)) => {
                let annotations = alert["annotations"].to_string();
                let unknown = unknown(named(&annotations, "$labels."), &answer);
                problems.extend((!unknown.is_empty()).then(|| format!("{name} shows {unknown:?} of {answer:?}")));
            }
        }
    }
    assert_none("alerts that cannot fire", &problems);
}

/// promtool's tests are meaningless if their series have other labels than those that are scraped.
#[test]
fn promtool_test_series_use_scraped_job_label() {
    let of_another = "up{job=\"kube-fanout-metrics\"";
    let series = RULES_TEST.lines().filter(|line| line.contains("series: '") && !line.contains(of_another));
    let job = format!("job=\"{}\"", documented::job());
    assert!(series.clone().count() > 50, "the series were not found");
    let others: Vec<_> = series.filter(|line| !line.contains(&job)).map(str::to_owned).collect();
    assert_none("series of another job", &others);
}

/// A `ServiceMonitor` whose Secret lacks a key is refused as a whole, and then nothing is scraped.
#[test]
fn service_monitor_ca_uses_key_of_every_tls_secret() {
    let install = include_str!("../../docs/INSTALL.md");
    assert!(install.contains("create secret tls kube-fanout-tls"), "this Secret has tls.crt and tls.key alone");
    let patch: Value = serde_saphyr::from_str(MONITOR_PATCH).expect("YAML");
    let config = list(&patch).iter().find(|part| part["path"] == "/spec/endpoints/0/tlsConfig").expect("TLS");
    let secret = &config["value"]["ca"]["secret"];
    assert_eq!((text(&secret["name"]), text(&secret["key"])), ("kube-fanout-tls", "tls.crt"));
    assert!(CHART_MONITOR.contains("key: tls.crt}}"), "{CHART_MONITOR}");
}

#[test]
fn dashboard_queries_use_existing_metrics_and_labels() {
    let (series, dashboard) = (series(), dashboard());
    let mut problems = Vec::new();
    for Query { panel, expression, legend } in queries(&dashboard) {
        match promql::check(&as_grafana_sends(&expression), &series) {
            Err(why) => problems.push(format!("{panel}: {expression}: {why}")),
            Ok((answer, _)) => {
                let unknown = unknown(named(&legend, "{{"), &answer);
                problems.extend((!unknown.is_empty()).then(|| format!("{panel} shows {unknown:?} of {answer:?}")));
            }
        }
    }
    for variable in list(&dashboard["templating"]["list"]).iter().filter(|it| it["type"] == "query") {
        let query = text(&variable["query"]["query"]);
        assert_eq!(query, text(&variable["definition"]));
        let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (selector, label) = inner.and_then(|inner| inner.rsplit_once(", ")).expect("label_values(series, label)");
        match promql::check(selector, &series) {
            Ok((answer, _)) if unknown(BTreeSet::from([label]), &answer).is_empty() => {}
            other => problems.push(format!("{query}: {other:?}")),
        }
    }
    assert_none("queries that have no answer", &problems);
}

/// With thousands of proxies, a line for each makes a panel unreadable and the browser slow.
#[test]
fn dashboard_panels_show_few_of_thousands_of_proxies() {
    let series = series();
    let is_long = |query: &Query| {
        let answer = promql::check(&as_grafana_sends(&query.expression), &series).expect("it is checked above").0;
        matches!(answer, Answer::Vector(labels) if labels.contains("instance"))
            && !query.expression.contains("topk(20, ")
    };
    let long: Vec<_> = queries(&dashboard()).iter().filter(|query| is_long(query)).map(|of| of.panel.clone()).collect();
    assert_none("panels with a line for each proxy", &long);
}

#[test]
fn dashboard_panels_are_unique_and_use_data_source_variable() {
    let dashboard = dashboard();
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in list(&dashboard["panels"]) {
        assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{panel}");
        let place = |key: &str| panel["gridPos"][key].as_u64().expect("a number");
        for at in (place("x")..place("x") + place("w")).flat_map(|x| (0..place("h")).map(move |y| (x, y))) {
            assert!(at.0 < 24 && taken.insert((at.0, place("y") + at.1)), "{} overlaps", panel["title"]);
        }
        let queried =
            panel["targets"].as_array().into_iter().flatten().chain((panel["type"] != "row").then_some(panel));
        for of_source in queried {
            assert_eq!(of_source["datasource"]["uid"], "${datasource}", "{of_source}");
        }
    }
    let variables = list(&dashboard["templating"]["list"]).iter().map(|variable| text(&variable["name"]));
    let defined: BTreeSet<_> = variables.chain(["__rate_interval", "__all"]).collect();
    let used = named(DASHBOARD, "$").into_iter().chain(named(DASHBOARD, "${")).filter(|name| !name.is_empty());
    assert_eq!(used.collect::<BTreeSet<_>>(), defined);
}

#[test]
fn every_alert_has_runbook_section() {
    let mut names = BTreeSet::new();
    for alert in alerts() {
        let name = text(&alert["alert"]);
        assert!(names.insert(name.to_owned()), "{name} is there twice");
        let annotations = &alert["annotations"];
        assert_eq!(text(&annotations["runbook_url"]), format!("{RUNBOOK_URL}{}", name.to_lowercase()), "{name}");
        assert!(!text(&annotations["summary"]).is_empty() && !text(&annotations["description"]).is_empty(), "{name}");
        assert!(["critical", "warning", "info"].contains(&text(&alert["labels"]["severity"])), "{name}");
    }
    let headings = RUNBOOK.lines().filter_map(|line| line.strip_prefix("## "));
    let sections: BTreeSet<_> = headings.filter(|name| *name != "First steps").map(str::to_owned).collect();
    assert_eq!(sections, names);
    let headings = RUNBOOK.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    let anchors: BTreeSet<_> = headings.map(anchor).collect();
    let links = RUNBOOK.split("](#").skip(1).filter_map(|rest| rest.split(')').next());
    assert_none(
        "links to no heading",
        &links.filter(|to| !anchors.contains(*to)).map(str::to_owned).collect::<Vec<_>>(),
    );
}

#[test]
fn runbook_names_only_existing_metrics() {
    let known = metrics();
    let text = RUNBOOK.replace(['`', '(', ')', '{', '[', ',', ':', '\n'], " ");
    let ours = |word: &&str| word.starts_with("kube_fanout_") || word.starts_with("process_");
    let names: BTreeSet<_> = text.split_whitespace().filter(ours).collect();
    assert!(names.len() > 5, "the names were not found");
    let missing: Vec<_> = names.into_iter().filter(|name| !known.contains_key(*name)).map(str::to_owned).collect();
    assert_none("names of no metric", &missing);
}

/// Queries that a server accepts although they can never return a result.
#[test]
fn promql_check_rejects_queries_without_possible_result() {
    let series = series();
    for wrong in [
        "kube_fanout_nothing",
        "kube_fanout_watch_delivery_seconds",
        "sum by (user) (kube_fanout_watches_open)",
        "kube_fanout_watches_open{user=\"ada\"}",
        "kube_fanout_watches_open{protocol=\"h3\"}",
        "rate(kube_fanout_forwarded_total{reason=~\"table|nothing\"}[5m])",
        "kube_fanout_refused_total{code=\"4xx\"}",
        "rate(kube_fanout_watches_open[5m])",
        "changes(kube_fanout_refused_total[5m])",
        "rate(kube_fanout_refused_total)",
        "kube_fanout_refused_total[5m]",
        "rate(kube_fanout_refused_total[5x])",
        "sum(kube_fanout_watches_open) / kube_fanout_upstream_watches",
        "kube_fanout_memory_used_bytes / kube_fanout_memory_budget_bytes",
        "kube_fanout_auth_leases and on (resource) kube_fanout_feed_objects",
        "kube_fanout_auth_leases or kube_fanout_feed_objects",
        "kube_fanout_memory_used_bytes / on (job) kube_fanout_memory_budget_bytes",
        "histogram_quantile(0.9, sum(rate(kube_fanout_watch_delivery_seconds_bucket[5m])))",
        "up{job=\"kube-fanout-metrics\"}",
        "sum(kube_fanout_watches_open",
        "sum(kube_fanout_watches_open))",
        "kube_fanout_watches_open{protocol=\"h1\" resource=\"$resource\"}",
        "5 < kube_fanout_watches_open",
    ] {
        assert!(promql::check(wrong, &series).is_err(), "{wrong}");
    }
    let labels = |query: &str| match promql::check(query, &series) {
        Ok((Answer::Vector(labels), _)) => labels.into_iter().collect::<Vec<_>>().join(" "),
        other => panic!("{query}: {other:?}"),
    };
    assert_eq!(labels("sum by (kind) (kube_fanout_memory_used_bytes) > 2 * 3"), "kind");
    assert_eq!(labels("topk(3, sum(kube_fanout_watches_open) by (resource))"), "resource");
    let joined = "kube_fanout_memory_used_bytes / on (job, instance) group_left kube_fanout_memory_budget_bytes";
    assert_eq!(labels(joined), "instance job kind");
    let versions = "sum by (job, instance) (kube_fanout_auth_leases) * on (job, instance) group_left (version) \
                    max by (job, instance, version) (kube_fanout_build_info) offset 5m";
    assert!(promql::check(versions, &series).is_err(), "an offset is a metric's");
    assert_eq!(labels(versions.trim_end_matches(" offset 5m")), "instance job version");
}

/// The metrics in the first row of the dashboard exist as soon as a client is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dashboard_overview_metrics_are_exposed_after_first_client() {
    let (series, dashboard) = (series(), dashboard());
    let titles: Vec<_> = list(&dashboard["panels"]).iter().map(|panel| (text(&panel["type"]), panel)).collect();
    let overview = titles.iter().skip(1).take_while(|(kind, _)| *kind != "row").map(|(_, panel)| text(&panel["title"]));
    let overview: BTreeSet<_> = overview.collect();
    let mut expected = BTreeMap::new();
    for query in queries(&dashboard).into_iter().filter(|query| overview.contains(query.panel.as_str())) {
        let (_, names) = promql::check(&as_grafana_sends(&query.expression), &series).expect("it was checked");
        expected.extend(names.into_iter().map(|name| (name, query.panel.clone())));
    }
    assert!(expected.len() > 5, "{expected:?}");
    let up = demo::upstream().pods(5).run().await;
    let process = Process::serve(&Dir::new(), &up.url(), &[]).await;
    let client = process.client();
    assert!(direct::proven(&client, || PODS.to_owned()).await.is_cached());
    let watch = client.watch(PODS).initial_events().await;
    watch.listed().await;
    client.get("/healthz").await;
    let missing = |text: &str| {
        let present: BTreeSet<_> = text.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
        expected
            .iter()
            .filter(|(name, _)| !present.contains(name.as_str()))
            .map(|(name, _)| name.clone())
            .collect::<Vec<_>>()
    };
    direct::eventually(&format!("{expected:?} are exported"), || async {
        missing(&process.metrics().await).is_empty()
    })
    .await;
}

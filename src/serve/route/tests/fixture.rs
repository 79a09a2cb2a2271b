//! Requests as clients write them, the resources of a small cluster, and routes as text.

use std::fmt::Write;
use std::sync::Arc;

use http::Method;

use crate::cache::CollectionView;
use crate::serve::CacheCoverage;
use crate::serve::route::{ForwardReason, ReadRoute, ReadRouteInput, route};
use crate::upstream::tests::upstream_resource;
use crate::upstream::{ResourceOrigin, UpstreamResource};
use crate::wire::{FeedEncoding, Representation, TablePrinter};
use kubeapi::{
    FieldSelector, Gvr, LabelConstraint, LabelSelector, RequestInfo, ResourceVersionMatch, SelectableFieldTable,
    Selector, UrlQuery, WatchStart,
};

/// A shard selector as a part of a query.
pub(super) const SHARD: &str = "shardRange(object.metadata.uid,+'0x0000000000000000',+'0x8000000000000000')";

/// A request, by default a GET without headers.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one request")]
pub(super) struct TestRequest {
    method: &'static str,
    uri: String,
    accept: Option<&'static str>,
    user_agent: Option<&'static str>,
    impersonates: bool,
    is_filtered: bool,
    is_reduced: bool,
    has_settled_definitions: bool,
    coverage: CacheCoverage,
}

pub(super) fn get(uri: impl Into<String>) -> TestRequest {
    TestRequest {
        method: "GET",
        uri: uri.into(),
        accept: None,
        user_agent: None,
        impersonates: false,
        is_filtered: false,
        is_reduced: false,
        has_settled_definitions: true,
        coverage: CacheCoverage::default(),
    }
}

impl TestRequest {
    pub(super) fn method(self, method: &'static str) -> Self {
        Self { method, ..self }
    }

    pub(super) fn accept(self, accept: &'static str) -> Self {
        Self { accept: Some(accept), ..self }
    }

    pub(super) fn agent(self, user_agent: &'static str) -> Self {
        Self { user_agent: Some(user_agent), ..self }
    }

    pub(super) fn impersonating(self) -> Self {
        Self { impersonates: true, ..self }
    }

    /// Leaves managed fields out of the response.
    pub(super) fn reduced(self) -> Self {
        Self { is_reduced: true, ..self }
    }

    /// Sends the request right after a definition has changed.
    pub(super) fn after_change(self) -> Self {
        Self { has_settled_definitions: false, ..self }
    }

    /// Filters the response.
    pub(super) fn filtered(self) -> Self {
        Self { is_filtered: true, ..self }
    }

    /// Sends the request to a proxy with this coverage.
    pub(super) fn covered_by(self, coverage: &CacheCoverage) -> Self {
        Self { coverage: coverage.clone(), ..self }
    }

    /// Returns the route in the small cluster.
    pub(super) fn route(&self) -> Result<ReadRoute, ForwardReason> {
        let (path, query) = self.uri.split_once('?').unwrap_or((&self.uri, ""));
        let query = UrlQuery::parse(query);
        let info = RequestInfo::parse(self.method, path, &query).expect("a path that the apiserver takes apart");
        let method = Method::from_bytes(self.method.as_bytes()).expect("a method");
        let Self { accept, user_agent, impersonates, is_filtered, is_reduced, has_settled_definitions, .. } = *self;
        let input = ReadRouteInput {
            method: &method,
            info: &info,
            query: &query,
            accept,
            user_agent,
            impersonates,
            is_feed_request: false,
            is_filtered,
            is_reduced,
            has_settled_definitions,
        };
        route(&input, resource(&info).as_ref(), &self.coverage).map(|(_, route)| route)
    }

    /// Returns the route as a line of text.
    pub(super) fn summary(&self) -> String {
        summary(&self.route())
    }

    /// Returns the reason why the request is forwarded.
    pub(super) fn reason(&self) -> ForwardReason {
        match self.route() {
            Err(reason) => reason,
            other => panic!("{self:?} is not passed through: {}", summary(&other)),
        }
    }

    /// Returns the encoding of the response, which must be the object itself.
    pub(super) fn encoding(&self) -> FeedEncoding {
        match self.representation() {
            Representation::Object(encoding) => encoding,
            other => panic!("{self:?} is answered with {other}"),
        }
    }

    /// Returns the representation of the response.
    pub(super) fn representation(&self) -> Representation {
        match self.route() {
            Ok(ReadRoute::Get(read)) => read.representation,
            Ok(ReadRoute::List(read)) => read.representation,
            Ok(ReadRoute::Watch(read)) => read.representation,
            other => panic!("{self:?} is not answered here: {}", summary(&other)),
        }
    }

    /// Returns the view of a LIST or WATCH.
    pub(super) fn view(&self) -> CollectionView {
        match self.route() {
            Ok(ReadRoute::List(read)) => read.view,
            Ok(ReadRoute::Watch(read)) => read.view,
            other => panic!("{self:?} sees no collection: {}", summary(&other)),
        }
    }
}

/// Checks the route of each URI.
pub(super) fn assert_routes(rows: &[(&str, &str)]) {
    for (uri, expected) in rows {
        assert_eq!(get(*uri).summary(), *expected, "{uri}");
    }
}

/// Returns what discovery knows: built-in, custom and aggregated resources, one that cannot be watched, and one whose
/// definition the proxy may not read.
fn resource(info: &RequestInfo) -> Option<UpstreamResource> {
    let gvr = Gvr::new(&info.group, &info.version, &info.resource);
    let (kind, namespaced, origin) = match (info.group.as_str(), info.version.as_str(), info.resource.as_str()) {
        ("", "v1", "pods") => ("Pod", true, ResourceOrigin::BuiltIn),
        ("", "v1", "configmaps") => ("ConfigMap", true, ResourceOrigin::BuiltIn),
        ("", "v1", "secrets") => ("Secret", true, ResourceOrigin::BuiltIn),
        ("", "v1", "nodes") => ("Node", false, ResourceOrigin::BuiltIn),
        ("", "v1", "namespaces") => ("Namespace", false, ResourceOrigin::BuiltIn),
        ("" | "events.k8s.io", "v1", "events") => ("Event", true, ResourceOrigin::BuiltIn),
        ("", "v1", "componentstatuses") => ("ComponentStatus", false, ResourceOrigin::BuiltIn),
        ("apps", "v1", "deployments") => ("Deployment", true, ResourceOrigin::BuiltIn),
        ("example.com", "v1", "widgets") => ("Widget", true, ResourceOrigin::Custom),
        ("example.com", "v1", "planets") => ("Planet", false, ResourceOrigin::Custom),
        ("resource.k8s.io", "v1", "resourceslices") => ("ResourceSlice", false, ResourceOrigin::BuiltIn),
        ("hidden.example", "v1", "secrets") => ("Secret", true, ResourceOrigin::Custom),
        ("metrics.k8s.io", "v1beta1", "pods") => ("PodMetrics", true, ResourceOrigin::Aggregated),
        _ => return None,
    };
    let fields = match origin {
        ResourceOrigin::BuiltIn => SelectableFieldTable::of_builtin(&gvr),
        ResourceOrigin::Custom | ResourceOrigin::Aggregated => {
            SelectableFieldTable::of_custom(&[".spec.color".to_owned()], namespaced)
        }
    };
    let watchable = !matches!(kind, "ComponentStatus" | "PodMetrics");
    let encoding = if origin == ResourceOrigin::BuiltIn { FeedEncoding::Protobuf } else { FeedEncoding::Json };
    let printer = TablePrinter::new(&[]).map(Arc::new).filter(|_| kind == "Planet");
    let fields = Arc::new(fields);
    Some(UpstreamResource { namespaced, watchable, origin, encoding, fields, printer, ..upstream_resource(gvr, kind) })
}

fn summary(route: &Result<ReadRoute, ForwardReason>) -> String {
    match route {
        Err(reason) => format!("forward: {}", reason.as_str()),
        Ok(ReadRoute::Get(read)) => format!("get {} {} {}", read.representation, read.key, version(read.version)),
        Ok(ReadRoute::List(read)) => {
            let mut text = format!("list {} {} {}", read.representation, scope(&read.view), version(read.plan.version));
            if let Some(limit) = read.plan.limit {
                let _ = write!(text, " limit {limit}");
            }
            if let Some(start) = &read.plan.start {
                let _ = write!(text, " from {start:?}");
            }
            text
        }
        Ok(ReadRoute::Watch(read)) => {
            let mut text = format!("watch {} {} {}", read.representation, scope(&read.view), start(read.start));
            if read.bookmarks {
                text += " bookmarks";
            }
            if let Some(seconds) = read.timeout_seconds {
                let _ = write!(text, " for {seconds} s");
            }
            text
        }
    }
}

/// Formats a view as `namespace[label constraints]/name`, with `*` for all namespaces. A label that must be there is
/// its key.
fn scope(view: &CollectionView) -> String {
    let selector = view.selector();
    let mut text = view.namespace().unwrap_or("*").to_owned();
    if !selector.labels.is_empty() {
        let is_there = LabelConstraint::Other { present: true, not: [].into(), range: None };
        let constraints = selector.labels.constraints().iter().map(|(key, constraint)| {
            if *constraint == is_there { key.to_string() } else { format!("{key}: {constraint:?}") }
        });
        let _ = write!(text, "[{}]", constraints.collect::<Vec<_>>().join(","));
    }
    if let Some(name) = selector.fields.required_name() {
        let _ = write!(text, "/{name}");
    }
    text
}

fn version(version: ResourceVersionMatch) -> String {
    match version {
        ResourceVersionMatch::Unset => "current".to_owned(),
        ResourceVersionMatch::Any => "any".to_owned(),
        ResourceVersionMatch::NotOlderThan(rv) => format!(">={rv}"),
        ResourceVersionMatch::Exact(rv) => format!("={rv}"),
    }
}

fn start(start: WatchStart) -> String {
    match start {
        WatchStart::After(rv) => format!(">{rv}"),
        WatchStart::FromCached => "from cached".to_owned(),
        WatchStart::FromCurrent => "from current".to_owned(),
        WatchStart::State { at, end_bookmark: true } => format!("state {} end", version(at)),
        WatchStart::State { at, end_bookmark: false } => format!("state {}", version(at)),
    }
}

/// Returns a view of pods. `""` means no namespace or no selector.
pub(super) fn pods_view(namespace: &str, labels: &str, fields: &str) -> CollectionView {
    let table = SelectableFieldTable::of_builtin(&Gvr::new("", "v1", "pods"));
    let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
    let labels = LabelSelector::parse(labels).expect("a label selector");
    let fields = FieldSelector::parse(fields).and_then(|parsed| parsed.compile(&table)).expect("a field selector");
    CollectionView::new(namespace, Selector { labels, fields, ..Selector::default() })
}

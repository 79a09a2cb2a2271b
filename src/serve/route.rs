//! Routing: a pure function from a request and its resource to a route. The tables in its tests are its specification.

mod coverage;
#[cfg(test)]
mod tests;

use http::Method;

pub use self::coverage::{CacheCoverage, NotCoveredReason, SensitiveKind};

use self::coverage::covers;
use crate::cache::CollectionView;
use crate::feeds::FeedScope;
use crate::listing::ListPageRequest;
use crate::upstream::{ResourceOrigin, UpstreamResource};
use crate::wire::{FeedEncoding, IncludeObjectPolicy, Representation};
use kubeapi::{
    ListOptions, ListPlan, MediaType, MetaApiVersion, NegotiatedMediaType, ObjectConversion, ObjectKey, RequestInfo,
    RequestVerb, ResourceVersionMatch, Selector, ShardSelector, SupportedMediaTypes, UrlQuery, WatchStart,
    drops_managed_fields, has_valid_timeout, negotiate, prefers_cbor, pretty, router_accepts,
};

/// The response that the proxy gives, if the caller may read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ReadRoute {
    Get(RoutedGet),
    List(ListPageRequest),
    Watch(RoutedWatch),
}

base::labelled_enum! {
    /// The reason that a request is forwarded to upstream. Every variant is a metric label.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub(crate) enum ForwardReason {
        /// The request is not for a resource: health, or discovery and OpenAPI that are not cached or not allowed.
        NonResource = "non_resource",
        /// The request is not a read.
        Verb = "verb",
        /// The request is for a subresource: `log`, `exec`, `status`, `scale`, …
        Subresource = "subresource",
        /// The URL is written in a way that only upstream should interpret.
        AmbiguousUrl = "ambiguous_url",
        /// The caller impersonates another user. Upstream decides whether the caller may, and what that user may read.
        Impersonation = "impersonation",
        /// The caller has no credential, and so only the permissions of anonymous users.
        Anonymous = "anonymous",
        /// The caller's permission is not for the collection that would be read.
        PermissionMismatch = "permission_mismatch",
        /// Discovery does not know the resource. Upstream answers with 404 (R-PATH-5).
        Unknown = "unknown_resource",
        /// Another server behind the aggregation layer serves the resource.
        Aggregated = "aggregated",
        /// The resource cannot be watched, so it cannot be cached. Upstream refuses a watch with 405 (R-METHOD-3).
        NotWatchable = "not_watchable",
        /// The client requests YAML, CBOR or indented JSON.
        Representation = "representation",
        /// The client requests a Table with current cells, which upstream prints per request.
        Table = "table",
        /// The request is a Table watch, or a short watch, that starts before the cached history.
        TooOld = "too_old",
        /// The cached objects cannot be converted to the representation.
        NotDerivable = "not_derivable",
        /// Upstream refuses the query, or the proxy cannot tell that it does not.
        Invalid = "invalid",
        /// No encoding is acceptable to the client, and upstream must write the error.
        NotAcceptable = "not_acceptable",
        /// The request has a parameter that changes the response and that the proxy does not interpret.
        UnsupportedParameter = "unsupported_parameter",
        /// The client requests the most recent state of one object. To prove that the cached one is current would cost
        /// upstream as much.
        ConsistentGet = "consistent_get",
        /// The client requests the exact state at a version that is not cached.
        ExactVersion = "exact_version",
        /// The request has a continue token of a list that is not cached.
        Continue = "continue",
        /// No running feed can answer this read of one object.
        NotCached = "not_cached",
        /// The feed was not ready in time.
        Syncing = "syncing",
        /// The proxy's identity may not list the resource.
        Forbidden = "forbidden",
        /// The resource is not among those that the configuration caches.
        NotInResources = "not_in_resources",
        /// The resource is of a sensitive kind, which is not cached.
        Sensitive = "sensitive",
        /// The client requests more of the resource than is cached.
        OutOfScope = "out_of_scope",
        /// The feed cannot run: upstream does not serve the encoding, or its data cannot be decoded.
        Unavailable = "unavailable",
        /// The feed does not fit into the memory budget for feeds.
        OverBudget = "over_budget",
        /// The freshness proof was not obtained in time.
        NoProof = "no_proof",
        /// The selector costs more than the proxy spends on one request, or on one event of a watch.
        ExpensiveSelector = "expensive_selector",
    }
}

/// A GET of one object, as read from its request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RoutedGet {
    pub(crate) representation: Representation,
    pub(crate) key: ObjectKey,
    pub(crate) version: ResourceVersionMatch,
}

/// A watch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RoutedWatch {
    pub(crate) representation: Representation,
    pub(crate) view: CollectionView,
    pub(crate) start: WatchStart,
    pub(crate) bookmarks: bool,
    /// The timeout that the client requested: see `WatchTimeout`.
    pub(crate) timeout_seconds: Option<i64>,
}

/// The parts of a request that determine its route.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one request")]
pub(crate) struct ReadRouteInput<'a> {
    pub(crate) method: &'a Method,
    pub(crate) info: &'a RequestInfo,
    pub(crate) query: &'a UrlQuery,
    pub(crate) accept: Option<&'a str>,
    pub(crate) user_agent: Option<&'a str>,
    /// Whether the caller impersonates another user.
    pub(crate) impersonates: bool,
    /// Whether a downstream proxy sends the request to fill its own feed.
    pub(crate) is_feed_request: bool,
    /// Whether the response is filtered, because upstream would deny the collection. Then no upstream response has its
    /// exact bytes: a Table LIST has upstream's rows, and JSON is not indented.
    pub(crate) is_filtered: bool,
    /// Whether the configuration leaves `metadata.managedFields` out for the caller.
    pub(crate) is_reduced: bool,
    /// Whether the known definitions of custom resources are those that upstream uses, so that Tables can be printed.
    pub(crate) has_settled_definitions: bool,
}

/// Returns the route of a request and its resource. `resource` is the entry that discovery has for the request's group,
/// version and plural.
///
/// # Errors
/// The request must be forwarded, for the returned reason.
pub(crate) fn route<'a>(
    input: &ReadRouteInput<'_>,
    resource: Option<&'a UpstreamResource>,
    coverage: &CacheCoverage,
) -> Result<(&'a UpstreamResource, ReadRoute), ForwardReason> {
    check_kind(input)?;
    let info = input.info;
    let resource = resource.ok_or(ForwardReason::Unknown)?;
    if resource.origin == ResourceOrigin::Aggregated {
        return Err(ForwardReason::Aggregated);
    }
    if !resource.watchable {
        return Err(ForwardReason::NotWatchable);
    }
    // A request for a Namespace has the Namespace's name as its namespace (R-PATH-2).
    // A path that repeats the namespaces segment is not a path of the API: `/api/v1/namespaces/a/namespaces/a` parses
    // like a request for the Namespace `a`.
    let is_inside_itself = info.path.matches("/namespaces/").count() > 1;
    let scoped_wrongly = match (resource.namespaced, info.namespace.is_empty()) {
        // No path watches one object without its namespace.
        (true, true) => info.verb == RequestVerb::Get || info.watch_via_path && !info.name.is_empty(),
        (false, false) => !(resource.gvr.is_namespaces() && info.name == info.namespace && !is_inside_itself),
        _ => false,
    };
    if scoped_wrongly {
        return Err(ForwardReason::AmbiguousUrl);
    }
    let scope = coverage.scope(resource)?;
    if !covers(&scope, input.info) {
        return Err(ForwardReason::OutOfScope);
    }
    read(input, resource, &scope).map(|read| (resource, read))
}

/// Checks that the cache can answer requests of a kind, regardless of their resource.
///
/// # Errors
/// The request must be forwarded, for the returned reason.
pub(crate) fn check_kind(input: &ReadRouteInput<'_>) -> Result<(), ForwardReason> {
    let info = input.info;
    if !info.is_resource {
        return Err(ForwardReason::NonResource);
    }
    if *input.method != Method::GET || !matches!(info.verb, RequestVerb::Get | RequestVerb::List | RequestVerb::Watch) {
        return Err(ForwardReason::Verb);
    }
    if input.impersonates {
        return Err(ForwardReason::Impersonation);
    }
    if !info.is_canonical || !input.query.is_lossless() {
        return Err(ForwardReason::AmbiguousUrl);
    }
    if !info.subresource.is_empty() {
        return Err(ForwardReason::Subresource);
    }
    Ok(())
}

/// Parses the read, if the cache can answer it.
///
/// # Errors
/// The request must be forwarded, for the returned reason.
fn read(
    input: &ReadRouteInput<'_>,
    resource: &UpstreamResource,
    scope: &FeedScope,
) -> Result<ReadRoute, ForwardReason> {
    let ReadRouteInput { info, query, accept, user_agent, .. } = *input;
    let watch = info.verb == RequestVerb::Watch;
    let built_in = resource.origin == ResourceOrigin::BuiltIn;
    let offers = if built_in { SupportedMediaTypes::BUILTIN } else { SupportedMediaTypes::CUSTOM };
    let offers = if watch { offers.for_watch() } else { offers };
    if built_in && !router_accepts(accept, offers) {
        return Err(ForwardReason::NotAcceptable);
    }
    let choice = negotiate(accept, offers);
    if matches!(choice, NegotiatedMediaType::NotAcceptable | NegotiatedMediaType::NotStreamable) {
        return Err(ForwardReason::NotAcceptable);
    }
    let is_printable = resource.printer.is_some() && input.has_settled_definitions && !input.is_feed_request;
    let Some(representation) = representation(choice, &info.verb, query, (input.is_filtered, is_printable)) else {
        let table = matches!(
            choice,
            NegotiatedMediaType::Converted { target: ObjectConversion::Table, media: MediaType::Json, .. }
        );
        return Err(if table { ForwardReason::Table } else { ForwardReason::Representation });
    };
    let is_reduced = input.is_reduced || drops_managed_fields(accept, offers);
    let representation = if is_reduced { representation.reduced() } else { representation };
    let is_json = representation.encoding() == FeedEncoding::Json;
    if is_json && !input.is_filtered && pretty(query, user_agent, accept, offers) {
        return Err(ForwardReason::Representation);
    }
    if prefers_cbor(accept, offers) {
        return Err(ForwardReason::Representation);
    }
    // The proxy does not write errors in YAML either.
    if negotiate(accept, SupportedMediaTypes::ERROR).media() == Some(MediaType::Yaml) {
        return Err(ForwardReason::Representation);
    }
    // A watch has no such timeout (R-TIMEOUT-2).
    if !watch && !has_valid_timeout(query) {
        return Err(ForwardReason::Invalid);
    }
    if info.verb == RequestVerb::Get {
        return get(input, resource, representation);
    }
    // Longer selectors are not evaluated here, where they cost CPU for each later event.
    if !ListOptions::has_short_selectors(query) {
        return Err(ForwardReason::ExpensiveSelector);
    }
    let options = ListOptions::decode(query).ok_or(ForwardReason::Invalid)?.defaulted();
    if !options.is_valid(options.watch) {
        return Err(ForwardReason::Invalid);
    }
    let selector = selector(input, &options, resource)?;
    let is_table = matches!(representation, Representation::Table(_));
    // The rows of a filtered Table come from upstream, which may not know shards.
    if is_table && !watch && selector.shard.is_some() {
        return Err(ForwardReason::Table);
    }
    let namespace = (resource.namespaced && !info.namespace.is_empty()).then_some(info.namespace.as_str());
    let view = CollectionView::new(namespace, selector);
    let view = match scope {
        FeedScope::Selected { field, value } => view.with_fixed_field(field, value),
        FeedScope::Cluster | FeedScope::Namespace(_) => view,
    };
    if watch {
        let start = options.watch_start().ok_or(ForwardReason::Invalid)?;
        // The initial rows of a feed are sent only to proxies that fill a feed.
        let is_printed = input.is_feed_request || is_printed(start, &view, resource);
        if is_table && !is_printed {
            return Err(ForwardReason::Table);
        }
        let (bookmarks, timeout_seconds) = (options.allow_watch_bookmarks, options.timeout_seconds);
        return Ok(ReadRoute::Watch(RoutedWatch { representation, view, start, bookmarks, timeout_seconds }));
    }
    let plan = options.list_plan().ok_or(ForwardReason::Invalid)?;
    if let Some(reason) = not_cached(&options, &plan, &view, resource, scope) {
        return Err(reason);
    }
    Ok(ReadRoute::List(ListPageRequest {
        representation,
        view,
        plan,
        in_namespace: namespace.is_some(),
        pages: resource.pages,
    }))
}

/// Returns the selector of a LIST or WATCH.
///
/// # Errors
/// The request must be forwarded, for the returned reason.
fn selector(
    ReadRouteInput { info, query, .. }: &ReadRouteInput<'_>,
    options: &ListOptions,
    resource: &UpstreamResource,
) -> Result<Selector, ForwardReason> {
    // A later release, or a definition that was changed a moment ago, may have the key.
    let mut fields = options.fields.compile(&resource.fields).ok_or(ForwardReason::UnsupportedParameter)?;
    if !info.name.is_empty() {
        // The name in the path (`/watch/…/NAME`) and the selector must agree.
        fields = fields.and_name(&info.name).ok_or(ForwardReason::Invalid)?;
    }
    // Not a part of `ListOptions`: an invalid one does not change what the request is authorized for.
    let shard = query.first("shardSelector").filter(|text| !text.is_empty());
    let shard = shard.map(|text| ShardSelector::parse(text).map(Box::new).ok_or(ForwardReason::Invalid));
    Ok(Selector { labels: options.labels.clone(), fields, shard: shard.transpose()? })
}

/// Returns why a list cannot be answered from the data cached in `scope`, however fresh that is.
fn not_cached(
    options: &ListOptions,
    plan: &ListPlan,
    view: &CollectionView,
    resource: &UpstreamResource,
    scope: &FeedScope,
) -> Option<ForwardReason> {
    let single = view.single(resource.namespaced).is_some();
    match (plan.version, &plan.start) {
        // For a resource without a watch cache, a whole list is not cheaper than a page.
        (ResourceVersionMatch::Any, _) if options.limit > 0 && !resource.gvr.has_watch_cache() => {
            Some(ForwardReason::UnsupportedParameter)
        }
        // The list continues in the most recent state. Answering it here would need a proof for every page.
        (ResourceVersionMatch::Unset, Some(_)) => Some(ForwardReason::Continue),
        // A list of one name reads one key: it has no second page, and a version with a limit is not an exact one.
        (_, Some(_)) if single => Some(ForwardReason::Continue),
        (ResourceVersionMatch::Exact(_), None) if single && options.resource_version_match.is_empty() => {
            Some(ForwardReason::ExactVersion)
        }
        // Whether there is a next page depends on what the apiserver would scan, which is more than the cache holds.
        (ResourceVersionMatch::Exact(_), _) if plan.limit.is_some() && !single && scope.selector().is_some() => {
            Some(ForwardReason::OutOfScope)
        }
        _ => None,
    }
}

/// Returns the representation of the response, if the proxy can write it. Tables are printed from the objects of custom
/// resources. Upstream's rows are available for watches, because their cells are as old as the events, and for filtered
/// lists. `PartialObjectMetadataList` applies to lists, and PartialObjectMetadata to single objects and watch events.
/// Requests for other combinations are forwarded.
fn representation(
    choice: NegotiatedMediaType,
    verb: &RequestVerb,
    query: &UrlQuery,
    (is_filtered, is_printable): (bool, bool),
) -> Option<Representation> {
    let encoding = match choice.media()? {
        MediaType::Json => FeedEncoding::Json,
        MediaType::Protobuf => FeedEncoding::Protobuf,
        MediaType::Yaml => return None,
    };
    match (choice, verb) {
        (NegotiatedMediaType::Plain(_), _) => Some(Representation::Object(encoding)),
        (
            NegotiatedMediaType::Converted { target: ObjectConversion::PartialObjectMetadataList, version, .. },
            RequestVerb::List,
        )
        | (
            NegotiatedMediaType::Converted { target: ObjectConversion::PartialObjectMetadata, version, .. },
            RequestVerb::Get | RequestVerb::Watch,
        ) => Some(Representation::Metadata(encoding, version)),
        (NegotiatedMediaType::Converted { target: ObjectConversion::Table, version: MetaApiVersion::V1, .. }, _) => {
            let include = IncludeObjectPolicy::parse(query.first("includeObject").unwrap_or_default())?;
            match verb {
                RequestVerb::Get | RequestVerb::List if is_printable => Some(Representation::Printed(include)),
                RequestVerb::List if is_filtered => Some(Representation::Table(include)),
                RequestVerb::Watch => Some(Representation::Table(include)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Whether the rows of a Table watch are available here. Ages and similar cells are as of when a row was printed. That
/// is correct for later events and wrong for an initial state. The exception is a single object, whose row is requested
/// from upstream.
fn is_printed(start: WatchStart, view: &CollectionView, resource: &UpstreamResource) -> bool {
    match start {
        WatchStart::After(_) => true,
        WatchStart::State { end_bookmark, .. } => !end_bookmark && view.single(resource.namespaced).is_some(),
        WatchStart::FromCached | WatchStart::FromCurrent => false,
    }
}

fn get(
    input: &ReadRouteInput<'_>,
    resource: &UpstreamResource,
    representation: Representation,
) -> Result<ReadRoute, ForwardReason> {
    let version = ResourceVersionMatch::of_get(input.query).ok_or(ForwardReason::Invalid)?;
    if version == ResourceVersionMatch::Unset {
        return Err(ForwardReason::ConsistentGet);
    }
    let namespace = if resource.namespaced { input.info.namespace.as_str() } else { "" };
    let key = ObjectKey::new(namespace, &input.info.name);
    Ok(ReadRoute::Get(RoutedGet { representation, key, version }))
}

impl From<NotCoveredReason> for ForwardReason {
    fn from(reason: NotCoveredReason) -> Self {
        match reason {
            NotCoveredReason::NotConfigured => Self::NotInResources,
            NotCoveredReason::Sensitive => Self::Sensitive,
        }
    }
}

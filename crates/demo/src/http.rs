//! Answers one request: finds its target, sends a response that a test ordered, or calls the handler.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_TYPE, IF_NONE_MATCH};
use http::request::Parts;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;

use super::discovery;
use super::fault_switches::RequestKind;
use super::kinds::{DemoResourceKind, KINDS};
use super::list;
use super::object::StoredObject;
use super::respond::{DemoReply, ResponseStyle};
use super::response_form::ResponseForm;
use super::reviews::ReviewResponses;
use super::route::{DemoRoute, route, without_selectors};
use super::selector::ObjectSelector;
use super::shared::DemoState;
use super::status::DemoStatus;
use super::table::IncludeObject;
use super::watch::{DemoWatch, ValidatedWatchRequest, WatchStartPoint};
use super::write::{self, WriteTarget};
use kubeapi::{ListOptions, ResourceVersion, ResourceVersionMatch, UrlQuery, WatchStart, WatchTimeout};

/// The maximum size of a request body.
const REQUEST_BYTES_MAX: usize = 3 * 1024 * 1024;
/// The longest wait of a LIST for the writes that a test configured.
const LIST_MAX: Duration = Duration::from_secs(60);
/// The shortest lifetime of a watch without a timeout of its own, in seconds. The longest is twice that.
const WATCH_SECONDS: u64 = 1800;

pub(crate) async fn handle(shared: Arc<DemoState>, request: Request<Incoming>) -> DemoReply {
    let (head, body) = request.into_parts();
    let number = shared.remember(&head.method, &head.uri, &head.headers);
    let mut reply = reply(shared.clone(), head, body).await;
    if reply.status().is_success() {
        reply.headers_mut().extend(shared.faults.headers.lock().clone());
    }
    shared.answered(number, reply.status());
    reply
}

async fn reply(shared: Arc<DemoState>, head: Parts, body: Incoming) -> DemoReply {
    shared.counts.note(|counts| counts.requests += 1);
    let query = UrlQuery::parse(head.uri.query().unwrap_or_default());
    let style = ResponseStyle::of(&head.headers, &query);
    if head.method == Method::POST && ReviewResponses::are_at(head.uri.path()) {
        return review(&shared, &style, head.uri.path(), body).await.unwrap_or_else(|status| style.status(&status));
    }
    let call = DemoRequestContext { shared, style, query, method: head.method };
    let route = match route(call.method.as_str(), head.uri.path(), &call.query) {
        Ok(route) => route,
        Err(error) => return call.style.unread(&error),
    };
    let answer = match route {
        DemoRoute::Collection { kind, namespace, watch } if matches!(call.method, Method::GET | Method::HEAD) => {
            call.read_collection(kind, &namespace, "", watch).await
        }
        DemoRoute::Object { kind, namespace, name, watch: true, .. } if call.method == Method::GET => {
            call.read_collection(kind, &namespace, &name, true).await
        }
        DemoRoute::Object { kind, namespace, name, subresource, .. }
            if matches!(call.method, Method::GET | Method::HEAD) =>
        {
            call.get(kind, &namespace, &name, &subresource).await
        }
        DemoRoute::Collection { kind, namespace, .. } => {
            let target = WriteTarget { kind, namespace, name: String::new(), subresource: String::new() };
            call.write(target, head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()), body).await
        }
        DemoRoute::Object { kind, namespace, name, subresource, .. } => {
            let target = WriteTarget { kind, namespace, name, subresource };
            call.write(target, head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()), body).await
        }
        DemoRoute::Discovery(what) => {
            let known = head.headers.get(IF_NONE_MATCH);
            call.ordered(RequestKind::Any, None).map(|()| discovery::reply(&what, &call.style, known))
        }
        DemoRoute::Fixed(path) => call.ordered(RequestKind::Any, None).map(|()| {
            let release = (path == "version").then(|| call.shared.faults.next_release()).flatten();
            discovery::fixed(&path, &call.style, release)
        }),
        DemoRoute::NoResource => Err(DemoStatus::no_resource()),
        DemoRoute::NoGroup => Ok(discovery::page_not_found(&call.style)),
    };
    answer.unwrap_or_else(|status| call.style.status(&status))
}

struct DemoRequestContext {
    shared: Arc<DemoState>,
    style: ResponseStyle,
    query: UrlQuery,
    method: Method,
}

impl DemoRequestContext {
    /// Returns the status that a test ordered for a kind of request, as an error.
    fn ordered(&self, on: RequestKind, kind: Option<usize>) -> Result<(), DemoStatus> {
        match self.shared.faults.answer(on, kind) {
            Some((code, retry_after)) => Err(DemoStatus::ordered(code, retry_after)),
            None => Ok(()),
        }
    }

    /// Refuses HEAD on built-in resources, as the apiserver does. On custom resources HEAD works like GET.
    fn check_head(&self, kind: &DemoResourceKind) -> Result<(), DemoStatus> {
        if self.method == Method::HEAD && !kind.custom { Err(DemoStatus::method_not_allowed()) } else { Ok(()) }
    }

    /// Returns the first value of a parameter; empty if there is none.
    fn text(&self, name: &str) -> &str {
        self.query.first(name).unwrap_or_default()
    }

    /// Reads the options of a LIST or WATCH, without its selectors. If only the `/watch/` form of the path requests a
    /// watch, the options are validated as for a list.
    fn options(&self) -> Result<ListOptions, DemoStatus> {
        let options = ListOptions::decode(&without_selectors(&self.query)).ok_or_else(|| DemoStatus::invalid(400))?;
        let options = options.defaulted();
        if options.is_valid(options.watch) { Ok(options) } else { Err(DemoStatus::invalid(422)) }
    }

    fn include(&self) -> Result<IncludeObject, DemoStatus> {
        IncludeObject::parse(self.text("includeObject")).map_err(DemoStatus::bad_request)
    }

    /// Answers a LIST or WATCH. `name` is set for a watch of one object in the deprecated form.
    async fn read_collection(
        &self,
        at: usize,
        namespace: &str,
        name: &str,
        watch: bool,
    ) -> Result<DemoReply, DemoStatus> {
        let kind = &KINDS[at];
        self.check_head(kind)?;
        let is_page = !self.text("continue").is_empty();
        let kind_of_request = match self.text("fieldSelector") {
            _ if watch => RequestKind::Watch,
            "" if is_page => RequestKind::Page,
            "" => RequestKind::List,
            _ => RequestKind::Selection,
        };
        self.ordered(kind_of_request, Some(at))?;
        let form = self.style.form(kind, watch)?;
        let options = self.options()?;
        let fields = match (self.text("fieldSelector"), name) {
            (given, "") => given.to_owned(),
            ("", name) => format!("metadata.name={name}"),
            (given, _) => given.to_owned(),
        };
        let selector = ObjectSelector::parse(kind, namespace, self.text("labelSelector"), &fields)?;
        if !name.is_empty() && selector.name() != Some(name) {
            return Err(DemoStatus::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        if watch {
            self.shared.faults.pass_watch_gate(at).await;
            let start = start(&options)?;
            let include = self.include()?;
            if matches!(start, WatchStartPoint::Initial { .. }) {
                self.shared.counts.add(|counts| &mut counts.watch_lists, at);
            }
            let bookmarks = options.allow_watch_bookmarks;
            let timeout = watch_timeout(options.timeout_seconds);
            let plan = ValidatedWatchRequest { kind: at, selector, form, include, bookmarks, start, timeout };
            let watch = DemoWatch::new(plan, self.shared.clone());
            let events = stream::unfold(watch, |mut watch| async { watch.next().await.map(|chunk| (chunk, watch)) });
            return Ok(self.style.events(events));
        }
        self.shared.counts.add(|counts| &mut counts.lists, at);
        self.shared.faults.pass_gate().await;
        let patience = self.shared.settings.future_wait;
        let mut page = list::list(&self.shared.store, at, &options, &selector, patience).await?;
        if is_page && self.shared.faults.pages_never_end.load(Ordering::Relaxed) {
            page.leads_on();
        }
        let outlasted = self.shared.faults.writes_outlasted();
        if outlasted > 0 && options.limit != 1 {
            self.shared.store.reach(page.revision + outlasted, LIST_MAX).await?;
        }
        if form == (ResponseForm::Partial { list: false }) {
            let text = format!(
                "you requested PartialObjectMetadata, but the requested object is a list (*core.{})",
                kind.list_name()
            );
            return Err(DemoStatus::not_acceptable(text, false));
        }
        Ok(self.style.chunks(page.into_chunks(kind, form, self.include()?)).await)
    }

    async fn get(&self, at: usize, namespace: &str, name: &str, subresource: &str) -> Result<DemoReply, DemoStatus> {
        let kind = &KINDS[at];
        self.check_head(kind)?;
        self.ordered(RequestKind::Get, Some(at))?;
        self.shared.counts.add(|counts| &mut counts.gets, at);
        match (kind.plural, subresource) {
            (_, "" | "status") => {}
            ("pods", "log") => return Ok(self.style.text(StatusCode::OK, format!("{name} says hello\n"))),
            _ => return Err(DemoStatus::no_resource()),
        }
        let form = self.style.form(kind, false)?;
        let version = ResourceVersionMatch::of_get(&self.query).ok_or_else(|| DemoStatus::invalid(500))?;
        self.shared.store.reach(list::least(version), self.shared.settings.future_wait).await?;
        let key = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
        let object = self.shared.store.get(at, &key).ok_or_else(|| DemoStatus::not_found(kind, name))?;
        if form == (ResponseForm::Partial { list: true }) {
            let text = format!(
                "you requested PartialObjectMetadataList, but the requested object is not a list (*core.{})",
                kind.name
            );
            return Err(DemoStatus::not_acceptable(text, false));
        }
        self.object(StatusCode::OK, kind, &object)
    }

    fn object(
        &self,
        code: StatusCode,
        kind: &DemoResourceKind,
        object: &StoredObject,
    ) -> Result<DemoReply, DemoStatus> {
        let form = self.style.form(kind, false)?;
        Ok(self.style.json(code, list::single(kind, object, form, self.include()?)))
    }

    async fn write(&self, target: WriteTarget, media: Option<&str>, body: Incoming) -> Result<DemoReply, DemoStatus> {
        let (at, kind) = (target.kind, &KINDS[target.kind]);
        self.ordered(RequestKind::Write, Some(at))?;
        self.shared.counts.add(|counts| &mut counts.writes, at);
        let body = read_body(body).await?;
        let media = media.unwrap_or("application/json");
        let media = media.split(';').next().unwrap_or_default().trim();
        let outcome = write::write(&self.shared.store, &self.method, &target, media, &body, &self.query)?;
        match outcome {
            write::WriteOutcome::Object { object, created } => {
                self.object(if created { StatusCode::CREATED } else { StatusCode::OK }, kind, &object)
            }
            write::WriteOutcome::Deleted(text) => Ok(self.style.json(StatusCode::OK, format!("{text}\n").into_bytes())),
        }
    }
}

async fn review(
    shared: &DemoState,
    style: &ResponseStyle,
    path: &str,
    body: Incoming,
) -> Result<DemoReply, DemoStatus> {
    let (code, answer) = shared.reviews.answer(path, &read_body(body).await?)?;
    Ok(style.json(code, answer))
}

async fn read_body(body: Incoming) -> Result<Bytes, DemoStatus> {
    let collected = Limited::new(body, REQUEST_BYTES_MAX).collect().await;
    let too_large = || DemoStatus::new(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728");
    collected.map(http_body_util::Collected::to_bytes).map_err(|_| too_large())
}

fn start(options: &ListOptions) -> Result<WatchStartPoint, DemoStatus> {
    Ok(match options.watch_start().ok_or_else(|| DemoStatus::invalid(500))? {
        WatchStart::State { at, end_bookmark } => WatchStartPoint::Initial {
            rv: list::least(at),
            any: at == ResourceVersionMatch::Any,
            mark_end: end_bookmark,
        },
        WatchStart::FromCurrent | WatchStart::FromCached => WatchStartPoint::Now,
        WatchStart::After(ResourceVersion(rv)) => WatchStartPoint::After(rv),
    })
}

/// Returns how long a watch may last. Without a value from the client, the server chooses.
fn watch_timeout(seconds: Option<i64>) -> Duration {
    match WatchTimeout::of(seconds) {
        WatchTimeout::Elapsed => Duration::ZERO,
        WatchTimeout::Unset => Duration::from_secs(fastrand::u64(WATCH_SECONDS..2 * WATCH_SECONDS)),
        WatchTimeout::After(length) => length.min(Duration::from_secs(10 * WATCH_SECONDS)),
    }
}

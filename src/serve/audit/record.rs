use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use http::{HeaderMap, HeaderValue, Response, Uri};
use k8s_openapi::jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::AuditLog;
use super::queue::AuditQueue;
use crate::auth::Caller;
use crate::listing::LimitExceeded;
use crate::net::{ConnectionPeer, PeerAddress};
use crate::serve::route::SensitiveKind;
use kubeapi::{FlowDistinguisher, RequestInfo, Status, StatusDetails, User};

/// The audit record of one request. Dropping the last clone records the end of a watch.
pub(crate) struct AuditRecord {
    queue: AuditQueue,
    audit_id: HeaderValue,
    uri: String,
    info: RequestInfo,
    /// Empty if the caller is not authenticated, or is the proxy itself.
    user: User,
    /// The user whose share of the queue the record uses; `None` if all callers are the proxy itself.
    flow: Option<FlowDistinguisher>,
    source_ips: Vec<IpAddr>,
    user_agent: String,
    received: Timestamp,
    watch_response: OnceLock<AuditedResponse>,
}

/// A response extension that marks responses of the proxy itself. Responses without it are recorded by upstream's audit
/// log.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServedLocally {
    /// The Status of the response, if it is an error.
    pub(crate) status: Option<Status>,
    /// Whether the response is a stream that continues after its head was sent.
    pub(crate) is_watch: bool,
    /// Whether the response shows cached data.
    pub(crate) is_from_cache: bool,
}

/// A response extension with the authorization decision and its reason.
#[derive(Debug, Clone)]
pub(crate) enum AuditDecision {
    Allowed(Arc<str>),
    Denied(Arc<str>),
    /// No decision was obtained.
    Unknown,
}

/// The recorded properties of the response.
#[derive(Debug, Clone)]
struct AuditedResponse {
    code: u16,
    status: Option<Status>,
    decision: Option<AuditDecision>,
}

/// The maximum length of a recorded user agent in bytes, as in the apiserver, and the suffix of a truncated one.
const TEXT_BYTES_MAX: usize = 1024;
const TRUNCATED: &str = "...TRUNCATED";
/// The maximum size of a record besides its user. In larger records, values that the caller sent are truncated.
pub(super) const RECORD_BYTES_MAX: usize = 8 << 10;
/// The maximum length of the names in a truncated record, in bytes.
const NAMES_BYTES_MAX: usize = 512;
const DECISION: &str = "authorization.k8s.io/decision";
const REASON: &str = "authorization.k8s.io/reason";

impl ServedLocally {
    /// Marks a response with cached data.
    pub(crate) fn from_cache(is_watch: bool) -> Self {
        Self { status: None, is_watch, is_from_cache: true }
    }
}

impl AuditRecord {
    /// Creates the record of a request, or returns `None` if the log is off.
    pub(crate) fn new(
        audit: &AuditLog,
        peer: &ConnectionPeer,
        (uri, headers): (&Uri, &HeaderMap),
        info: &RequestInfo,
        audit_id: &HeaderValue,
    ) -> Option<Self> {
        let queue = audit.queue()?.clone();
        let user_agent = headers.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok());
        Some(Self {
            queue,
            audit_id: audit_id.clone(),
            uri: recorded_target(uri.path_and_query().map_or("/", |target| target.as_str())),
            info: info.clone(),
            user: User::default(),
            flow: Some(FlowDistinguisher::anonymous()),
            source_ips: source_ips(headers, peer.address),
            user_agent: truncated(user_agent.unwrap_or_default()),
            received: now(),
            watch_response: OnceLock::new(),
        })
    }

    /// Sets the caller of the recorded request.
    pub(crate) fn set_caller(&mut self, caller: &Caller) {
        self.user = match caller {
            Caller::Anonymous => anonymous(),
            caller => caller.user().cloned().unwrap_or_default(),
        };
        self.flow = caller.flow();
    }

    /// Records the response, unless upstream generated it. Returns false if the response requires a record and the
    /// queue is full. In that case the caller must not send the response.
    pub(crate) fn record_response<B>(&self, response: &Response<B>) -> bool {
        let Some(ServedLocally { status, is_watch, is_from_cache }) = response.extensions().get::<ServedLocally>()
        else {
            return true;
        };
        let decision = response.extensions().get::<AuditDecision>().cloned();
        let audited = AuditedResponse { code: response.status().as_u16(), status: status.clone(), decision };
        let stage = if *is_watch { AuditEventStage::ResponseStarted } else { AuditEventStage::ResponseComplete };
        if self.enqueue(stage, &audited).is_err() && *is_from_cache && self.is_sensitive() {
            return false;
        }
        if *is_watch {
            let _ = self.watch_response.set(audited);
        }
        true
    }

    fn is_sensitive(&self) -> bool {
        self.info.group.is_empty() && self.info.resource == SensitiveKind::Secrets.as_str()
    }

    fn enqueue(&self, stage: AuditEventStage, audited: &AuditedResponse) -> Result<(), LimitExceeded> {
        let event = self.event(stage, now(), audited);
        let line = event.to_line();
        let flow = self.flow.as_ref();
        if line.len() <= RECORD_BYTES_MAX || line.len() <= RECORD_BYTES_MAX + json_bytes(&self.user) {
            return self.queue.put(flow, line);
        }
        let [audit_id, uri, verb] = [event.audit_id, event.request_uri, event.verb].map(truncated);
        let response_status = AuditOutcome::new(audited.code, None);
        let event = AuditEvent {
            audit_id: &audit_id,
            request_uri: &uri,
            verb: &verb,
            object_ref: event.object_ref.filter(|names| json_bytes(names) <= NAMES_BYTES_MAX),
            response_status,
            ..event
        };
        self.queue.put(flow, event.to_line())
    }

    fn event<'a>(&'a self, stage: AuditEventStage, at: Timestamp, audited: &'a AuditedResponse) -> AuditEvent<'a> {
        AuditEvent {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: "Metadata",
            audit_id: self.audit_id.to_str().unwrap_or_default(),
            stage,
            request_uri: &self.uri,
            verb: self.info.verb.as_str(),
            user: &self.user,
            source_ips: &self.source_ips,
            user_agent: &self.user_agent,
            object_ref: ObjectReference::from_info(&self.info),
            response_status: AuditOutcome::new(audited.code, audited.status.as_ref()),
            request_received_timestamp: self.received,
            stage_timestamp: at,
            annotations: self.annotations(audited.decision.as_ref()),
        }
    }

    fn annotations<'a>(&self, decision: Option<&'a AuditDecision>) -> BTreeMap<&'static str, &'a str> {
        let (decision, reason): (_, &str) = match decision {
            Some(AuditDecision::Allowed(_)) if self.flow.is_none() => ("allow", "the caller is the proxy itself"),
            Some(AuditDecision::Allowed(reason)) => ("allow", reason),
            Some(AuditDecision::Denied(reason)) => ("forbid", reason),
            Some(AuditDecision::Unknown) | None => return BTreeMap::new(),
        };
        [(DECISION, decision), (REASON, reason)].into()
    }
}

impl Drop for AuditRecord {
    fn drop(&mut self) {
        if let Some(audited) = self.watch_response.take() {
            // The watch ends even if the queue is full; its start has been recorded.
            let _ = self.enqueue(AuditEventStage::ResponseComplete, &audited);
        }
    }
}

fn anonymous() -> User {
    let groups = vec![User::UNAUTHENTICATED.to_owned()];
    User { name: "system:anonymous".to_owned(), groups, ..User::default() }
}

/// Returns the wall-clock time for audit records. It is never used to measure or order anything.
#[allow(clippy::disallowed_methods, reason = "records are compared with those of other servers")]
fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Returns the request target as recorded. It is truncated first, because this is done before the caller is
/// authenticated, and a longer one does not fit into a record.
pub(super) fn recorded_target(target: &str) -> String {
    without_tokens(&truncated_to(target, RECORD_BYTES_MAX))
}

/// Returns the request target with the values of all parameters redacted whose names contain `token`.
pub fn without_tokens(target: &str) -> String {
    let Some((path, query)) = target.split_once('?') else { return target.to_owned() };
    let hidden = |pair: &str| {
        let name = pair.split('=').next().unwrap_or_default();
        let is_token = kubeapi::UrlQuery::parse(name)
            .pairs()
            .next()
            .is_some_and(|(name, _)| name.to_ascii_lowercase().contains("token"));
        if is_token && pair.len() > name.len() { format!("{name}=REDACTED") } else { pair.to_owned() }
    };
    let pairs: Vec<_> = query.split('&').map(hidden).collect();
    format!("{path}?{}", pairs.join("&"))
}

/// Returns the source addresses in the apiserver's order: those in forwarding headers, which any client can forge, then
/// the peer's address.
pub fn source_ips(headers: &HeaderMap, address: PeerAddress) -> Vec<IpAddr> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default();
    let mut ips: Vec<IpAddr> =
        text("x-forwarded-for").split(',').filter_map(|ip| ip.trim().parse().ok()).take(SOURCES_MAX).collect();
    if let Some(ip) = text("x-real-ip").trim().parse().ok().filter(|ip| !ips.contains(ip)) {
        ips.push(ip);
    }
    if let PeerAddress::Tcp(address) = address {
        let ip = address.ip().to_canonical();
        if ips.last() != Some(&ip) {
            ips.push(ip);
        }
    }
    ips
}

/// The maximum number of addresses from `X-Forwarded-For`.
const SOURCES_MAX: usize = 64;

fn json_bytes(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).expect("texts always serialize").len()
}

pub(super) fn truncated(text: &str) -> String {
    truncated_to(text, TEXT_BYTES_MAX)
}

fn truncated_to(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = (0..=bytes_max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}{TRUNCATED}", &text[..end])
}

/// An `audit.k8s.io/v1` event. Members have the apiserver's order and are omitted under the same conditions.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AuditEvent<'a> {
    kind: &'static str,
    api_version: &'static str,
    level: &'static str,
    #[serde(rename = "auditID")]
    audit_id: &'a str,
    stage: AuditEventStage,
    #[serde(rename = "requestURI")]
    request_uri: &'a str,
    verb: &'a str,
    /// Empty for an unknown user and for the proxy itself.
    user: &'a User,
    #[serde(rename = "sourceIPs", skip_serializing_if = "<[_]>::is_empty")]
    source_ips: &'a [IpAddr],
    #[serde(skip_serializing_if = "str::is_empty")]
    user_agent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<ObjectReference<'a>>,
    response_status: AuditOutcome<'a>,
    #[serde(serialize_with = "micros")]
    request_received_timestamp: Timestamp,
    #[serde(serialize_with = "micros")]
    stage_timestamp: Timestamp,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'static str, &'a str>,
}

/// The stage of the request that an event describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum AuditEventStage {
    /// The response of a watch has started.
    ResponseStarted,
    ResponseComplete,
}

/// The object or collection that an audited request names.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectReference<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_group: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: &'a str,
}

/// The outcome of the request: the parts of a Status that reveal nothing about an object.
#[derive(Debug, Serialize)]
struct AuditOutcome<'a> {
    metadata: serde_json::Map<String, serde_json::Value>,
    #[serde(skip_serializing_if = "str::is_empty")]
    status: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a StatusDetails>,
    code: u16,
}

impl<'a> ObjectReference<'a> {
    /// Returns the resource as recorded, or `None` for a request that is not for a resource.
    fn from_info(info: &'a RequestInfo) -> Option<Self> {
        info.is_resource.then_some(Self {
            resource: &info.resource,
            namespace: &info.namespace,
            name: &info.name,
            api_group: &info.group,
            api_version: &info.version,
            subresource: &info.subresource,
        })
    }
}

impl<'a> AuditOutcome<'a> {
    /// Returns the outcome. `status` is set for an error.
    fn new(code: u16, status: Option<&'a Status>) -> Self {
        let metadata = serde_json::Map::new();
        let Some(Status { status, message, reason, details, .. }) = status else {
            return Self { metadata, status: "", message: "", reason: "", details: None, code };
        };
        Self { metadata, status, message, reason, details: details.as_ref(), code }
    }
}

impl AuditEvent<'_> {
    /// Serializes the audit event as one line.
    fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("texts, numbers and lists always serialize");
        line.push(b'\n');
        line
    }
}

/// Formats a timestamp like `2026-07-23T10:11:12.000013Z`, always with six fractional digits.
fn micros<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{at:.6}"))
}

impl std::fmt::Debug for AuditRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuditRecord").field("id", &self.audit_id).finish_non_exhaustive()
    }
}

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use http::{HeaderMap, HeaderValue, Response, Uri};
use k8s_openapi::jiff::Timestamp;

use super::Audit;
use super::event::{AuditEvent, AuditOutcome, AuditUser, Reference, Stage};
use super::queue::{Full, Queue};
use crate::auth::Caller;
use crate::net::{Peer, PeerAddress};
use crate::serve::coverage::Sensitive;
use kubeapi::{RequestInfo, Status, User};

/// The record of one request. It records the end of a watch when its last clone is dropped.
pub(in crate::serve) struct AuditRecord {
    queue: Queue,
    audit_id: HeaderValue,
    uri: String,
    info: RequestInfo,
    user: Option<User>,
    is_ourselves: bool,
    source_ips: Vec<IpAddr>,
    user_agent: String,
    received: Timestamp,
    begun: OnceLock<Answered>,
}

/// An extension of our own responses. Upstream's log has those that upstream has answered.
#[derive(Debug, Clone, Default)]
pub(in crate::serve) struct ServedLocally {
    /// The Status of an error.
    pub(in crate::serve) status: Option<Status>,
    /// Whether the response goes on after it has begun.
    pub(in crate::serve) is_watch: bool,
    /// Whether it shows something of what the cache holds.
    pub(in crate::serve) is_served: bool,
}

/// An extension of a response: the decision about the caller's rights, and its reason.
#[derive(Debug, Clone)]
pub(in crate::serve) enum Decision {
    Allowed(Arc<str>),
    Denied(Arc<str>),
}

/// What was answered.
#[derive(Debug, Clone)]
struct Answered {
    code: u16,
    status: Option<Status>,
    decision: Option<Decision>,
}

/// How much of a client's name the apiserver records, and how it marks that there was more.
const TEXT_BYTES_MAX: usize = 1024;
const TRUNCATED: &str = "...TRUNCATED";
/// The largest record of a request from an unknown caller. Beyond it, values that the caller sent are truncated.
pub(super) const STRANGER_RECORD_BYTES_MAX: usize = 8 << 10;
const DECISION: &str = "authorization.k8s.io/decision";
const REASON: &str = "authorization.k8s.io/reason";

impl AuditRecord {
    /// Makes the record of a request; `None` if nothing is recorded.
    pub(in crate::serve) fn new(
        audit: &Audit,
        peer: &Peer,
        (uri, headers): (&Uri, &HeaderMap),
        info: &RequestInfo,
        audit_id: &HeaderValue,
    ) -> Option<Self> {
        let queue = audit.queue()?.clone();
        let user_agent = headers.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok());
        Some(Self {
            queue,
            audit_id: audit_id.clone(),
            uri: without_tokens(uri.path_and_query().map_or("/", |target| target.as_str())),
            info: info.clone(),
            user: None,
            is_ourselves: false,
            source_ips: source_ips(headers, peer.address),
            user_agent: shortened(user_agent.unwrap_or_default()),
            received: now(),
            begun: OnceLock::new(),
        })
    }

    /// Sets the caller.
    pub(in crate::serve) fn put_caller(&mut self, caller: &Caller) {
        self.user = match caller {
            Caller::Ourselves => None,
            Caller::Anonymous => Some(anonymous()),
            Caller::Known(_) => caller.user().cloned(),
        };
        self.is_ourselves = matches!(caller, Caller::Ourselves);
    }

    /// Records the answer, if it is ours. Returns false if the answer must be recorded and cannot be: then it may not
    /// be given.
    pub(in crate::serve) fn answered<B>(&self, response: &Response<B>) -> bool {
        let Some(ServedLocally { status, is_watch, is_served }) = response.extensions().get::<ServedLocally>() else {
            return true;
        };
        let decision = response.extensions().get::<Decision>().cloned();
        let answered = Answered { code: response.status().as_u16(), status: status.clone(), decision };
        let stage = if *is_watch { Stage::ResponseStarted } else { Stage::ResponseComplete };
        if self.put(stage, &answered).is_err() && *is_served && self.is_sensitive() {
            return false;
        }
        if *is_watch {
            let _ = self.begun.set(answered);
        }
        true
    }

    fn is_sensitive(&self) -> bool {
        self.info.group.is_empty() && self.info.resource == Sensitive::Secrets.as_str()
    }

    fn put(&self, stage: Stage, answered: &Answered) -> Result<(), Full> {
        let event = self.event(stage, now(), answered);
        let line = event.to_line();
        if line.len() <= STRANGER_RECORD_BYTES_MAX || !self.is_of_stranger() {
            return self.queue.put(line);
        }
        let [audit_id, uri, verb] = [event.audit_id, event.request_uri, event.verb].map(shortened);
        let response_status = AuditOutcome::of(answered.code, None);
        let event = AuditEvent {
            audit_id: &audit_id,
            request_uri: &uri,
            verb: &verb,
            object_ref: None,
            response_status,
            ..event
        };
        self.queue.put(event.to_line())
    }

    /// Whether the caller is not authenticated, or not yet.
    fn is_of_stranger(&self) -> bool {
        !self.is_ourselves && self.user.as_ref().is_none_or(User::is_anonymous)
    }

    fn event<'a>(&'a self, stage: Stage, at: Timestamp, answered: &'a Answered) -> AuditEvent<'a> {
        AuditEvent {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: "Metadata",
            audit_id: self.audit_id.to_str().unwrap_or_default(),
            stage,
            request_uri: &self.uri,
            verb: self.info.verb.as_str(),
            user: AuditUser::of(self.user.as_ref()),
            source_ips: &self.source_ips,
            user_agent: &self.user_agent,
            object_ref: Reference::of(&self.info),
            response_status: AuditOutcome::of(answered.code, answered.status.as_ref()),
            request_received_timestamp: self.received,
            stage_timestamp: at,
            annotations: self.annotations(answered.decision.as_ref()),
        }
    }

    fn annotations<'a>(&self, decision: Option<&'a Decision>) -> BTreeMap<&'static str, &'a str> {
        let (decision, reason): (_, &str) = match decision {
            Some(Decision::Allowed(_)) if self.is_ourselves => ("allow", "the caller is the proxy itself"),
            Some(Decision::Allowed(reason)) => ("allow", reason),
            Some(Decision::Denied(reason)) => ("forbid", reason),
            None => return BTreeMap::new(),
        };
        [(DECISION, decision), (REASON, reason)].into()
    }
}

impl Drop for AuditRecord {
    fn drop(&mut self) {
        if let Some(answered) = self.begun.take() {
            // It is over whether or not there is room; its beginning has been recorded.
            let _ = self.put(Stage::ResponseComplete, &answered);
        }
    }
}

fn anonymous() -> User {
    let groups = vec![User::UNAUTHENTICATED.to_owned()];
    User { name: "system:anonymous".to_owned(), groups, ..User::default() }
}

/// The wall clock's time, as records have it. Nothing is measured or ordered with it.
#[allow(clippy::disallowed_methods, reason = "records are compared with those of other servers")]
fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The target without the values of parameters that are named like tokens.
pub fn without_tokens(target: &str) -> String {
    let Some((path, query)) = target.split_once('?') else { return target.to_owned() };
    let hidden = |pair: &str| {
        let name = pair.split('=').next().unwrap_or_default();
        let is_token = kubeapi::Query::parse(name)
            .pairs()
            .first()
            .is_some_and(|(name, _)| name.to_ascii_lowercase().contains("token"));
        if is_token && pair.len() > name.len() { format!("{name}=REDACTED") } else { pair.to_owned() }
    };
    let pairs: Vec<_> = query.split('&').map(hidden).collect();
    format!("{path}?{}", pairs.join("&"))
}

/// Where the request has come from, in the apiserver's order: the addresses that proxies name, which any client may
/// claim too, and the one that is seen.
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

/// How many addresses are kept.
const SOURCES_MAX: usize = 64;

pub(super) fn shortened(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let end = (0..=TEXT_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}{TRUNCATED}", &text[..end])
}

impl std::fmt::Debug for AuditRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record").field("id", &self.audit_id).finish_non_exhaustive()
    }
}

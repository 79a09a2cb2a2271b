use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use serde::{Serialize, Serializer};

use kubeapi::{RequestInfo, Status, StatusDetails, User};

/// An `audit.k8s.io/v1` event. Members have the apiserver's order and are omitted under the same conditions.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuditEvent<'a> {
    pub(super) kind: &'static str,
    pub(super) api_version: &'static str,
    pub(super) level: &'static str,
    #[serde(rename = "auditID")]
    pub(super) audit_id: &'a str,
    pub(super) stage: AuditEventStage,
    #[serde(rename = "requestURI")]
    pub(super) request_uri: &'a str,
    pub(super) verb: &'a str,
    /// Empty for an unknown user and for the proxy itself.
    pub(super) user: &'a User,
    #[serde(rename = "sourceIPs", skip_serializing_if = "<[_]>::is_empty")]
    pub(super) source_ips: &'a [IpAddr],
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) user_agent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) object_ref: Option<ObjectReference<'a>>,
    pub(super) response_status: AuditOutcome<'a>,
    #[serde(serialize_with = "micros")]
    pub(super) request_received_timestamp: Timestamp,
    #[serde(serialize_with = "micros")]
    pub(super) stage_timestamp: Timestamp,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<&'static str, &'a str>,
}

/// The stage of the request that an event describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum AuditEventStage {
    /// The response of a watch has started.
    ResponseStarted,
    ResponseComplete,
}

/// The object or collection that an audited request names.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectReference<'a> {
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
pub(super) struct AuditOutcome<'a> {
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
    pub(super) fn from_info(info: &'a RequestInfo) -> Option<Self> {
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
    pub(super) fn new(code: u16, status: Option<&'a Status>) -> Self {
        let metadata = serde_json::Map::new();
        let Some(Status { status, message, reason, details, .. }) = status else {
            return Self { metadata, status: "", message: "", reason: "", details: None, code };
        };
        Self { metadata, status, message, reason, details: details.as_ref(), code }
    }
}

impl AuditEvent<'_> {
    /// Serializes the audit event as one line.
    pub(super) fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("texts, numbers and lists always serialize");
        line.push(b'\n');
        line
    }
}

/// Formats a timestamp like `2026-07-23T10:11:12.000013Z`, always with six fractional digits.
fn micros<S: Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{at:.6}"))
}

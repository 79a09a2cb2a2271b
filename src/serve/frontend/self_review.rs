//! Access reviews that callers with filtered reads create for themselves. k9s and others send a LIST only if such a
//! review allows it.
//!
//! **Invariants.** Upstream's response decides: only one that denies a read without an explicit veto is changed, and
//! only into what the response to that read tells anyway. What cannot be parsed completely is passed through.

use std::sync::Arc;

use bytes::BytesMut;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::auth::{Authorizer, Caller, NamedCallers, ReadPermission};
use crate::serve::read::{ReadRequest, has_visible_part};
use crate::serve::response::{FILTERED, ResponseBody};
use crate::serve::route::{CacheCoverage, ReadRouteInput, route};
use crate::upstream::{ResourceCatalog, SELF_SUBJECT_ACCESS_REVIEWS, UpstreamResource, is_impersonation};
use kubeapi::protobuf::{FieldReader, MAGIC, ProtobufFieldValue, RawField, put_field, put_int};
use kubeapi::{Gvr, MediaType, ObjectKey, RequestInfo, UrlQuery};

/// The access that a review names. A review with other attributes, such as selectors, does not parse as one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct ReviewedAccess {
    namespace: String,
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    name: String,
}

#[derive(Deserialize)]
struct JsonReview<'a> {
    spec: JsonReviewSpec,
    #[serde(borrow)]
    status: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonReviewSpec {
    resource_attributes: ReviewedAccess,
}

/// A status without `denied`, which an authorizer sets to veto an access.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonReviewStatus {
    allowed: bool,
    #[serde(default)]
    reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    evaluation_error: String,
}

/// The maximum size of a response in bytes. A larger one is passed through.
const REVIEW_BYTES_MAX: usize = 64 << 10;
/// Field numbers of `Unknown`, `SelfSubjectAccessReview`, its spec and its status.
const UNKNOWN_RAW: u8 = 2;
const REVIEW_SPEC: u8 = 2;
const REVIEW_STATUS: u8 = 3;
const SPEC_RESOURCE_ATTRIBUTES: u8 = 1;
const STATUS_ALLOWED: u8 = 1;
const STATUS_REASON: u8 = 2;
const STATUS_EVALUATION_ERROR: u8 = 3;
const STATUS_DENIED: u8 = 4;

/// Whether a caller with filtered reads creates a review of its own access.
pub(super) fn is_filterable(request: &ReadRequest, callers: &NamedCallers) -> bool {
    *request.http.method() == Method::POST
        && request.http.uri().path() == SELF_SUBJECT_ACCESS_REVIEWS
        && request.has_filtered_caller(callers)
        && !request.http.headers().keys().any(is_impersonation)
}

/// Returns upstream's response to a review. If it denies a read that the proxy answers with what the caller may see, it
/// allows the read.
pub(super) async fn with_filtered_reads(
    response: Response<ResponseBody>,
    caller: &Caller,
    (catalog, coverage, authorizer): (&ResourceCatalog, &CacheCoverage, &Authorizer),
) -> Response<ResponseBody> {
    let headers = response.headers();
    let is_plain = response.status() == StatusCode::CREATED && !headers.contains_key(CONTENT_ENCODING);
    let media = [MediaType::Json, MediaType::Protobuf]
        .into_iter()
        .find(|media| headers.get(CONTENT_TYPE).is_some_and(|value| value == media.as_str()));
    let Some(media) = media.filter(|_| is_plain) else { return response };
    let (mut head, mut rest) = response.into_parts();
    let mut read = BytesMut::new();
    let unread = loop {
        match rest.frame().await.map(|frame| frame.map(Frame::into_data)) {
            Some(Ok(Ok(data))) if read.len() + data.len() <= REVIEW_BYTES_MAX => read.extend_from_slice(&data),
            Some(Ok(Ok(data))) => break Some(Ok(Frame::data(data))),
            Some(Ok(Err(trailers))) => break Some(Ok(trailers)),
            Some(Err(error)) => break Some(Err(error)),
            None => break None,
        }
    };
    let mut review = read.freeze();
    let is_answered = |access: &ReviewedAccess| {
        let reads = |resource: &UpstreamResource| access.is_filtered_read_of(resource, coverage, (caller, authorizer));
        access.resource(catalog).is_some_and(|resource| reads(&resource))
    };
    if unread.is_none()
        && let Some(allowed) = allowed(media, &review, is_answered)
    {
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(allowed.len()));
        head.headers.insert(FILTERED, HeaderValue::from_static("true"));
        review = allowed.into();
    }
    let frames = Some(Ok(Frame::data(review))).into_iter().chain(unread).collect();
    // The rest is empty, or what was not read. It holds the permit of the request, and its deadline.
    Response::from_parts(head, ResponseBody::after_frames(frames, rest))
}

/// Returns a review with an allow decision, if it denies an access for which `is_answered` holds.
fn allowed(media: MediaType, review: &[u8], is_answered: impl Fn(&ReviewedAccess) -> bool) -> Option<Vec<u8>> {
    match media {
        MediaType::Json => allowed_json(review, is_answered),
        MediaType::Protobuf => allowed_protobuf(review, is_answered),
        MediaType::Yaml => None,
    }
}

fn allowed_json(review: &[u8], is_answered: impl Fn(&ReviewedAccess) -> bool) -> Option<Vec<u8>> {
    let JsonReview { spec, status } = serde_json::from_slice(review).ok()?;
    let status = status.get();
    let decision = serde_json::from_str::<JsonReviewStatus>(status).ok()?;
    if decision.allowed || !is_answered(&spec.resource_attributes) {
        return None;
    }
    let reason = ReadPermission::FILTERED.to_owned();
    let decision = serde_json::to_vec(&JsonReviewStatus { allowed: true, reason, ..decision }).ok()?;
    let at = status.as_ptr().addr() - review.as_ptr().addr();
    Some([&review[..at], &decision, &review[at + status.len()..]].concat())
}

fn allowed_protobuf(document: &[u8], is_answered: impl Fn(&ReviewedAccess) -> bool) -> Option<Vec<u8>> {
    let unknown = replaced(document.strip_prefix(MAGIC)?, UNKNOWN_RAW, |review| {
        let spec = fields(review)?.into_iter().find(|field| field.number == u32::from(REVIEW_SPEC))?;
        let [attributes] = fields(spec.bytes().ok()?)?.try_into().ok()?;
        let attributes: RawField<'_> = attributes;
        let access = ReviewedAccess::from_protobuf(attributes.bytes().ok()?)?;
        if attributes.number != u32::from(SPEC_RESOURCE_ATTRIBUTES) || !is_answered(&access) {
            return None;
        }
        replaced(review, REVIEW_STATUS, allowed_protobuf_status)
    })?;
    Some([MAGIC, &unknown[..]].concat())
}

fn allowed_protobuf_status(status: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(status.len() + ReadPermission::FILTERED.len());
    put_int(&mut out, STATUS_ALLOWED, 1);
    put_field(&mut out, STATUS_REASON, ReadPermission::FILTERED.as_bytes());
    for field in fields(status)? {
        match (u8::try_from(field.number).ok()?, field.value) {
            (STATUS_ALLOWED, ProtobufFieldValue::Varint(0)) | (STATUS_REASON, ProtobufFieldValue::Bytes(_)) => {}
            (STATUS_EVALUATION_ERROR, ProtobufFieldValue::Bytes(_))
            | (STATUS_DENIED, ProtobufFieldValue::Varint(0)) => out.extend(&status[field.start..field.end]),
            _ => return None,
        }
    }
    Some(out)
}

/// Returns a message with another value for a field, which must occur once.
fn replaced(message: &[u8], number: u8, change: impl FnOnce(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let fields = fields(message)?;
    let mut same = fields.iter().filter(|field| field.number == u32::from(number));
    let (Some(field), None) = (same.next(), same.next()) else { return None };
    let mut out = message[..field.start].to_vec();
    put_field(&mut out, number, &change(field.bytes().ok()?)?);
    out.extend(&message[field.end..]);
    Some(out)
}

fn fields(message: &[u8]) -> Option<Vec<RawField<'_>>> {
    let mut reader = FieldReader::new(message);
    std::iter::from_fn(|| reader.next_field().transpose()).collect::<Result<_, _>>().ok()
}

impl ReviewedAccess {
    fn from_protobuf(attributes: &[u8]) -> Option<Self> {
        let mut access = Self::default();
        for field in fields(attributes)? {
            let attribute = match field.number {
                1 => &mut access.namespace,
                2 => &mut access.verb,
                3 => &mut access.group,
                4 => &mut access.version,
                5 => &mut access.resource,
                6 => &mut access.subresource,
                7 => &mut access.name,
                _ => return None,
            };
            field.text().ok()?.clone_into(attribute);
        }
        Some(access)
    }

    fn resource(&self, catalog: &ResourceCatalog) -> Option<Arc<UpstreamResource>> {
        let gvr = Gvr::new(&self.group, &self.version, &self.resource);
        // kubectl names no version.
        if self.version.is_empty() { catalog.find_by_name(&gvr.group_resource()) } else { catalog.find(&gvr) }
    }

    /// Whether the access is a LIST or watch that is filtered for a caller who may not read the whole collection.
    fn is_filtered_read_of(
        &self,
        resource: &UpstreamResource,
        coverage: &CacheCoverage,
        (caller, authorizer): (&Caller, &Authorizer),
    ) -> bool {
        let query = match self.verb.as_str() {
            "list" => UrlQuery::parse(""),
            "watch" => UrlQuery::parse("watch=1"),
            _ => return false,
        };
        let is_same = *resource.gvr.group == *self.group && *resource.gvr.resource == *self.resource;
        // A selector with a longer name may be too long to be evaluated here.
        if !is_same || !self.subresource.is_empty() || self.name.len() > ObjectKey::NAME_BYTES_MAX {
            return false;
        }
        let Ok(mut info) = RequestInfo::parse("GET", &resource.gvr.path(), &query) else { return false };
        info.name.clone_from(&self.name);
        info.namespace.clone_from(&self.namespace);
        let input = ReadRouteInput {
            method: &Method::GET,
            info: &info,
            query: &query,
            has_settled_definitions: false,
            accept: None,
            user_agent: None,
            impersonates: false,
            is_feed_request: false,
            is_filtered: true,
            is_reduced: false,
        };
        has_visible_part(&info, resource, caller, authorizer) && route(&input, Some(resource), coverage).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pods(access: &ReviewedAccess) -> bool {
        let [verb, version, resource] = ["list", "v1", "pods"].map(str::to_owned);
        *access == ReviewedAccess { verb, version, resource, ..ReviewedAccess::default() }
    }

    const INDENTED: &str = "{\n  \"status\": {\n    \"allowed\": false\n  },\n  \"spec\": {\"resourceAttributes\": \
                        {\"verb\": \"list\", \"version\": \"v1\", \"resource\": \"pods\"}}\n}\n";

    #[test]
    fn json_review_changes_only_in_its_decision() {
        let attributes = json!({"verb": "list", "version": "v1", "resource": "pods"});
        let review = |attributes: &Value, status: &Value| {
            let metadata = json!({"managedFields": [{"manager": "k9s"}]});
            let spec = json!({"resourceAttributes": attributes});
            json!({"kind": "SelfSubjectAccessReview", "metadata": metadata, "spec": spec, "status": status}).to_string()
        };
        for status in [
            json!({"allowed": false}),
            json!({"allowed": false, "reason": "no"}),
            json!({"allowed": false, "evaluationError": "role \"x\" not found"}),
        ] {
            let denied = review(&attributes, &status);
            let changed = allowed_json(denied.as_bytes(), pods).expect("an allowed review");
            let mut expected: Value = serde_json::from_str(&denied).expect("JSON");
            expected["status"]["allowed"] = true.into();
            expected["status"]["reason"] = ReadPermission::FILTERED.into();
            assert_eq!(serde_json::from_slice::<Value>(&changed).expect("JSON"), expected);
        }
        let indented = allowed_json(INDENTED.as_bytes(), pods).expect("an allowed review");
        let text = String::from_utf8(indented).expect("UTF-8");
        assert!(text.starts_with("{\n  \"status\": {\"allowed\":true,") && text.ends_with("}}\n}\n"), "{text}");
        let selected = |name: &str| {
            let mut attributes = attributes.clone();
            attributes[name] = json!({"rawSelector": "a=b"});
            attributes
        };
        let denied = json!({"allowed": false});
        for (attributes, status) in [
            (&attributes, json!({"allowed": true})),
            (&attributes, json!({"allowed": false, "denied": true})),
            (&attributes, json!({"allowed": false, "conditions": []})),
            (&attributes, json!({})),
            (&selected("fieldSelector"), denied.clone()),
            (&selected("labelSelector"), denied.clone()),
            (&json!({"verb": "get", "version": "v1", "resource": "pods"}), denied.clone()),
            (&json!({"verb": "list", "version": "v1", "resource": "pods", "name": 1}), denied),
        ] {
            assert_eq!(allowed_json(review(attributes, &status).as_bytes(), pods), None, "{attributes} {status}");
        }
        for other in [
            "",
            "{}",
            "[]",
            r#"{"spec":{"nonResourceAttributes":{"verb":"list","path":"/"}},"status":{"allowed":false}}"#,
            r#"{"kind":"Table","rows":[],"status":{"allowed":false}}"#,
        ] {
            assert_eq!(allowed_json(other.as_bytes(), pods), None, "{other}");
        }
    }

    fn message(fields: &[(u8, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        fields.iter().for_each(|(number, payload)| put_field(&mut out, *number, payload));
        out
    }

    fn protobuf_review(attributes: &[(u8, &[u8])], status: &[u8]) -> Vec<u8> {
        let spec = message(&[(SPEC_RESOURCE_ATTRIBUTES, &message(attributes))]);
        let review = message(&[(1, b"\x0a\x00"), (REVIEW_SPEC, &spec), (REVIEW_STATUS, status)]);
        let meta = message(&[(1, b"authorization.k8s.io/v1"), (2, b"SelfSubjectAccessReview")]);
        [&MAGIC[..], &message(&[(1, &meta), (UNKNOWN_RAW, &review), (3, b""), (4, b"")])].concat()
    }

    /// A status as the apiserver writes it: it omits no member.
    fn protobuf_status(allowed: i64, reason: &[u8], denied: i64) -> Vec<u8> {
        let mut out = Vec::new();
        put_int(&mut out, STATUS_ALLOWED, allowed);
        put_field(&mut out, STATUS_REASON, reason);
        put_field(&mut out, STATUS_EVALUATION_ERROR, b"none");
        put_int(&mut out, STATUS_DENIED, denied);
        out
    }

    const LIST_PODS: [(u8, &[u8]); 7] =
        [(1, b""), (2, b"list"), (3, b""), (4, b"v1"), (5, b"pods"), (6, b""), (7, b"")];

    #[test]
    fn protobuf_review_changes_only_in_its_decision() {
        // With the longer reason, lengths have another size.
        let denied = protobuf_review(&LIST_PODS, &protobuf_status(0, b"", 0));
        let expected = protobuf_review(&LIST_PODS, &protobuf_status(1, ReadPermission::FILTERED.as_bytes(), 0));
        assert_eq!(allowed_protobuf(&denied, pods), Some(expected));
        let with = |number: u8, value: &'static [u8]| {
            let mut attributes = LIST_PODS.to_vec();
            attributes.push((number, value));
            protobuf_review(&attributes, &protobuf_status(0, b"", 0))
        };
        for (what, review) in [
            ("allowed", protobuf_review(&LIST_PODS, &protobuf_status(1, b"", 0))),
            ("denied", protobuf_review(&LIST_PODS, &protobuf_status(0, b"", 1))),
            ("another verb", with(2, b"get")),
            ("a field selector", with(8, b"")),
            ("a label selector", with(9, b"")),
            ("an unknown attribute", with(10, b"")),
            ("a member of the status that is unknown", protobuf_review(&LIST_PODS, b"\x08\x00\x2a\x00")),
            ("two statuses", {
                let two = message(&[(REVIEW_STATUS, b"\x08\x00"), (REVIEW_STATUS, b"\x08\x00")]);
                [&MAGIC[..], &message(&[(UNKNOWN_RAW, &two)])].concat()
            }),
            ("no magic", denied[1..].to_vec()),
        ] {
            assert_eq!(allowed_protobuf(&review, pods), None, "{what}");
        }
        // The last four bytes are two empty fields.
        for len in 0..denied.len() - 4 {
            assert_eq!(allowed_protobuf(&denied[..len], pods), None, "{len} bytes");
        }
    }
}

//! Builds responses: the headers of every response, and the ways in which a Status is written.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER, USER_AGENT, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};

use super::json;
use super::kinds::DemoResourceKind;
use super::response_form::ResponseForm;
use super::status::DemoStatus;
use super::watch::BrokenWatchError;
use kubeapi::{RequestInfoError, SupportedMediaTypes, UrlQuery, accepts_kind, negotiate, pretty};

pub(crate) type DemoBody = UnsyncBoxBody<Bytes, BrokenWatchError>;
pub(crate) type DemoReply = Response<DemoBody>;

const JSON: &str = "application/json";
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// The response headers that name the flow schema and priority level of a request. Their UIDs are invented.
const PRIORITY: [(HeaderName, HeaderValue); 2] = [
    (
        HeaderName::from_static("x-kubernetes-pf-flowschema-uid"),
        HeaderValue::from_static("7c0e6a53-4f6e-4f0c-8a3b-5d6a41f0d001"),
    ),
    (
        HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid"),
        HeaderValue::from_static("7c0e6a53-4f6e-4f0c-8a3b-5d6a41f0d002"),
    ),
];

/// The representation of a response: its encoding and indentation.
#[derive(Clone, Debug)]
pub(crate) struct ResponseStyle {
    accept: Option<String>,
    pretty: bool,
    audit_id: HeaderValue,
}

impl ResponseStyle {
    pub(crate) fn of(headers: &HeaderMap, query: &UrlQuery) -> Self {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let accept = text(ACCEPT);
        let pretty = pretty(query, text(USER_AGENT), accept, SupportedMediaTypes::BUILTIN.in_json());
        let made = || HeaderValue::from_str(&super::uid()).ok();
        let audit_id = headers.get(AUDIT_ID).cloned().or_else(made);
        let audit_id = audit_id.unwrap_or_else(|| HeaderValue::from_static(""));
        Self { accept: accept.map(str::to_owned), pretty, audit_id }
    }

    pub(crate) fn form(&self, kind: &DemoResourceKind, watch: bool) -> Result<ResponseForm, DemoStatus> {
        ResponseForm::negotiated(self.accept.as_deref(), kind, watch)
    }

    pub(crate) fn accepts_kind(&self, kind: &str, group: &str, version: &str) -> bool {
        accepts_kind(self.accept.as_deref(), kind, group, version)
    }

    /// Returns a response with compact JSON that ends in a newline, or with indented JSON that does not.
    pub(crate) fn json(&self, code: StatusCode, body: Vec<u8>) -> DemoReply {
        let body = if self.pretty { json::pretty(&body) } else { body };
        self.reply(code, JSON, full(body))
    }

    pub(crate) fn status(&self, status: &DemoStatus) -> DemoReply {
        let compact = status.to_json();
        // Errors are not converted: a client that accepts nothing but conversions gets the indented form.
        let is_taken = negotiate(self.accept.as_deref(), SupportedMediaTypes::ERROR.in_json()).media().is_some();
        let body = if self.pretty || !is_taken {
            json::pretty(compact.as_bytes())
        } else {
            format!("{compact}\n").into_bytes()
        };
        let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut reply = self.reply(code, JSON, full(body));
        if let Some(seconds) = status.retry_after {
            reply.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        if code == StatusCode::FORBIDDEN {
            reply.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        }
        reply
    }

    /// Returns a plain-text response to a malformed request. The apiserver sends it before its filter adds
    /// Cache-Control.
    pub(crate) fn unread(&self, error: &RequestInfoError) -> DemoReply {
        let code = match error {
            RequestInfoError::NoResource(_) => StatusCode::INTERNAL_SERVER_ERROR,
            RequestInfoError::BadEscape => StatusCode::BAD_REQUEST,
        };
        let mut reply = self.text(code, format!("{error}\n"));
        reply.headers_mut().remove(CACHE_CONTROL);
        reply
    }

    pub(crate) fn text(&self, code: StatusCode, text: impl Into<Vec<u8>>) -> DemoReply {
        let mut reply = self.reply(code, "text/plain; charset=utf-8", full(text));
        reply.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        reply
    }

    pub(crate) fn typed(&self, content_type: &'static str, body: impl Into<Vec<u8>>) -> DemoReply {
        self.reply(StatusCode::OK, content_type, full(body))
    }

    /// Returns a response whose JSON body is generated while it is sent. If it must be indented, it is collected first.
    pub(crate) async fn chunks(&self, chunks: impl Stream<Item = Bytes> + Send + 'static) -> DemoReply {
        if self.pretty {
            let whole = chunks.fold(Vec::new(), |mut whole, chunk| async move {
                whole.extend_from_slice(&chunk);
                whole
            });
            return self.json(StatusCode::OK, whole.await);
        }
        let frames = chunks.map(|chunk| Ok(Frame::data(chunk)));
        self.reply(StatusCode::OK, JSON, StreamBody::new(frames).boxed_unsync())
    }

    /// Returns a response with a watch stream, which is never indented.
    pub(crate) fn events(
        &self,
        events: impl Stream<Item = Result<Bytes, BrokenWatchError>> + Send + 'static,
    ) -> DemoReply {
        let frames = events.map(|event| event.map(Frame::data));
        self.reply(StatusCode::OK, JSON, StreamBody::new(frames).boxed_unsync())
    }

    fn reply(&self, code: StatusCode, content_type: &'static str, body: DemoBody) -> DemoReply {
        let mut reply = Response::new(body);
        *reply.status_mut() = code;
        let headers = reply.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        headers.insert(AUDIT_ID, self.audit_id.clone());
        if code != StatusCode::UNAUTHORIZED {
            headers.extend(PRIORITY);
        }
        reply
    }
}

fn full(body: impl Into<Vec<u8>>) -> DemoBody {
    Full::new(Bytes::from(body.into())).map_err(|never: Infallible| match never {}).boxed_unsync()
}

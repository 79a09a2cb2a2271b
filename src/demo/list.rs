//! GET and LIST: which revision answers, which page of it, and in which form.

use std::sync::Arc;
use std::time::Duration;

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::{DecodeError, Engine as _};
use bytes::Bytes;
use futures_util::{Stream, stream};

use super::accept::Form;
use super::json::{Json, write_string};
use super::kinds::ServedKind;
use super::object::StoredObject;
use super::query::{ListOptions, Match, parse_rv};
use super::selector::ObjectSelector;
use super::status::DemoStatus;
use super::store::{ObjectMap, Store};
use super::table::{self, IncludeObject};

/// A chunk of a list body is at least this long, the last one excepted.
const CHUNK_BYTES: usize = 64 * 1024;

/// What a LIST is answered with, before it is written.
#[derive(Debug)]
pub(crate) struct DemoPage {
    pub(crate) objects: Vec<Arc<StoredObject>>,
    pub(crate) revision: u64,
    next: Option<String>,
    remaining: Option<usize>,
}

/// Decides the revision as the LIST matrix says, and cuts the page out of it.
pub(crate) async fn list(
    store: &Store,
    kind: usize,
    options: &ListOptions,
    selector: &ObjectSelector,
    patience: Duration,
) -> Result<DemoPage, DemoStatus> {
    let wanted =
        parse_rv(&options.rv).map_err(|text| DemoStatus::bad_request(format!("invalid resource version: {text}")))?;
    if !options.next.is_empty() {
        if wanted > 0 {
            return Err(DemoStatus::bad_request("specifying resource version is not allowed when using continue"));
        }
        return continued(store, kind, options, selector);
    }
    let exact =
        options.rv_match == Match::Exact || (options.rv_match == Match::Unset && wanted > 0 && options.limit > 0);
    store.reach(wanted, patience).await?;
    if exact {
        let objects = store.at(kind, wanted)?;
        return Ok(page(&objects, wanted, "", options.limit, selector, true));
    }
    let limit = if options.rv == "0" { 0 } else { options.limit };
    let (objects, revision, _) = store.now(kind);
    Ok(page(&objects, revision, "", limit, selector, false))
}

fn continued(
    store: &Store,
    kind: usize,
    options: &ListOptions,
    selector: &ObjectSelector,
) -> Result<DemoPage, DemoStatus> {
    let (rv, start) = read_token(&options.next).map_err(|text| {
        DemoStatus::bad_request(format!("invalid continue token: continue key is not valid: {text}"))
    })?;
    let start = if selector.namespace.is_empty() { start } else { format!("{}/{start}", selector.namespace) };
    let Some(rv) = rv else {
        let (objects, revision, _) = store.now(kind);
        return Ok(page(&objects, revision, &start, options.limit, selector, false));
    };
    match store.at(kind, rv) {
        Ok(objects) => Ok(page(&objects, rv, &start, options.limit, selector, true)),
        Err(status) if status.code == 410 => {
            let relative = start.strip_prefix(&format!("{}/", selector.namespace)).unwrap_or(&start);
            Err(DemoStatus::expired_continue(write_token("-1", relative)))
        }
        Err(status) => Err(status),
    }
}

/// `exact`: the list is of a version that was asked for, not of the current one.
fn page(
    objects: &ObjectMap,
    revision: u64,
    start: &str,
    limit: usize,
    selector: &ObjectSelector,
    exact: bool,
) -> DemoPage {
    let skip = objects.partition_point(|object| object.meta.key().as_str() < start);
    let mut rest = objects[skip..].iter();
    let matching = rest.by_ref().filter(|object| selector.matches(object)).cloned();
    if limit == 0 {
        return DemoPage { objects: matching.collect(), revision, next: None, remaining: None };
    }
    let objects: Vec<_> = matching.take(limit).collect();
    let remaining = rest.filter(|object| selector.would_scan(object, exact)).count();
    let last = objects.last().filter(|_| objects.len() == limit && remaining > 0);
    let next = last.map(|last| {
        let key = if selector.namespace.is_empty() { last.meta.key() } else { last.meta.name.clone() };
        write_token(&revision.to_string(), &format!("/{key}\0"))
    });
    let remaining = (next.is_some() && !selector.is_selective()).then_some(remaining);
    DemoPage { objects, revision, next, remaining }
}

fn write_token(rv: &str, start: &str) -> String {
    let mut json = format!(r#"{{"v":"meta.k8s.io/v1","rv":{rv},"start":"#).into_bytes();
    write_string(start, &mut json);
    json.push(b'}');
    URL_SAFE_NO_PAD.encode(json)
}

/// The revision (`None` for "the newest") and the key to start at.
fn read_token(token: &str) -> Result<(Option<u64>, String), String> {
    let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).map_err(|error| base64_text(&error))?;
    let json = Json::parse(&bytes).map_err(|error| error.to_string())?;
    let version = json.get("v").and_then(Json::as_str).unwrap_or_default();
    if version != "meta.k8s.io/v1" {
        return Err(format!("server does not recognize this encoded version {version}"));
    }
    let start = json.get("start").and_then(Json::as_str).unwrap_or_default();
    if start.is_empty() {
        return Err("encoded start key empty (version meta.k8s.io/v1)".to_owned());
    }
    if start.split('/').any(|part| matches!(part, "." | "..")) {
        return Err(start.to_owned());
    }
    let rv = match json.get("rv").map(Json::selectable).unwrap_or_default().as_str() {
        "-1" => None,
        text => match text.parse() {
            Ok(rv) if rv > 0 => Some(rv),
            _ => return Err("incorrect encoded start resourceVersion (version meta.k8s.io/v1)".to_owned()),
        },
    };
    Ok((rv, start.strip_prefix('/').unwrap_or(start).to_owned()))
}

/// As Go says it.
fn base64_text(error: &DecodeError) -> String {
    let at = match *error {
        DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => at,
        DecodeError::InvalidLength(len) => len.saturating_sub(1),
        DecodeError::InvalidPadding => 0,
    };
    format!("illegal base64 data at input byte {at}")
}

impl DemoPage {
    /// The body, made piece by piece while it is being sent.
    pub(crate) fn into_chunks(
        self,
        kind: &'static ServedKind,
        form: Form,
        include: IncludeObject,
    ) -> impl Stream<Item = Bytes> {
        let (head, tail) = self.frame(kind, form);
        let items = self.objects.into_iter();
        stream::unfold((head, items, tail, true), move |(mut out, mut items, mut tail, mut first)| async move {
            while out.len() < CHUNK_BYTES {
                let Some(object) = items.next() else {
                    out.append(&mut tail);
                    break;
                };
                if !first {
                    out.push(b',');
                }
                first = false;
                write_item(kind, &object, form, include, &mut out);
            }
            (!out.is_empty()).then(|| (Bytes::from(out), (Vec::new(), items, tail, first)))
        })
    }

    /// What stands before and after the items.
    fn frame(&self, kind: &ServedKind, form: Form) -> (Vec<u8>, Vec<u8>) {
        let revision = self.revision;
        let next = self.next.as_deref().unwrap_or_default();
        let remaining = self.remaining.map(|n| format!(r#","remainingItemCount":{n}"#)).unwrap_or_default();
        if kind.custom && form == Form::Plain {
            let head = format!(r#"{{"apiVersion":"{}","items":["#, kind.api_version());
            let name = kind.list_name();
            let metadata = format!(r#"{{"continue":"{next}"{remaining},"resourceVersion":"{revision}"}}"#);
            return (head.into(), format!("],\"kind\":\"{name}\",\"metadata\":{metadata}}}\n").into());
        }
        let next = if next.is_empty() { String::new() } else { format!(r#","continue":"{next}""#) };
        let metadata = format!(r#"{{"resourceVersion":"{revision}"{next}{remaining}}}"#);
        let head = match form {
            Form::Table => table::head(kind, &metadata, true),
            Form::Partial { .. } => list_head("PartialObjectMetadataList", "meta.k8s.io/v1", &metadata),
            Form::Plain => list_head(&kind.list_name(), &kind.api_version(), &metadata),
        };
        (head, b"]}\n".to_vec())
    }
}

fn list_head(name: &str, api_version: &str, metadata: &str) -> Vec<u8> {
    format!(r#"{{"kind":"{name}","apiVersion":"{api_version}","metadata":{metadata},"items":["#).into()
}

fn write_item(kind: &ServedKind, object: &StoredObject, form: Form, include: IncludeObject, out: &mut Vec<u8>) {
    match form {
        Form::Plain => {
            let (open, rest) = object.item();
            out.extend_from_slice(open);
            out.extend_from_slice(rest);
        }
        Form::Table => out.extend_from_slice(&table::row(kind, object, object.meta.rv, include)),
        Form::Partial { .. } => out.extend_from_slice(&object.partial(object.meta.rv)),
    }
}

/// The body of a GET.
pub(crate) fn single(kind: &ServedKind, object: &StoredObject, form: Form, include: IncludeObject) -> Vec<u8> {
    let mut body = match form {
        Form::Plain => object.body.to_vec(),
        Form::Table => table::single(kind, object, object.meta.rv, true, include),
        Form::Partial { .. } => object.partial(object.meta.rv),
    };
    body.push(b'\n');
    body
}

//! Answers GET and LIST: chooses the revision, the page and the form of the response.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};

use super::kinds::DemoResourceKind;
use super::object::StoredObject;
use super::response_form::ResponseForm;
use super::selector::ObjectSelector;
use super::status::DemoStatus;
use super::store::{ObjectMap, ObjectStore};
use super::table::{self, IncludeObject};
use kubeapi::{
    ContinueToken, ContinueVersion, ListOptions, ListPageSource, ListPlan, ResourceVersion, ResourceVersionMatch,
};

/// The minimum size of a chunk of a list's body, except for the last one.
const CHUNK_BYTES: usize = 64 * 1024;

/// A page of a LIST, before it is written.
#[derive(Debug)]
pub(crate) struct DemoPage {
    pub(crate) objects: Vec<Arc<StoredObject>>,
    pub(crate) revision: u64,
    next: Option<String>,
    remaining: Option<usize>,
}

/// Chooses the revision as the apiserver does for the options, and takes the page from it.
pub(crate) async fn list(
    store: &ObjectStore,
    kind: usize,
    options: &ListOptions,
    selector: &ObjectSelector,
    patience: Duration,
) -> Result<DemoPage, DemoStatus> {
    let ListPlan { version, limit, start } = options.list_plan().ok_or_else(|| DemoStatus::invalid(400))?;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok());
    if let Some(start) = start {
        return continued(store, kind, version, &start, limit, selector);
    }
    let requested = least(version);
    store.reach(requested, patience).await?;
    if matches!(version, ResourceVersionMatch::Exact(_)) {
        let objects = store.at(kind, requested)?;
        return Ok(page(&objects, requested, "", limit, selector, true));
    }
    let (objects, revision, _) = store.now(kind);
    Ok(page(&objects, revision, "", limit, selector, false))
}

/// Returns the minimum version of a response.
pub(crate) fn least(version: ResourceVersionMatch) -> u64 {
    match version {
        ResourceVersionMatch::Unset | ResourceVersionMatch::Any => 0,
        ResourceVersionMatch::NotOlderThan(version) | ResourceVersionMatch::Exact(version) => version.0,
    }
}

/// Returns the page that begins at the key `relative`, which is relative to the collection.
fn continued(
    store: &ObjectStore,
    kind: usize,
    version: ResourceVersionMatch,
    relative: &str,
    limit: Option<usize>,
    selector: &ObjectSelector,
) -> Result<DemoPage, DemoStatus> {
    let namespace = &selector.namespace;
    let start = if namespace.is_empty() { relative.to_owned() } else { format!("{namespace}/{relative}") };
    let ResourceVersionMatch::Exact(ResourceVersion(rv)) = version else {
        let (objects, revision, _) = store.now(kind);
        return Ok(page(&objects, revision, &start, limit, selector, false));
    };
    match store.at(kind, rv) {
        Ok(objects) => Ok(page(&objects, rv, &start, limit, selector, true)),
        Err(status) if status.code == 410 => {
            let latest = ContinueToken { version: ContinueVersion::Latest, start: relative.to_owned() };
            Err(DemoStatus::expired_continue(latest.encode(ListPageSource::FromStorage)))
        }
        Err(status) => Err(status),
    }
}

/// Takes a page from the listed objects. `exact` means that the client requested exactly that version.
fn page(
    objects: &ObjectMap,
    revision: u64,
    start: &str,
    limit: Option<usize>,
    selector: &ObjectSelector,
    exact: bool,
) -> DemoPage {
    let skip = objects.partition_point(|object| object.meta.key().as_str() < start);
    let mut rest = objects[skip..].iter();
    let matching = rest.by_ref().filter(|object| selector.matches(object)).cloned();
    let Some(limit) = limit else {
        return DemoPage { objects: matching.collect(), revision, next: None, remaining: None };
    };
    let objects: Vec<_> = matching.take(limit).collect();
    let remaining = rest.filter(|object| selector.would_scan(object, exact)).count();
    let last = objects.last().filter(|_| objects.len() == limit && remaining > 0);
    let next = last.map(|last| {
        // With a field selector for one namespace, the key is not the one that `continued` reads (R-CONTINUE-2).
        let key = if selector.is_namespaced() { last.meta.name.clone() } else { last.meta.key() };
        let at = ContinueVersion::Version(ResourceVersion(revision));
        ContinueToken { version: at, start: format!("{key}\0") }.encode(ListPageSource::FromCache)
    });
    let remaining = (next.is_some() && !selector.is_selective()).then_some(remaining);
    DemoPage { objects, revision, next, remaining }
}

impl DemoPage {
    /// Makes the page an empty one with a continue token, which no apiserver sends.
    pub(crate) fn leads_on(&mut self) {
        let at = ContinueVersion::Version(ResourceVersion(self.revision));
        let start = format!("nowhere/{:x}\0", fastrand::u64(..));
        self.objects.clear();
        self.next = Some(ContinueToken { version: at, start }.encode(ListPageSource::FromCache));
    }

    /// Returns the body, generated piece by piece while it is sent.
    pub(crate) fn into_chunks(
        self,
        kind: &'static DemoResourceKind,
        form: ResponseForm,
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

    /// Returns the bytes before and after the items.
    fn frame(&self, kind: &DemoResourceKind, form: ResponseForm) -> (Vec<u8>, Vec<u8>) {
        let revision = self.revision;
        let next = self.next.as_deref().unwrap_or_default();
        let remaining = self.remaining.map(|n| format!(r#","remainingItemCount":{n}"#)).unwrap_or_default();
        if kind.custom && form == ResponseForm::Plain {
            let head = format!(r#"{{"apiVersion":"{}","items":["#, kind.api_version());
            let name = kind.list_name();
            let metadata = format!(r#"{{"continue":"{next}"{remaining},"resourceVersion":"{revision}"}}"#);
            return (head.into(), format!("],\"kind\":\"{name}\",\"metadata\":{metadata}}}\n").into());
        }
        let next = if next.is_empty() { String::new() } else { format!(r#","continue":"{next}""#) };
        let metadata = format!(r#"{{"resourceVersion":"{revision}"{next}{remaining}}}"#);
        let mut head = match form {
            ResponseForm::Table => table::head(kind, &metadata, true),
            ResponseForm::Partial { .. } => list_head("PartialObjectMetadataList", "meta.k8s.io/v1", &metadata),
            ResponseForm::Plain => list_head(&kind.list_name(), &kind.api_version(), &metadata),
        };
        // Without items the apiserver writes `null` in metadata lists, and `[]` in all others (R-META-1).
        if matches!(form, ResponseForm::Partial { .. }) && self.objects.is_empty() {
            head.truncate(head.len() - 1);
            return (head, b"null}\n".to_vec());
        }
        (head, b"]}\n".to_vec())
    }
}

fn list_head(name: &str, api_version: &str, metadata: &str) -> Vec<u8> {
    format!(r#"{{"kind":"{name}","apiVersion":"{api_version}","metadata":{metadata},"items":["#).into()
}

fn write_item(
    kind: &DemoResourceKind,
    object: &StoredObject,
    form: ResponseForm,
    include: IncludeObject,
    out: &mut Vec<u8>,
) {
    match form {
        ResponseForm::Plain => {
            let (open, rest) = object.item();
            out.extend_from_slice(open);
            out.extend_from_slice(rest);
        }
        ResponseForm::Table => out.extend_from_slice(&table::row(kind, object, object.meta.rv, include)),
        ResponseForm::Partial { .. } => out.extend_from_slice(&object.partial(object.meta.rv)),
    }
}

/// Returns the body of a GET.
pub(crate) fn single(
    kind: &DemoResourceKind,
    object: &StoredObject,
    form: ResponseForm,
    include: IncludeObject,
) -> Vec<u8> {
    let mut body = match form {
        ResponseForm::Plain => object.body.to_vec(),
        ResponseForm::Table => table::single(kind, object, object.meta.rv, true, include),
        ResponseForm::Partial { .. } => object.partial(object.meta.rv),
    };
    body.push(b'\n');
    body
}

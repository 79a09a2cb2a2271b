//! Answers POST, PUT, PATCH and DELETE: converts a client's request into a change of the store or a refusal.

use std::sync::Arc;

use http::Method;

use super::clock;
use super::json::{Json, JsonMembers, merge_patch, strategic_patch};
use super::kinds::{DemoResourceKind, KINDS};
use super::object::{DemoObjectMeta, StoredObject};
use super::protobuf;
use super::selector::ObjectSelector;
use super::status::{self, DemoStatus};
use super::store::{ObjectStore, WriteDecision};
use kubeapi::UrlQuery;

#[derive(Clone, Debug)]
pub(crate) struct WriteTarget {
    pub(crate) kind: usize,
    pub(crate) namespace: String,
    /// The name of the written object; empty for the collection.
    pub(crate) name: String,
    pub(crate) subresource: String,
}

#[derive(Debug)]
pub(crate) enum WriteOutcome {
    Object {
        object: Arc<StoredObject>,
        created: bool,
    },
    /// The object was deleted; the value is the response body.
    Deleted(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum PatchType {
    Apply,
    Merge,
    Strategic,
}

pub(crate) fn write(
    store: &ObjectStore,
    method: &Method,
    target: &WriteTarget,
    media: &str,
    body: &[u8],
    query: &UrlQuery,
) -> Result<WriteOutcome, DemoStatus> {
    let kind = &KINDS[target.kind];
    let has_status = !kind.custom && kind.layout.contains(&"status");
    match target.subresource.as_str() {
        "" => {}
        "status" if has_status && matches!(*method, Method::PUT | Method::PATCH) => {}
        _ => return Err(DemoStatus::no_resource()),
    }
    let writer = DemoWriteHandler { store, target, kind, dry_run: query.first("dryRun").is_some() };
    match (method, target.name.is_empty()) {
        (&Method::POST, true) if kind.namespaced != target.namespace.is_empty() => {
            writer.create(document(kind, media, body)?)
        }
        (&Method::PUT, false) => writer.update(document(kind, media, body)?),
        (&Method::PATCH, false) => {
            let patch = patch_type(kind, media)?;
            writer.patch(patch, parse(body)?)
        }
        // Delete options that are absent or cannot be parsed count as none.
        (&Method::DELETE, false) => writer.delete(&Json::parse(body).unwrap_or_default()),
        (&Method::DELETE, true) if kind.namespaced != target.namespace.is_empty() => {
            let text = |name| query.first(name).unwrap_or_default();
            let (labels, fields) = (text("labelSelector"), text("fieldSelector"));
            writer.delete_matching(&ObjectSelector::parse(kind, &target.namespace, labels, fields)?)
        }
        _ => Err(DemoStatus::method_not_allowed()),
    }
}

fn document(kind: &DemoResourceKind, media: &str, body: &[u8]) -> Result<Json, DemoStatus> {
    match media {
        "application/json" => parse(body),
        "application/vnd.kubernetes.protobuf" => protobuf::read(kind, body).ok_or_else(DemoStatus::unsupported_body),
        _ => Err(DemoStatus::unsupported_body()),
    }
}

fn parse(body: &[u8]) -> Result<Json, DemoStatus> {
    match Json::parse(body) {
        Ok(json @ Json::Object(_)) => Ok(json),
        Ok(_) => Err(DemoStatus::bad_request("the request body is not an object")),
        Err(error) => Err(DemoStatus::bad_request(format!("the object provided is unrecognized: {error}"))),
    }
}

fn patch_type(kind: &DemoResourceKind, media: &str) -> Result<PatchType, DemoStatus> {
    match media {
        "application/merge-patch+json" => Ok(PatchType::Merge),
        "application/strategic-merge-patch+json" if !kind.custom => Ok(PatchType::Strategic),
        "application/apply-patch+yaml" => Ok(PatchType::Apply),
        _ => Err(DemoStatus::unsupported_patch()),
    }
}

struct DemoWriteHandler<'a> {
    store: &'a ObjectStore,
    target: &'a WriteTarget,
    kind: &'static DemoResourceKind,
    dry_run: bool,
}

impl DemoWriteHandler<'_> {
    fn create(&self, document: Json) -> Result<WriteOutcome, DemoStatus> {
        let (mut meta, rest) = split(document);
        if meta.name.is_empty() {
            let prefix = meta.others.get("generateName").and_then(Json::as_str).unwrap_or_default();
            if prefix.is_empty() {
                return Err(DemoStatus::name_required(self.kind));
            }
            meta.name = format!("{prefix}{}", super::suffix());
        }
        if !meta.namespace.is_empty() && meta.namespace != self.target.namespace {
            return Err(DemoStatus::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        meta.namespace.clone_from(&self.target.namespace);
        let key = meta.key();
        self.commit(&key, |current| match current {
            Some(_) => Err(DemoStatus::already_exists(self.kind, &meta.name)),
            None => Ok((meta, rest)),
        })
    }

    fn update(&self, document: Json) -> Result<WriteOutcome, DemoStatus> {
        let (meta, rest) = split(document);
        if meta.name != self.target.name {
            return Err(DemoStatus::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                meta.name, self.target.name
            )));
        }
        self.commit(&self.key(), |current| {
            let current = current.ok_or_else(|| DemoStatus::not_found(self.kind, &self.target.name))?;
            self.check(current, &meta)?;
            Ok((meta, rest))
        })
    }

    fn patch(&self, how: PatchType, patch: Json) -> Result<WriteOutcome, DemoStatus> {
        self.commit(&self.key(), |current| {
            let mut document = match (current, how) {
                (Some(current), _) => Json::parse(&current.body).unwrap_or_default(),
                (None, PatchType::Apply) => Json::Object(JsonMembers::default()),
                (None, _) => return Err(DemoStatus::not_found(self.kind, &self.target.name)),
            };
            let (required, _) = split(patch.clone());
            if let Some(current) = current {
                self.check(current, &required)?;
            }
            match how {
                PatchType::Merge => merge_patch(&mut document, patch),
                PatchType::Apply | PatchType::Strategic => strategic_patch(&mut document, patch),
            }
            Ok(split(document))
        })
    }

    fn delete(&self, options: &Json) -> Result<WriteOutcome, DemoStatus> {
        let precondition = |path| options.at(path).and_then(Json::as_str);
        let deleted = self.store.write(self.target.kind, &self.key(), |current| {
            let current = current.ok_or_else(|| DemoStatus::not_found(self.kind, &self.target.name))?;
            match (precondition("preconditions.uid"), precondition("preconditions.resourceVersion")) {
                (Some(uid), _) if uid != current.meta.uid => {
                    Err(DemoStatus::precondition(self.kind, &self.target.name, uid, &current.meta.uid))
                }
                (_, Some(rv)) if rv != current.meta.rv.to_string() => {
                    Err(DemoStatus::conflict(self.kind, &self.target.name))
                }
                _ => Ok((!self.dry_run).then_some(WriteDecision::Remove)),
            }
        })?;
        let uid = deleted.map(|deleted| deleted.object.meta.uid.clone()).unwrap_or_default();
        Ok(WriteOutcome::Deleted(status::deleted(self.kind, &self.target.name, &uid)))
    }

    fn delete_matching(&self, selector: &ObjectSelector) -> Result<WriteOutcome, DemoStatus> {
        let (objects, ..) = self.store.now(self.target.kind);
        for object in objects.iter().filter(|object| selector.matches(object)) {
            let remove = |current: Option<&Arc<StoredObject>>| Ok(current.map(|_| WriteDecision::Remove));
            self.store.write(self.target.kind, &object.meta.key(), remove)?;
        }
        Ok(WriteOutcome::Deleted(status::deleted(self.kind, "", "")))
    }

    fn key(&self) -> String {
        let WriteTarget { namespace, name, .. } = self.target;
        if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") }
    }

    /// Refuses a request whose resourceVersion or uid is not the current one.
    fn check(&self, current: &StoredObject, required: &DemoObjectMeta) -> Result<(), DemoStatus> {
        if required.rv != 0 && required.rv != current.meta.rv {
            return Err(DemoStatus::conflict(self.kind, &self.target.name));
        }
        if !required.uid.is_empty() && required.uid != current.meta.uid {
            return Err(DemoStatus::precondition(self.kind, &self.target.name, &required.uid, &current.meta.uid));
        }
        Ok(())
    }

    /// Stores the object that `decide` returns, completed as the server does. If nothing changes, there is no new
    /// revision.
    fn commit<D>(&self, key: &str, decide: D) -> Result<WriteOutcome, DemoStatus>
    where
        D: FnOnce(Option<&Arc<StoredObject>>) -> Result<(DemoObjectMeta, JsonMembers), DemoStatus>,
    {
        let mut previewed = None;
        let written = self.store.write(self.target.kind, key, |current| {
            let (meta, rest) = self.complete(current, decide(current)?);
            let rv = current.map_or(0, |current| current.meta.rv);
            let preview = StoredObject::new(self.kind, DemoObjectMeta { rv, ..meta.clone() }, rest.clone());
            if self.dry_run || current.is_some_and(|current| current.body == preview.body) {
                previewed = Some((Arc::new(preview), current.is_none()));
                return Ok(None);
            }
            Ok(Some(WriteDecision::Put(meta, rest)))
        })?;
        let (object, created) = match (previewed, written) {
            (Some(previewed), _) => previewed,
            (None, Some(written)) => (written.object, written.created),
            (None, None) => {
                return Err(DemoStatus::new(500, "InternalError", "Internal error occurred: nothing written"));
            }
        };
        Ok(WriteOutcome::Object { object, created })
    }

    /// Sets the members that a client cannot: identity, generation, and the specification or status if the request must
    /// not change it.
    fn complete(
        &self,
        current: Option<&Arc<StoredObject>>,
        (mut meta, mut rest): (DemoObjectMeta, JsonMembers),
    ) -> (DemoObjectMeta, JsonMembers) {
        meta.name = if self.target.name.is_empty() { meta.name } else { self.target.name.clone() };
        meta.namespace.clone_from(&self.target.namespace);
        let old = current.map(|current| current.rest());
        meta.uid = current.map_or_else(super::uid, |current| current.meta.uid.clone());
        meta.created =
            current.map_or_else(|| clock::rfc3339(clock::unix_seconds()), |current| current.meta.created.clone());
        if !self.kind.custom && self.kind.layout.contains(&"status") {
            if self.target.subresource == "status" {
                let status = rest.take("status").unwrap_or_default();
                rest = old.clone().unwrap_or_default();
                rest.set("status", status);
            } else {
                let status = old.as_ref().and_then(|old| old.get("status").cloned());
                rest.set("status", status.unwrap_or_else(|| first_status(self.kind)));
            }
        }
        if self.kind.plural == "secrets" && rest.get("type").is_none() {
            rest.set("type", "Opaque".into());
        }
        let before = current.and_then(|current| current.meta.generation).unwrap_or(0);
        let changed = old.is_none_or(|old| old.get("spec") != rest.get("spec"));
        meta.generation = self.kind.generation.then_some(before + u64::from(changed));
        (meta, rest)
    }
}

fn first_status(kind: &DemoResourceKind) -> Json {
    let text = match kind.plural {
        "pods" => r#"{"phase":"Pending","qosClass":"BestEffort"}"#,
        "namespaces" => r#"{"phase":"Active"}"#,
        "services" => r#"{"loadBalancer":{}}"#,
        _ => "{}",
    };
    Json::parse(text.as_bytes()).unwrap_or_default()
}

/// Splits a document into its metadata and its other members, without the type.
pub(crate) fn split(document: Json) -> (DemoObjectMeta, JsonMembers) {
    let mut fields = document.into_fields().unwrap_or_default();
    let metadata = fields.take("metadata").and_then(Json::into_fields).unwrap_or_default();
    fields.0.retain(|(key, _)| !matches!(key.as_str(), "kind" | "apiVersion"));
    (DemoObjectMeta::read(metadata), fields)
}

//! Selects objects for a LIST or WATCH by labels, fields and a namespace, all of which must match.

mod fields;
mod labels;

use super::kinds::ServedKind;
use super::object::StoredObject;
use super::status::DemoStatus;

#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectSelector {
    /// The namespace of the path; empty for all namespaces and for cluster-wide resources.
    pub(crate) namespace: String,
    labels: Vec<labels::LabelRequirement>,
    fields: Vec<Condition>,
}

/// A condition of a selector: one `key=value` or `key!=value`. `source` says where an object's value is.
#[derive(Clone, Debug)]
struct Condition {
    source: Source,
    value: String,
    equal: bool,
    /// Whether the apiserver's cache has an index of this field, and so does not scan.
    indexed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    Name,
    Namespace,
    Field(usize),
}

impl ObjectSelector {
    pub(crate) fn parse(kind: &ServedKind, namespace: &str, labels: &str, fields: &str) -> Result<Self, DemoStatus> {
        let labels = labels::parse(labels).map_err(DemoStatus::bad_request)?;
        let fields = fields::parse(fields).map_err(DemoStatus::bad_request)?;
        let fields = fields.into_iter().map(|term| resolve(kind, term)).collect::<Result<_, _>>()?;
        Ok(Self { namespace: namespace.to_owned(), labels, fields })
    }

    pub(crate) fn matches(&self, object: &StoredObject) -> bool {
        let meta = &object.meta;
        (self.namespace.is_empty() || self.namespace == meta.namespace)
            && self.labels.iter().all(|requirement| requirement.matches(&meta.labels))
            && self.fields.iter().all(|condition| {
                let found = match condition.source {
                    Source::Name => &meta.name,
                    Source::Namespace => &meta.namespace,
                    Source::Field(at) => &object.fields[at],
                };
                (*found == condition.value) == condition.equal
            })
    }

    /// Whether the request has a label or field selector. Lists with one do not have a `remainingItemCount`.
    pub(crate) fn is_selective(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    /// Whether the apiserver would scan this object after a page was full, and so return a continue token. A list of
    /// one name never scans. At an exact version, the apiserver does not use its cache's indexes.
    pub(crate) fn would_scan(&self, object: &StoredObject, exact: bool) -> bool {
        let namespace = self.fields.iter().find(|c| c.source == Source::Namespace && c.equal);
        let namespace = namespace.map_or(self.namespace.as_str(), |condition| &condition.value);
        let of_one = self.name().is_some() && (!namespace.is_empty() || object.meta.namespace.is_empty());
        let found = |condition: &Condition| match condition.source {
            Source::Field(at) if condition.indexed && condition.equal => object.fields[at] == condition.value,
            _ => true,
        };
        !of_one
            && (namespace.is_empty() || namespace == object.meta.namespace)
            && (exact || self.fields.iter().all(found))
    }

    /// Returns the name that the field selector requires, if it requires one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.fields.iter().find(|c| c.source == Source::Name && c.equal).map(|c| c.value.as_str())
    }
}

fn resolve(kind: &ServedKind, (key, value, equal): fields::FieldCondition) -> Result<Condition, DemoStatus> {
    let source = match key.as_str() {
        "metadata.name" => Source::Name,
        "metadata.namespace" if kind.selectable.namespace => Source::Namespace,
        _ => {
            let at = kind.selectable.fields.iter().position(|(known, ..)| *known == key);
            Source::Field(at.ok_or_else(|| DemoStatus::bad_request(unknown_text(kind, &key)))?)
        }
    };
    let indexed = key == "spec.nodeName";
    Ok(Condition { source, value, equal, indexed })
}

fn unknown_text(kind: &ServedKind, key: &str) -> String {
    if kind.selectable.short_text {
        format!("field label not supported: {key}")
    } else {
        format!("{key:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    }
}

//! Selects objects for a LIST or WATCH by labels, fields and a namespace, all of which must match.

mod fields;
mod labels;

use super::kinds::DemoResourceKind;
use super::object::StoredObject;
use super::status::DemoStatus;

#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectSelector {
    /// The namespace of the path; empty for all namespaces and for cluster-wide resources.
    pub(crate) namespace: String,
    labels: Vec<labels::LabelRequirement>,
    fields: Vec<SelectorCondition>,
}

/// A condition of a selector: one `key=value` or `key!=value`. `source` says where an object's value is.
#[derive(Clone, Debug)]
struct SelectorCondition {
    source: SelectorValueSource,
    value: String,
    equal: bool,
    /// Whether the apiserver's cache has an index of this field, and so does not scan.
    indexed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SelectorValueSource {
    Name,
    Namespace,
    Field(usize),
}

impl ObjectSelector {
    pub(crate) fn parse(
        kind: &DemoResourceKind,
        namespace: &str,
        labels: &str,
        fields: &str,
    ) -> Result<Self, DemoStatus> {
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
                    SelectorValueSource::Name => &meta.name,
                    SelectorValueSource::Namespace => &meta.namespace,
                    SelectorValueSource::Field(at) => &object.fields[at],
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
        let namespace = self.only_namespace();
        let of_one = self.name().is_some() && (!namespace.is_empty() || object.meta.namespace.is_empty());
        let found = |condition: &SelectorCondition| match condition.source {
            SelectorValueSource::Field(at) if condition.indexed && condition.equal => {
                object.fields[at] == condition.value
            }
            _ => true,
        };
        !of_one
            && (namespace.is_empty() || namespace == object.meta.namespace)
            && (exact || self.fields.iter().all(found))
    }

    /// Whether the path or the field selector requires one namespace.
    pub(crate) fn is_namespaced(&self) -> bool {
        !self.only_namespace().is_empty()
    }

    /// Returns the namespace that the field selector or the path requires; empty for all namespaces.
    fn only_namespace(&self) -> &str {
        let namespace = self.fields.iter().find(|c| c.source == SelectorValueSource::Namespace && c.equal);
        namespace.map_or(self.namespace.as_str(), |condition| &condition.value)
    }

    /// Returns the name that the field selector requires, if it requires one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.fields.iter().find(|c| c.source == SelectorValueSource::Name && c.equal).map(|c| c.value.as_str())
    }
}

fn resolve(
    kind: &DemoResourceKind,
    (key, value, equal): fields::FieldCondition,
) -> Result<SelectorCondition, DemoStatus> {
    let source = match key.as_str() {
        "metadata.name" => SelectorValueSource::Name,
        "metadata.namespace" if kind.selectable.namespace => SelectorValueSource::Namespace,
        _ => {
            let at = kind.selectable.fields.iter().position(|(known, ..)| *known == key);
            SelectorValueSource::Field(at.ok_or_else(|| DemoStatus::bad_request(unknown_text(kind, &key)))?)
        }
    };
    let indexed = key == "spec.nodeName";
    Ok(SelectorCondition { source, value, equal, indexed })
}

fn unknown_text(kind: &DemoResourceKind, key: &str) -> String {
    if kind.selectable.short_text {
        format!("field label not supported: {key}")
    } else {
        format!("{key:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
    }
}

//! The parts of `CustomResourceDefinitions` that the proxy reads, and the contents of single definitions and APIServices,
//! for code that follows them by a watch.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;

use super::documents::{ApiService, ServedApi};
use kubeapi::Gvr;

/// The resources whose objects declare the APIs that upstream serves besides its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeclaringResource {
    /// The value for `CustomResourceDefinitions`.
    Definitions,
    /// The value for `APIServices`, which list the APIs of the aggregation layer.
    Services,
}

/// The declarations of one CustomResourceDefinition or APIService.
#[derive(Debug, Clone, PartialEq)]
pub struct Declaration(pub(super) Declared);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Declared {
    /// The served versions of a custom resource; none while the definition is not established.
    Customs(Vec<(Gvr, Definition)>),
    /// Returns the API that another server serves, if there is one.
    Remote(Option<ServedApi>),
}

impl DeclaringResource {
    pub const ALL: [Self; 2] = [Self::Definitions, Self::Services];

    pub fn gvr(self) -> Gvr {
        match self {
            Self::Definitions => Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
            Self::Services => Gvr::new("apiregistration.k8s.io", "v1", "apiservices"),
        }
    }

    /// Parses a declaring object in JSON; returns `None` if it is not of this kind.
    pub fn read(self, json: &[u8]) -> Option<Declaration> {
        let said = match self {
            Self::Definitions => {
                Declared::Customs(serde_json::from_slice::<CustomResourceDefinition>(json).ok()?.served().collect())
            }
            Self::Services => Declared::Remote(serde_json::from_slice::<ApiService>(json).ok()?.remote()),
        };
        Some(Declaration(said))
    }
}

/// The properties of one served version of a custom resource.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Definition {
    /// The edition, which changes whenever the decoding of objects may change: with the schema, its defaults or the
    /// conversion.
    pub(super) edition: Arc<str>,
    pub(super) kind: Arc<str>,
    pub(super) list_kind: Arc<str>,
    pub(super) namespaced: bool,
    /// The JSON paths of the selectable fields (KEP-4358).
    pub(super) selectable: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct CustomResourceDefinitions {
    #[serde(default)]
    items: Vec<CustomResourceDefinition>,
}

#[derive(Deserialize)]
pub(super) struct CustomResourceDefinition {
    metadata: Metadata,
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    generation: i64,
}

#[derive(Deserialize)]
struct Spec {
    group: String,
    scope: String,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    name: String,
    served: bool,
    #[serde(default)]
    selectable_fields: Vec<SelectableField>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SelectableField {
    json_path: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    accepted_names: Names,
    // Null while there are none.
    conditions: Option<Vec<Condition>>,
}

/// The names that upstream has accepted; the requested names may be taken by another definition.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Names {
    #[serde(default)]
    plural: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    list_kind: String,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl CustomResourceDefinitions {
    /// Returns every version that is served.
    pub(super) fn served(self) -> HashMap<Gvr, Definition> {
        self.items.into_iter().flat_map(CustomResourceDefinition::served).collect()
    }
}

impl CustomResourceDefinition {
    /// Returns the versions that are served: none before the definition is established.
    pub(super) fn served(self) -> impl Iterator<Item = (Gvr, Definition)> {
        let is_established = self.status.is_established();
        let Self { metadata: Metadata { uid, generation }, spec, status } = self;
        let Names { plural, kind, list_kind } = status.accepted_names;
        let Spec { group, scope, versions } = spec;
        let edition: Arc<str> = format!("{uid}/{generation}").into();
        let list_kind: Arc<str> = if list_kind.is_empty() { format!("{kind}List").into() } else { list_kind.into() };
        let (kind, namespaced): (Arc<str>, bool) = (kind.into(), scope == "Namespaced");
        versions.into_iter().filter(move |version| version.served && is_established).map(move |version| {
            let definition = Definition {
                edition: edition.clone(),
                kind: kind.clone(),
                list_kind: list_kind.clone(),
                namespaced,
                selectable: version.selectable_fields.into_iter().map(|field| field.json_path).collect(),
            };
            (Gvr::new(&group, &version.name, &plural), definition)
        })
    }
}

impl Status {
    fn is_established(&self) -> bool {
        self.conditions.iter().flatten().any(|condition| condition.kind == "Established" && condition.status == "True")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn definition(established: &str) -> Value {
        json!({
            "metadata": {"uid": "u", "generation": 3},
            "spec": {"group": "g.io", "scope": "Cluster", "names": {"plural": "taken"}, "versions": [
                {"name": "v2", "served": true, "selectableFields": [{"jsonPath": ".spec.a"}]},
                {"name": "v1", "served": false},
            ]},
            "status": {
                "acceptedNames": {"plural": "mice", "kind": "Mouse", "listKind": "Mischief"},
                "conditions": [{"type": "Established", "status": established}],
            },
        })
    }

    fn served(items: &[Value]) -> HashMap<Gvr, Definition> {
        let list: CustomResourceDefinitions = serde_json::from_value(json!({"items": items})).expect("a list");
        list.served()
    }

    #[test]
    fn crd_uses_names_accepted_in_status() {
        let expected = Definition {
            edition: "u/3".into(),
            kind: "Mouse".into(),
            list_kind: "Mischief".into(),
            namespaced: false,
            selectable: vec![".spec.a".to_owned()],
        };
        assert_eq!(served(&[definition("True")]), HashMap::from([(Gvr::new("g.io", "v2", "mice"), expected)]));
    }

    #[test]
    fn crd_that_is_not_established_is_not_served() {
        let mut young = definition("True");
        young["status"] = json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}});
        let mut newborn = definition("True");
        newborn.as_object_mut().expect("an object").remove("status");
        assert_eq!(served(&[definition("False"), young, newborn]), HashMap::new());
    }
}

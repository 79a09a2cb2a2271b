//! The parts of `CustomResourceDefinitions` that the proxy reads, and the contents of single definitions and
//! APIServices, for code that follows them by a watch.

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinitionStatus, SelectableField,
};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIServiceSpec;
use serde::Deserialize;

use super::super::JsonListPage;
use crate::wire::{PrinterColumn, TablePrinter};
use kubeapi::Gvr;

/// The resources whose objects declare the APIs that upstream serves besides its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiDefinitionKind {
    /// The `CustomResourceDefinitions`.
    Definitions,
    /// The `APIServices`, which list the APIs of the aggregation layer.
    Services,
}

/// The group and the version of an API.
pub(super) type ServedGroupVersion = (String, String);

/// The declarations of one CustomResourceDefinition or APIService.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiDefinition(pub(super) DefinedApis);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum DefinedApis {
    /// The served versions of a custom resource; none while the definition is not established.
    Custom(Vec<(Gvr, CustomResourceVersion)>),
    /// The API that another server serves, if there is one.
    Aggregated(Option<ServedGroupVersion>),
}

impl ApiDefinitionKind {
    pub const ALL: [Self; 2] = [Self::Definitions, Self::Services];

    pub fn gvr(self) -> Gvr {
        match self {
            Self::Definitions => Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
            Self::Services => Gvr::new("apiregistration.k8s.io", "v1", "apiservices"),
        }
    }

    /// Parses a declaring object in JSON; returns `None` if it is not of this kind.
    pub fn read(self, json: &[u8]) -> Option<ApiDefinition> {
        let apis = match self {
            Self::Definitions => {
                DefinedApis::Custom(serde_json::from_slice::<CustomResourceDefinition>(json).ok()?.served().collect())
            }
            Self::Services => {
                let APIServiceSpec { group, version, service, .. } =
                    serde_json::from_slice::<ApiService>(json).ok()?.spec;
                DefinedApis::Aggregated(service.map(|_| (group.unwrap_or_default(), version.unwrap_or_default())))
            }
        };
        Some(ApiDefinition(apis))
    }

    /// Parses a list of declaring objects.
    pub(super) fn read_list(self, json: &[u8]) -> Option<Vec<ApiDefinition>> {
        let JsonListPage { items, .. } = serde_json::from_slice(json).ok()?;
        items.into_iter().map(|object| self.read(object.get().as_bytes())).collect()
    }
}

/// The properties of one served version of a custom resource.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CustomResourceVersion {
    /// The edition, which changes whenever the decoding of objects may change: with the schema, its defaults or the
    /// conversion.
    pub(super) edition: Arc<str>,
    pub(super) kind: Arc<str>,
    pub(super) list_kind: Arc<str>,
    pub(super) namespaced: bool,
    /// The JSON paths of the selectable fields (KEP-4358).
    pub(super) selectable: Vec<String>,
    pub(super) printer: Option<Arc<TablePrinter>>,
}

/// An `APIService` without its metadata and status.
#[derive(Deserialize)]
struct ApiService {
    spec: APIServiceSpec,
}

/// A `CustomResourceDefinition` without the schemas of its versions.
#[derive(Deserialize)]
struct CustomResourceDefinition {
    metadata: CrdMetadata,
    spec: CrdSpec,
    status: Option<CustomResourceDefinitionStatus>,
}

#[derive(Deserialize)]
struct CrdMetadata {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    generation: i64,
}

#[derive(Deserialize)]
struct CrdSpec {
    group: String,
    scope: String,
    #[serde(default)]
    versions: Vec<CrdVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CrdVersion {
    name: String,
    served: bool,
    #[serde(default)]
    selectable_fields: Vec<SelectableField>,
    #[serde(default)]
    additional_printer_columns: Vec<PrinterColumn>,
}

impl CustomResourceDefinition {
    /// Returns the versions that are served: none before the definition is established.
    fn served(self) -> impl Iterator<Item = (Gvr, CustomResourceVersion)> {
        let Self { metadata: CrdMetadata { uid, generation }, spec, status } = self;
        let CustomResourceDefinitionStatus { accepted_names, conditions, .. } = status.unwrap_or_default();
        let is_established = conditions
            .is_some_and(|conditions| conditions.iter().any(|one| one.type_ == "Established" && one.status == "True"));
        // The requested names may be taken by another definition.
        let names = accepted_names.unwrap_or_default();
        let CrdSpec { group, scope, versions } = spec;
        let edition: Arc<str> = format!("{uid}/{generation}").into();
        let list_kind =
            names.list_kind.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("{}List", names.kind));
        let (kind, list_kind): (Arc<str>, Arc<str>) = (names.kind.into(), list_kind.into());
        let namespaced = scope == "Namespaced";
        versions.into_iter().filter(move |version| version.served && is_established).map(move |version| {
            let definition = CustomResourceVersion {
                edition: edition.clone(),
                kind: kind.clone(),
                list_kind: list_kind.clone(),
                namespaced,
                printer: TablePrinter::new(&version.additional_printer_columns).map(Arc::new),
                selectable: version.selectable_fields.into_iter().map(|field| field.json_path).collect(),
            };
            (Gvr::new(&group, &version.name, &names.plural), definition)
        })
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

    fn served(items: &[Value]) -> Vec<DefinedApis> {
        let list =
            ApiDefinitionKind::Definitions.read_list(json!({"metadata": {}, "items": items}).to_string().as_bytes());
        list.expect("a list").into_iter().map(|ApiDefinition(apis)| apis).collect()
    }

    #[test]
    fn crd_uses_names_accepted_in_status() {
        let expected = CustomResourceVersion {
            edition: "u/3".into(),
            kind: "Mouse".into(),
            list_kind: "Mischief".into(),
            namespaced: false,
            selectable: vec![".spec.a".to_owned()],
            printer: TablePrinter::new(&[]).map(Arc::new),
        };
        let expected = DefinedApis::Custom(vec![(Gvr::new("g.io", "v2", "mice"), expected)]);
        assert_eq!(served(&[definition("True")]), [expected]);
    }

    #[test]
    fn crd_that_is_not_established_is_not_served() {
        let mut young = definition("True");
        young["status"] = json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}});
        let mut newborn = definition("True");
        newborn.as_object_mut().expect("an object").remove("status");
        assert_eq!(served(&[definition("False"), young, newborn]), [const { DefinedApis::Custom(Vec::new()) }; 3]);
    }
}

//! The contents of single definitions and APIServices, for code that follows them by a watch.

use super::definitions::{CustomResourceDefinition, Definition};
use super::documents::{ApiService, ServedApi};
use kubeapi::Gvr;

/// The resources whose objects declare the APIs that upstream serves besides its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeclaringResource {
    /// The `CustomResourceDefinitions`.
    Definitions,
    /// The `APIServices`, which list the APIs of the aggregation layer.
    Services,
}

/// The declarations of one CustomResourceDefinition or APIService.
#[derive(Debug, Clone, PartialEq)]
pub struct Declaration(pub(super) Declared);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Declared {
    /// The served versions of a custom resource; none while the definition is not established.
    Customs(Vec<(Gvr, Definition)>),
    /// The API that another server serves, if there is one.
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

//! What single definitions and APIServices say, for whoever follows them by a watch.

use super::definitions::{CustomResourceDefinition, Definition};
use super::documents::{ApiService, ServedApi};
use kubeapi::Gvr;

/// The resources whose objects say what upstream serves besides its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeclaringResource {
    /// `CustomResourceDefinitions`.
    Definitions,
    /// `APIServices`, which say what is behind the aggregation layer.
    Services,
}

/// What one of their objects says.
#[derive(Debug, Clone, PartialEq)]
pub struct Declaration(pub(super) Declared);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Declared {
    /// These are served; none as long as a definition is not established.
    Customs(Vec<(Gvr, Definition)>),
    /// What another server answers for, if there is one.
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

    /// Reads an object in JSON; `None` if it is none of these.
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

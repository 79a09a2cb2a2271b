use std::fmt;
use std::sync::Arc;

use crate::wire::Encoding;
use kubeapi::{FieldTerm, Gvr, NAME_KEY, ObjectKey};

/// What one feed fetches: a resource, a scope and an encoding.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FeedKey {
    pub gvr: Gvr,
    pub scope: Scope,
    pub encoding: Encoding,
}

/// How much of a resource a feed covers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// All objects.
    Cluster,
    /// The objects in one namespace.
    Namespace(Arc<str>),
    /// The objects whose `field` is `value`, wherever they are: what a fixed field selector finds.
    Selected { field: Arc<str>, value: Arc<str> },
}

/// A name that no object can have: names are lower case.
const NOBODY: &str = "NOBODY";

impl FeedKey {
    /// The URL of the feed's collection, with `query` added.
    pub fn url(&self, query: &str) -> String {
        let selected = self.scope.term().map(|term| term.to_string()).unwrap_or_default();
        url(&self.path(), &selected, query)
    }

    /// The URL of one of its objects, with `query` added.
    pub fn url_of(&self, object: &ObjectKey, query: &str) -> String {
        let path = match object.namespace() {
            "" => self.gvr.path(),
            namespace => self.gvr.namespaced_path(namespace),
        };
        let named = FieldTerm::is(NAME_KEY, object.name());
        // The feed's selector stays: a right to read the feed is no right to read any named object.
        let selected = match self.scope.term() {
            Some(term) if term != named => format!("{term},{named}"),
            _ => named.to_string(),
        };
        url(&path, &selected, query)
    }

    /// A URL of the feed's collection that finds nothing. It costs upstream no objects, and is allowed to whoever may
    /// read the feed.
    pub fn url_of_nothing(&self, query: &str) -> String {
        let nothing = match &self.scope {
            Scope::Cluster | Scope::Namespace(_) => FieldTerm::is(NAME_KEY, NOBODY).to_string(),
            // Upstream's authorizers look for the term that the selector requires, so a name alone would not do.
            Scope::Selected { field, value } => {
                format!("{},{}", FieldTerm::is(field, value), FieldTerm::is_not(field, value))
            }
        };
        url(&self.path(), &nothing, query)
    }

    /// The labels that metrics give the feed.
    pub fn labels(&self) -> [(&'static str, String); 4] {
        [
            ("resource", self.gvr.to_string()),
            ("namespace", self.scope.namespace().unwrap_or_default().to_owned()),
            ("selector", self.scope.selector().unwrap_or_default()),
            ("form", self.encoding.as_str().to_owned()),
        ]
    }

    fn path(&self) -> String {
        match &self.scope {
            Scope::Namespace(namespace) => self.gvr.namespaced_path(namespace),
            Scope::Cluster | Scope::Selected { .. } => self.gvr.path(),
        }
    }
}

impl Scope {
    /// The namespace that is covered, if it is only one.
    pub fn namespace(&self) -> Option<&str> {
        match self {
            Self::Namespace(namespace) => Some(namespace),
            Self::Cluster | Self::Selected { .. } => None,
        }
    }

    /// The fixed field selector, as people write it.
    pub fn selector(&self) -> Option<String> {
        match self {
            Self::Selected { field, value } => Some(format!("{field}={value}")),
            Self::Cluster | Self::Namespace(_) => None,
        }
    }

    fn term(&self) -> Option<FieldTerm<'_>> {
        match self {
            Self::Selected { field, value } => Some(FieldTerm::is(field, value)),
            Self::Cluster | Self::Namespace(_) => None,
        }
    }
}

fn url(path: &str, selected: &str, query: &str) -> String {
    let selected = if selected.is_empty() { String::new() } else { format!("fieldSelector={selected}") };
    let query: Vec<_> = [selected.as_str(), query].into_iter().filter(|part| !part.is_empty()).collect();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) }
}

impl fmt::Display for FeedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.gvr)?;
        match &self.scope {
            Scope::Cluster => {}
            Scope::Namespace(namespace) => write!(f, " in {namespace}")?,
            Scope::Selected { field, value } => write!(f, " with {field}={value}")?,
        }
        write!(f, " ({})", self.encoding.as_str())
    }
}

impl fmt::Debug for FeedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

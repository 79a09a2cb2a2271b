use std::fmt;
use std::sync::Arc;

use crate::wire::{FeedEncoding, FrameEnvelope, JsonLayout};
use kubeapi::{EscapedFieldTerm, Gvr, NAME_KEY, ObjectKey, SelectableFieldTable};

/// The identity of a feed: a resource, a scope and an encoding.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FeedKey {
    pub gvr: Gvr,
    pub scope: FeedScope,
    pub encoding: FeedEncoding,
}

/// The part of a resource that a feed covers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FeedScope {
    /// All objects of the resource.
    Cluster,
    /// The objects of the resource in one namespace.
    Namespace(Arc<str>),
    /// The objects whose `field` is `value`, in all namespaces: the result of a fixed field selector.
    Selected { field: Arc<str>, value: Arc<str> },
}

/// A feed's key, and the schema needed to decode its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedSpec {
    pub key: FeedKey,
    pub kind: Arc<str>,
    pub list_kind: Arc<str>,
    /// The edition of the resource's definition, if it has one. Objects may decode differently under another edition.
    pub edition: Option<Arc<str>>,
    pub shape: JsonLayout,
    pub namespaced: bool,
    pub fields: Arc<SelectableFieldTable>,
    /// The key of the selectable field that upstream has an index for, if any.
    pub index_field: Option<Arc<str>>,
}

/// A name that no object can have, because object names are lower case.
const NO_NAME: &str = "NOBODY";

impl FeedKey {
    /// Returns the URL of the feed's collection, with `query` added.
    pub fn url(&self, query: &str) -> String {
        let selected = self.scope.term().map(|term| term.to_string()).unwrap_or_default();
        url(&self.path(), &selected, query)
    }

    /// Returns the URL of an object of the feed, with `query` appended.
    pub fn url_of(&self, object: &ObjectKey, query: &str) -> String {
        let path = self.gvr.path_in(object.namespace());
        let named = EscapedFieldTerm::is(NAME_KEY, object.name());
        // The feed's selector stays, because permission to read the feed does not include every named object.
        let selected = match self.scope.term() {
            Some(term) if term != named => format!("{term},{named}"),
            _ => named.to_string(),
        };
        url(&path, &selected, query)
    }

    /// Returns a URL of the feed's collection that matches no objects. It needs the same permissions as the feed, and
    /// upstream returns no objects.
    pub fn empty_list_url(&self, query: &str) -> String {
        let nothing = match &self.scope {
            FeedScope::Cluster | FeedScope::Namespace(_) => EscapedFieldTerm::is(NAME_KEY, NO_NAME).to_string(),
            // Upstream's authorizers require the selector's term, so a name alone would be denied.
            FeedScope::Selected { field, value } => {
                format!("{},{}", EscapedFieldTerm::is(field, value), EscapedFieldTerm::is_not(field, value))
            }
        };
        url(&self.path(), &nothing, query)
    }

    /// Returns the metric labels of the feed.
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
            FeedScope::Namespace(namespace) => self.gvr.namespaced_path(namespace),
            FeedScope::Cluster | FeedScope::Selected { .. } => self.gvr.path(),
        }
    }
}

impl FeedScope {
    /// Returns the namespace that the feed covers, if it is only one.
    pub fn namespace(&self) -> Option<&str> {
        if let Self::Namespace(namespace) = self { Some(namespace) } else { None }
    }

    /// Whether the feed has a fixed field selector.
    pub fn is_selected(&self) -> bool {
        matches!(self, Self::Selected { .. })
    }

    /// Returns the feed's fixed field selector as `field=value`.
    pub fn selector(&self) -> Option<String> {
        if let Self::Selected { field, value } = self { Some(format!("{field}={value}")) } else { None }
    }

    fn term(&self) -> Option<EscapedFieldTerm<'_>> {
        if let Self::Selected { field, value } = self { Some(EscapedFieldTerm::is(field, value)) } else { None }
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
            FeedScope::Cluster => {}
            FeedScope::Namespace(namespace) => write!(f, " in {namespace}")?,
            FeedScope::Selected { field, value } => write!(f, " with {field}={value}")?,
        }
        write!(f, " ({})", self.encoding.as_str())
    }
}

impl fmt::Debug for FeedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FeedSpec {
    /// Returns the feed of a resource whose objects are encoded like Pods.
    #[cfg(test)]
    pub(crate) fn like_pods(key: FeedKey) -> Self {
        Self {
            key,
            kind: "Pod".into(),
            list_kind: "PodList".into(),
            edition: None,
            shape: JsonLayout::BuiltIn,
            namespaced: true,
            fields: Arc::default(),
            index_field: None,
        }
    }

    /// Returns the envelope that frames the feed's objects.
    pub fn envelope(&self) -> FrameEnvelope {
        FrameEnvelope::new(self.key.encoding, &self.key.gvr.api_version(), &self.kind, self.shape)
            .with_list_kind(&self.list_kind)
    }
}

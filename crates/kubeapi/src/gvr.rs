use std::fmt;
use std::sync::Arc;

/// Group, version and plural resource name, as in an API path.
///
/// Two versions of one resource are two `Gvr`s: the server converts between them, and a proxy must not.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvr {
    /// The API group; empty for the core group.
    pub group: Arc<str>,
    pub version: Arc<str>,
    /// The plural resource name in lower case, as in the path.
    pub resource: Arc<str>,
}

impl Gvr {
    pub fn new(group: &str, version: &str, resource: &str) -> Self {
        Self { group: group.into(), version: version.into(), resource: resource.into() }
    }

    /// Whether the apiserver has a watch cache for the resource. It has one for all resources except events
    /// (R-EVENT-4).
    pub fn has_watch_cache(&self) -> bool {
        !(&*self.resource == "events" && matches!(&*self.group, "" | "events.k8s.io"))
    }

    /// Whether the resource's objects are Secrets.
    pub fn is_secrets(&self) -> bool {
        &*self.resource == "secrets" && self.group.is_empty()
    }

    /// Whether the resource's objects are the namespaces.
    pub fn is_namespaces(&self) -> bool {
        &*self.resource == "namespaces" && self.group.is_empty()
    }

    /// Returns the collection's path for all namespaces, such as `/api/v1/pods` or `/apis/apps/v1/deployments`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.version_path(), self.resource)
    }

    /// Returns the collection's path in one namespace.
    pub fn namespaced_path(&self, namespace: &str) -> String {
        format!("{}/namespaces/{namespace}/{}", self.version_path(), self.resource)
    }

    /// Returns the path of the part of the collection in a namespace; with an empty one, of the whole collection.
    pub fn path_in(&self, namespace: &str) -> String {
        if namespace.is_empty() { self.path() } else { self.namespaced_path(namespace) }
    }

    /// Returns the `apiVersion` of the resource's objects: `group/version`, or `version` alone for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_string() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns the resource's name in the apiserver's messages: `resource` or `resource.group`.
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() { self.resource.to_string() } else { format!("{}.{}", self.resource, self.group) }
    }

    fn version_path(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        }
    }
}

/// Writes `pods.v1`, `deployments.v1.apps`: unambiguous, and accepted by kubectl.
impl fmt::Display for Gvr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.resource, self.version)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gvr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

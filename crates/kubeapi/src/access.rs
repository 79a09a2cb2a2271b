use super::RequestInfo;

/// The attributes of a request that authorization depends on: those of a `SubjectAccessReview` (R-AUTHZ-1).
///
/// A decision may be shared only between requests with equal attributes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccessAttributes {
    pub verb: String,
    pub target: AccessTarget,
}

/// The target of an access: a resource or a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AccessTarget {
    Path(String),
    Resource(Box<ResourceAccessAttributes>),
}

/// A resource, with all attributes that a permission may depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ResourceAccessAttributes {
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    /// The namespace; empty for all namespaces and at cluster scope.
    pub namespace: String,
    /// The name of the object; empty for all names.
    pub name: String,
    /// The raw selectors. Upstream parses them, and ignores invalid ones, like those of the request itself.
    pub field_selector: String,
    pub label_selector: String,
}

impl AccessAttributes {
    /// Returns the access to all objects of a resource in version `v1`.
    pub fn of_v1(verb: &str, group: &str, resource: &str) -> Self {
        let (group, version, resource) = (group.to_owned(), "v1".to_owned(), resource.to_owned());
        let target = ResourceAccessAttributes { group, version, resource, ..ResourceAccessAttributes::default() };
        Self { verb: verb.to_owned(), target: AccessTarget::Resource(Box::new(target)) }
    }

    pub fn from_request(info: &RequestInfo) -> Self {
        let verb = info.verb.as_str().to_owned();
        if !info.is_resource {
            return Self { verb, target: AccessTarget::Path(info.path.clone()) };
        }
        let target = ResourceAccessAttributes {
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            field_selector: info.field_selector.clone().unwrap_or_default(),
            label_selector: info.label_selector.clone().unwrap_or_default(),
        };
        Self { verb, target: AccessTarget::Resource(Box::new(target)) }
    }

    /// Returns the same access in one namespace. For the collection of namespaces, it is `get` of the `Namespace`, because
    /// no request lists one `Namespace` with the permissions of a `RoleBinding`.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Self {
        let mut access = self.clone();
        let AccessTarget::Resource(target) = &mut access.target else { return access };
        namespace.clone_into(&mut target.namespace);
        let is_namespaces = target.group.is_empty() && target.resource == "namespaces";
        if is_namespaces { access.get(namespace) } else { access }
    }

    /// Returns the access to get one object of the same collection.
    #[must_use]
    pub fn get(mut self, name: &str) -> Self {
        if let AccessTarget::Resource(target) = &mut self.target {
            "get".clone_into(&mut self.verb);
            name.clone_into(&mut target.name);
            (target.field_selector, target.label_selector) = Default::default();
        }
        self
    }

    /// Returns the namespace of the access; empty for all namespaces and at cluster scope.
    pub fn namespace(&self) -> &str {
        match &self.target {
            AccessTarget::Path(_) => "",
            AccessTarget::Resource(target) => &target.namespace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UrlQuery;

    #[test]
    fn access_in_one_namespace_is_that_of_a_request_there() {
        let access = |path: &str, query: &str| {
            let query = UrlQuery::parse(query);
            AccessAttributes::from_request(&RequestInfo::parse("GET", path, &query).expect("a path"))
        };
        for (path, query, inside, inside_query) in [
            ("/api/v1/pods", "watch=1&labelSelector=a", "/api/v1/namespaces/t/pods", "watch=1&labelSelector=a"),
            ("/api/v1/namespaces", "watch=1&labelSelector=a", "/api/v1/namespaces/t", ""),
            ("/api/v1/namespaces", "fieldSelector=metadata.name%3Dx", "/api/v1/namespaces/t", ""),
        ] {
            let (across, inside) = (access(path, query), access(inside, inside_query));
            assert_eq!(across.in_namespace("t"), inside, "{path}?{query}");
        }
    }
}

//! The table of the resources that the demo upstream serves.

/// A resource as the server defines it. Every difference between resources is here, not in the handlers.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "four independent facts, none of which is a state")]
pub(crate) struct DemoResourceKind {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) singular: &'static str,
    pub(crate) name: &'static str,
    pub(crate) short_names: &'static [&'static str],
    pub(crate) categories: &'static [&'static str],
    pub(crate) namespaced: bool,
    /// Whether the resource is a custom one: its keys are sorted, list items keep their type, and negotiation differs
    /// slightly.
    pub(crate) custom: bool,
    /// Whether the real server has a watch cache for the resource. It has none for events, which affects some messages
    /// and bookmarks.
    pub(crate) cached: bool,
    /// Whether the server counts changes of the specification in `metadata.generation`.
    pub(crate) generation: bool,
    /// The top-level members after `metadata`, in the order of the Go struct.
    pub(crate) layout: &'static [&'static str],
    /// The members after `metadata` of a zero object, as in a bookmark; empty or starting with a comma.
    pub(crate) zero: &'static str,
    pub(crate) selectable: SelectableFields,
}

/// The fields that a field selector of a kind may name.
#[derive(Debug)]
pub(crate) struct SelectableFields {
    pub(crate) namespace: bool,
    /// The accepted keys of field selectors, each with the path of its value, and the value if the path does not exist.
    pub(crate) fields: &'static [(&'static str, &'static str, &'static str)],
    /// Whether the kind refuses an unknown key with the server's short text.
    pub(crate) short_text: bool,
}

impl DemoResourceKind {
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    pub(crate) fn list_name(&self) -> String {
        format!("{}List", self.name)
    }

    /// Returns the name of the resource in messages: `pods`, `deployments.apps`.
    pub(crate) fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }
}

/// Finds a kind's index in [`KINDS`], which is also the index of its table in the store.
pub(crate) fn position(group: &str, version: &str, plural: &str) -> Option<usize> {
    KINDS.iter().position(|kind| kind.group == group && kind.version == version && kind.plural == plural)
}

/// Finds a kind by its plural alone, for callers in this module that name one of the table.
pub(crate) fn by_plural(plural: &str) -> Option<usize> {
    KINDS.iter().position(|kind| kind.plural == plural)
}

/// Finds a kind by its plural, for tests. Panics if there is none: a wrong name in a test must not go unnoticed.
pub(crate) fn known(plural: &str) -> usize {
    by_plural(plural).unwrap_or_else(|| panic!("the demo upstream has no {plural}"))
}

pub(crate) const PODS: usize = 0;

const SPEC_STATUS: &[&str] = &["spec", "status"];
const ONLY_METADATA: SelectableFields = SelectableFields { namespace: true, fields: &[], short_text: false };

const CORE: DemoResourceKind = DemoResourceKind {
    group: "",
    version: "v1",
    plural: "",
    singular: "",
    name: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    custom: false,
    cached: true,
    generation: false,
    layout: SPEC_STATUS,
    zero: "",
    selectable: ONLY_METADATA,
};

pub(crate) static KINDS: [DemoResourceKind; 15] = [
    DemoResourceKind {
        plural: "pods",
        singular: "pod",
        name: "Pod",
        short_names: &["po"],
        categories: &["all"],
        generation: true,
        zero: r#","spec":{"containers":null},"status":{}"#,
        selectable: SelectableFields { namespace: true, fields: POD_FIELDS, short_text: true },
        ..CORE
    },
    DemoResourceKind {
        plural: "configmaps",
        singular: "configmap",
        name: "ConfigMap",
        short_names: &["cm"],
        layout: &["immutable", "data", "binaryData"],
        ..CORE
    },
    DemoResourceKind {
        plural: "namespaces",
        singular: "namespace",
        name: "Namespace",
        short_names: &["ns"],
        namespaced: false,
        zero: r#","spec":{},"status":{}"#,
        selectable: SelectableFields {
            namespace: false,
            fields: &[("status.phase", "status.phase", "")],
            short_text: true,
        },
        ..CORE
    },
    DemoResourceKind {
        plural: "nodes",
        singular: "node",
        name: "Node",
        short_names: &["no"],
        namespaced: false,
        zero: concat!(
            r#","spec":{},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"nodeInfo":{"machineID":"","#,
            r#""systemUUID":"","bootID":"","kernelVersion":"","osImage":"","containerRuntimeVersion":"","#,
            r#""kubeletVersion":"","kubeProxyVersion":"","operatingSystem":"","architecture":""}}"#
        ),
        selectable: SelectableFields {
            namespace: false,
            fields: &[("spec.unschedulable", "spec.unschedulable", "false")],
            short_text: true,
        },
        ..CORE
    },
    DemoResourceKind {
        plural: "secrets",
        singular: "secret",
        name: "Secret",
        layout: &["immutable", "data", "stringData", "type"],
        selectable: SelectableFields { namespace: true, fields: &[("type", "type", "")], short_text: true },
        ..CORE
    },
    DemoResourceKind {
        plural: "services",
        singular: "service",
        name: "Service",
        short_names: &["svc"],
        categories: &["all"],
        zero: r#","spec":{},"status":{"loadBalancer":{}}"#,
        selectable: SelectableFields {
            namespace: true,
            fields: &[("spec.clusterIP", "spec.clusterIP", ""), ("spec.type", "spec.type", "")],
            short_text: true,
        },
        ..CORE
    },
    DemoResourceKind {
        plural: "events",
        singular: "event",
        name: "Event",
        short_names: &["ev"],
        cached: false,
        layout: &[
            "involvedObject",
            "reason",
            "message",
            "source",
            "firstTimestamp",
            "lastTimestamp",
            "count",
            "type",
            "eventTime",
            "series",
            "action",
            "related",
            "reportingComponent",
            "reportingInstance",
        ],
        zero: concat!(
            r#","involvedObject":{},"source":{},"firstTimestamp":null,"lastTimestamp":null,"eventTime":null,"#,
            r#""reportingComponent":"","reportingInstance":"""#
        ),
        selectable: SelectableFields { namespace: true, fields: EVENT_FIELDS, short_text: true },
        ..CORE
    },
    DemoResourceKind {
        group: "apps",
        plural: "deployments",
        singular: "deployment",
        name: "Deployment",
        short_names: &["deploy"],
        categories: &["all"],
        generation: true,
        zero: concat!(
            r#","spec":{"replicas":0,"selector":null,"template":{"metadata":{},"spec":{"containers":null}},"#,
            r#""strategy":{}},"status":{}"#
        ),
        ..CORE
    },
    DemoResourceKind {
        group: "demo.kube-fanout.io",
        plural: "widgets",
        singular: "widget",
        name: "Widget",
        short_names: &["wd"],
        categories: &["all"],
        custom: true,
        generation: true,
        selectable: SelectableFields { namespace: true, fields: &[("spec.color", "spec.color", "")], short_text: true },
        ..CORE
    },
    DemoResourceKind {
        group: "apiextensions.k8s.io",
        plural: "customresourcedefinitions",
        singular: "customresourcedefinition",
        name: "CustomResourceDefinition",
        short_names: &["crd", "crds"],
        categories: &["api-extensions"],
        namespaced: false,
        generation: true,
        zero: concat!(
            r#","spec":{"group":"","names":{"plural":"","kind":""},"scope":"","versions":null},"#,
            r#""status":{"conditions":null,"acceptedNames":{"plural":"","kind":""},"storedVersions":null}"#
        ),
        ..CORE
    },
    DemoResourceKind {
        group: "apiregistration.k8s.io",
        plural: "apiservices",
        singular: "apiservice",
        name: "APIService",
        categories: &["api-extensions"],
        namespaced: false,
        zero: r#","spec":{"groupPriorityMinimum":0,"versionPriority":0},"status":{}"#,
        ..CORE
    },
    DemoResourceKind { plural: "roles", singular: "role", name: "Role", ..ROLE },
    DemoResourceKind {
        plural: "clusterroles",
        singular: "clusterrole",
        name: "ClusterRole",
        namespaced: false,
        ..ROLE
    },
    DemoResourceKind { plural: "rolebindings", singular: "rolebinding", name: "RoleBinding", ..BINDING },
    DemoResourceKind {
        plural: "clusterrolebindings",
        singular: "clusterrolebinding",
        name: "ClusterRoleBinding",
        namespaced: false,
        ..BINDING
    },
];

const ROLE: DemoResourceKind = DemoResourceKind {
    group: "rbac.authorization.k8s.io",
    layout: &["rules", "aggregationRule"],
    zero: r#","rules":null"#,
    ..CORE
};
const BINDING: DemoResourceKind = DemoResourceKind {
    layout: &["subjects", "roleRef"],
    zero: r#","roleRef":{"apiGroup":"","kind":"","name":""}"#,
    ..ROLE
};

const POD_FIELDS: &[(&str, &str, &str)] = &[
    ("spec.nodeName", "spec.nodeName", ""),
    ("spec.host", "spec.nodeName", ""),
    ("spec.restartPolicy", "spec.restartPolicy", ""),
    ("spec.schedulerName", "spec.schedulerName", ""),
    ("spec.serviceAccountName", "spec.serviceAccountName", ""),
    ("spec.hostNetwork", "spec.hostNetwork", "false"),
    ("status.phase", "status.phase", ""),
    ("status.podIP", "status.podIP", ""),
    ("status.podIPs", "", ""),
    ("status.nominatedNodeName", "status.nominatedNodeName", ""),
];

const EVENT_FIELDS: &[(&str, &str, &str)] = &[
    ("involvedObject.kind", "involvedObject.kind", ""),
    ("involvedObject.namespace", "involvedObject.namespace", ""),
    ("involvedObject.name", "involvedObject.name", ""),
    ("involvedObject.uid", "involvedObject.uid", ""),
    ("involvedObject.apiVersion", "involvedObject.apiVersion", ""),
    ("involvedObject.resourceVersion", "involvedObject.resourceVersion", ""),
    ("involvedObject.fieldPath", "involvedObject.fieldPath", ""),
    ("reason", "reason", ""),
    ("reportingComponent", "reportingComponent", ""),
    ("source", "source.component", ""),
    ("type", "type", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_first_and_every_kind_is_found_by_gvr() {
        assert_eq!(KINDS[PODS].plural, "pods");
        for (n, kind) in KINDS.iter().enumerate() {
            assert_eq!(position(kind.group, kind.version, kind.plural), Some(n));
            assert!(kind.zero.is_empty() || kind.zero.starts_with(','), "{}", kind.plural);
        }
    }
}

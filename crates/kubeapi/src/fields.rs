//! The field tables of the API: the selectors that each resource supports (R-FIELD-5).
//!
//! The tables combine two sources. Accepted keys come from `AddFieldLabelConversionFunc` in kubernetes/kubernetes
//! `pkg/apis/*/*/conversion.go`. Values come from `ToSelectableFields` and similar functions in
//! `pkg/registry/*/*/strategy.go`, as paths in the served object. Field numbers are from k8s.io/api
//! `*/generated.proto`. A table has the keys that all minors of the matrix accept (`tests/conformance/lists.rs`).
//! Requests with another key, such as `spec.pool.name` of resource slices since 1.37, are passed through.

use super::Gvr;
use FieldValueKind::{Bool, Integer, Text};

/// The selectable fields of one resource: the keys that a field selector may name, and the paths of their values.
///
/// Source: R-FIELD-4 to R-FIELD-6. `metadata.name` and `metadata.namespace` are not stored: they are the object's key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SelectableFieldTable {
    /// The fields whose value is read from each object, in the order of
    /// [`SelectableAttributes::fields`](super::SelectableAttributes::fields).
    pub fields: Vec<SelectableFieldSpec>,
    /// The aliases of accepted keys: `spec.host` means `spec.nodeName`.
    pub aliases: Vec<(String, String)>,
    /// The accepted keys that no object has: they compare as `""`.
    pub absent: Vec<String>,
    /// Whether `metadata.namespace` is an accepted key.
    pub namespace_key: bool,
}

impl SelectableFieldTable {
    /// Returns the position of `key` in [`fields`](Self::fields), and of its value in
    /// [`SelectableAttributes::fields`](super::SelectableAttributes::fields).
    pub fn position(&self, key: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.key == key)
    }
}

/// One selectable field of a resource, and where its value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectableFieldSpec {
    /// The key of the field in selectors, such as `spec.nodeName`.
    pub key: String,
    /// The JSON paths of the value, in order: the first value that is present and not empty applies. In a built-in
    /// resource, a step `0` is the first element of an array: `["status", "podIPs", "0", "ip"]`.
    pub json: Vec<Vec<String>>,
    /// The paths in `json` as protobuf field numbers (first element of repeated fields). Empty for custom resources,
    /// which have no protobuf form.
    pub proto: Vec<Vec<u32>>,
    pub kind: FieldValueKind,
}

/// The conversion of a field's value to the text that selectors compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValueKind {
    /// The value is used unchanged.
    Text,
    /// The value is a boolean, `true` or `false`; an absent one is `false`.
    Bool,
    /// The value is a decimal number; an absent one is `0`.
    Integer,
    /// The value is that of a custom resource's field: text unchanged, numbers and booleans in their JSON spelling,
    /// absent is `""`.
    Any,
}

impl FieldValueKind {
    /// Returns the text of a field that the object lacks.
    pub fn absent_text(self) -> &'static str {
        match self {
            Self::Text | Self::Any => "",
            Self::Bool => "false",
            Self::Integer => "0",
        }
    }
}

/// One path to a selectable value: the dotted JSON path, and the protobuf field numbers along it.
type FieldPath = (&'static str, &'static [u32]);

/// A row of the table of fields: a selector key, the conversion of its value to text, and the paths of the value, in
/// order of preference.
type BuiltinFieldRow = (&'static str, FieldValueKind, &'static [FieldPath]);

const POD: &[BuiltinFieldRow] = &[
    ("spec.nodeName", Text, &[("spec.nodeName", &[2, 10])]),
    ("spec.restartPolicy", Text, &[("spec.restartPolicy", &[2, 3])]),
    ("spec.schedulerName", Text, &[("spec.schedulerName", &[2, 19])]),
    ("spec.serviceAccountName", Text, &[("spec.serviceAccountName", &[2, 8])]),
    ("spec.hostNetwork", Bool, &[("spec.hostNetwork", &[2, 11])]),
    ("status.phase", Text, &[("status.phase", &[3, 1])]),
    ("status.podIP", Text, &[("status.podIPs.0.ip", &[3, 12, 1]), ("status.podIP", &[3, 6])]),
    ("status.nominatedNodeName", Text, &[("status.nominatedNodeName", &[3, 11])]),
];
const NODE: &[BuiltinFieldRow] = &[("spec.unschedulable", Bool, &[("spec.unschedulable", &[2, 4])])];
const NAMESPACE: &[BuiltinFieldRow] = &[("status.phase", Text, &[("status.phase", &[3, 1])])];
const SECRET: &[BuiltinFieldRow] = &[("type", Text, &[("type", &[3])])];
const SERVICE: &[BuiltinFieldRow] =
    &[("spec.clusterIP", Text, &[("spec.clusterIP", &[2, 3])]), ("spec.type", Text, &[("spec.type", &[2, 4])])];
const REPLICATION_CONTROLLER: &[BuiltinFieldRow] = &[("status.replicas", Integer, &[("status.replicas", &[3, 1])])];
const JOB: &[BuiltinFieldRow] = &[("status.successful", Integer, &[("status.succeeded", &[3, 5])])];
const CORE_EVENT: &[BuiltinFieldRow] = &[
    ("involvedObject.kind", Text, &[("involvedObject.kind", &[2, 1])]),
    ("involvedObject.namespace", Text, &[("involvedObject.namespace", &[2, 2])]),
    ("involvedObject.name", Text, &[("involvedObject.name", &[2, 3])]),
    ("involvedObject.uid", Text, &[("involvedObject.uid", &[2, 4])]),
    ("involvedObject.apiVersion", Text, &[("involvedObject.apiVersion", &[2, 5])]),
    ("involvedObject.resourceVersion", Text, &[("involvedObject.resourceVersion", &[2, 6])]),
    ("involvedObject.fieldPath", Text, &[("involvedObject.fieldPath", &[2, 7])]),
    ("reason", Text, &[("reason", &[3])]),
    ("reportingComponent", Text, &[("reportingComponent", &[14])]),
    ("source", Text, &[("source.component", &[5, 1]), ("reportingComponent", &[14])]),
    ("type", Text, &[("type", &[9])]),
];
/// The selectable fields of `events.k8s.io/v1`. The server maps these keys to the core ones; the values are the same,
/// under this version's own names.
const EVENT: &[BuiltinFieldRow] = &[
    ("regarding.kind", Text, &[("regarding.kind", &[8, 1])]),
    ("regarding.namespace", Text, &[("regarding.namespace", &[8, 2])]),
    ("regarding.name", Text, &[("regarding.name", &[8, 3])]),
    ("regarding.uid", Text, &[("regarding.uid", &[8, 4])]),
    ("regarding.apiVersion", Text, &[("regarding.apiVersion", &[8, 5])]),
    ("regarding.resourceVersion", Text, &[("regarding.resourceVersion", &[8, 6])]),
    ("regarding.fieldPath", Text, &[("regarding.fieldPath", &[8, 7])]),
    ("reason", Text, &[("reason", &[7])]),
    ("reportingController", Text, &[("reportingController", &[4])]),
    ("type", Text, &[("type", &[11])]),
];
const CERTIFICATE_SIGNING_REQUEST: &[BuiltinFieldRow] = &[("spec.signerName", Text, &[("spec.signerName", &[2, 7])])];
const CLUSTER_TRUST_BUNDLE: &[BuiltinFieldRow] = &[("spec.signerName", Text, &[("spec.signerName", &[2, 1])])];
const POD_CERTIFICATE_REQUEST: &[BuiltinFieldRow] = &[
    ("spec.signerName", Text, &[("spec.signerName", &[2, 1])]),
    ("spec.podName", Text, &[("spec.podName", &[2, 2])]),
    ("spec.nodeName", Text, &[("spec.nodeName", &[2, 6])]),
];
const RESOURCE_SLICE: &[BuiltinFieldRow] =
    &[("spec.nodeName", Text, &[("spec.nodeName", &[2, 3])]), ("spec.driver", Text, &[("spec.driver", &[2, 1])])];

impl SelectableFieldTable {
    /// The table of a resource that the apiserver itself defines (R-FIELD-5). Resources without an entry get the
    /// default table, which has only name and namespace.
    ///
    /// The default table accepts `metadata.namespace` on cluster-scoped resources too (it compares as `""`), and each
    /// listed table states whether it accepts it.
    pub fn of_builtin(gvr: &Gvr) -> Self {
        let group_resource = (&*gvr.group, &*gvr.resource);
        let (rows, namespace_key) = match group_resource {
            ("", "pods") => (POD, true),
            ("", "nodes") => (NODE, false),
            ("", "namespaces") => (NAMESPACE, false),
            ("", "secrets") => (SECRET, true),
            ("", "services") => (SERVICE, true),
            ("", "replicationcontrollers") => (REPLICATION_CONTROLLER, true),
            ("", "events") => (CORE_EVENT, true),
            ("events.k8s.io", "events") => (EVENT, true),
            ("batch", "jobs") => (JOB, true),
            ("certificates.k8s.io", "certificatesigningrequests") => (CERTIFICATE_SIGNING_REQUEST, false),
            ("certificates.k8s.io", "clustertrustbundles") => (CLUSTER_TRUST_BUNDLE, false),
            ("certificates.k8s.io", "podcertificaterequests") => (POD_CERTIFICATE_REQUEST, false),
            ("resource.k8s.io", "resourceslices") => (RESOURCE_SLICE, false),
            _ => (&[] as &[BuiltinFieldRow], true),
        };
        let mut table =
            Self { fields: rows.iter().map(field).collect(), aliases: Vec::new(), absent: Vec::new(), namespace_key };
        if group_resource == ("", "pods") {
            // Clients of Kubernetes 1.0 use spec.host; status.podIPs is accepted and always empty.
            table.aliases.push(("spec.host".to_owned(), "spec.nodeName".to_owned()));
            table.absent.push("status.podIPs".to_owned());
        }
        table
    }

    /// The table of a custom resource (R-FIELD-6). `selectable_json_paths` are the `selectableFields[].jsonPath` of the
    /// requested version, as in its definition (`.spec.color`). The apiserver allows no array or quoted steps in them,
    /// so every `.` separates two steps.
    pub fn of_custom(selectable_json_paths: &[String], namespaced: bool) -> Self {
        let fields = selectable_json_paths.iter().map(|path| {
            let key = path.strip_prefix('.').unwrap_or(path).to_owned();
            let json = vec![steps(&key)];
            SelectableFieldSpec { key, json, proto: Vec::new(), kind: FieldValueKind::Any }
        });
        Self { fields: fields.collect(), aliases: Vec::new(), absent: Vec::new(), namespace_key: namespaced }
    }
}

fn field((key, kind, paths): &BuiltinFieldRow) -> SelectableFieldSpec {
    SelectableFieldSpec {
        key: (*key).to_owned(),
        json: paths.iter().map(|(json, _)| steps(json)).collect(),
        proto: paths.iter().map(|(_, proto)| proto.to_vec()).collect(),
        kind: *kind,
    }
}

fn steps(dotted: &str) -> Vec<String> {
    dotted.split('.').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{FieldSelector, ObjectKey, SelectableAttributes};
    use super::*;

    fn table(gvr: &str) -> SelectableFieldTable {
        let parts: Vec<&str> = gvr.split('/').collect();
        SelectableFieldTable::of_builtin(&Gvr::new(parts[0], parts[1], parts[2]))
    }

    fn compiles(gvr: &str, selector: &str) -> bool {
        FieldSelector::parse(selector).expect("grammar").compile(&table(gvr)).is_some()
    }

    #[test]
    fn each_builtin_kind_accepts_its_own_field_keys() {
        let references = ["kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"];
        let involved = references.map(|step| format!("involvedObject.{step}")).join(" ");
        let regarding = references.map(|step| format!("regarding.{step}")).join(" ");
        let core_event = format!("{involved} reason reportingComponent source type");
        let event = format!("{regarding} reason reportingController type");
        for (gvr, keys) in [
            (
                "/v1/pods",
                "spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName spec.hostNetwork \
                 status.phase status.podIP status.podIPs status.nominatedNodeName spec.host metadata.namespace",
            ),
            ("/v1/nodes", "spec.unschedulable"),
            ("/v1/namespaces", "status.phase"),
            ("/v1/secrets", "type metadata.namespace"),
            ("/v1/services", "spec.clusterIP spec.type metadata.namespace"),
            ("/v1/replicationcontrollers", "status.replicas metadata.namespace"),
            ("/v1/events", &core_event),
            ("events.k8s.io/v1/events", &event),
            ("batch/v1/jobs", "status.successful metadata.namespace"),
            ("certificates.k8s.io/v1/certificatesigningrequests", "spec.signerName"),
            ("certificates.k8s.io/v1beta1/clustertrustbundles", "spec.signerName"),
            ("certificates.k8s.io/v1beta1/podcertificaterequests", "spec.signerName spec.podName spec.nodeName"),
            ("resource.k8s.io/v1/resourceslices", "spec.nodeName spec.driver"),
            ("apps/v1/deployments", "metadata.namespace"),
            ("/v1/persistentvolumes", "metadata.namespace"),
        ] {
            for key in keys.split_whitespace().chain(["metadata.name"]) {
                assert!(compiles(gvr, &format!("{key}=x")), "{gvr} {key}");
            }
        }
    }

    #[test]
    fn builtin_kinds_reject_unknown_field_keys() {
        for (gvr, keys) in [
            ("/v1/pods", "foo"),
            ("/v1/nodes", "metadata.namespace"),
            ("/v1/namespaces", "metadata.namespace name"),
            ("/v1/events", "regarding.kind"),
            ("events.k8s.io/v1/events", "involvedObject.kind source"),
            ("batch/v1/jobs", "foo"),
            ("certificates.k8s.io/v1beta1/podcertificaterequests", "metadata.namespace"),
            ("resource.k8s.io/v1/resourceslices", "metadata.namespace spec.pool.name"),
            ("/v1/configmaps", "foo"),
        ] {
            for key in keys.split_whitespace() {
                assert!(!compiles(gvr, &format!("{key}=x")), "{gvr} {key}");
            }
        }
    }

    #[test]
    fn absent_fields_match_the_default_of_their_type() {
        let absent = |gvr: &str| -> SelectableAttributes {
            let fields = table(gvr).fields;
            let fields: Vec<_> = fields.iter().map(|field| field.kind.absent_text()).collect();
            SelectableAttributes::new::<&str, _>(&[], &fields)
        };
        for (gvr, selector, matches) in [
            ("/v1/pods", "spec.nodeName=", true),
            ("/v1/pods", "spec.nodeName!=", false),
            ("/v1/pods", "spec.host=", true),
            ("/v1/pods", "spec.hostNetwork=false", true),
            ("/v1/pods", "spec.hostNetwork=", false),
            ("/v1/pods", "status.podIPs=", true),
            ("/v1/pods", "status.podIPs=10.0.0.1", false),
            ("/v1/nodes", "spec.unschedulable=false", true),
            ("/v1/secrets", "type=", true),
            ("/v1/replicationcontrollers", "status.replicas=0", true),
            ("batch/v1/jobs", "status.successful=0", true),
        ] {
            let matcher = FieldSelector::parse(selector).expect("grammar").compile(&table(gvr)).expect("known key");
            assert_eq!(matcher.matches(&ObjectKey::new("n", "o"), &absent(gvr)), matches, "{gvr} {selector}");
        }
    }

    #[test]
    fn every_field_has_matching_json_and_protobuf_paths() {
        for rows in [
            POD,
            NODE,
            NAMESPACE,
            SECRET,
            SERVICE,
            REPLICATION_CONTROLLER,
            JOB,
            CORE_EVENT,
            EVENT,
            CERTIFICATE_SIGNING_REQUEST,
            CLUSTER_TRUST_BUNDLE,
            POD_CERTIFICATE_REQUEST,
            RESOURCE_SLICE,
        ] {
            for row in rows {
                let field = field(row);
                assert_eq!(field.json.len(), field.proto.len(), "{}", field.key);
                for (json, proto) in field.json.iter().zip(&field.proto) {
                    let named = json.iter().filter(|step| *step != "0").count();
                    assert_eq!(named, proto.len(), "{}: one field number per named step", field.key);
                }
            }
        }
    }

    #[test]
    fn custom_resources_select_only_on_declared_selectable_fields() {
        let table = SelectableFieldTable::of_custom(&[".spec.color".to_owned(), ".spec.size.width".to_owned()], false);
        assert_eq!(table.fields[1].json, [["spec", "size", "width"]]);
        let compiles = |selector: &str| FieldSelector::parse(selector).expect("grammar").compile(&table).is_some();
        assert!(compiles("spec.color=red,spec.size.width!=3,metadata.name=a"));
        assert!(!compiles("spec.shape=x"));
        assert!(!compiles("metadata.namespace=x"));
        assert!(SelectableFieldTable::of_custom(&[], true).namespace_key);
    }
}

//! Writes Tables, the form that kubectl prints: with the usual columns for pods, and name and age for all other kinds.

use super::clock;
use super::json::{Json, JsonMembers, write_string};
use super::kinds::{DemoResourceKind, KINDS, PODS};
use super::object::StoredObject;

/// The part of its object that a Table row contains besides its cells.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

impl IncludeObject {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "None" => Ok(Self::None),
            "" | "Metadata" => Ok(Self::Metadata),
            "Object" => Ok(Self::Object),
            other => Err(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: \
                 must be 'Metadata', 'Object', 'None', or empty"
            )),
        }
    }
}

/// The name, type, format and priority of a column. Columns of `-o wide` have a priority above zero.
type TableColumnSpec = (&'static str, &'static str, &'static str, u8);

const POD_COLUMNS: &[TableColumnSpec] = &[
    ("Name", "string", "name", 0),
    ("Ready", "string", "", 0),
    ("Status", "string", "", 0),
    ("Restarts", "string", "", 0),
    ("Age", "string", "", 0),
    ("IP", "string", "", 1),
    ("Node", "string", "", 1),
    ("Nominated Node", "string", "", 1),
    ("Readiness Gates", "string", "", 1),
];
const OTHER_COLUMNS: &[TableColumnSpec] = &[("Name", "string", "name", 0), ("Age", "string", "", 0)];

fn is_pod(kind: &DemoResourceKind) -> bool {
    kind.plural == KINDS[PODS].plural && kind.group.is_empty()
}

/// Writes a `Table` up to the opening bracket of its rows. `metadata` is a whole JSON object.
pub(crate) fn head(kind: &DemoResourceKind, metadata: &str, with_columns: bool) -> Vec<u8> {
    let columns = if is_pod(kind) { POD_COLUMNS } else { OTHER_COLUMNS };
    let define = |(name, column_type, format, priority): &TableColumnSpec| {
        let (head, description) = (format!(r#""name":"{name}","type":"{column_type}""#), "as kubectl shows it");
        format!(r#"{{{head},"format":"{format}","description":"{description}","priority":{priority}}}"#)
    };
    let columns = if with_columns {
        format!("[{}]", columns.iter().map(define).collect::<Vec<_>>().join(","))
    } else {
        "null".to_owned()
    };
    let type_meta = r#""kind":"Table","apiVersion":"meta.k8s.io/v1""#;
    format!(r#"{{{type_meta},"metadata":{metadata},"columnDefinitions":{columns},"rows":["#).into_bytes()
}

/// Writes one row of a table, whose object has the given resourceVersion.
pub(crate) fn row(kind: &DemoResourceKind, object: &StoredObject, rv: u64, include: IncludeObject) -> Vec<u8> {
    let cells = if is_pod(kind) { pod_cells(object) } else { vec![object.meta.name.clone(), age(object)] };
    let mut out = br#"{"cells":["#.to_vec();
    for (n, cell) in cells.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        write_string(cell, &mut out);
    }
    out.push(b']');
    match include {
        IncludeObject::None => out.extend_from_slice(br#","object":null"#),
        IncludeObject::Metadata => {
            out.extend_from_slice(br#","object":"#);
            out.extend_from_slice(&object.partial(rv));
        }
        IncludeObject::Object => {
            out.extend_from_slice(br#","object":"#);
            out.extend_from_slice(&object.restamped(rv));
        }
    }
    out.push(b'}');
    out
}

/// Writes a whole table with one row: the object of a watch event, or of a GET.
pub(crate) fn single(
    kind: &DemoResourceKind,
    object: &StoredObject,
    rv: u64,
    with_columns: bool,
    include: IncludeObject,
) -> Vec<u8> {
    let mut out = head(kind, &format!(r#"{{"resourceVersion":"{rv}"}}"#), with_columns);
    out.extend_from_slice(&row(kind, object, rv, include));
    out.extend_from_slice(b"]}");
    out
}

/// Writes the table of a bookmark. Its row has the cells of a zero object, and an object with the revision.
pub(crate) fn bookmark(kind: &DemoResourceKind, zero_object: &str, rv: u64, with_columns: bool) -> Vec<u8> {
    let cells = if is_pod(kind) {
        r#""","0/0","","0","<unknown>","<none>","<none>","<none>","<none>""#
    } else {
        r#""","<unknown>""#
    };
    let mut out = head(kind, &format!(r#"{{"resourceVersion":"{rv}"}}"#), with_columns);
    out.extend_from_slice(format!(r#"{{"cells":[{cells}],"object":{zero_object}}}]}}"#).as_bytes());
    out
}

fn age(object: &StoredObject) -> String {
    clock::parse_rfc3339(&object.meta.created).map_or_else(|| "<unknown>".to_owned(), clock::age)
}

fn pod_cells(object: &StoredObject) -> Vec<String> {
    let rest = Json::Object(object.rest());
    let containers = rest.at("spec.containers").map_or(&[][..], Json::items);
    let statuses = rest.at("status.containerStatuses").map_or(&[][..], Json::items);
    let ready = statuses.iter().filter(|status| status.get("ready") == Some(&Json::Bool(true))).count();
    let restarts: u64 = statuses.iter().filter_map(|status| status.get("restartCount")?.as_u64()).sum();
    let or_none = |path| rest.at(path).and_then(Json::as_str).filter(|text| !text.is_empty()).unwrap_or("<none>");
    vec![
        object.meta.name.clone(),
        format!("{ready}/{}", containers.len()),
        pod_status(&object.meta.others, &rest, statuses),
        restarts.to_string(),
        age(object),
        or_none("status.podIP").to_owned(),
        or_none("spec.nodeName").to_owned(),
        or_none("status.nominatedNodeName").to_owned(),
        "<none>".to_owned(),
    ]
}

/// Returns the text of the STATUS column. A pod that is being deleted is Terminating. Otherwise the reason of a waiting
/// or terminated container takes precedence over the phase.
fn pod_status(metadata: &JsonMembers, rest: &Json, statuses: &[Json]) -> String {
    let text = |json: &Json, path: &str| json.at(path).and_then(Json::as_str).map(str::to_owned);
    if metadata.get("deletionTimestamp").is_some() {
        return "Terminating".to_owned();
    }
    statuses
        .iter()
        .find_map(|status| text(status, "state.waiting.reason").or_else(|| text(status, "state.terminated.reason")))
        .or_else(|| text(rest, "status.reason"))
        .or_else(|| text(rest, "status.phase"))
        .unwrap_or_default()
}

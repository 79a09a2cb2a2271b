//! Tables of custom resources, printed as the apiserver prints them, from the columns of their definition (R-PRINT-1).
//!
//! **Exact or refused.** A definition whose columns are not all understood has no printer, and an object with a value
//! that Go may print in another way is refused. Both are decided by the definition and the object alone. The cost of a row is bounded by [`ROW_BYTES_MAX`] and [`ROW_VISITS_MAX`].

use std::sync::Arc;

use serde::Deserialize;

use super::age::{UnixNanoseconds, age_of};
use super::derive::{put_double, put_text};
use super::json_path::{JsonPath, JsonPathError, Members};
use super::renderer::PARTIAL_OBJECT_HEAD;
use super::{IncludeObjectPolicy, MetadataRenderer, TranscodeError, TranscodeRefusal};

/// A column of a definition.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrinterColumn {
    name: String,
    #[serde(rename = "type")]
    column_type: String,
    #[serde(default)]
    format: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    priority: i32,
    json_path: String,
}

/// Prints the objects of one version of a custom resource.
#[derive(Debug, PartialEq)]
pub struct TablePrinter {
    /// The `columnDefinitions` in JSON.
    definitions: Box<str>,
    columns: Box<[(ColumnType, JsonPath)]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColumnType {
    Text,
    Integer,
    Number,
    Boolean,
    Date,
}

/// The parts of a Table that one request asks for.
pub(super) struct TablePrint {
    pub(super) printer: Arc<TablePrinter>,
    pub(super) include: IncludeObjectPolicy,
    pub(super) metadata: MetadataRenderer,
    /// The time of the request, to which ages refer.
    pub(super) now: UnixNanoseconds,
}

/// The maximum number of columns of a definition, and of the bytes of their texts. Others are printed by upstream.
const COLUMNS_MAX: usize = 32;
const COLUMNS_BYTES_MAX: usize = 16 << 10;
/// The maximum number of bytes that the columns of one row visit, in all and as a multiple of the object's: some
/// milliseconds for a row, and for the rows of a chunk.
const ROW_BYTES_MAX: usize = 2 << 20;
const ROW_VISITS_MAX: usize = 32;
/// `ObjectMeta`'s documentation of `name` and `creationTimestamp`, the same since Kubernetes 1.28.
const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources \
                    may allow a client to request the generation of an appropriate name automatically. Name is primarily \
                    intended for creation idempotence and configuration definition. Cannot be updated. More info: \
                    https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
const CREATED: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is \
                       not guaranteed to be set in happens-before order across separate operations. Clients may not set \
                       this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. \
                       Read-only. Null for lists. More info: \
                       https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

impl TablePrinter {
    /// Returns the printer of these columns; `None` if upstream must print them.
    pub fn new(columns: &[PrinterColumn]) -> Option<Self> {
        let age = [PrinterColumn {
            name: "Age".to_owned(),
            column_type: "date".to_owned(),
            format: String::new(),
            description: CREATED.to_owned(),
            priority: 0,
            json_path: ".metadata.creationTimestamp".to_owned(),
        }];
        let columns = if columns.is_empty() { &age } else { columns };
        let bytes = |column: &PrinterColumn| column.name.len() + column.description.len() + column.json_path.len();
        if columns.len() > COLUMNS_MAX || columns.iter().map(bytes).sum::<usize>() > COLUMNS_BYTES_MAX {
            return None;
        }
        let mut definitions = b"[".to_vec();
        put_definition(&mut definitions, ["Name", "string", "name", NAME], 0);
        for column in columns {
            let PrinterColumn { name, column_type, format, description, priority, json_path } = column;
            definitions.push(b',');
            let default = format!("Custom resource definition column (in JSONPath format): {json_path}");
            let description = if description.is_empty() { &default } else { description };
            put_definition(&mut definitions, [name, column_type, format, description], *priority);
        }
        definitions.push(b']');
        let parsed = |column: &PrinterColumn| {
            Some((ColumnType::parse(&column.column_type)?, JsonPath::parse(&column.json_path)?))
        };
        let columns = columns.iter().map(parsed).collect::<Option<_>>()?;
        Some(Self { definitions: String::from_utf8(definitions).ok()?.into(), columns })
    }

    /// Returns the `columnDefinitions` in JSON.
    pub(super) fn definitions(&self) -> &str {
        &self.definitions
    }
}

impl TablePrint {
    /// Appends the row of an object. If it is refused, `out` is unchanged.
    pub(super) fn put_row(&self, body: &[u8], out: &mut Vec<u8>) -> Result<(), TranscodeError> {
        let start = out.len();
        let put = self.put_cells(body, out).map_err(|why| TranscodeError::new(&[], why)).and_then(|()| {
            out.extend_from_slice(br#"],"object":"#);
            match self.include {
                IncludeObjectPolicy::None => out.extend_from_slice(b"null"),
                IncludeObjectPolicy::Metadata => {
                    out.extend_from_slice(PARTIAL_OBJECT_HEAD);
                    self.metadata.json_from_json(body, out)?;
                }
                IncludeObjectPolicy::Object => out.extend_from_slice(body),
            }
            out.push(b'}');
            Ok(())
        });
        put.inspect_err(|_| out.truncate(start))
    }

    fn put_cells(&self, body: &[u8], out: &mut Vec<u8>) -> Result<(), TranscodeRefusal> {
        let body = str::from_utf8(body).map_err(|_| UNPRINTABLE)?;
        let root = Members::read(body).map_err(|_| UNPRINTABLE)?;
        let metadata = Members::read(root.get("metadata").unwrap_or("{}")).map_err(|_| UNPRINTABLE)?;
        out.extend_from_slice(br#"{"cells":["#);
        out.extend_from_slice(metadata.get("name").unwrap_or("\"\"").as_bytes());
        let mut budget = ROW_BYTES_MAX.min(ROW_VISITS_MAX * body.len());
        for (column_type, path) in &self.printer.columns {
            out.push(b',');
            let found = match path.find(&root, &mut budget) {
                Ok(values) => values.first().copied(),
                Err(JsonPathError::Failed) => None,
                Err(JsonPathError::Refused) => return Err(UNPRINTABLE),
            };
            match found {
                Some(value) => column_type.put_cell(value, self.now, out)?,
                None => out.extend_from_slice(b"null"),
            }
        }
        Ok(())
    }
}

impl ColumnType {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "string" => Self::Text,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            "date" => Self::Date,
            _ => return None,
        })
    }

    /// Writes the cell of a value in JSON, which the apiserver wrote.
    fn put_cell(self, value: &str, now: UnixNanoseconds, out: &mut Vec<u8>) -> Result<(), TranscodeRefusal> {
        let is_number = value.starts_with(|c: char| c == '-' || c.is_ascii_digit());
        let integer = value.parse::<i64>().ok().filter(|_| is_number);
        let float = value.parse::<f64>().ok().filter(|_| is_number);
        match (self, integer, float) {
            (Self::Text, Some(integer), _) => put_text(out, integer.to_string().as_bytes()),
            (Self::Text, _, Some(float)) => put_text(out, go_float(float).as_bytes()),
            (Self::Text, ..) if value.starts_with('"') => out.extend_from_slice(value.as_bytes()),
            // Go prints the zero reflect.Value so.
            (Self::Text, ..) if value == "null" => put_text(out, b"<no value>"),
            (Self::Text, ..) => put_text(out, value.as_bytes()),
            (Self::Integer, Some(integer), _) => out.extend_from_slice(integer.to_string().as_bytes()),
            (Self::Integer, _, Some(float)) if float.abs() < INTEGER_MAX => {
                out.extend_from_slice((float.trunc() + POSITIVE_ZERO).to_string().as_bytes());
            }
            (Self::Integer, _, Some(_)) => return Err(UNPRINTABLE),
            (Self::Number, _, Some(float)) => put_double(out, float + POSITIVE_ZERO)?,
            (Self::Boolean, ..) if matches!(value, "true" | "false") => out.extend_from_slice(value.as_bytes()),
            (Self::Date, ..) if value.starts_with('"') => {
                let text: String = serde_json::from_str(value).map_err(|_| UNPRINTABLE)?;
                put_text(out, age_of(&text, now).ok_or(UNPRINTABLE)?.as_bytes());
            }
            (Self::Integer | Self::Number | Self::Boolean | Self::Date, ..) => out.extend_from_slice(b"null"),
        }
        Ok(())
    }
}

/// Formats a number as Go's `%v` does.
fn go_float(value: f64) -> String {
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) || value == 0.0 {
        return value.to_string();
    }
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn put_definition(out: &mut Vec<u8>, [name, column_type, format, description]: [&str; 4], priority: i32) {
    let texts = [
        ("{\"name\":", name),
        (",\"type\":", column_type),
        (",\"format\":", format),
        (",\"description\":", description),
    ];
    for (key, value) in texts {
        out.extend_from_slice(key.as_bytes());
        put_text(out, value.as_bytes());
    }
    out.extend_from_slice(format!(",\"priority\":{priority}}}").as_bytes());
}

const UNPRINTABLE: TranscodeRefusal = TranscodeRefusal::Value("only the apiserver can print it");
/// A summand that turns a negative zero into zero, which Go's integers have.
const POSITIVE_ZERO: f64 = 0.0;
/// The float from which Go's conversion to an integer is undefined.
const INTEGER_MAX: f64 = 9.2e18;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: UnixNanoseconds = 1_700_000_000_000_000_000;

    fn column(column_type: &str, path: &str) -> PrinterColumn {
        let column = json!({"name": "A<", "type": column_type, "jsonPath": path, "priority": 1});
        serde_json::from_value(column).expect("a column")
    }

    fn row(columns: &[PrinterColumn], object: &Value, include: IncludeObjectPolicy) -> Result<String, TranscodeError> {
        let printer = TablePrinter::new(columns).expect("printable columns").into();
        let metadata = MetadataRenderer::for_server(37, "g.io/v1", "Widget");
        let (print, mut out) = (TablePrint { printer, include, metadata, now: NOW }, b"kept".to_vec());
        let put = print.put_row(object.to_string().as_bytes(), &mut out);
        let out = String::from_utf8(out).expect("text");
        put.inspect_err(|_| assert_eq!(out, "kept")).map(|()| out["kept".len()..].to_owned())
    }

    /// Returns the cell of a value under a type.
    fn cell(column_type: &str, value: &Value) -> Option<String> {
        let object = json!({"metadata": {"name": "n"}, "spec": {"v": value}});
        let row = row(&[column(column_type, ".spec.v")], &object, IncludeObjectPolicy::None).ok()?;
        let cell = row.strip_prefix(r#"{"cells":["n","#).and_then(|row| row.strip_suffix(r#"],"object":null}"#));
        Some(cell.expect("a row of two cells").to_owned())
    }

    /// R-PRINT-1: the cells that apiextensions' table convertor returns.
    #[test]
    fn cells_follow_type_and_value_as_in_go() {
        for (column_type, value, expected) in [
            ("string", json!("a<b"), r#""a<b""#),
            ("string", json!(3), r#""3""#),
            ("string", json!(1_234_567.5), r#""1.2345675e+06""#),
            ("string", json!(0.000_01), r#""1e-05""#),
            ("string", json!(true), r#""true""#),
            ("string", json!(null), r#""\u003cno value\u003e""#),
            ("string", json!({"a": ["b"]}), r#""{\"a\":[\"b\"]}""#),
            ("integer", json!(-3), "-3"),
            ("integer", json!(-0.5), "0"),
            ("integer", json!(2.9), "2"),
            ("integer", json!("3"), "null"),
            ("integer", json!(null), "null"),
            ("number", json!(9_007_199_254_740_993_i64), "9007199254740992"),
            ("number", json!(1e21), "1e+21"),
            ("number", json!(true), "null"),
            ("boolean", json!(false), "false"),
            ("boolean", json!("false"), "null"),
            ("date", json!("2023-11-14T22:13:19Z"), r#""1s""#),
            ("date", json!(""), r#""\u003cunknown\u003e""#),
            ("date", json!("soon"), r#""\u003cinvalid\u003e""#),
            ("date", json!(7), "null"),
        ] {
            assert_eq!(cell(column_type, &value).as_deref(), Some(expected), "{column_type} {value}");
        }
        assert_eq!(cell("date", &json!("2023-11-14T22:13Z")), None, "Go's parser may accept it");
        assert_eq!(cell("integer", &json!(1e19)), None, "undefined in Go");
    }

    #[test]
    fn rows_have_the_requested_part_of_the_object() {
        let metadata = json!({"creationTimestamp": "2023-11-12T22:13:20Z", "name": "n", "uid": "u"});
        let object = json!({"kind": "Widget", "metadata": metadata, "spec": {"v": 1}});
        for (include, part) in [
            (IncludeObjectPolicy::None, "null".to_owned()),
            (IncludeObjectPolicy::Object, object.to_string()),
            (
                IncludeObjectPolicy::Metadata,
                r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"n","uid":"u","creationTimestamp":"2023-11-12T22:13:20Z"}}"#
                    .to_owned(),
            ),
        ] {
            let expected = format!(r#"{{"cells":["n","2d"],"object":{part}}}"#);
            assert_eq!(row(&[], &object, include).expect("printable"), expected, "{include:?}");
        }
    }

    #[test]
    fn large_definitions_and_expensive_rows_are_left_to_the_apiserver() {
        let columns = |count: usize, path: &str| vec![column("string", path); count];
        assert!(TablePrinter::new(&columns(COLUMNS_MAX, ".spec.a")).is_some());
        assert!(TablePrinter::new(&columns(COLUMNS_MAX + 1, ".spec.a")).is_none());
        let long = format!(".spec.{}", "a".repeat(COLUMNS_BYTES_MAX));
        assert!(TablePrinter::new(&columns(1, &long)).is_none());
        assert!(TablePrinter::new(&columns(1, ".spec..a")).is_none());
        let large = json!({"metadata": {"name": "n"}, "spec": {"a": "x".repeat(ROW_BYTES_MAX / 4)}});
        assert!(row(&columns(3, ".spec.a"), &large, IncludeObjectPolicy::None).is_ok());
        assert!(row(&columns(4, ".spec.a"), &large, IncludeObjectPolicy::None).is_err());
        let small = json!({"metadata": {"name": "n"}, "spec": {"a": [["x".repeat(1_000)]]}});
        assert!(row(&columns(9, ".spec.a[0][0]"), &small, IncludeObjectPolicy::None).is_ok());
        assert!(row(&columns(12, ".spec.a[0][0]"), &small, IncludeObjectPolicy::None).is_err());
    }
}

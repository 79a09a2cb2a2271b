//! Tables: the output of 1.37.1, decoded and encoded again. Columns are shortened, because their content is arbitrary.

use std::sync::Arc;

use bytes::Bytes;

use crate::wire::{
    BookmarkTemplate, FeedEncoding, FrameEnvelope, IncludeObjectPolicy, JsonLayout, MetadataRenderer, ObjectReader,
    ObjectRenderer, ObjectRevision, Representation, TableColumns, TablePage, WatchItem, WireError, same_rows,
    table_list,
};
use kubeapi::{EventType, ResourceVersion, SelectableFieldTable};

const COLUMNS: &str = r#"[{"name":"Name","type":"string","format":"name","description":"a \"b\"","priority":0}]"#;

/// A resource as printed by the apiserver.
struct Printed {
    shape: JsonLayout,
    api_version: &'static str,
    kind: &'static str,
    cells: &'static str,
    /// The object at version 223.
    object: &'static str,
    metadata: &'static str,
    zero_cells: &'static str,
    /// The object of a bookmark at 223, without and with the initial-events-end annotation.
    zeros: [&'static str; 2],
}

const MAP: Printed = Printed {
    shape: JsonLayout::BuiltIn,
    api_version: "v1",
    kind: "ConfigMap",
    cells: r#"["a",1,"0s"]"#,
    object: r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"t",
"uid":"38798e91","resourceVersion":"223","creationTimestamp":"2026-11-20T09:10:03Z","labels":{"app":"x"},
"managedFields":[{"manager":"conf","operation":"Update","apiVersion":"v1","time":"2026-11-20T09:10:03Z",
"fieldsType":"FieldsV1","fieldsV1":{"f:data":{".":{},"f:k":{}}}}]},"data":{"k":"a\u003cb\u003e\u0026"}}"#,
    metadata: r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a","namespace":"t",
"uid":"38798e91","resourceVersion":"223","creationTimestamp":"2026-11-20T09:10:03Z","labels":{"app":"x"},
"managedFields":[{"manager":"conf","operation":"Update","apiVersion":"v1","time":"2026-11-20T09:10:03Z",
"fieldsType":"FieldsV1","fieldsV1":{"f:data":{".":{},"f:k":{}}}}]}}"#,
    zero_cells: r#"["",0,"\u003cunknown\u003e"]"#,
    zeros: [
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"223"}}"#,
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"223",
"annotations":{"k8s.io/initial-events-end":"true"}}}"#,
    ],
};

/// A resource with a cell that looks like the text after the cells.
const WIDGET: Printed = Printed {
    shape: JsonLayout::Custom,
    api_version: "e.io/v1",
    kind: "Widget",
    cells: r#"["w","re\"d,\"object\":{}",3],"conditions":[{"type":"Completed","status":"True"}]"#,
    object: r#"{"apiVersion":"e.io/v1","kind":"Widget","metadata":{"annotations":{"a":"\u003c"},
"creationTimestamp":"2026-11-20T09:13:49Z","generation":1,"labels":{"app":"x"},"name":"w","namespace":"t",
"resourceVersion":"223","uid":"2062f841"},"spec":{"color":"red","size":3}}"#,
    metadata: r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"w","namespace":"t",
"uid":"2062f841","resourceVersion":"223","generation":1,"creationTimestamp":"2026-11-20T09:13:49Z",
"labels":{"app":"x"},"annotations":{"a":"\u003c"}}}"#,
    zero_cells: r#"["",null,null]"#,
    zeros: [
        r#"{"apiVersion":"e.io/v1","kind":"Widget","metadata":{"resourceVersion":"223"}}"#,
        r#"{"apiVersion":"e.io/v1","kind":"Widget","metadata":{
"annotations":{"k8s.io/initial-events-end":"true"},"resourceVersion":"223"}}"#,
    ],
};

/// Removes the line breaks that make the literals above readable.
fn line(text: &str) -> String {
    text.replace('\n', "")
}

fn table(version: u64, columns: &str, rows: &[(&str, &str)]) -> String {
    let rows: Vec<_> = rows.iter().map(|(cells, object)| format!(r#"{{"cells":{cells},"object":{object}}}"#)).collect();
    let (rows, head) = (rows.join(","), r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"#);
    line(&format!(r#"{head}"resourceVersion":"{version}"}},"columnDefinitions":{columns},"rows":[{rows}]}}"#))
}

fn frame(event_type: &str, columns: &str, cells: &str, object: &str) -> Bytes {
    format!("{{\"type\":\"{event_type}\",\"object\":{}}}\n", table(223, columns, &[(cells, object)])).into()
}

impl Printed {
    fn reader(&self) -> ObjectReader {
        ObjectReader::new(FeedEncoding::Table, self.shape, Arc::new(SelectableFieldTable::default()))
            .with_kind(self.api_version, self.kind)
    }

    fn envelope(&self) -> FrameEnvelope {
        FrameEnvelope::new(FeedEncoding::Table, self.api_version, self.kind, self.shape)
    }

    fn read(&self, frame: Bytes) -> (ObjectRevision, Bytes) {
        match self.reader().watch_event(frame).expect("a Table of one row") {
            WatchItem::Change { object, frame, .. } => (object, frame),
            WatchItem::Bookmark { object, .. } => (object, Bytes::new()),
            WatchItem::Error { status } => panic!("{status:?}"),
        }
    }

    fn added(&self) -> Bytes {
        frame("ADDED", "null", self.cells, self.object)
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("JSON is text")
}

#[test]
fn table_row_round_trips_unchanged() {
    for printed in [MAP, WIDGET] {
        let (object, read) = printed.read(printed.added());
        assert_eq!(object.key.as_str(), format!("t/{}", if printed.kind == "Widget" { "w" } else { "a" }));
        assert_eq!((object.rv, object.encoding()), (ResourceVersion(223), FeedEncoding::Table));
        assert_eq!(object.attributes.labels().collect::<Vec<_>>(), [("app", "x")]);
        assert_eq!(read, printed.added());
        let verbatim = ObjectRenderer::verbatim(&printed.envelope());
        assert_eq!(verbatim.representation(), Representation::Table(IncludeObjectPolicy::Object));
        assert_eq!(text(&verbatim.frame(EventType::Added, object.body()).expect("as it is")), text(&printed.added()));
        assert!(read.as_ptr_range().contains(&object.body().as_ptr()), "the bytes are held once");
    }
}

#[test]
fn table_columns_are_stripped_stored_and_restored() {
    let columns = TableColumns::default();
    let reader = MAP.reader().with_table_columns(&columns);
    assert_eq!(columns.with_columns(&MAP.added()), None, "they are not known yet");
    let with_columns = frame("ADDED", COLUMNS, MAP.cells, MAP.object);
    for sent in [&with_columns, &MAP.added()] {
        match reader.watch_event(sent.clone()).expect("a Table") {
            WatchItem::Change { object, frame, .. } => {
                assert_eq!(frame, MAP.added());
                assert!(text(&MAP.added()).ends_with(&format!("v1\",{}}}\n", text(object.body()))));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(columns.with_columns(&MAP.added()), Some(with_columns.clone()));
    }
    let bookmark = frame("BOOKMARK", COLUMNS, MAP.zero_cells, MAP.zeros[0]);
    assert!(matches!(reader.watch_event(bookmark), Ok(WatchItem::Bookmark { rv: ResourceVersion(223), .. })));
    let other = frame("ADDED", r#"[{"name":"Name"}]"#, MAP.cells, MAP.object);
    assert!(matches!(reader.watch_event(other), Err(WireError::OtherColumns)), "the cells belong to others");
    let status = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410}}\n";
    assert_eq!(columns.with_columns(status.as_bytes()), None, "an error is no Table");
    assert!(matches!(reader.watch_event(status.into()), Ok(WatchItem::Error { .. })));
}

#[test]
fn include_object_selects_the_row_object_content() {
    for printed in [MAP, WIDGET] {
        let (object, _) = printed.read(printed.added());
        for (include, shown) in [
            (IncludeObjectPolicy::None, "null"),
            (IncludeObjectPolicy::Metadata, printed.metadata),
            (IncludeObjectPolicy::Object, printed.object),
        ] {
            let representation = Representation::Table(include);
            let renderer = ObjectRenderer::derived(representation, &printed.envelope(), 37).expect("a Table from rows");
            let written = renderer.frame(EventType::Modified, object.body()).expect("exact");
            assert_eq!(text(&written), text(&frame("MODIFIED", "null", printed.cells, shown)), "{representation}");
        }
    }
    for representation in Representation::ALL {
        let of_rows = ObjectRenderer::derived(representation, &MAP.envelope(), 37);
        let of_objects = ObjectRenderer::derived(
            representation,
            &FrameEnvelope::new(FeedEncoding::Json, "v1", "Pod", JsonLayout::BuiltIn),
            37,
        );
        let table = matches!(representation, Representation::Table(_));
        assert_eq!(of_rows.is_some(), table, "{representation}");
        assert!(!table || of_objects.is_none(), "{representation}");
    }
}

/// The object left a selection: its previous row, and the version of the change in both places.
#[test]
fn restamping_a_table_row_changes_both_versions() {
    for printed in [MAP, WIDGET] {
        let (object, _) = printed.read(printed.added());
        for version in [224_u64, 9, 18_446_744_073_709_551_615] {
            let digits = version.to_string();
            let expected = text(&frame("DELETED", "null", printed.cells, printed.object)).replace("223", &digits);
            let written =
                printed.envelope().frame(EventType::Deleted, &object.with_resource_version(ResourceVersion(version)));
            assert_eq!(text(&written), expected);
            let (again, _) = printed.read(written);
            assert_eq!(again.rv, ResourceVersion(version));
        }
    }
}

#[test]
fn table_bookmarks_round_trip_unchanged() {
    for printed in [MAP, WIDGET] {
        let sent = printed.zeros.map(|zero| frame("BOOKMARK", "null", printed.zero_cells, zero));
        for came in &sent {
            let (object, _) = printed.read(came.clone());
            let template = BookmarkTemplate::from_object(&printed.envelope(), &object).expect("a bookmark");
            for (end, expected) in [(false, &sent[0]), (true, &sent[1])] {
                assert_eq!(text(&template.frame(ResourceVersion(223), end)), text(expected));
                let later = text(expected).replace("223", "1000");
                assert_eq!(text(&template.frame(ResourceVersion(1000), end)), later);
            }
            let body = template.body(ResourceVersion(223), false);
            for (include, shown) in [
                (IncludeObjectPolicy::None, "null"),
                (
                    IncludeObjectPolicy::Metadata,
                    r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1",
"metadata":{"resourceVersion":"223"}}"#,
                ),
            ] {
                let renderer = ObjectRenderer::derived(Representation::Table(include), &printed.envelope(), 37);
                let written = renderer.expect("a Table").frame(EventType::Bookmark, &body).expect("exact");
                assert_eq!(text(&written), text(&frame("BOOKMARK", "null", printed.zero_cells, shown)));
            }
        }
        let minimal = BookmarkTemplate::minimal(&printed.envelope()).frame(ResourceVersion(223), false);
        assert_eq!(text(&minimal), text(&frame("BOOKMARK", "null", "[]", printed.zeros[0])));
    }
}

#[test]
fn table_list_is_read_row_by_row() {
    for printed in [MAP, WIDGET] {
        let columns = TableColumns::default();
        let list = table(300, COLUMNS, &[(printed.cells, printed.object)]) + "\n";
        let page = printed.reader().with_table_columns(&columns).list(&list.clone().into()).expect("a page");
        assert_eq!((page.resource_version, page.continue_token.as_str()), (ResourceVersion(300), ""));
        let [object] = page.items.as_slice() else { panic!("one row") };
        let (watched, _) = printed.read(printed.added());
        assert_eq!(object.body(), watched.body(), "the body of an event");
        assert_eq!(
            text(&object.with_resource_version(ResourceVersion(7))),
            text(&watched.with_resource_version(ResourceVersion(7)))
        );
        let headed = frame("ADDED", COLUMNS, printed.cells, printed.object);
        assert_eq!(columns.with_columns(&printed.added()), Some(headed));
        assert!(same_rows(&[object.body().clone()], list.as_bytes()));
        let older = list.replace(printed.cells, r#"["other",9]"#);
        assert!(same_rows(&[object.body().clone()], line(&older).as_bytes()), "whatever the cells say now");
        assert!(!same_rows(&[], list.as_bytes()));
        assert!(!same_rows(&[object.body().clone()], list.replace("\"t\"", "\"u\"").as_bytes()));
    }
    let next = table(300, "null", &[]).replace("\"300\"", "\"300\",\"continue\":\"abc\",\"remainingItemCount\":3");
    assert_eq!(MAP.reader().list(&next.into()).expect("a page").continue_token, "abc");
    let none = table(300, COLUMNS, &[]).replace("[]}", "null}");
    assert!(MAP.reader().list(&none.into()).expect("limitranges, of which there are none").items.is_empty());
}

#[test]
fn table_with_unexpected_layout_is_rejected() {
    let added = text(&MAP.added()).to_owned();
    for (what, sent) in [
        ("two rows", {
            let row = (MAP.cells, MAP.object);
            format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", table(223, "null", &[row, row]))
        }),
        ("no row", format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", table(223, "null", &[]))),
        ("no object", text(&frame("ADDED", "null", MAP.cells, "null")).to_owned()),
        ("metadata alone", text(&frame("ADDED", "null", MAP.cells, MAP.metadata)).to_owned()),
        ("another version", added.replacen("223", "224", 1)),
        ("another member of a row", added.replace("}]}}\n", ",\"x\":1}]}}\n")),
        ("another member of the Table", added.replace("]}}\n", "],\"x\":1}}\n")),
        ("space", added.replace("\"rows\":", "\"rows\": ")),
        ("another version of it", added.replace("meta.k8s.io/v1", "meta.k8s.io/v1beta1")),
        ("the object itself", format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", line(MAP.object))),
        ("columns twice", added.replace("\"rows\"", "\"columnDefinitions\":[],\"rows\"")),
    ] {
        assert!(MAP.reader().watch_event(sent.clone().into()).is_err(), "{what}: {sent}");
    }
}

#[test]
fn table_metadata_omits_deprecated_annotations() {
    let hidden = r#"{"kind":"DaemonSet","apiVersion":"apps/v1","metadata":{"name":"d","namespace":"t",
"resourceVersion":"223","annotations":{"deprecated.daemonset.template.generation":"1","x":"y"}},"spec":{}}"#;
    let printed = Printed { api_version: "apps/v1", kind: "DaemonSet", object: hidden, ..MAP };
    let (object, _) = printed.read(printed.added());
    let renderer =
        ObjectRenderer::derived(Representation::Table(IncludeObjectPolicy::Metadata), &printed.envelope(), 37);
    let written = renderer.expect("a Table").body(object.body()).expect("exact");
    assert!(text(&written).contains(r#""annotations":{"x":"y"}}}}]}"#), "{}", text(&written));
    let mut alone = Vec::new();
    MetadataRenderer::for_server(37, "apps/v1", "DaemonSet")
        .json_from_json(line(hidden).as_bytes(), &mut alone)
        .expect("exact");
    assert!(text(&written).contains(text(&alone)));
}

#[test]
fn page_of_a_table_has_its_rows_with_keys() {
    let row = (MAP.cells, MAP.metadata);
    let list =
        table(300, COLUMNS, &[row, row]).replace("\"300\"", "\"300\",\"continue\":\"abc\",\"remainingItemCount\":3");
    let list = line(&list);
    let page = TablePage::parse(list.as_bytes(), true).expect("a page");
    assert_eq!((page.resource_version, page.continue_token.as_str()), (ResourceVersion(300), "abc"));
    assert_eq!(page.rows.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), ["t/a", "t/a"]);
    let composed = |with_object: bool, token: &str| {
        let rows: Vec<_> = page.rows.iter().map(|row| row.text(with_object)).collect();
        let [head, tail] = table_list(&page, token);
        [text(&head), &rows.join(","), text(&tail)].concat()
    };
    assert_eq!(composed(true, "abc"), format!("{}\n", list.replace(",\"remainingItemCount\":3", "")));
    assert_eq!(composed(true, ""), format!("{}\n", line(&table(300, COLUMNS, &[row, row]))));
    let none = (MAP.cells, "null");
    assert_eq!(composed(false, ""), format!("{}\n", line(&table(300, COLUMNS, &[none, none]))));
    for (what, other, namespaced) in [
        ("objects of the cluster", list.clone(), false),
        ("a row without its object", line(&table(300, COLUMNS, &[none])), true),
        ("a row without a namespace", list.replace("\"namespace\"", "\"other\""), true),
        ("a row without a name", list.replace("\"name\"", "\"other\""), true),
        ("another kind", list.replace("\"Table\"", "\"Status\""), true),
    ] {
        assert!(TablePage::parse(other.as_bytes(), namespaced).is_err(), "{what}");
    }
}

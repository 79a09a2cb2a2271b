use std::time::UNIX_EPOCH;

use super::*;
use crate::wire::{IncludeObjectPolicy, TablePrinter};

fn widget(name: usize) -> ObjectRevision {
    let metadata = format!(
        r#""annotations":{{"padding":"{}"}},"creationTimestamp":"2023-11-14T22:13:20Z","name":"w{name:03}","namespace":"a","resourceVersion":"7""#,
        "p".repeat(2_000)
    );
    let object = format!(r#"{{"apiVersion":"g.io/v1","kind":"Widget","metadata":{{{metadata}}}}}"#);
    let reader = ObjectReader::new(FeedEncoding::Json, JsonLayout::Custom, Arc::new(SelectableFieldTable::default()));
    match reader.watch_event(format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n").into()).expect("well-formed") {
        WatchItem::Change { object, .. } => object,
        other => panic!("{other:?} is not a change"),
    }
}

/// Ages are as of the request, so no list has the bytes of another, compressed or not.
#[tokio::test]
async fn printed_tables_are_written_for_each_request() {
    let (feed, _feeds) = feed((0..200).map(widget).collect());
    let representation = Representation::Printed(IncludeObjectPolicy::Metadata);
    let plan = ListPlan { version: ResourceVersionMatch::Any, limit: None, start: None };
    let (view, pages) = (CollectionView::everything(), ListPageSource::FromCache);
    let read = ListPageRequest { representation, view, plan, in_namespace: false, pages };
    let printer = Arc::new(TablePrinter::new(&[]).expect("the column Age"));
    for age in [3, 5] {
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000 + age);
        let (envelope, include) = (feed.reader.envelope(), IncludeObjectPolicy::Metadata);
        let renderer = ObjectRenderer::printed(envelope, printer.clone(), include, (37, now)).expect("a known release");
        let table = String::from_utf8(listed(&feed, &read, &renderer).await).expect("JSON is text");
        assert!(table.len() > 200 * 2_000);
        assert_eq!(table.matches(&format!(",\"{age}s\"],\"object\":")).count(), 200, "{age}");
    }
}

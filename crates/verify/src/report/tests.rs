use std::path::PathBuf;

use super::*;
use crate::record::{CallRecord, EventRecord, GroundTruthRecord, HistoryRecord, ReadVerb, RunRecord};
use crate::{ApiserverGuarantee, RunCounts, ServerSwitchStats};

/// Writes a record in which a watch delivers an event that never happened.
fn record(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("kube-fanout-{name}-{}.jsonl", fastrand::u64(..)));
    let call = |op, client, at_ns| {
        HistoryRecord::Call(CallRecord {
            op,
            client,
            at_ns,
            verb: ReadVerb::Watch,
            path: "/api/v1/configmaps".to_owned(),
            query: "watch=true&labelSelector=<script>".to_owned(),
            ..CallRecord::default()
        })
    };
    let event = |op, at_ns, key: &str| {
        HistoryRecord::Event(EventRecord { op, at_ns, key: key.to_owned(), version: 5, ..EventRecord::default() })
    };
    let truth = GroundTruthRecord {
        resource: "configmaps".to_owned(),
        key: "a/b".to_owned(),
        version: 5,
        at_ns: 2_000,
        ..GroundTruthRecord::default()
    };
    let lines = [
        HistoryRecord::Run(about_run()),
        call(1, 4, 1_000),
        call(2, 9, 1_500),
        HistoryRecord::Truth(truth),
        event(1, 3_000_000, "a/b"),
        event(2, 3_100_000, "a/c"),
        event(2, 90_000_000_000, "a/late"),
    ];
    let text: String = lines.iter().map(|line| serde_json::to_string(line).expect("a line") + "\n").collect();
    std::fs::write(&path, text).expect("a file");
    path
}

fn verdict() -> RunVerdict {
    let violation = GuaranteeViolation {
        promise: ApiserverGuarantee::Reliable,
        op: Some(2),
        expected: "ADDED a/b & no other".to_owned(),
        got: "ADDED a/c".to_owned(),
        lines: vec![3, 6],
    };
    let kept =
        GuaranteeVerdict { promise: ApiserverGuarantee::Ordered, instances: 12, broken: 0, violations: Vec::new() };
    let broken = GuaranteeVerdict {
        promise: ApiserverGuarantee::Reliable,
        instances: 3,
        broken: 1,
        violations: vec![violation],
    };
    let (judged, counts) = (vec![kept, broken], RunCounts::default());
    RunVerdict {
        run: about_run(),
        counts,
        hops: ServerSwitchStats::default(),
        judged,
        refused: Vec::new(),
        lacks: Vec::new(),
    }
}

fn about_run() -> RunRecord {
    let command = "fanoutctl verify <url>".to_owned();
    RunRecord { url: "http://server".to_owned(), seed: 7, command, ..RunRecord::default() }
}

#[test]
fn report_page_is_self_contained_and_shows_the_violation() {
    let path = record("page");
    let page = page(&verdict(), &path, &["a <note>".to_owned()]).expect("a page");
    std::fs::remove_file(&path).expect("it is there");
    assert!(!page.contains("{{"), "a place was not filled");
    for outside in ["src=", "href=", "url(", "@import", "<script", "<link", "<iframe", "<object"] {
        assert!(!page.contains(outside), "{outside}");
    }
    for text in [
        "client 9 (violation)",
        ">client 4<",
        "true history",
        "labelSelector=&lt;script&gt;",
        "a &lt;note&gt;",
        "class=\"ADDED wrong\"",
        "3: {&quot;call&quot;",
        "fanoutctl verify &lt;url&gt;",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(!page.contains("a/late"), "later records are omitted");
    assert_eq!(page.matches("<circle").count(), 3, "two events and the truth");
}

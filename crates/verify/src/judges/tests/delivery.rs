use super::super::super::guarantee::ApiserverGuarantee::{Bookmarkable, Reliable, Resumable};
use super::{broken, events, judge, kept, watch, watch_at};

const ALL: &str = "ADDED a/y 11, MODIFIED a/x 12, DELETED a/y 13, ADDED a-b/z 14, MODIFIED a/x 15";

#[test]
fn watch_delivering_all_matching_events_passes() {
    let open = watch(1, "resourceVersion=10");
    kept(Reliable, 7, &[&open, &events(ALL), &events("ADDED a/t 16, ADDED a/s 16")]);
    // A watch that ends between two changes of one version must be resumed before it; nothing passed the other change.
    kept(Reliable, 6, &[&open, &events(ALL), &events("ADDED a/t 16")]);
    let selected = watch(1, "resourceVersion=10&labelSelector=app%3D1");
    kept(Reliable, 4, &[&selected, &events("ADDED a/y 11, DELETED a/x 12, DELETED a/y 13, ADDED a/x 15")]);
    kept(
        Reliable,
        1,
        &[&watch_at(100, 1, "/api/v1/namespaces/a-b/pods", "resourceVersion=10"), &events("ADDED a-b/z 14")],
    );
    let state = watch(1, "sendInitialEvents=true&allowWatchBookmarks=true");
    kept(Reliable, 1, &[&state, &events("ADDED a/x 12, ADDED a/y 11, END - 12, DELETED a/y 13")]);
}

#[test]
fn skipped_or_invented_event_is_a_violation() {
    let open = watch(1, "resourceVersion=10&allowWatchBookmarks=true");
    let lost = ALL.replace("DELETED a/y 13, ", "");
    broken(Reliable, "DELETED a/y at 13 first", "ADDED a-b/z at 14 without it", &[&open, &events(&lost)]);
    let bookmark = events("ADDED a/y 11, MODIFIED a/x 12, BOOKMARK - 13");
    broken(Reliable, "DELETED a/y at 13 first", "BOOKMARK at 13 without it", &[&open, &bookmark]);
    // One of two that share a version.
    let state = watch(1, "sendInitialEvents=true&allowWatchBookmarks=true");
    let sibling = events("ADDED a-b/z 14, ADDED a/x 15, END - 15, ADDED a/t 16, BOOKMARK - 17");
    broken(Reliable, "ADDED a/s at 16 first", "BOOKMARK at 17 without it", &[&state, &sibling]);
    let invented = events("ADDED a/y 11, MODIFIED a/y 12, MODIFIED a/x 12");
    let got = "MODIFIED a/y at 12 without a change";
    broken(Reliable, "events of actual changes", got, &[&open, &invented]);
}

#[test]
fn watch_ending_within_an_event_is_a_violation() {
    let open = watch(1, "resourceVersion=10");
    let end = |how: &str| format!(r#"{{"end":{{"op":1,"at_ns":900,"how":"{how}"}}}}"#);
    kept(Reliable, 1, &[&open, &events("ADDED a/y 11"), &end("clean")]);
    let texts = ["a stream that ends between two events", "one that ends within an event"];
    broken(Reliable, texts[0], texts[1], &[&open, &events("ADDED a/y 11"), &end("torn")]);
}

#[test]
fn event_not_delivered_within_deadline_is_a_violation() {
    let run = r#"{"run":{"patience_ns":1000}}"#.to_owned() + "\n";
    let open = watch(1, "resourceVersion=15");
    let end = |at_ns: u64| format!("{{\"end\":{{\"op\":1,\"at_ns\":{at_ns},\"how\":\"left\"}}}}\n");
    kept(Reliable, 0, &[&run, &open, &end(1160)]);
    let texts = ["ADDED a/s at 16 within 0 ms", "neither it nor a later event"];
    broken(Reliable, texts[0], texts[1], &[&run, &open, &end(1161)]);
    let fault = r#"{"fault":{"name":"cut","from_ns":1000,"to_ns":1010,"hits":1}}"#.to_owned() + "\n";
    kept(Reliable, 0, &[&run, &open, &end(1161), &fault]);
    kept(Reliable, 2, &[&run, &open, &events("ADDED a/s 16, ADDED a/t 16"), &end(9000)]);
}

#[test]
fn watch_starting_with_first_event_after_its_version_passes() {
    kept(Resumable, 1, &[&watch(1, "resourceVersion=10"), &events("ADDED a/y 11")]);
    kept(Resumable, 1, &[&watch(1, "resourceVersion=15"), &events("ADDED a/t 16")]);
    // No change in between matches.
    kept(Resumable, 1, &[&watch(1, "resourceVersion=13&labelSelector=app%3D1"), &events("ADDED a/x 15")]);
    // Changes before the beginning of the truth are unknown.
    kept(Resumable, 0, &[&watch(1, "resourceVersion=9"), &events("ADDED a/y 11")]);
}

#[test]
fn watch_starting_too_late_or_too_early_is_a_violation() {
    let open = watch(1, "resourceVersion=11");
    let texts = "MODIFIED a/x at 12 as the first event after 11";
    broken(Resumable, texts, "DELETED a/y at 13 as the first event", &[&open, &events("DELETED a/y 13")]);
    broken(Resumable, texts, "ADDED a/y at 11 as the first event", &[&open, &events("ADDED a/y 11, MODIFIED a/x 12")]);
    let last = watch(1, "resourceVersion=16");
    broken(
        Resumable,
        "nothing as the first event after 16",
        "ADDED a/s at 16 as the first event",
        &[&last, &events("ADDED a/s 16")],
    );
}

#[test]
fn bookmark_after_all_earlier_events_passes() {
    let open = watch(1, "resourceVersion=10&allowWatchBookmarks=true");
    kept(
        Bookmarkable,
        3,
        &[&open, &events("BOOKMARK - 10, ADDED a/y 11, BOOKMARK - 11, MODIFIED a/x 12, BOOKMARK - 12")],
    );
    let selected = watch(1, "resourceVersion=15&allowWatchBookmarks=true&labelSelector=app%3D2");
    kept(Bookmarkable, 2, &[&selected, &events("BOOKMARK - 16, BOOKMARK - 20")]);
}

#[test]
fn bookmark_before_an_undelivered_event_is_a_violation() {
    let open = watch(1, "resourceVersion=10&allowWatchBookmarks=true");
    let early = events("BOOKMARK - 11, ADDED a/y 11");
    let judged = judge(Bookmarkable, &[&open, &early]);
    let texts: Vec<_> = judged.violations.iter().map(|v| (v.expected.as_str(), v.got.as_str())).collect();
    let passed = ("ADDED a/y at 11 first", "BOOKMARK at 11 without it");
    assert_eq!(texts, [passed, ("events above 11 after that bookmark", "ADDED a/y at 11")]);
    // One of two that share its version is yet to come.
    let state = watch(1, "resourceVersion=15&allowWatchBookmarks=true");
    let amid = events("ADDED a/t 16, BOOKMARK - 16");
    broken(Bookmarkable, "ADDED a/s at 16 first", "BOOKMARK at 16 without it", &[&state, &amid]);
}

#[test]
fn decreasing_or_unrequested_bookmark_is_a_violation() {
    let open = watch(1, "resourceVersion=16&allowWatchBookmarks=true");
    broken(
        Bookmarkable,
        "bookmarks at 18 and later",
        "BOOKMARK at 17",
        &[&open, &events("BOOKMARK - 18, BOOKMARK - 17")],
    );
    broken(Bookmarkable, "bookmarks at 16 and later", "BOOKMARK at 15", &[&open, &events("BOOKMARK - 15")]);
    let unasked = watch(1, "resourceVersion=16&allowWatchBookmarks=false");
    broken(
        Bookmarkable,
        "no bookmarks, because none were requested",
        "BOOKMARK at 17",
        &[&unasked, &events("BOOKMARK - 17")],
    );
}

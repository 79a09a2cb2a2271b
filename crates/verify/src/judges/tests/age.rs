use super::super::super::guarantee::ApiserverGuarantee::{Consistent, Exact, Monotone, NotOlderThan};
use super::{broken, events, get_at, kept, list, list_at, watch, watch_at};

/// A list response with a version and nothing else.
fn of(version: u64) -> String {
    format!(r#""code":200,"version":{version}"#)
}

fn object(version: u64) -> String {
    format!(r#""code":200,"version":{version},"items":[{{"key":"a/y","version":{version}}}]"#)
}

#[test]
fn not_older_than_read_has_at_least_the_requested_version() {
    kept(NotOlderThan, 1, &[&list(1, "resourceVersion=12", &of(12))]);
    kept(NotOlderThan, 1, &[&list(1, "resourceVersion=12&resourceVersionMatch=NotOlderThan", &of(13))]);
    broken(NotOlderThan, "a response at 12 or later", "one at 11", &[&list(1, "resourceVersion=12", &of(11))]);
    let state = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=12&allowWatchBookmarks=true";
    kept(NotOlderThan, 1, &[&watch(1, state), &events("ADDED a/x 12, ADDED a/y 11, END - 12")]);
    let texts = ["a response at 12 or later", "one at 11"];
    broken(NotOlderThan, texts[0], texts[1], &[&watch(1, state), &events("ADDED a/x 5, ADDED a/y 11, END - 11")]);
}

#[test]
fn get_reflects_changes_up_to_the_requested_version() {
    kept(NotOlderThan, 1, &[&get_at(100, 1, "resourceVersion=12", &object(11))]);
    kept(NotOlderThan, 1, &[&get_at(100, 1, "resourceVersion=13", r#""code":404"#)]);
    // The object may have been deleted in between.
    kept(NotOlderThan, 1, &[&get_at(100, 1, "resourceVersion=12", r#""code":404"#)]);
    let texts = "a response at 13 or later, with the change DELETED a/y at 13";
    broken(NotOlderThan, texts, "the object at 11", &[&get_at(100, 1, "resourceVersion=13", &object(11))]);
    let gone = get_at(100, 1, "resourceVersion=15", r#""code":404"#).replace("pods/y", "pods/x");
    let texts = "a response at 15 or later, with the change MODIFIED a/x at 15";
    broken(NotOlderThan, texts, "no object", &[&gone]);
}

#[test]
fn exact_list_and_its_pages_have_the_requested_version() {
    // {"v":"meta.k8s.io/v1","rv":12,"start":"a/x\u0000"}
    let token = "limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MTIsInN0YXJ0IjoiYS94XHUwMDAwIn0";
    let more = |version: u64| format!(r#"{},"more":true"#, of(version));
    let page = |version: u64| list(2, token, &of(version)).replace(r#""verb""#, r#""resumes":1,"verb""#);
    kept(Exact, 1, &[&list(1, "resourceVersion=12&resourceVersionMatch=Exact", &of(12))]);
    kept(Exact, 1, &[&list(1, "limit=1", &more(12)), &page(12)]);
    let exact = list(1, "resourceVersion=12&resourceVersionMatch=Exact", &of(13));
    broken(Exact, "a list at 12", "one at 13", &[&exact]);
    broken(Exact, "a list at 12", "one at 11", &[&list(1, "resourceVersion=12&limit=5", &of(11))]);
    broken(Exact, "a list at 12", "one at 14", &[&list(1, "limit=1", &more(12)), &page(14)]);
    broken(Exact, "a list at 11", "one at 12", &[&list(1, "limit=1", &more(11)), &page(12)]);
}

#[test]
fn consistent_read_contains_all_previously_known_changes() {
    kept(Consistent, 1, &[&list_at(150, 1, "", &of(14))]);
    kept(Consistent, 1, &[&list_at(151, 1, "", &of(15))]);
    // Nothing changed between 16 and 20.
    kept(Consistent, 1, &[&list_at(900, 1, "", &of(16))]);
    let texts = "all changes up to 15, which was known before, with the change MODIFIED a/x at 15";
    broken(Consistent, texts, "the state at 14", &[&list_at(151, 1, "", &of(14))]);
    let state = events("ADDED a-b/z 14, ADDED a/x 12, END - 14");
    let open = watch_at(151, 1, "/api/v1/pods", "sendInitialEvents=true&allowWatchBookmarks=true");
    broken(Consistent, texts, "the state at 14", &[&open, &state]);
    // A cached state may be older, and so may a state that is not older than requested.
    kept(Consistent, 0, &[&list_at(151, 1, "resourceVersion=0", &of(14))]);
}

#[test]
fn changes_seen_by_any_client_count_as_known() {
    let write = r#"{"written":{"call_ns":90,"return_ns":99,"verb":"update","#.to_owned()
        + r#""resource":"pods","key":"a/x","version":15,"code":200}}"#;
    // What came at 11 has gone at 13: with it or without it the state is the same.
    let texts = "all changes up to 15, which was known before, with the change MODIFIED a/x at 12";
    broken(Consistent, texts, "the state at 10", &[&list(1, "", &of(10)), &write]);
    kept(Consistent, 1, &[&list(1, "", &of(10)), &write.replace("\"return_ns\":99", "\"return_ns\":100")]);
    kept(Consistent, 1, &[&list(1, "", &of(10)), &write.replace("\"code\":200", "\"code\":0")]);
    // A client that deleted the object of version 11 knows of its deletion at 13.
    let delete = write.replace("update", "delete").replace("a/x", "a/y").replace("15", "11");
    let texts = "all changes up to 13, which was known before, with the change DELETED a/y at 13";
    broken(Consistent, texts, "the state at 12", &[&list(1, "", &of(12)), &delete]);
    // An earlier list, and an event.
    let texts = "all changes up to 12, which was known before, with the change MODIFIED a/x at 12";
    let early = list_at(90, 2, "resourceVersion=0", &of(12));
    broken(Consistent, texts, "the state at 11", &[&early, &list(1, "", &of(11))]);
    let event = watch(2, "resourceVersion=10")
        + r#"{"event":{"op":2,"at_ns":99,"type":"MODIFIED","key":"a/x","version":12}}"#
        + "\n";
    broken(Consistent, texts, "the state at 11", &[&event, &list(1, "", &of(11))]);
}

#[test]
fn consistent_get_returns_the_latest_object() {
    kept(Consistent, 1, &[&get_at(121, 1, "", &object(11))]);
    kept(Consistent, 1, &[&get_at(105, 1, "", r#""code":404"#)]);
    let texts = "all changes up to 13, which was known before, with the change DELETED a/y at 13";
    broken(Consistent, texts, "the object at 11", &[&get_at(131, 1, "", &object(11))]);
}

#[test]
fn watch_without_initial_events_starts_after_known_version() {
    let open = watch_at(121, 1, "/api/v1/pods", "sendInitialEvents=false");
    kept(Consistent, 1, &[&open, &events("DELETED a/y 13")]);
    let texts = ["events after 12, which was known before", "MODIFIED a/x at 12"];
    broken(Consistent, texts[0], texts[1], &[&open, &events("MODIFIED a/x 12")]);
}

#[test]
fn cached_reads_never_go_back_in_version() {
    let any = |at_ns, op, version| list_at(at_ns, op, "resourceVersion=0", &of(version));
    kept(Monotone, 2, &[&any(100, 1, 12), &any(110, 2, 12)]);
    // The second request was sent before the first response arrived.
    kept(Monotone, 2, &[&any(100, 1, 12), &any(101, 2, 11)]);
    let texts = "a response at 12 or later, like an earlier one";
    broken(Monotone, texts, "one at 11", &[&any(100, 1, 12), &any(102, 2, 11)]);
    let bookmark = watch(1, "resourceVersion=10&allowWatchBookmarks=true") + &events("BOOKMARK - 12");
    broken(Monotone, texts, "one at 11", &[&bookmark, &any(300, 2, 11)]);
    let object = get_at(300, 2, "resourceVersion=0", r#""code":404"#).replace("pods/y", "pods/x");
    broken(
        Monotone,
        &format!("{texts}, with the change MODIFIED a/x at 12"),
        "no object",
        &[&any(100, 1, 12), &object],
    );
    // A consistent answer may be the store's, and each encoding has a memory of its own.
    kept(Monotone, 1, &[&list(1, "", &of(12)), &any(300, 2, 11)]);
    let protobuf = any(100, 1, 12).replace(r#""verb""#, r#""encoding":"protobuf","verb""#);
    kept(Monotone, 2, &[&protobuf, &any(300, 2, 11)]);
}

#[test]
fn forwarded_reads_are_excluded_from_monotonicity() {
    let passed = |at_ns, op, version| list_at(at_ns, op, "resourceVersion=0", &of(version));
    let cached =
        |at_ns, op, version| list_at(at_ns, op, "resourceVersion=0", &format!(r#"{},"from_memory":true"#, of(version)));
    kept(Monotone, 1, &[&passed(100, 1, 12), &cached(300, 2, 11)]);
    kept(Monotone, 1, &[&cached(100, 1, 12), &passed(300, 2, 11)]);
    let texts = ["a response at 12 or later, like an earlier one", "one at 11"];
    let between = passed(200, 2, 10);
    broken(Monotone, texts[0], texts[1], &[&cached(100, 1, 12), &between, &cached(300, 3, 11)]);
}

#[test]
fn fault_waives_guarantee_only_for_overlapping_requests() {
    let any = |at_ns, op, version| list_at(at_ns, op, "resourceVersion=0", &of(version));
    let fault = |from: u64, to: u64| {
        let waives = r#""hits":1,"waives":["monotone"]"#;
        format!("{{\"fault\":{{\"name\":\"restart\",\"from_ns\":{from},\"to_ns\":{to},{waives}}}}}\n")
    };
    kept(Monotone, 2, &[&any(100, 1, 12), &any(300, 2, 11), &fault(200, 250)]);
    kept(Monotone, 1, &[&any(100, 1, 12), &any(300, 2, 11), &fault(200, 300)]);
    let texts = ["a response at 12 or later, like an earlier one", "one at 11"];
    broken(Monotone, texts[0], texts[1], &[&any(100, 1, 12), &any(300, 2, 11), &fault(50, 60)]);
    kept(Monotone, 0, &[&any(100, 1, 12), &any(300, 2, 11), &fault(50, 400)]);
}

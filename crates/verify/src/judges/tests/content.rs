use super::super::super::guarantee::ApiserverGuarantee::{Filtered, Typed, TypedBytes};
use super::{broken, events, events_of, kept, list, watch, watch_at};

#[test]
fn event_matching_selector_before_or_after_change_passes() {
    let selected = watch(1, "resourceVersion=10&labelSelector=app%3D1");
    kept(Filtered, 2, &[&selected, &events("ADDED a/y 11, DELETED a/x 12")]);
    let state = watch(1, "labelSelector=app%3D1&allowWatchBookmarks=true");
    kept(Filtered, 2, &[&state, &events("ADDED a/x 5, END - 10, ADDED a/y 11")]);
}

#[test]
fn event_never_matching_selector_is_a_violation() {
    let texts = "events of selected objects";
    let selected = watch(1, "resourceVersion=10&labelSelector=app%3D1");
    broken(Filtered, texts, "ADDED a-b/z at 14", &[&selected, &events("ADDED a-b/z 14")]);
    // A namespace whose name has the other as a prefix.
    let path = "/api/v1/namespaces/a/pods";
    broken(
        Filtered,
        texts,
        "ADDED a-b/z at 14",
        &[&watch_at(100, 1, path, "resourceVersion=10"), &events("ADDED a-b/z 14")],
    );
    let state = watch(1, "labelSelector=app%3D1&allowWatchBookmarks=true");
    broken(Filtered, texts, "ADDED a/x at 12", &[&state, &events("ADDED a/x 12, END - 12")]);
    // For an event that never happened, the namespace is still known.
    broken(
        Filtered,
        texts,
        "ADDED b/q at 14",
        &[&watch_at(100, 1, path, "resourceVersion=10"), &events("ADDED b/q 14")],
    );
}

#[test]
fn correct_event_type_and_content_for_selector_passes() {
    let all = watch(1, "resourceVersion=10");
    // A deletion has the previous content.
    kept(Typed, 3, &[&all, &events("ADDED a/y 11 11, MODIFIED a/x 12 12, DELETED a/y 13 11")]);
    let selected = watch(1, "resourceVersion=10&labelSelector=app%3D1");
    kept(Typed, 3, &[&selected, &events("DELETED a/x 12 5, DELETED a/y 13 11, ADDED a/x 15 15")]);
    let state = watch(1, "allowWatchBookmarks=true");
    kept(Typed, 2, &[&state, &events("ADDED a/x 12 12, ADDED a/y 11 11, END - 12")]);
}

#[test]
fn wrong_event_type_or_content_for_selector_is_a_violation() {
    let selected = watch(1, "resourceVersion=10&labelSelector=app%3D1");
    let left = "DELETED a/x at 12 with content 5";
    broken(Typed, left, "MODIFIED a/x at 12 with content 12", &[&selected, &events("MODIFIED a/x 12 12")]);
    broken(Typed, left, "DELETED a/x at 12 with content 12", &[&selected, &events("DELETED a/x 12 12")]);
    let came = "ADDED a/x at 15 with content 15";
    broken(Typed, came, "MODIFIED a/x at 15 with content 15", &[&selected, &events("MODIFIED a/x 15 15")]);
    // A deletion at the version of what it deletes.
    let all = watch(1, "resourceVersion=10");
    let texts = ["ADDED a/y at 11 with content 11", "DELETED a/y at 11 with content 11"];
    broken(Typed, texts[0], texts[1], &[&all, &events("DELETED a/y 11 11")]);
    let state = watch(1, "allowWatchBookmarks=true");
    let texts = ["ADDED a/x at 12 with content 12", "ADDED a/x at 12 with content 5"];
    broken(Typed, texts[0], texts[1], &[&state, &events("ADDED a/x 12 5, END - 12")]);
}

/// A watch directly at the apiserver.
fn direct(op: u64) -> String {
    watch(op, "resourceVersion=10").replace(r#""client":1"#, r#""client":1,"server":"direct""#)
}

#[test]
fn differing_bytes_of_one_object_version_are_a_violation() {
    let bytes = |op, bytes: &str| events_of(op, "ADDED a/y 11 1").replace("digest", "bytes").replace("\"1\"", bytes);
    let [one, two] = [watch(1, "resourceVersion=10"), watch(2, "resourceVersion=10")];
    kept(TypedBytes, 1, &[&one, &two, &bytes(1, "\"1\""), &bytes(2, "\"1\"")]);
    kept(TypedBytes, 1, &[&one, &direct(2), &bytes(1, "\"1\""), &bytes(2, "\"1\"")]);
    // There is no other response to compare with.
    kept(TypedBytes, 0, &[&one, &bytes(1, "\"1\"")]);
    let mine = ["a/y at 11 in JSON with the same bytes as in another response", "different bytes"];
    broken(TypedBytes, mine[0], mine[1], &[&one, &two, &bytes(1, "\"1\""), &bytes(2, "\"2\"")]);
    let theirs = "a/y at 11 in JSON with the same bytes as in the apiserver's response";
    broken(TypedBytes, theirs, "different bytes", &[&one, &direct(2), &bytes(1, "\"1\""), &bytes(2, "\"2\"")]);
}

#[test]
fn response_in_unrequested_encoding_is_a_violation() {
    let answer = list(1, "", r#""code":200,"version":10,"encoding":"protobuf""#);
    broken(TypedBytes, "JSON", "protobuf", &[&answer]);
    let table = answer.replace(r#""verb""#, r#""encoding":"table","verb""#);
    broken(TypedBytes, "Table", "protobuf", &[&table]);
    kept(TypedBytes, 0, &[&answer.replace(r#""verb""#, r#""encoding":"protobuf","verb""#)]);
}

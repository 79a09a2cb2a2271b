use super::super::super::guarantee::ApiserverGuarantee::{Continuity, InitialEvents, ListSnapshot};
use super::{broken, events, events_of, get_at, kept, list, resume, watch};

const STATE: &str = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

/// A list response with items written as `a/x 12`, and further members.
fn answer(version: u64, items: &str, rest: &str) -> String {
    let item = |parts: &str| {
        let parts: Vec<_> = parts.split(' ').collect();
        let digest = parts.get(2).map(|digest| format!(r#","digest":"{digest}""#)).unwrap_or_default();
        format!(r#"{{"key":"{}","version":{}{digest}}}"#, parts[0], parts[1])
    };
    let items: Vec<_> = items.split(", ").filter(|parts| !parts.is_empty()).map(item).collect();
    format!(r#""code":200,"version":{version},"items":[{}]{rest}"#, items.join(","))
}

#[test]
fn initial_events_equal_to_state_at_their_version_pass() {
    kept(InitialEvents, 1, &[&watch(1, STATE), &events("ADDED a-b/z 14, ADDED a/x 12, END - 14, MODIFIED a/x 15")]);
    let selected = watch(1, &format!("{STATE}&labelSelector=app%3D1"));
    kept(InitialEvents, 1, &[&selected, &events("END - 14")]);
    // The stream broke amid the initial events.
    kept(InitialEvents, 0, &[&watch(1, STATE), &events("ADDED a-b/z 14")]);
}

#[test]
fn wrong_or_non_added_initial_events_are_a_violation() {
    let wrong = |expected: &str, got: &str, text: &str| {
        broken(InitialEvents, expected, got, &[&watch(1, STATE), &events(text)]);
    };
    let expected = "the state at 14, with a-b/z at 14";
    wrong(expected, "initial events without it", "ADDED a/x 12, END - 14, ADDED a-b/z 14");
    wrong("the state at 12, with a/x at 12", "initial events with it at 5", "ADDED a/x 5, ADDED a/y 11, END - 12");
    let gone = "ADDED a-b/z 14, ADDED a/x 12, ADDED a/y 11, END - 14";
    wrong("the state at 14, with no a/y", "initial events with a/y at 11", gone);
    let twice = "ADDED a-b/z 14, ADDED a/x 12, ADDED a/x 12, END - 14";
    wrong("the state at 14, with a/x once", "initial events with a/x twice", twice);
    let deleted = "ADDED a/x 12, ADDED a/y 11, DELETED a/y 13, END - 13";
    wrong("initial events ADDED up to 13", "DELETED a/y at 13", deleted);
    wrong("initial events ADDED up to 14", "ADDED a/x at 15", "ADDED a-b/z 14, ADDED a/x 15, END - 14");
    wrong("initial events ADDED up to 12", "BOOKMARK at 12", "ADDED a/x 12, BOOKMARK - 12, ADDED a/y 11, END - 12");
    let again = "ADDED a/x 12, END - 13, END - 13";
    wrong("one bookmark that ends the initial events", "the BOOKMARK at 13 that ends the initial events", again);
    let behind = watch(1, "resourceVersion=13&allowWatchBookmarks=true");
    let texts = ["no initial events, because none were requested", "the BOOKMARK at 13 that ends the initial events"];
    broken(InitialEvents, texts[0], texts[1], &[&behind, &events("END - 13")]);
}

#[test]
fn initial_events_without_bookmark_must_form_some_state() {
    let open = watch(1, "");
    kept(InitialEvents, 1, &[&open, &events("ADDED a-b/z 14, ADDED a/x 12, MODIFIED a/x 15")]);
    // The first live ADDED events may look like initial events.
    kept(InitialEvents, 1, &[&open, &events("ADDED a/x 5, ADDED a/y 11, MODIFIED a/x 12")]);
    let texts = ["initial events that form the state at some version", "initial events that form no such state"];
    broken(InitialEvents, texts[0], texts[1], &[&open, &events("ADDED a-b/z 14, MODIFIED a/x 15")]);
    broken(InitialEvents, texts[0], texts[1], &[&open, &events("ADDED a/x 12, ADDED a/y 11, ADDED a-b/z 14")]);
    // An ambiguous case is not judged.
    kept(InitialEvents, 0, &[&open, &events("ADDED a-b/z 14, ADDED a/x 12")]);
}

#[test]
fn list_equal_to_state_at_its_version_passes() {
    kept(ListSnapshot, 1, &[&list(1, "", &answer(14, "a-b/z 14 14, a/x 12 12", ""))]);
    kept(ListSnapshot, 1, &[&list(1, "labelSelector=app%3D1", &answer(14, "", ""))]);
    kept(ListSnapshot, 1, &[&list(1, "labelSelector=app%3D1", &answer(17, "a/s 16, a/t 16, a/x 15", ""))]);
    // The state at 9 is unknown.
    kept(ListSnapshot, 0, &[&list(1, "", &answer(9, "a/q 3", ""))]);
}

#[test]
fn list_of_no_real_state_or_unsorted_is_a_violation() {
    let wrong = |expected: &str, got: &str, answer: &str| broken(ListSnapshot, expected, got, &[&list(1, "", answer)]);
    let state = "the state at 14, with a-b/z at 14";
    wrong(state, "a list without it", &answer(14, "a/x 12", ""));
    // One half of it is of another version.
    wrong("the state at 13, with no a-b/z", "a list with a-b/z at 14", &answer(13, "a-b/z 14, a/x 12", ""));
    let tuples = "a list in key order, a-b/z before a/x";
    wrong(tuples, "a/x before a-b/z", &answer(14, "a/x 12, a-b/z 14", ""));
    wrong("a/x at 12 with content 12", "a/x at 12 with content 5", &answer(14, "a-b/z 14 14, a/x 12 5", ""));
    wrong("a list with a resourceVersion", "a list without one", r#""code":200"#);
}

#[test]
fn page_with_wrong_items_or_remaining_count_is_a_violation() {
    // {"v":"meta.k8s.io/v1","rv":17,"start":"a-b/z\u0000"}
    let token = "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MTcsInN0YXJ0IjoiYS1iL3pcdTAwMDAifQ&limit=2";
    let first = |rest: &str| list(1, "limit=1", &answer(17, "a-b/z 14", rest));
    kept(ListSnapshot, 1, &[&first(r#","more":true,"remaining":3"#)]);
    kept(ListSnapshot, 1, &[&list(1, token, &answer(17, "a/s 16, a/t 16", r#","more":true,"remaining":1"#))]);
    let last = token.replace("limit=2", "limit=3");
    kept(ListSnapshot, 1, &[&list(1, &last, &answer(17, "a/s 16, a/t 16, a/x 15", ""))]);
    // With a selector there may be nothing more.
    let selected = list(1, "limit=1&labelSelector=app%3D2", &answer(17, "a-b/z 14", r#","more":true"#));
    kept(ListSnapshot, 1, &[&selected]);

    let texts = ["a page at 17 after which 3 objects remain", "a page that says that 2 remain"];
    broken(ListSnapshot, texts[0], texts[1], &[&first(r#","more":true,"remaining":2"#)]);
    let ended = ["the state at 17, with a/s at 16", "a list without it"];
    broken(ListSnapshot, ended[0], ended[1], &[&first("")]);
    let skipped = list(1, token, &answer(17, "a/t 16, a/x 15", ""));
    broken(ListSnapshot, ended[0], ended[1], &[&skipped]);
    // The next page shows how far a page without objects extends.
    let next =
        list(2, token, &answer(17, "a/s 16, a/t 16", r#","more":true"#)).replace(r#""verb""#, r#""resumes":1,"verb""#);
    let texts = ["the state at 17, with a-b/z at 14", "a list without it"];
    broken(ListSnapshot, texts[0], texts[1], &[&list(1, "limit=1", &answer(17, "", r#","more":true"#)), &next]);
    let overlap = list(1, token, &answer(17, "a-b/z 14, a/s 16", r#","more":true"#));
    let texts = ["the state at 17, with no a-b/z", "a list with a-b/z at 14"];
    broken(ListSnapshot, texts[0], texts[1], &[&overlap]);
}

#[test]
fn get_of_nonexistent_object_version_is_a_violation() {
    kept(ListSnapshot, 1, &[&get_at(100, 1, "", &answer(11, "a/y 11 11", ""))]);
    let texts = ["the existing object a/y", "a/y at 12"];
    broken(ListSnapshot, texts[0], texts[1], &[&get_at(100, 1, "", &answer(12, "a/y 12", ""))]);
    let other = get_at(100, 1, "", &answer(12, "a/x 12", ""));
    broken(ListSnapshot, texts[0], "a/x at 12", &[&other]);
    let content = ["a/y at 11 with content 11", "a/y at 11 with content 12"];
    broken(ListSnapshot, content[0], content[1], &[&get_at(100, 1, "", &answer(11, "a/y 11 12", ""))]);
}

#[test]
fn client_that_lists_watches_and_resumes_has_true_state() {
    let start = [list(1, "", &answer(10, "a/x 5", "")), resume(2, 1, "resourceVersion=10&allowWatchBookmarks=true")];
    let live_events = events_of(2, "ADDED a/y 11, MODIFIED a/x 12, BOOKMARK - 12");
    // At the bookmark, at the end of the watch, and at the end of the next one.
    let next = [resume(3, 2, "resourceVersion=12"), events_of(3, "DELETED a/y 13, ADDED a-b/z 14")];
    kept(Continuity, 3, &[&start.concat(), &live_events, &next.concat()]);
    let state = [watch(1, STATE), events("ADDED a/x 5, END - 10, ADDED a/y 11")];
    let next = [resume(2, 1, "resourceVersion=11"), events_of(2, "MODIFIED a/x 12")];
    kept(Continuity, 2, &[&state.concat(), &next.concat()]);
    // It ends between two changes of one version; the next watch delivers the other.
    let amid = [watch(1, "resourceVersion=15"), events("ADDED a/t 16")];
    kept(Continuity, 0, &[&amid.concat()]);
}

#[test]
fn lost_event_or_torn_list_is_a_continuity_violation() {
    let start = [list(1, "", &answer(10, "a/x 5", "")), resume(2, 1, "resourceVersion=10")].concat();
    let wrong = |expected: &str, got: &str, records: &[&str]| broken(Continuity, expected, got, records);
    // The first change behind the list is lost.
    let expected = "a client that holds the state at 12, with a/y at 11";
    wrong(expected, "one without it", &[&start, &events_of(2, "MODIFIED a/x 12")]);
    // A change between two watches is lost.
    let live_events = events_of(2, "ADDED a/y 11, MODIFIED a/x 12");
    let next = [resume(3, 2, "resourceVersion=12"), events_of(3, "ADDED a-b/z 14")].concat();
    let expected = "a client that holds the state at 14, with no a/y";
    wrong(expected, "one with a/y at 11", &[&start, &live_events, &next]);
    // The list was torn.
    let torn = [list(1, "", &answer(12, "a/x 5, a/y 11", "")), resume(2, 1, "resourceVersion=12")].concat();
    let expected = "a client that holds the state at 13, with a/x at 12";
    wrong(expected, "one with it at 5", &[&torn, &events_of(2, "DELETED a/y 13")]);
}

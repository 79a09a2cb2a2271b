use super::super::super::guarantee::ApiserverGuarantee::{Ordered, Unique};
use super::{broken, events, events_of, kept, resume, watch};

#[test]
fn increasing_versions_after_initial_events_pass() {
    let open = watch(1, "resourceVersion=10");
    kept(Ordered, 3, &[&open, &events("ADDED a/y 11, MODIFIED a/x 12, DELETED a/y 13")]);
    // Two changes that share a version.
    kept(Ordered, 2, &[&open, &events("ADDED a/t 16, ADDED a/s 16")]);
    // Initial events are in the order of keys.
    let state = watch(1, "sendInitialEvents=true&allowWatchBookmarks=true");
    kept(Ordered, 1, &[&state, &events("ADDED a-b/z 14, ADDED a/x 12, END - 14, MODIFIED a/x 15")]);
}

#[test]
fn decreasing_or_repeated_version_is_a_violation() {
    let open = watch(1, "resourceVersion=10");
    let swapped = events("MODIFIED a/x 12, ADDED a/y 11");
    broken(Ordered, "no event below MODIFIED a/x at 12", "ADDED a/y at 11", &[&open, &swapped]);
    let twice = events("MODIFIED a/x 12, MODIFIED a/x 12");
    broken(Ordered, "an event above MODIFIED a/x at 12", "MODIFIED a/x at 12", &[&open, &twice]);
    let state = watch(1, "sendInitialEvents=true&allowWatchBookmarks=true");
    let again = events("ADDED a/x 12, END - 13, MODIFIED a/x 12");
    broken(Ordered, "an event above ADDED a/x at 12", "MODIFIED a/x at 12", &[&state, &again]);
}

#[test]
fn duplicate_event_in_a_watch_is_a_violation() {
    let open = watch(1, "resourceVersion=10");
    kept(Unique, 3, &[&open, &events("ADDED a/y 11, DELETED a/y 13, ADDED a/s 16")]);
    let twice = events("ADDED a/y 11, MODIFIED a/x 12, ADDED a/y 11");
    broken(Unique, "ADDED a/y at 11 once", "ADDED a/y at 11 again", &[&open, &twice]);
}

#[test]
fn repeated_event_after_resume_is_a_violation() {
    let first = [watch(1, "resourceVersion=10"), events("ADDED a/y 11, MODIFIED a/x 12")].concat();
    let on = resume(2, 1, "resourceVersion=12");
    kept(Unique, 3, &[&first, &on, &events_of(2, "DELETED a/y 13")]);
    broken(
        Unique,
        "MODIFIED a/x at 12 once",
        "MODIFIED a/x at 12 again",
        &[&first, &on, &events_of(2, "MODIFIED a/x 12")],
    );
    // A client that goes back gets the events again.
    kept(Unique, 3, &[&first, &resume(2, 1, "resourceVersion=11"), &events_of(2, "MODIFIED a/x 12")]);
}

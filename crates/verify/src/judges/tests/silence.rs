use super::super::super::guarantee::ApiserverGuarantee::Steady;
use super::super::SECOND_NS;
use super::{broken, kept, watch};

fn bookmark(at_s: u64) -> String {
    let at_ns = 100 + at_s * SECOND_NS;
    format!(r#"{{"event":{{"op":1,"at_ns":{at_ns},"type":"BOOKMARK","version":15}}}}"#) + "\n"
}

fn left(at_s: u64) -> String {
    format!(r#"{{"end":{{"op":1,"at_ns":{},"how":"left"}}}}"#, 100 + at_s * SECOND_NS) + "\n"
}

#[test]
fn watch_with_bookmark_every_minute_passes() {
    let open = watch(1, "resourceVersion=10&allowWatchBookmarks=true");
    kept(Steady, 1, &[&open, &bookmark(61), &bookmark(122), &left(190)]);
    // The record ends earlier.
    kept(Steady, 1, &[&open]);
    kept(Steady, 0, &[&watch(1, "resourceVersion=10"), &left(900)]);
    // The future version has not been reached.
    kept(Steady, 1, &[&watch(1, "resourceVersion=99&allowWatchBookmarks=true"), &left(900)]);
    let fault = r#"{"fault":{"name":"hold","from_ns":60000000000,"to_ns":61000000000,"hits":1}}"#.to_owned() + "\n";
    kept(Steady, 1, &[&open, &left(90), &fault]);
}

#[test]
fn silence_longer_than_bookmark_period_is_a_violation() {
    let open = watch(1, "resourceVersion=10&allowWatchBookmarks=true");
    broken(Steady, "a bookmark within a minute", "no event for 80 s", &[&open, &bookmark(20), &bookmark(100)]);
    broken(Steady, "a bookmark within a minute", "no event for 90 s", &[&open, &bookmark(20), &left(110)]);
}

//! Histories of several servers of one cluster. Clients switch between them with their versions.

use super::super::super::guarantee::ApiserverGuarantee::{
    BeginsOnce, Continuity, Monotone, Reliable, Resumable, Unique,
};
use super::{broken, events, events_of, kept, list, list_at, resume, watch};

const STATE: &str = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
const BEGINS_ONCE: &str = r#"{"run":{"begins_once":true}}"#;
const NOTHING: &str = r#""code":200,"version":10,"items":[{"key":"a/x","version":5}]"#;

/// The same call at the first of the additional servers.
fn elsewhere(call: &str) -> String {
    call.replacen(r#""client":1,"#, r#""client":1,"server":{"also":0},"#, 1)
}

fn run(records: &[&str]) -> Vec<String> {
    [BEGINS_ONCE, "\n"].into_iter().chain(records.iter().copied()).map(str::to_owned).collect()
}

#[test]
fn lost_event_after_hop_is_a_continuity_violation() {
    let (first, there) = (list(1, "", NOTHING), elsewhere(&resume(2, 1, "resourceVersion=10")));
    let back = resume(3, 2, "resourceVersion=12");
    let seen = events_of(2, "ADDED a/y 11, MODIFIED a/x 12");
    kept(Continuity, 2, &[&first, &there, &seen, &back, &events_of(3, "DELETED a/y 13, ADDED a-b/z 14")]);
    let lost = events_of(3, "ADDED a-b/z 14");
    let texts = ["a client that holds the state at 14, with no a/y", "one with a/y at 11"];
    broken(Continuity, texts[0], texts[1], &[&first, &there, &seen, &back, &lost]);
}

#[test]
fn watch_resumed_elsewhere_neither_repeats_nor_skips_events() {
    let (open, seen) = (watch(1, "resourceVersion=10"), events("ADDED a/y 11, MODIFIED a/x 12"));
    let there = elsewhere(&resume(2, 1, "resourceVersion=12"));
    let on = events_of(2, "DELETED a/y 13, ADDED a-b/z 14");
    for (promise, instances) in [(Unique, 4), (Resumable, 2), (Reliable, 4)] {
        kept(promise, instances, &[&open, &seen, &there, &on]);
    }
    let again = events_of(2, "MODIFIED a/x 12, DELETED a/y 13");
    broken(Unique, "MODIFIED a/x at 12 once", "MODIFIED a/x at 12 again", &[&open, &seen, &there, &again]);
    let late = events_of(2, "ADDED a-b/z 14");
    let texts = ["DELETED a/y at 13 as the first event after 12", "ADDED a-b/z at 14 as the first event"];
    broken(Resumable, texts[0], texts[1], &[&open, &seen, &there, &late]);
}

#[test]
fn monotonicity_is_checked_per_server() {
    let of = |version| format!(r#""code":200,"version":{version}"#);
    let any = |at_ns, op, version| list_at(at_ns, op, "resourceVersion=0", &of(version));
    kept(Monotone, 2, &[&any(100, 1, 12), &elsewhere(&any(110, 2, 11))]);
    let texts = ["a response at 12 or later, like an earlier one", "one at 11"];
    broken(Monotone, texts[0], texts[1], &[&elsewhere(&any(100, 1, 12)), &elsewhere(&any(110, 2, 11))]);
}

#[test]
fn client_that_resumes_without_relist_passes() {
    let (first, goes_on) = (list(1, "", NOTHING), elsewhere(&resume(2, 1, "resourceVersion=10")));
    let of = |records: &[&str]| run(records).concat();
    kept(BeginsOnce, 1, &[&of(&[&first, &goes_on])]);
    // A failed list, or a list without its last page, delivers no state.
    let failed = list(1, "", r#""code":503"#);
    let begun = list(1, "limit=1", r#""code":200,"version":10,"more":true"#);
    let second = list_at(200, 2, "", NOTHING);
    kept(BeginsOnce, 0, &[&of(&[&failed, &second])]);
    kept(BeginsOnce, 0, &[&of(&[&begun, &second])]);
    // Another client begins.
    let other = second.replace(r#""client":1"#, r#""client":2"#);
    kept(BeginsOnce, 0, &[&of(&[&first, &other])]);
    // If clients may list at any time, nothing is judged.
    kept(BeginsOnce, 0, &[&first, &second]);
}

#[test]
fn relist_after_410_passes_only_if_no_server_has_history() {
    let (first, goes_on) = (list(1, "", NOTHING), elsewhere(&resume(2, 1, "resourceVersion=10")));
    let refused = r#"{"event":{"op":2,"at_ns":120,"type":"ERROR","status":{"code":410}}}"#;
    let window = |server: &str, at_ns: u64| {
        format!(r#"{{"window":{{"resource":"pods","version":20,"at_ns":{at_ns},"server":{server}}}}}"#)
    };
    let of = |windows: &[String]| {
        let run = r#"{"run":{"begins_once":true,"also":["https://zone"]}}"#.to_owned();
        let records = [run, first.clone(), goes_on.clone(), refused.to_owned(), list_at(200, 3, "", NOTHING)];
        records.iter().chain(windows).map(|record| record.trim_end()).collect::<Vec<_>>().join("\n")
    };
    let all = [window(r#""subject""#, 110), window(r#"{"also":0}"#, 110)];
    kept(BeginsOnce, 1, &[&of(&all)]);
    let texts = ["a client that resumes from the state at 10", "another list"];
    for (at, server) in [r#""subject""#, r#"{"also":0}"#].into_iter().enumerate() {
        broken(BeginsOnce, texts[0], texts[1], &[&of(&all[..=at][at..])]);
        // The server forgot it only afterwards.
        let mut late = all.clone();
        late[at] = window(server, 130);
        broken(BeginsOnce, texts[0], texts[1], &[&of(&late)]);
    }
}

#[test]
fn relist_or_second_initial_state_is_a_violation() {
    let (first, goes_on) = (list(1, "", NOTHING), elsewhere(&resume(2, 1, "resourceVersion=10")));
    let wrong = |got: &str, records: &[&str]| {
        let records = run(records).concat();
        broken(BeginsOnce, "a client that resumes from the state at 10", got, &[&records]);
    };
    let refused = r#"{"event":{"op":2,"at_ns":120,"type":"ERROR","status":{"code":410}}}"#;
    wrong("another list", &[&first, &goes_on, refused, "\n", &list_at(200, 3, "", NOTHING)]);
    wrong("another list", &[&first, &elsewhere(&list_at(200, 3, "resourceVersion=0", NOTHING))]);
    wrong("another initial state", &[&first, &watch(3, STATE)]);
    let streamed = [&watch(1, STATE), &events("ADDED a/x 5, END - 10")].map(String::as_str).concat();
    wrong("another list", &[&streamed, &list_at(200, 3, "", NOTHING)]);
}

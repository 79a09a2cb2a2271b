use super::super::super::guarantee::ApiserverGuarantee::{Expired, Future, OneRelist};
use super::{broken, events, kept, list, list_at, watch, watch_at};

fn error(code: u16, at_ns: u64) -> String {
    let cause = if code == 504 { r#","cause":"ResourceVersionTooLarge""# } else { "" };
    let status = format!(r#""status":{{"code":{code},"message":"m"{cause}}}"#);
    format!("{{\"event\":{{\"op\":1,\"at_ns\":{at_ns},\"type\":\"ERROR\",{status}}}}}\n")
}

fn line(name: &str, members: &str) -> String {
    format!("{{\"{name}\":{{{members}}}}}\n")
}

#[test]
fn response_410_for_expired_history_passes() {
    let open = watch(1, "resourceVersion=10");
    let refused = error(410, 300);
    kept(Expired, 1, &[&open, &refused, &line("compacted", r#""version":12,"at_ns":300"#)]);
    kept(Expired, 1, &[&open, &refused, &line("window", r#""version":11,"at_ns":300"#)]);
    kept(Expired, 1, &[&open, &refused, &line("window", r#""resource":"pods","version":11,"at_ns":300"#)]);
    kept(Expired, 1, &[&open, &refused, &line("window", r#""version":11,"at_ns":300,"server":"subject""#)]);
    // There are seven changes after version 10.
    kept(Expired, 1, &[&open, &refused, &line("run", r#""window_changes":6"#)]);
    let list = |query| list_at(300, 1, query, r#""code":410,"status":{"code":410,"message":"m"}"#);
    let compacted = line("compacted", r#""version":12,"at_ns":300"#);
    kept(Expired, 1, &[&list("resourceVersion=11&resourceVersionMatch=Exact"), &compacted]);
    // Other errors do not concern history.
    kept(Expired, 1, &[&open, &error(500, 300)]);
}

#[test]
fn response_410_for_available_history_is_a_violation() {
    let open = watch(1, "resourceVersion=10");
    let texts = ["the events after 10, which were still in the history", "410 m"];
    let wrong = |records: &[&str]| broken(Expired, texts[0], texts[1], records);
    wrong(&[&open, &error(410, 300)]);
    // The compaction keeps its own version, which is the first after 10.
    wrong(&[&open, &error(410, 300), &line("compacted", r#""version":11,"at_ns":300"#)]);
    wrong(&[&open, &error(410, 300), &line("compacted", r#""version":12,"at_ns":301"#)]);
    wrong(&[&open, &error(410, 300), &line("window", r#""version":10,"at_ns":300"#)]);
    wrong(&[&open, &error(410, 300), &line("window", r#""resource":"secrets","version":11,"at_ns":300"#)]);
    wrong(&[&open, &error(410, 300), &line("run", r#""window_changes":7"#)]);
    // Another server has forgotten it.
    wrong(&[&open, &error(410, 300), &line("window", r#""version":11,"at_ns":300,"server":{"also":0}"#)]);
    // The watch had got further than its beginning.
    let event = events("ADDED a/y 11");
    let further = "the events after 11, which were still in the history";
    broken(
        Expired,
        further,
        "410 m",
        &[&open, &event, &error(410, 300), &line("compacted", r#""version":12,"at_ns":1"#)],
    );
    let list = |query| list(1, query, r#""code":410,"status":{"code":410,"message":"m"}"#);
    let exact = "resourceVersion=11&resourceVersionMatch=Exact";
    let compacted = line("compacted", r#""version":11,"at_ns":1"#);
    broken(Expired, "the state at 11, which was not compacted", "410 m", &[&list(exact), &compacted]);
    broken(Expired, "the current state", "410 m", &[&list("resourceVersion=11"), &compacted]);
}

#[test]
fn event_after_410_or_410_as_response_code_is_a_violation() {
    let open = watch(1, "resourceVersion=10");
    let gone = line("compacted", r#""version":20,"at_ns":1"#);
    let behind = [error(410, 300), events("ADDED a/y 11")].concat();
    broken(Expired, "no event after an error", "ADDED a/y at 11", &[&open, &behind, &gone]);
    let before = watch(1, "resourceVersion=10").replace("200", "410");
    broken(Expired, "200, and a 410 only as an event", "410 ", &[&before, &gone]);
}

#[test]
fn watch_from_future_version_waits_for_later_events() {
    let open = watch(1, "resourceVersion=15&allowWatchBookmarks=true");
    kept(Future, 1, &[&open, &events("ADDED a/s 16, ADDED a/t 16, BOOKMARK - 16")]);
    // At time 160, version 15 is in the past.
    kept(Future, 0, &[&watch_at(160, 1, "/api/v1/pods", "resourceVersion=15"), &events("ADDED a/s 16")]);
    // A compacted version existed, even if no participant had seen it. A version that is compacted later did not exist
    // yet.
    let compacted = |at_ns: u64| line("compacted", &format!(r#""version":16,"at_ns":{at_ns}"#));
    kept(Future, 0, &[&compacted(1), &open, &error(410, 300)]);
    let texts = "the events after 15, a future version";
    broken(Future, texts, "410 m", &[&open, &compacted(299), &error(410, 300)]);
    // While the watch waits, later changes may happen and be forgotten.
    let window = |version: u64| line("window", &format!(r#""version":{version},"at_ns":299"#));
    kept(Future, 1, &[&open, &window(16), &error(410, 300)]);
    broken(Future, texts, "410 m", &[&open, &window(15), &error(410, 300)]);
    broken(Future, texts, "504 m", &[&open, &window(16), &error(504, 300)]);
    broken(Future, texts, "MODIFIED a/x at 15", &[&open, &events("MODIFIED a/x 15")]);
    broken(Future, texts, "BOOKMARK at 14", &[&open, &events("BOOKMARK - 14")]);
    broken(Future, texts, "410 m", &[&open, &error(410, 300)]);
    broken(Future, texts, "504 m", &[&open, &error(504, 300)]);
}

#[test]
fn response_504_for_existing_version_is_a_violation() {
    let answer = r#""code":504,"status":{"code":504,"message":"Too large resource version: 15, current: 3"}"#;
    kept(Future, 1, &[&list_at(150, 1, "resourceVersion=15", answer)]);
    let texts = ["a response, because 15 was known before", "a refusal of 15 as too large"];
    broken(Future, texts[0], texts[1], &[&list_at(151, 1, "resourceVersion=15", answer)]);
    let state = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=15";
    broken(Future, texts[0], texts[1], &[&watch_at(151, 1, "/api/v1/pods", state), &error(504, 300)]);
    kept(Future, 1, &[&watch_at(150, 1, "/api/v1/pods", state), &error(504, 300)]);
    // During a fault the server may lag.
    let fault = line("fault", r#""name":"slow","from_ns":140,"to_ns":152,"hits":1"#);
    kept(Future, 1, &[&list_at(151, 1, "resourceVersion=15", answer), &fault]);
}

#[test]
fn second_relist_per_collection_after_fault_is_a_violation() {
    let upstream_request = |at_ns: u64, query: &str| {
        let members = format!(r#""at_ns":{at_ns},"verb":"list","path":"/api/v1/pods","query":"{query}","code":200"#);
        line("upstream_request", &members)
    };
    let cut = |hits: u64| line("fault", &format!(r#""name":"cut","from_ns":1000000,"to_ns":1000100,"hits":{hits}"#));
    let [before, first, second] = [10, 1_000_020, 1_000_030].map(|at_ns| upstream_request(at_ns, "limit=500"));
    kept(OneRelist, 1, &[&cut(1), &before, &first]);
    kept(OneRelist, 1, &[&cut(2), &before, &first, &second]);
    kept(OneRelist, 0, &[&before, &first, &second]);
    // Without a record of upstream requests, nothing is judged.
    kept(OneRelist, 0, &[&cut(1)]);
    let texts = ["at most 1 lists of /api/v1/pods after cut at 1 ms", "2 lists"];
    broken(OneRelist, texts[0], texts[1], &[&cut(1), &first, &second]);
    broken(OneRelist, texts[0], texts[1], &[&cut(1), &first, &watched()]);
    // The server's cache must answer the first request of an informer.
    let informers =
        |query: &str| upstream_request(1_000_030, query).replace(r#""code":200"#, r#""code":200,"forwarded":true"#);
    broken(OneRelist, texts[0], texts[1], &[&cut(1), &first, &informers("resourceVersion=0")]);
    // A request for one object, a client's own consistent list, or a failed request is not a relist.
    let forwarded = second.replace(r#""code":200"#, r#""code":200,"forwarded":true"#);
    let failed = second.replace(r#""code":200"#, r#""code":500"#);
    kept(OneRelist, 1, &[&cut(1), &first, &upstream_request(1_000_030, "limit=1"), &forwarded, &failed]);
}

/// A streamed list.
fn watched() -> String {
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    line(
        "upstream_request",
        &format!(r#""at_ns":1000050,"verb":"watch","path":"/api/v1/pods","query":"{query}","code":200"#),
    )
}

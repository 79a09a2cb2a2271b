use std::collections::{BTreeMap, BTreeSet};

use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::rates::RunCounts;
use super::super::verdict::{RunVerdict, VerdictRequirements, VerifyOutcome, excerpt};

/// A run in which one watch gets one change. The argument decides whether it is the right one.
fn run(version: u64) -> String {
    format!(
        r#"{{"run":{{"url":"https://here","truth":"direct","command":"again --seed 7"}}}}
{{"truth":{{"resource":"pods","key":"a/x","version":11,"type":"ADDED","at_ns":1}}}}
{{"known":{{"resource":"pods","from":10,"to":20,"at_ns":9000000}}}}

{{"call":{{"op":1,"client":1,"at_ns":5,"verb":"watch","path":"/api/v1/pods","query":"resourceVersion=10"}}}}
{{"return":{{"op":1,"at_ns":6,"code":200}}}}
{{"event":{{"op":1,"at_ns":7,"type":"ADDED","key":"a/x","version":{version}}}}}
"#
    )
}

fn verdict(records: &str, requirements: &VerdictRequirements) -> RunVerdict {
    RunVerdict::of(&RunHistory::read(records.as_bytes()).unwrap(), requirements)
}

#[test]
fn verdict_is_pass_violation_or_inconclusive() {
    let nothing = VerdictRequirements::default();
    let kept = verdict(&run(11), &nothing);
    assert_eq!((kept.outcome(), kept.outcome().code()), (VerifyOutcome::Passed, 0));
    let broken = verdict(&run(12), &nothing);
    assert_eq!((broken.outcome(), broken.outcome().code()), (VerifyOutcome::Violated, 1));
    let least = RunCounts { events: 2, watches: 1, ..RunCounts::default() };
    let busier = VerdictRequirements { least, ..VerdictRequirements::default() };
    let void = verdict(&run(11), &busier);
    assert_eq!((void.outcome(), void.outcome().code()), (VerifyOutcome::Inconclusive, 2));
    assert_eq!(void.lacks, ["1 events, at least 2 required"]);
    // What is broken is broken in however short a run.
    assert_eq!(verdict(&run(12), &busier).outcome(), VerifyOutcome::Violated);
    let judged = BTreeSet::from([ApiserverGuarantee::Reliable, ApiserverGuarantee::Exact]);
    let void = verdict(&run(11), &VerdictRequirements { judged, ..VerdictRequirements::default() });
    assert_eq!((void.outcome(), &void.lacks[..]), (VerifyOutcome::Inconclusive, &["no check of Exact".to_owned()][..]));
}

#[test]
fn text_shows_unchecked_guarantees_and_the_first_violation() {
    let kept = verdict(&run(11), &VerdictRequirements::default());
    let printed = kept.text(&BTreeMap::new());
    assert!(printed.starts_with("https://here compared with a watch of the apiserver (weaker"));
    assert!(
        printed.contains("  Reliable       ok in 1 checks\n") && printed.contains("  Exact          not checked\n"),
        "{printed}"
    );
    assert!(
        printed.contains("1 watches, 0 resumes, 0 hops, 1 events") && printed.contains("9 milliseconds"),
        "{printed}"
    );
    assert!(!printed.contains("violation") && !printed.contains("nconclusive"), "{printed}");

    let records = run(12);
    let broken = verdict(&records, &VerdictRequirements::default());
    let lines = &broken.first().unwrap().lines;
    assert_eq!(lines, &[5, 7]);
    let printed = broken.text(&excerpt(records.as_bytes(), lines).unwrap());
    let end = printed.split("\nFirst violation: ").nth(1).unwrap();
    let texts: Vec<_> = records.lines().collect();
    let (call, event) = (texts[4], texts[6]);
    let expected = "Reliable\n  expected: events of actual changes\n  \
        got:      ADDED a/x at 12 without a change\n";
    assert_eq!(end, format!("{expected}  line 5: {call}\n  line 7: {event}\n  repeat with: again --seed 7\n"));
    assert!(printed.contains("  Reliable       VIOLATED 1 times in 0 checks\n"), "{printed}");

    let least = RunCounts { events: 2, ..RunCounts::default() };
    let void = verdict(&run(11), &VerdictRequirements { least, ..VerdictRequirements::default() });
    assert!(void.text(&BTreeMap::new()).ends_with("\nInconclusive: 1 events, at least 2 required\n"));
}

#[test]
fn counts_cover_all_operations_of_the_tested_server() {
    let more = r#"
{"call":{"op":2,"client":1,"at_ns":5,"verb":"watch","path":"/api/v1/pods","resumes":1,"server":{"also":0}}}
{"return":{"op":2,"at_ns":6,"code":200}}
{"event":{"op":2,"at_ns":7,"type":"BOOKMARK","version":12}}
{"call":{"op":3,"client":1,"at_ns":5,"verb":"list","path":"/api/v1/pods"}}
{"return":{"op":3,"at_ns":6,"code":200,"version":20}}
{"call":{"op":4,"client":1,"at_ns":5,"verb":"list","path":"/api/v1/pods"}}
{"return":{"op":4,"at_ns":6,"code":500}}
{"call":{"op":5,"client":1,"at_ns":5,"verb":"get","path":"/api/v1/namespaces/a/pods/x"}}
{"return":{"op":5,"at_ns":6,"code":200}}
{"call":{"op":6,"client":1,"at_ns":5,"verb":"list","path":"/api/v1/pods","server":"direct"}}
{"return":{"op":6,"at_ns":6,"code":200,"version":20}}
{"written":{"call_ns":1,"return_ns":2,"verb":"create","resource":"pods","key":"a/x","code":201}}
{"written":{"call_ns":1,"return_ns":2,"verb":"create","resource":"pods","key":"a/x","code":409}}
{"fault":{"name":"cut","from_ns":1,"to_ns":2,"hits":3}}
"#;
    let (events, writes, watches, resumes, bookmarks, lists, gets, faults, milliseconds) = (1, 1, 2, 1, 1, 1, 1, 3, 9);
    let hops = 1;
    let counts = RunCounts { writes, watches, resumes, hops, events, bookmarks, lists, gets, faults, milliseconds };
    assert_eq!(RunCounts::of(&RunHistory::read((run(11) + more).as_bytes()).unwrap()), counts);
}

#[test]
fn uncovered_refusals_are_reported() {
    let call = |op, verb: &str, query: &str| {
        format!(
            r#"{{"call":{{"op":{op},"client":1,"at_ns":5,"verb":"{verb}","path":"/api/v1/pods","query":"{query}"}}}}
"#
        )
    };
    let answer = |op, code, message: &str| {
        let status = format!(r#"{{"code":{code},"message":"{message}"}}"#);
        format!("{{\"return\":{{\"op\":{op},\"at_ns\":6,\"code\":{code},\"status\":{status}}}}}\n")
    };
    let error = r#"{"return":{"op":2,"at_ns":6,"code":200}}
{"event":{"op":2,"at_ns":7,"type":"ERROR","status":{"code":500,"message":"no storage"}}}
"#;
    let more = [
        call(2, "watch", "sendInitialEvents=true"),
        error.to_owned(),
        call(3, "list", ""),
        answer(3, 429, "later"),
        call(4, "list", ""),
        answer(4, 429, "again"),
        call(5, "list", "resourceVersion=99"),
        answer(5, 504, "Too large resource version: 99, current: 11"),
        call(6, "get", ""),
        answer(6, 404, "not found"),
        call(7, "list", "resourceVersion=1&resourceVersionMatch=Exact"),
        answer(7, 410, "gone"),
    ];
    let run_verdict = verdict(&(run(11) + &more.concat()), &VerdictRequirements::default());
    let printed: Vec<_> = run_verdict.refused.iter().map(ToString::to_string).collect();
    assert_eq!(printed, ["2 lists refused with 429: later", "1 watches refused with 500: no storage"]);
    let text = run_verdict.text(&BTreeMap::new());
    assert!(text.contains("\nNot covered by a guarantee:\n  2 lists refused with 429: later\n"), "{text}");
}

#[test]
fn invalid_record_is_rejected_with_its_line() {
    let wrong = [
        ("{\"call\":{}}", "line 8: missing field `op`"),
        ("nonsense", "line 8: expected value"),
        (r#"{"end":{"op":9,"at_ns":1,"how":"clean"}}"#, "line 8: operation 9 has no call"),
        (r#"{"return":{"op":1,"at_ns":1,"code":200}}"#, "line 8: a second answer to operation 1"),
        (r#"{"call":{"op":1,"client":1,"at_ns":1,"verb":"get","path":"/"}}"#, "line 8: a second call of operation 1"),
        (
            r#"{"known":{"resource":"pods","from":11,"to":12,"at_ns":1}}"#,
            "line 8: the true history of pods begins twice",
        ),
        (
            r#"{"truth":{"resource":"pods","key":"a/y","version":12,"type":"MODIFIED","at_ns":1}}"#,
            "line 8: the true history has a change of an object that does not exist",
        ),
    ];
    for (line, expected) in wrong {
        let error = RunHistory::read((run(11) + line).as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let over = "{\"end\":{\"op\":1,\"at_ns\":8,\"how\":\"clean\"}}\n";
    let event = r#"{"event":{"op":1,"at_ns":9,"type":"BOOKMARK","version":12}}"#;
    let error = RunHistory::read((run(11) + over + event).as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "line 9: an event of operation 1, which is over");
    let error = RunHistory::read((run(11) + over + over).as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "line 9: a second end of operation 1");
}

//! Good and bad histories for each judge.
//!
//! All use the same few changes, [`TRUTH`]. Each adds what one or two clients received.

mod age;
mod content;
mod delivery;
mod lengths;
mod order;
mod refusals;
mod several;
mod silence;
mod states;

use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::violation::GuaranteeVerdict;

/// The truth begins at version 10, with `a/x`. Each change was learnt at ten times its version. With the selector
/// `app=1`, `a/x` leaves at 12 and returns at 15. Two objects are created at 16.
const TRUTH: &str = r#"
{"truth":{"resource":"pods","key":"a/x","version":5,"type":"ADDED","at_ns":50,"digest":"5","labels":{"app":"1"}}}
{"truth":{"resource":"pods","key":"a/y","version":11,"type":"ADDED","at_ns":110,"digest":"11","labels":{"app":"1"}}}
{"truth":{"resource":"pods","key":"a/x","version":12,"type":"MODIFIED","at_ns":120,"digest":"12","labels":{"app":"2"}}}
{"truth":{"resource":"pods","key":"a/y","version":13,"type":"DELETED","at_ns":130}}
{"truth":{"resource":"pods","key":"a-b/z","version":14,"type":"ADDED","at_ns":140,"digest":"14","labels":{"app":"2"}}}
{"truth":{"resource":"pods","key":"a/x","version":15,"type":"MODIFIED","at_ns":150,"digest":"15","labels":{"app":"1"}}}
{"truth":{"resource":"pods","key":"a/s","version":16,"type":"ADDED","at_ns":160,"digest":"16","labels":{"app":"1"}}}
{"truth":{"resource":"pods","key":"a/t","version":16,"type":"ADDED","at_ns":160,"digest":"16","labels":{"app":"1"}}}
{"known":{"resource":"pods","from":10,"to":10,"at_ns":100}}
{"known":{"resource":"pods","from":10,"to":20,"at_ns":200}}
"#;

/// An accepted watch of all pods.
fn watch(op: u64, query: &str) -> String {
    watch_at(100, op, "/api/v1/pods", query)
}

fn watch_at(at_ns: u64, op: u64, path: &str, query: &str) -> String {
    let call = format!(r#""op":{op},"client":1,"at_ns":{at_ns},"verb":"watch","path":"{path}","query":"{query}""#);
    format!(r#"{{"call":{{{call}}}}}{}{{"return":{{"op":{op},"at_ns":{at_ns},"code":200}}}}{}"#, "\n", "\n")
}

/// The same, resuming another operation.
fn resume(op: u64, from: u64, query: &str) -> String {
    let call = format!(r#""verb":"watch","path":"/api/v1/pods","query":"{query}","resumes":{from}"#);
    let answer = format!(r#"{{"return":{{"op":{op},"at_ns":100,"code":200}}}}"#);
    format!("{{\"call\":{{\"op\":{op},\"client\":1,\"at_ns\":100,{call}}}}}\n{answer}\n")
}

/// A list of all pods at 100, with its response.
fn list(op: u64, query: &str, answer: &str) -> String {
    list_at(100, op, query, answer)
}

fn list_at(at_ns: u64, op: u64, query: &str, answer: &str) -> String {
    let call = format!(r#""at_ns":{at_ns},"verb":"list","path":"/api/v1/pods","query":"{query}""#);
    let answer = format!(r#"{{"return":{{"op":{op},"at_ns":{},{answer}}}}}"#, at_ns + 1);
    format!("{{\"call\":{{\"op\":{op},\"client\":1,{call}}}}}\n{answer}\n")
}

/// A GET of `a/y`.
fn get_at(at_ns: u64, op: u64, query: &str, answer: &str) -> String {
    let call = format!(r#""verb":"get","path":"/api/v1/namespaces/a/pods/y","query":"{query}""#);
    let answer = format!(r#"{{"return":{{"op":{op},"at_ns":{},{answer}}}}}"#, at_ns + 1);
    format!("{{\"call\":{{\"op\":{op},\"client\":1,\"at_ns\":{at_ns},{call}}}}}\n{answer}\n")
}

/// Events of operation 1, each written as `ADDED a/x 12`, at ten times their version.
fn events(texts: &str) -> String {
    events_of(1, texts)
}

fn events_of(op: u64, texts: &str) -> String {
    let event = |text: &str| {
        let mut words = text.split_whitespace();
        let mut word = || words.next().unwrap_or_default();
        let (kind, key) = (word(), word());
        let version: u64 = word().parse().unwrap();
        let object = match kind {
            "BOOKMARK" => String::new(),
            "END" => r#","initial_end":true"#.to_owned(),
            _ => {
                format!(r#","key":"{key}","digest":"{}""#, Some(word()).filter(|word| !word.is_empty()).unwrap_or("0"))
                    .replace(r#","digest":"0""#, "")
            }
        };
        let kind = if kind == "END" { "BOOKMARK" } else { kind };
        let at_ns = 100 + version * 10;
        format!(r#"{{"event":{{"op":{op},"at_ns":{at_ns},"type":"{kind}","version":{version}{object}}}}}"#) + "\n"
    };
    texts.split(", ").map(event).collect()
}

fn judge(promise: ApiserverGuarantee, records: &[&str]) -> GuaranteeVerdict {
    let text = TRUTH.to_owned() + &records.concat();
    RunHistory::read(text.as_bytes()).unwrap().judge(promise)
}

/// Asserts that a promise was judged this often, and kept.
#[track_caller]
fn kept(promise: ApiserverGuarantee, instances: u64, records: &[&str]) {
    let judged = judge(promise, records);
    assert_eq!((judged.instances, &judged.violations[..]), (instances, &[][..]));
}

/// Asserts that a promise was broken once, with these texts.
#[track_caller]
fn broken(promise: ApiserverGuarantee, expected: &str, got: &str, records: &[&str]) {
    let judged = judge(promise, records);
    assert_eq!(judged.broken, 1, "{:?}", judged.violations);
    let first = &judged.violations[0];
    assert_eq!((first.expected.as_str(), first.got.as_str()), (expected, got));
    assert!(!first.lines.is_empty());
}

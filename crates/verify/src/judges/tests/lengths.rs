use super::super::super::guarantee::ApiserverGuarantee::Timed;
use super::{broken, events, kept, watch};

fn end(at_ms: u64, how: &str) -> String {
    format!("{{\"end\":{{\"op\":1,\"at_ns\":{},\"how\":\"{how}\"}}}}\n", 100 + at_ms * 1_000_000)
}

fn error() -> String {
    r#"{"event":{"op":1,"at_ns":170,"type":"ERROR","status":{"code":403}}}"#.to_owned() + "\n"
}

fn fault(to_ms: u64) -> String {
    format!(r#"{{"fault":{{"name":"cut","from_ns":150,"to_ns":{},"hits":1}}}}"#, to_ms * 1_000_000) + "\n"
}

#[test]
fn watch_lasting_its_timeout_passes() {
    let open = watch(1, "resourceVersion=10&timeoutSeconds=5");
    for at_ms in [4_990, 5_000, 9_000, 14_990] {
        kept(Timed, 1, &[&open, &end(at_ms, "clean")]);
    }
    // Without a timeout, the server chooses.
    for query in ["resourceVersion=10", "resourceVersion=10&timeoutSeconds=0"] {
        kept(Timed, 1, &[&watch(1, query), &end(1_800_000, "clean")]);
    }
}

#[test]
fn watch_ending_early_without_error_is_a_violation() {
    for (query, expected) in [("resourceVersion=10&timeoutSeconds=5", "5"), ("resourceVersion=10", "1800 to 3600")] {
        let expected = format!("a watch of {expected} s, or an error");
        broken(
            Timed,
            &expected,
            "an end after 4000 ms",
            &[&watch(1, query), &events("ADDED a/y 11"), &end(4_000, "clean")],
        );
    }
}

#[test]
fn watch_exceeding_its_timeout_is_a_violation() {
    let expected = "a watch of 5 s, or an error";
    let open = watch(1, "resourceVersion=10&timeoutSeconds=5");
    for how in ["clean", "left", "broken"] {
        broken(Timed, expected, "an end after 16000 ms", &[&open, &end(16_000, how)]);
    }
}

#[test]
fn watch_ended_early_by_client_error_or_fault_passes() {
    let open = watch(1, "resourceVersion=10&timeoutSeconds=5");
    kept(Timed, 1, &[&open, &end(1_000, "left")]);
    kept(Timed, 1, &[&open, &end(1_000, "broken")]);
    kept(Timed, 1, &[&open, &error(), &end(1_000, "clean")]);
    kept(Timed, 0, &[&open, &end(1_000, "clean"), &fault(500)]);
    kept(Timed, 0, &[&open]);
    // Its meaning depends on the apiserver.
    kept(Timed, 0, &[&watch(1, "resourceVersion=10&timeoutSeconds=-1"), &end(1_000, "clean")]);
}

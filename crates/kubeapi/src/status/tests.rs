use super::*;
use crate::{AccessAttributes, Gvr, RequestInfo, UrlQuery};
use proptest::prelude::*;

/// One line for each constructor: its case and the body, as the apiserver sends it.
const BODIES: &str = include_str!("bodies.txt");

fn wire(status: &Status) -> String {
    String::from_utf8(status.to_event_json()).expect("text")
}

/// A Status with the members that every failure shares.
fn failure(tail: &str) -> String {
    format!(r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure",{tail}}}"#)
}

#[test]
fn status_constructors_match_the_apiservers_json() {
    let deployments = Gvr::new("apps", "v1", "deployments");
    let cases = [
        ("object not found", Status::not_found(&Gvr::new("", "v1", "configmaps"), "x")),
        ("object of a group not found", Status::not_found(&deployments, "x")),
        ("bad request", Status::bad_request("why")),
        ("unauthorized", Status::unauthorized()),
        ("watch from a version too old", Status::too_old(1, 258)),
        ("list at a version too old", Status::too_old_list()),
        ("version too large", Status::too_large(99_999_999, 434)),
        ("cache initializing", Status::initializing(3)),
        ("shutting down", Status::shutting_down()),
    ];
    let bodies: Vec<(&str, &str)> = BODIES.lines().filter_map(|line| line.split_once(": ")).collect();
    assert_eq!(bodies.len(), cases.len(), "every body has its case");
    for ((name, status), (body_of, body)) in cases.iter().zip(bodies) {
        assert_eq!((*name, wire(status).as_str()), (body_of, body));
    }
}

#[test]
fn forbidden_message_names_user_verb_and_resource() {
    for (uri, user, reason, message, details) in [
        (
            "/api/v1/namespaces/t1/configmaps",
            "alice",
            "",
            "configmaps is forbidden: User \"alice\" cannot list resource \"configmaps\" in API group \"\" \
             in the namespace \"t1\"",
            r#"{"kind":"configmaps"}"#,
        ),
        (
            "/api/v1/namespaces/t1/configmaps/cm1",
            "alice",
            "",
            "configmaps \"cm1\" is forbidden: User \"alice\" cannot get resource \"configmaps\" in API group \"\" \
             in the namespace \"t1\"",
            r#"{"name":"cm1","kind":"configmaps"}"#,
        ),
        (
            "/api/v1/nodes?watch=1",
            "system:node:n1",
            "can only read itself",
            "nodes is forbidden: User \"system:node:n1\" cannot watch resource \"nodes\" in API group \"\" \
             at the cluster scope: can only read itself",
            r#"{"kind":"nodes"}"#,
        ),
        (
            "/apis/apps/v1/namespaces/t1/deployments/d/scale",
            "alice",
            "",
            "deployments.apps \"d\" is forbidden: User \"alice\" cannot get resource \"deployments/scale\" \
             in API group \"apps\" in the namespace \"t1\"",
            r#"{"name":"d","group":"apps","kind":"deployments"}"#,
        ),
        ("/apix", "a<b>&\"", "", r#"forbidden: User "a&lt;b&gt;&amp;\"" cannot get path "/apix""#, "{}"),
    ] {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let request = RequestInfo::parse("GET", path, &UrlQuery::parse(query)).expect("parses");
        let status = Status::forbidden_access(user, &AccessAttributes::from_request(&request), reason);
        assert_eq!((status.code, status.reason.as_str(), status.message.as_str()), (403, "Forbidden", message));
        assert_eq!(serde_json::to_string(&status.details).expect("serializes"), details, "{uri}");
    }
}

#[test]
fn json_encodings_differ_only_in_whitespace() {
    let status = Status::bad_request("<");
    let compact = failure(r#""message":"\u003c","reason":"BadRequest","code":400"#);
    assert_eq!(wire(&status), compact);
    assert_eq!(String::from_utf8(status.to_json()).expect("text"), compact + "\n");
    let indented = "{\n  \"kind\": \"Status\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {},\n  \
        \"status\": \"Failure\",\n  \"message\": \"\\u003c\",\n  \"reason\": \"BadRequest\",\n  \"code\": 400\n}";
    assert_eq!(String::from_utf8(status.to_json_indented()).expect("text"), indented);
}

#[test]
fn protobuf_encoding_matches_the_apiserver() {
    // The 410 of a watch that is too old, field by field in the layout of the generated Go code.
    let expected = [
        b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Status\x12\x40".as_slice(),
        b"\x0a\x06\x0a\x00\x12\x00\x1a\x00",
        b"\x12\x07Failure",
        b"\x1a\x21too old resource version: 1 (258)",
        b"\x22\x07Expired",
        b"\x30\x9a\x03",
        b"\x1a\x00\x22\x00",
    ]
    .concat();
    assert_eq!(Status::too_old(1, 258).to_protobuf(), expected);
}

#[test]
fn protobuf_details_include_empty_fields() {
    let document = Status::too_many_requests("m", 3).to_protobuf();
    let details = b"\x2a\x0a\x0a\x00\x12\x00\x1a\x00\x28\x03\x32\x00";
    assert!(document.windows(details.len()).any(|window| window == details), "{document:x?}");
}

#[test]
fn statuses_round_trip_in_json_and_protobuf() {
    let mut paged = Status::too_old_list();
    "t".clone_into(&mut paged.metadata.continue_token);
    for status in [
        Status::not_found(&Gvr::new("apps", "v1", "deployments"), "x"),
        Status::too_large(5, 4),
        paged,
        Status { details: Some(StatusDetails::default()), ..Status::bad_request("x") },
    ] {
        assert_eq!(Status::from_json(&status.to_json()).expect("json"), status);
        assert_eq!(Status::from_protobuf(&status.to_protobuf()).expect("protobuf"), status);
    }
}

#[test]
fn malformed_status_is_rejected_and_unknown_fields_ignored() {
    let lenient = br#"{"kind":"Status","message":null,"details":{"causes":null,"x":1},"code":410,"y":[]}"#;
    assert!(Status::from_json(lenient).expect("read").is_expired());
    assert!(
        matches!(Status::from_json(br#"{"kind":"Pod"}"#), Err(StatusDecodeError::OtherKind(kind)) if kind == "Pod")
    );
    assert!(matches!(Status::from_json(b"[]x"), Err(StatusDecodeError::Json(_))));
    for document in
        [b"".as_slice(), b"k8s", b"k8s\0\x0a\x7f", b"k8s\0\x0b", b"k8s\0\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"]
    {
        assert!(matches!(Status::from_protobuf(document), Err(StatusDecodeError::Protobuf(_))), "{document:x?}");
    }
    let future = b"k8s\0\x0a\x0c\x0a\x02v1\x12\x06Status\x12\x03\x30\x9a\x03\x4d\x01\x02\x03\x04";
    assert_eq!(Status::from_protobuf(future).expect("unknown fields are skipped").code, 410);
}

#[test]
fn status_from_code_has_the_matching_reason() {
    for (code, reason) in [
        (400, "BadRequest"),
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (404, "NotFound"),
        (405, "MethodNotAllowed"),
        (406, "NotAcceptable"),
        (409, "Conflict"),
        (410, "Expired"),
        (422, "Invalid"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (502, "Unknown"),
        (503, "ServiceUnavailable"),
        (504, "Timeout"),
        (508, "Unknown"),
    ] {
        let mut status = Status::from_code(code, "why");
        let head = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"why""#;
        let json = |details: &str| format!("{head},\"reason\":\"{reason}\"{details},\"code\":{code}}}");
        assert_eq!(String::from_utf8_lossy(&status.to_event_json()), json(""));
        status.set_retry_after(7);
        assert_eq!(String::from_utf8_lossy(&status.to_event_json()), json(",\"details\":{\"retryAfterSeconds\":7}"));
    }
}

#[test]
fn is_expired_and_retry_after_are_detected() {
    for (status, expired, retry_after) in [
        (Status::too_old(1, 2), true, None),
        (Status { reason: "Gone".to_owned(), ..Status::default() }, true, None),
        (Status { code: 410, ..Status::default() }, true, None),
        (Status::too_large(2, 1), false, Some(1)),
        (Status::not_found(&Gvr::new("", "v1", "pods"), "x"), false, None),
        (Status::initializing(5), false, Some(5)),
    ] {
        assert_eq!((status.is_expired(), status.retry_after_seconds()), (expired, retry_after), "{status}");
    }
}

#[test]
fn invalid_status_code_maps_to_500() {
    for (code, http) in [(404, 404), (0, 500), (-1, 500), (70_000, 500), (1000, 500)] {
        assert_eq!(Status { code, ..Status::default() }.http_code(), http);
    }
}

proptest! {
    #[test]
    fn parsing_arbitrary_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = Status::from_json(&bytes);
        let _ = Status::from_protobuf(&bytes);
        let _ = Status::from_protobuf(&[b"k8s\0", bytes.as_slice()].concat());
    }

    #[test]
    fn arbitrary_statuses_round_trip(
        message in any::<String>(),
        name in any::<String>(),
        code in any::<i32>(),
        retry in any::<i32>(),
    ) {
        let details = StatusDetails { name, retry_after_seconds: retry, ..StatusDetails::default() };
        let status = Status { message, code, details: Some(details), ..Status::bad_request("") };
        prop_assert_eq!(&Status::from_json(&status.to_json()).expect("json"), &status);
        prop_assert_eq!(&Status::from_protobuf(&status.to_protobuf()).expect("protobuf"), &status);
    }
}

//! Valid and malformed request heads; malformed ones do not reach upstream (RFC 9113 §8).

use super::frames::{
    CANCEL, END_HEADERS, END_STREAM, HEADERS, PROTOCOL_ERROR, data, fields, frame, head, last_data, open_head, request,
};
use super::hpack::{Literal, block, literal};
use super::rows::{
    Before, ECHO, MALFORMED,
    Outcome::{self, Answered, Ends, Reset},
    Row, SMALL, hold, proxy,
};

/// A stream error, or a response that reports it (RFC 9113 §8.1.1).
fn malformed() -> Vec<Outcome> {
    vec![Reset(1, PROTOCOL_ERROR), Answered(1, 400)]
}

/// The same for heads at which the h2 crate ends the connection, as RFC 9113 §5.4 permits. It cannot distinguish
/// malformed fields from undecodable ones.
fn unreadable() -> Vec<Outcome> {
    [malformed(), vec![Ends(PROTOCOL_ERROR)]].concat()
}

fn pseudo_fields() -> Vec<Row> {
    let ours = fields("GET", MALFORMED, &[]);
    let without = |name: &str| {
        let rest: Vec<_> = ours.iter().filter(|(known, _)| *known != name).copied().collect();
        head(1, &block(&rest))
    };
    let with = |name: &str, value: &str| {
        let all = [ours.as_slice(), &[(name, value)]].concat();
        head(1, &block(&all))
    };
    let path = |path: &str| head(1, &request("GET", path, &[]));
    let late = [&ours[1..], &[("x-a", "b"), ours[0]]].concat();
    vec![
        ("no method", without(":method"), malformed()),
        ("no scheme", without(":scheme"), malformed()),
        ("no path", without(":path"), malformed()),
        ("two methods", with(":method", "GET"), malformed()),
        ("two schemes", with(":scheme", "http"), malformed()),
        ("two paths", with(":path", SMALL), malformed()),
        ("two authorities", with(":authority", "localhost"), malformed()),
        ("an unknown one", with(":unknown", "a"), unreadable()),
        ("one of answers", with(":status", "200"), malformed()),
        ("a protocol without CONNECT", with(":protocol", "websocket"), malformed()),
        ("one after a regular field", head(1, &block(&late)), malformed()),
        ("nothing at all", head(1, &[]), malformed()),
        ("an empty path", path(""), malformed()),
        ("a path without a slash", path("malformed"), malformed()),
        ("a path of everything, and GET", path("*"), malformed()),
        ("an empty method", head(1, &request("", MALFORMED, &[])), unreadable()),
        ("a method of two words", head(1, &request("GET /a", MALFORMED, &[])), unreadable()),
        ("a path of two lines", path("/malformed HTTP/1.1\r\nx: y"), malformed()),
        (
            "among trailers",
            {
                let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[(":path", "/a")]));
                [open_head(1, &request("POST", ECHO, &[])), data(1, b"a"), trailers].concat()
            },
            malformed(),
        ),
    ]
}

fn names_and_values() -> Vec<Row> {
    let with = |name: &[u8], value: &[u8]| {
        head(1, &[request("GET", MALFORMED, &[]), literal(Literal::Plain, name, value)].concat())
    };
    let fine = |name: &str, value: &str| head(1, &request("GET", SMALL, &[(name, value)]));
    vec![
        ("an upper-case name", with(b"X-Upper", b"a"), unreadable()),
        ("an empty name", with(b"", b"a"), unreadable()),
        ("a name with a space", with(b"x a", b"a"), unreadable()),
        ("a name with a colon", with(b"x:a", b"a"), unreadable()),
        ("a name of two lines", with(b"x\r\ny", b"a"), unreadable()),
        ("a value of two lines", with(b"x", b"a\r\ny: b"), unreadable()),
        ("a value with a line's end", with(b"x", b"a\n"), unreadable()),
        ("a value with a zero", with(b"x", b"a\0b"), unreadable()),
        ("connection", with(b"connection", b"close"), malformed()),
        ("keep-alive", with(b"keep-alive", b"1"), malformed()),
        ("proxy-connection", with(b"proxy-connection", b"close"), malformed()),
        ("transfer-encoding", with(b"transfer-encoding", b"chunked"), malformed()),
        ("upgrade", with(b"upgrade", b"h2c"), malformed()),
        ("te, but trailers", with(b"te", b"gzip"), malformed()),
        ("te, and trailers with others", with(b"te", b"trailers, gzip"), malformed()),
        ("te", fine("te", "trailers"), vec![Answered(1, 200)]),
        ("an empty value", fine("x-empty", ""), vec![Answered(1, 200)]),
        (
            "bytes beyond ASCII",
            head(1, &[request("GET", SMALL, &[]), literal(Literal::Plain, b"x", b"\xff\x80")].concat()),
            vec![Answered(1, 200)],
        ),
        (
            "everything, and OPTIONS",
            head(1, &request("OPTIONS", "*", &[])),
            vec![Answered(1, 200), Answered(1, 403), Answered(1, 404), Answered(1, 405)],
        ),
    ]
}

fn lengths() -> Vec<Row> {
    let post = |length: &str, body: Vec<u8>| {
        [open_head(1, &request("POST", ECHO, &[("content-length", length)])), body].concat()
    };
    let ends_at_once = |length: &str| head(1, &request("POST", ECHO, &[("content-length", length)]));
    let two = open_head(1, &request("POST", ECHO, &[("content-length", "5"), ("content-length", "6")]));
    // The head may have been forwarded before, so any response is not to a complete request. The server may also report
    // that upstream failed, or reset the stream.
    let refused = || [malformed(), vec![Reset(1, CANCEL)]].concat();
    vec![
        ("the right one", post("5", last_data(1, b"hello")), vec![Answered(1, 200)]),
        (
            "the right one, in two parts",
            post("5", [data(1, b"he"), last_data(1, b"llo")].concat()),
            vec![Answered(1, 200)],
        ),
        ("none, and no body", ends_at_once("0"), vec![Answered(1, 200)]),
        ("one byte more", post("5", last_data(1, b"hello!")), refused()),
        (
            "one byte more, in a frame of its own",
            post("5", [data(1, b"hello"), last_data(1, b"!")].concat()),
            refused(),
        ),
        ("one byte less", post("5", last_data(1, b"hell")), refused()),
        ("no body, and a length", ends_at_once("5"), refused()),
        ("no number", post("five", last_data(1, b"hello")), refused()),
        ("a sign", post("+5", last_data(1, b"hello")), refused()),
        ("less than nothing", post("-5", last_data(1, b"hello")), refused()),
        ("two that differ", [two, last_data(1, b"hello")].concat(), refused()),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_request_heads_are_rejected_per_rfc_9113() {
    let (upstream, app) = proxy().await;
    let tables = vec![
        ("pseudo-fields", Before::Hello, pseudo_fields()),
        ("names and values", Before::Hello, names_and_values()),
        ("lengths", Before::Hello, lengths()),
    ];
    hold(&app, tables).await;
    assert!(upstream.seen(MALFORMED).is_empty(), "malformed requests are not sent upstream");
}

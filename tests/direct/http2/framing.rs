//! Valid and invalid frames, and the server's reaction to each (RFC 9113 §4, RFC 9113 §6).

use super::frames::{
    ACK, CONTINUATION, DATA, ENABLE_PUSH, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR, FRAME_BYTES,
    FRAME_SIZE_ERROR, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, PADDED, PING, PRIORITIZED, PRIORITY,
    PROTOCOL_ERROR, PUSH_PROMISE, RST_STREAM, SETTINGS, STREAM_CLOSED, WINDOW_MAX, WINDOW_UPDATE, data, frame, get,
    head_in_parts, last_data, open_head, ping, post, priority, request, reset, settings, window,
};
use super::rows::{
    Before, ECHO, HANG,
    Outcome::{Answered, Ends, Ignored, Reset},
    Row, SMALL, hold, proxy,
};

fn of_settings() -> Vec<Row> {
    vec![
        ("none at all", settings(&[]), vec![Ignored]),
        ("an unknown identifier", settings(&[(0xfa, 1), (0x1f00, u32::MAX)]), vec![Ignored]),
        ("one that is sent twice", settings(&[(4, 0), (4, 70_000)]), vec![Ignored]),
        ("five bytes", frame(SETTINGS, 0, 0, &[0; 5]), vec![Ends(FRAME_SIZE_ERROR)]),
        ("seven bytes", frame(SETTINGS, 0, 0, &[0; 7]), vec![Ends(FRAME_SIZE_ERROR)]),
        ("on a stream", frame(SETTINGS, 0, 1, &[]), vec![Ends(PROTOCOL_ERROR)]),
        ("an acknowledgement with a payload", frame(SETTINGS, ACK, 0, &[0; 6]), vec![Ends(FRAME_SIZE_ERROR)]),
        ("a push that is neither on nor off", settings(&[(ENABLE_PUSH, 2)]), vec![Ends(PROTOCOL_ERROR)]),
        (
            "a window beyond the largest",
            settings(&[(INITIAL_WINDOW_SIZE, WINDOW_MAX + 1)]),
            vec![Ends(FLOW_CONTROL_ERROR)],
        ),
        ("the largest window", settings(&[(INITIAL_WINDOW_SIZE, WINDOW_MAX)]), vec![Ignored]),
        ("frames too short", settings(&[(MAX_FRAME_SIZE, 16_383)]), vec![Ends(PROTOCOL_ERROR)]),
        ("frames too long", settings(&[(MAX_FRAME_SIZE, 1 << 24)]), vec![Ends(PROTOCOL_ERROR)]),
        ("the longest frames", settings(&[(MAX_FRAME_SIZE, (1 << 24) - 1)]), vec![Ignored]),
        (
            "a window that makes another one larger than any (RFC 9113 §6.9.2)",
            [get(1, HANG), window(1, WINDOW_MAX - 65_535), settings(&[(INITIAL_WINDOW_SIZE, 65_536)])].concat(),
            vec![Ends(FLOW_CONTROL_ERROR)],
        ),
    ]
}

fn of_pings() -> Vec<Row> {
    vec![
        ("two of them", [ping(1), ping(2)].concat(), vec![Ignored]),
        ("an unexpected acknowledgement", frame(PING, ACK, 0, &[7; 8]), vec![Ignored]),
        ("seven bytes", frame(PING, 0, 0, &[0; 7]), vec![Ends(FRAME_SIZE_ERROR)]),
        ("nine bytes", frame(PING, 0, 0, &[0; 9]), vec![Ends(FRAME_SIZE_ERROR)]),
        ("on a stream", frame(PING, 0, 1, &[0; 8]), vec![Ends(PROTOCOL_ERROR)]),
    ]
}

fn of_windows() -> Vec<Row> {
    vec![
        ("on the connection", window(0, 1), vec![Ignored]),
        ("on a stream that is open", [get(1, HANG), window(1, 1)].concat(), vec![Ignored]),
        ("of nothing, on the connection", window(0, 0), vec![Ends(PROTOCOL_ERROR)]),
        // RFC 9113 §6.9: a stream error; RFC 9113 §5.4 permits a connection error.
        (
            "of nothing, on a stream",
            [get(1, HANG), window(1, 0)].concat(),
            vec![Reset(1, PROTOCOL_ERROR), Ends(PROTOCOL_ERROR)],
        ),
        ("the largest there is, on the connection", window(0, WINDOW_MAX - 65_535), vec![Ignored]),
        ("beyond it, on the connection", window(0, WINDOW_MAX - 65_534), vec![Ends(FLOW_CONTROL_ERROR)]),
        (
            "beyond it, on a stream",
            [get(1, HANG), window(1, WINDOW_MAX - 65_534)].concat(),
            vec![Reset(1, FLOW_CONTROL_ERROR)],
        ),
        ("three bytes", frame(WINDOW_UPDATE, 0, 0, &[0; 3]), vec![Ends(FRAME_SIZE_ERROR)]),
        ("five bytes", frame(WINDOW_UPDATE, 0, 0, &[0; 5]), vec![Ends(FRAME_SIZE_ERROR)]),
        ("on a stream that never was", window(1, 1), vec![Ends(PROTOCOL_ERROR)]),
        ("with the bit that means nothing", frame(WINDOW_UPDATE, 0, 0, &[0x80, 0, 0, 1]), vec![Ignored]),
    ]
}

fn of_data() -> Vec<Row> {
    let too_long = vec![0; FRAME_BYTES + 1];
    let padded = |padding: u8, payload: &[u8]| frame(DATA, PADDED | END_STREAM, 1, &[&[padding], payload].concat());
    let echo = |rest: Vec<u8>| [post(1, ECHO), rest].concat();
    vec![
        ("a body", echo(last_data(1, b"hello")), vec![Answered(1, 200)]),
        (
            "a body in two frames, one of them empty",
            echo([data(1, b"hello"), last_data(1, b"")].concat()),
            vec![Answered(1, 200)],
        ),
        ("padding", echo(padded(3, b"ab\0\0\0")), vec![Answered(1, 200)]),
        ("nothing but padding", echo(padded(5, &[0; 5])), vec![Answered(1, 200)]),
        ("more padding than there is", echo(padded(6, &[0; 5])), vec![Ends(PROTOCOL_ERROR)]),
        (
            "padding without its length",
            echo(frame(DATA, PADDED, 1, &[])),
            vec![Ends(FRAME_SIZE_ERROR), Ends(PROTOCOL_ERROR)],
        ),
        ("on stream 0", data(0, b"a"), vec![Ends(PROTOCOL_ERROR)]),
        ("on a stream that never was", data(1, b"a"), vec![Ends(PROTOCOL_ERROR)]),
        // RFC 9113 §5.1, "half-closed (remote)", requires a stream error; RFC 9113 §5.4 permits a connection error.
        (
            "after the end of a stream",
            [get(1, HANG), data(1, b"a")].concat(),
            vec![Reset(1, STREAM_CLOSED), Ends(STREAM_CLOSED)],
        ),
        // The same rule.
        (
            "after a reset by the client",
            [get(1, HANG), reset(1, 8), data(1, b"a")].concat(),
            vec![Reset(1, STREAM_CLOSED), Ends(STREAM_CLOSED)],
        ),
        // The stream is open: the size error may be the stream's or the connection's (RFC 9113 §4.2).
        (
            "longer than a frame may be",
            echo(data(1, &too_long)),
            vec![Reset(1, FRAME_SIZE_ERROR), Ends(FRAME_SIZE_ERROR)],
        ),
        ("as long as a frame may be", echo(last_data(1, &[b'a'; FRAME_BYTES])), vec![Answered(1, 200)]),
    ]
}

fn of_heads() -> Vec<Row> {
    let too_long = vec![0; FRAME_BYTES + 1];
    let block = request("GET", SMALL, &[]);
    let (whole, prioritized) = (END_HEADERS | END_STREAM, END_HEADERS | END_STREAM | PRIORITIZED);
    let padded = |padding: u8, zeros: usize| [vec![padding], block.clone(), vec![0; zeros]].concat();
    let after = |on: u32| [on.to_be_bytes().as_slice(), &[15], &block].concat();
    let trailers = |flags: u8| frame(HEADERS, END_HEADERS | flags, 1, &super::hpack::block(&[("x-trailer", "a")]));
    let echo = |rest: Vec<u8>| [post(1, ECHO), data(1, b"hello"), rest].concat();
    vec![
        ("on a stream with an even number", get(2, SMALL), vec![Ends(PROTOCOL_ERROR)]),
        ("on stream 0", get(0, SMALL), vec![Ends(PROTOCOL_ERROR)]),
        // RFC 9113 §5.1.1: the lower stream was never used, and the higher one closes it.
        (
            "on a stream below another",
            [get(5, HANG), get(3, SMALL)].concat(),
            vec![Ends(PROTOCOL_ERROR), Ends(STREAM_CLOSED)],
        ),
        ("on streams with gaps between them", [get(7, SMALL), get(99, SMALL)].concat(), vec![Answered(99, 200)]),
        ("padded", frame(HEADERS, whole | PADDED, 1, &padded(9, 9)), vec![Answered(1, 200)]),
        ("more padding than there is", frame(HEADERS, whole | PADDED, 1, &padded(255, 9)), vec![Ends(PROTOCOL_ERROR)]),
        ("with a priority", frame(HEADERS, prioritized, 1, &after(0)), vec![Answered(1, 200)]),
        // RFC 7540 §5.3.1 treated this as an error; RFC 9113 §5.3.2 deprecates priorities.
        (
            "dependent on itself",
            frame(HEADERS, prioritized, 1, &after(1)),
            vec![Answered(1, 200), Reset(1, PROTOCOL_ERROR), Ends(PROTOCOL_ERROR)],
        ),
        (
            "too short for a priority",
            frame(HEADERS, prioritized, 1, &[0; 4]),
            vec![Ends(FRAME_SIZE_ERROR), Ends(PROTOCOL_ERROR)],
        ),
        ("longer than a frame may be", frame(HEADERS, whole, 1, &too_long), vec![Ends(FRAME_SIZE_ERROR)]),
        ("trailers", echo(trailers(END_STREAM)), vec![Answered(1, 200)]),
        ("trailers that end nothing", echo(trailers(0)), vec![Reset(1, PROTOCOL_ERROR), Ends(PROTOCOL_ERROR)]),
        // As with DATA.
        (
            "after the end of a stream",
            [get(1, HANG), get(1, SMALL)].concat(),
            vec![Reset(1, STREAM_CLOSED), Ends(STREAM_CLOSED)],
        ),
        (
            "after a reset by the client",
            [get(1, HANG), reset(1, 8), get(1, SMALL)].concat(),
            vec![Reset(1, STREAM_CLOSED), Ends(STREAM_CLOSED), Ends(PROTOCOL_ERROR)],
        ),
    ]
}

fn of_heads_in_parts() -> Vec<Row> {
    let block = request("GET", SMALL, &[]);
    let begun = |stream| frame(HEADERS, END_STREAM, stream, &block[..10]);
    let rest = |stream| frame(CONTINUATION, END_HEADERS, stream, &block[10..]);
    let empty = |stream| frame(CONTINUATION, 0, stream, &[]);
    let ends = || vec![Ends(PROTOCOL_ERROR)];
    vec![
        ("in two parts", [begun(1), rest(1)].concat(), vec![Answered(1, 200)]),
        ("in four parts, one of them empty", [begun(1), empty(1), rest(1)].concat(), vec![Answered(1, 200)]),
        // A server may limit the number of parts (RFC 9113 §10.5); it must not decode them wrongly.
        ("a byte a part", head_in_parts(1, &block, 1), vec![Answered(1, 200), Ends(ENHANCE_YOUR_CALM)]),
        (
            "ten thousand empty parts",
            [begun(1), empty(1).repeat(10_000), rest(1)].concat(),
            vec![Answered(1, 200), Ends(ENHANCE_YOUR_CALM)],
        ),
        ("a head without its end", begun(1), ends()),
        ("the rest on another stream", [begun(1), rest(3)].concat(), ends()),
        ("data in the middle", [post(1, ECHO), begun(3), data(1, b"a"), rest(3)].concat(), ends()),
        ("a ping in the middle", [begun(1), ping(1), rest(1)].concat(), ends()),
        ("another head in the middle", [begun(1), get(3, SMALL), rest(1)].concat(), ends()),
        ("a frame of no known kind in the middle", [begun(1), frame(0xfa, 0, 1, b"a"), rest(1)].concat(), ends()),
        ("a rest without a beginning", rest(1), ends()),
        ("a continuation after END_HEADERS", [get(1, HANG), rest(1)].concat(), ends()),
        ("a continuation after DATA", [post(1, ECHO), data(1, b"a"), rest(1)].concat(), ends()),
        ("a rest on stream 0", rest(0), ends()),
    ]
}

fn of_others() -> Vec<Row> {
    let too_long = vec![0; FRAME_BYTES + 1];
    let promise = [2_u32.to_be_bytes().as_slice(), &request("GET", SMALL, &[])].concat();
    let goodbye = |stream| frame(GOAWAY, 0, stream, &[0; 8]);
    vec![
        ("a reset", [get(1, HANG), reset(1, 8)].concat(), vec![Ignored]),
        ("a reset with an unknown code", [get(1, HANG), reset(1, 0xfafa)].concat(), vec![Ignored]),
        ("a reset of a stream that never was", reset(1, 8), vec![Ends(PROTOCOL_ERROR)]),
        ("a reset of stream 0", reset(0, 8), vec![Ends(PROTOCOL_ERROR)]),
        (
            "a reset of three bytes",
            [get(1, HANG), frame(RST_STREAM, 0, 1, &[0; 3])].concat(),
            vec![Ends(FRAME_SIZE_ERROR)],
        ),
        (
            "a push by the client",
            [get(1, HANG), frame(PUSH_PROMISE, END_HEADERS, 1, &promise)].concat(),
            vec![Ends(PROTOCOL_ERROR)],
        ),
        ("a goodbye on a stream", goodbye(1), vec![Ends(PROTOCOL_ERROR)]),
        ("frames of no known kind", [frame(0xfa, 0xff, 0, b"abc"), frame(0x0b, 0, 77, &[])].concat(), vec![Ignored]),
        ("as long as may be", frame(0xfa, 0, 0, &[0; FRAME_BYTES]), vec![Ignored]),
        ("longer, and of no known kind", frame(0xfa, 0, 0, &too_long), vec![Ends(FRAME_SIZE_ERROR)]),
        ("flags that mean nothing", frame(PING, 0xfe, 0, &[0; 8]), vec![Ignored]),
        ("a priority of a stream that never was", priority(9, 0), vec![Ignored]),
        (
            "a priority of a stream that is open",
            [post(1, ECHO), priority(1, 0), last_data(1, b"a")].concat(),
            vec![Answered(1, 200)],
        ),
        // RFC 9113 §6.3: a stream error; RFC 9113 §5.4 permits a connection error.
        (
            "a priority of four bytes",
            [get(1, HANG), frame(PRIORITY, 0, 1, &[0; 4])].concat(),
            vec![Reset(1, FRAME_SIZE_ERROR), Ends(FRAME_SIZE_ERROR)],
        ),
        ("a priority of stream 0", priority(0, 1), vec![Ends(PROTOCOL_ERROR)]),
        // As with HEADERS.
        (
            "a priority that depends on itself",
            [get(1, HANG), priority(1, 1)].concat(),
            vec![Ignored, Reset(1, PROTOCOL_ERROR), Ends(PROTOCOL_ERROR)],
        ),
    ]
}

/// Stream 1 is closed (RFC 9113 §5.1, "closed").
fn behind_an_answer() -> Vec<Row> {
    let is_closed = || vec![Reset(1, STREAM_CLOSED), Ends(STREAM_CLOSED)];
    vec![
        ("data", data(1, b"a"), is_closed()),
        ("a head", get(1, SMALL), [is_closed(), vec![Ends(PROTOCOL_ERROR)]].concat()),
        ("a head that is open", open_head(1, &request("POST", ECHO, &[])), {
            [is_closed(), vec![Ends(PROTOCOL_ERROR)]].concat()
        }),
        ("a part of a head", frame(CONTINUATION, END_HEADERS, 1, &[]), vec![Ends(PROTOCOL_ERROR)]),
        // They may have been sent before the client saw the end.
        ("a window", window(1, 1), vec![Ignored]),
        ("a reset", reset(1, 8), vec![Ignored]),
        ("a priority", priority(1, 0), vec![Ignored]),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valid_and_invalid_frames_are_handled_per_rfc_9113() {
    let (_upstream, app) = proxy().await;
    let tables = vec![
        ("SETTINGS", Before::Hello, of_settings()),
        ("PING", Before::Hello, of_pings()),
        ("WINDOW_UPDATE", Before::Hello, of_windows()),
        ("DATA", Before::Hello, of_data()),
        ("HEADERS", Before::Hello, of_heads()),
        ("CONTINUATION", Before::Hello, of_heads_in_parts()),
        ("others", Before::Hello, of_others()),
        ("after a response", Before::Answer, behind_an_answer()),
    ];
    hold(&app, tables).await;
}

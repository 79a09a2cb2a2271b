//! HTTP/1.1 framing: the chunks of a watch, and heads with many fields.

use http::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::direct::{self, Client, Io, PODS, Protocol, Stub, stub, within};

/// Reads up to the end of a line.
async fn line(io: &mut Box<dyn Io>) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(within("a line", io.read_u8()).await.expect("the response continues"));
    }
    String::from_utf8(line).expect("text").trim_end().to_owned()
}

/// Opens a watch and reads its response head.
async fn watch(client: &Client, query: &str) -> Box<dyn Io> {
    let mut io = client.over(Protocol::Http1).connect().await.expect("a connection");
    let head = format!("GET {PODS}?watch=true&{query} HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n\r\n");
    io.write_all(head.as_bytes()).await.expect("a request is sent");
    assert_eq!(line(&mut io).await, "HTTP/1.1 200 OK");
    let mut is_chunked = false;
    loop {
        match line(&mut io).await {
            end if end.is_empty() => break,
            field => is_chunked |= field.eq_ignore_ascii_case("transfer-encoding: chunked"),
        }
    }
    assert!(is_chunked);
    io
}

async fn chunk(io: &mut Box<dyn Io>) -> Vec<u8> {
    let bytes = usize::from_str_radix(&line(io).await, 16).expect("a length");
    let mut chunk = vec![0; bytes];
    within("a chunk", io.read_exact(&mut chunk)).await.expect("the response continues");
    assert_eq!(line(io).await, "");
    chunk
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_watch_event_is_sent_as_one_chunk() {
    const PODS_BEFORE: usize = 300;
    const EVENTS: usize = 40;
    let up = demo::upstream().pods(PODS_BEFORE).run().await;
    let app = direct::app(&up).run().await;
    let from = app.get(PODS).await.rv();
    let last = (0..EVENTS).map(|at| up.create_pod("default", &format!("burst-{at}"))).max().expect("some");
    app.watch(PODS).from(from).await.reached(last).await;
    let state = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let history = format!("resourceVersion={from}");
    for (query, events) in [(state, PODS_BEFORE + EVENTS), (history.as_str(), EVENTS)] {
        let mut io = watch(&app, query).await;
        for _ in 0..events {
            let text = String::from_utf8(chunk(&mut io).await).expect("text");
            assert!(text.ends_with('\n') && text.matches('\n').count() == 1, "{query}: {text}");
            let event: serde_json::Value = serde_json::from_str(&text).expect("one event");
            assert_eq!(event["type"], "ADDED", "{query}");
        }
    }
}

#[tokio::test]
async fn request_header_limit_counts_bytes_not_fields() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    for (protocol, fields, bytes, status) in [
        (Protocol::Http1, 110, 1, 200),
        (Protocol::Http1, 1_500, 1, 200),
        (Protocol::Http1, 110, 1_000, 431),
        (Protocol::Http1, 3_000, 1, 431),
        (Protocol::Http2, 1_500, 1, 200),
        (Protocol::Http2, 3_000, 1, 431),
    ] {
        let value = "x".repeat(bytes);
        let call = app.over(protocol).request(Method::GET, PODS);
        let call = (0..fields).fold(call, |call, _| call.header("x", &value));
        assert_eq!(call.send().await.status, status, "{protocol:?}, {fields} fields of {bytes} bytes");
    }
}

/// Followed logs arrive over HTTP/1.1.
#[tokio::test]
async fn upstream_response_with_many_headers_is_forwarded() {
    const FIELDS: usize = 150;
    let upstream = stub(|_| async {
        let mut reply = Stub::reply(200, "line");
        for _ in 0..FIELDS {
            reply.headers_mut().append("x-many", "1".parse().expect("a value"));
        }
        Ok(reply)
    });
    let upstream = upstream.await;
    let app = direct::in_front_of(&upstream.url()).run().await;
    // The test's own client accepts at most a hundred fields over HTTP/1.1.
    let answer = app.over(Protocol::Http2).get("/api/v1/namespaces/default/pods/a/log?follow=true").await;
    let many = answer.headers.get_all("x-many").iter().count();
    assert_eq!((answer.status, many, answer.text().as_str()), (200, FIELDS, "line"));
    let seen = upstream.seen("/api/v1/namespaces/default/pods/a/log");
    assert_eq!(seen.iter().map(|head| head.version).collect::<Vec<_>>(), [http::Version::HTTP_11]);
}

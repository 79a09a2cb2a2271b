use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue, Response, Uri};
use serde_json::{Value, json};

use super::queue::{AuditQueue, QUEUE_FULL, QueuedAuditRecord};
use super::record::{RECORD_BYTES_MAX, recorded_target, source_ips, truncated, without_tokens};
use super::{AuditDecision, AuditDestination, AuditLog, AuditRecord, ServedLocally};
use crate::auth::Caller;
use crate::net::{ConnectionPeer, DownstreamConnection, PeerAddress};
use base::AbortSignal;
use kubeapi::{FlowDistinguisher, RequestInfo, Status, UrlQuery, User};

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
}

fn peer() -> ConnectionPeer {
    let address = PeerAddress::Tcp(SocketAddr::from(([10, 0, 0, 7], 4711)));
    ConnectionPeer {
        address,
        certificates: None,
        connection: DownstreamConnection::default(),
        abort: AbortSignal::default(),
    }
}

fn record(queue: &AuditQueue, target: &str) -> AuditRecord {
    let uri: Uri = target.parse().expect("a target");
    let info =
        RequestInfo::parse("GET", uri.path(), &UrlQuery::parse(uri.query().unwrap_or_default())).expect("a path");
    let headers = headers(&[("user-agent", "kubectl/v1.37"), ("authorization", "Bearer CANARY"), ("cookie", "CANARY")]);
    let audit = AuditLog::with_queue(queue.clone());
    let mut record = AuditRecord::new(&audit, &peer(), (&uri, &headers), &info, &HeaderValue::from_static("id-1"))
        .expect("it is on");
    record.set_caller(&Caller::Anonymous);
    record
}

fn response(local: ServedLocally, decision: Option<AuditDecision>) -> Response<()> {
    let mut response = Response::new(());
    if let Some(status) = &local.status {
        *response.status_mut() = http::StatusCode::from_u16(status.http_code()).expect("a code");
    }
    response.extensions_mut().insert(local);
    decision.map(|decision| response.extensions_mut().insert(decision));
    response
}

fn next(lines: &mut tokio::sync::mpsc::Receiver<QueuedAuditRecord>) -> Option<(String, Value)> {
    let line = String::from_utf8(lines.try_recv().ok()?.text).expect("text");
    let value = serde_json::from_str(&line).expect("JSON");
    Some((line, value))
}

fn served() -> ServedLocally {
    ServedLocally::from_cache(false)
}

#[test]
fn audit_event_of_read_matches_apiserver_format() {
    let (queue, mut lines) = AuditQueue::new(8, 1 << 16);
    let record = record(&queue, "/apis/apps/v1/namespaces/a/deployments/d?pretty=1");
    assert!(record.record_response(&response(served(), Some(AuditDecision::Allowed("RBAC: allowed by x".into())))));
    drop(record);
    let (line, mut event) = next(&mut lines).expect("one record");
    assert!(next(&mut lines).is_none());
    let order = [
        "kind",
        "apiVersion",
        "level",
        "auditID",
        "stage",
        "requestURI",
        "verb",
        "user",
        "sourceIPs",
        "userAgent",
        "objectRef",
        "responseStatus",
        "requestReceivedTimestamp",
        "stageTimestamp",
        "annotations",
    ];
    let positions: Vec<_> = order.iter().map(|name| line.find(&format!("\"{name}\":")).expect(name)).collect();
    assert!(positions.is_sorted() && line.ends_with("}\n") && !line.contains("CANARY"), "{line}");
    for stamp in ["requestReceivedTimestamp", "stageTimestamp"] {
        let value = event[stamp].take();
        let stamp = value.as_str().expect("a text");
        assert!(stamp.len() == "2026-07-23T10:11:12.000013Z".len() && stamp.ends_with('Z'), "{stamp}");
    }
    let expected = json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": "id-1",
        "stage": "ResponseComplete", "requestURI": "/apis/apps/v1/namespaces/a/deployments/d?pretty=1", "verb": "get",
        "user": {"username": "system:anonymous", "groups": ["system:unauthenticated"]},
        "sourceIPs": ["10.0.0.7"], "userAgent": "kubectl/v1.37",
        "objectRef": {
            "resource": "deployments", "namespace": "a", "name": "d", "apiGroup": "apps", "apiVersion": "v1",
        },
        "responseStatus": {"metadata": {}, "code": 200},
        "requestReceivedTimestamp": null, "stageTimestamp": null,
        "annotations": {
            "authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "RBAC: allowed by x",
        },
    });
    assert_eq!(event, expected);
}

#[test]
fn audit_event_of_refusal_has_status_and_decision() {
    let (queue, mut lines) = AuditQueue::new(8, 1 << 16);
    let status = Status::unauthorized();
    let refused = ServedLocally { status: Some(status), ..ServedLocally::default() };
    assert!(
        record(&queue, "/api/v1/pods").record_response(&response(refused, Some(AuditDecision::Denied("no".into()))))
    );
    let (_, event) = next(&mut lines).expect("one record");
    let reported = &event["responseStatus"];
    assert_eq!(
        (&reported["code"], &reported["status"], &reported["reason"]),
        (&json!(401), &json!("Failure"), &json!("Unauthorized"))
    );
    assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "forbid");
}

#[test]
fn watch_is_audited_at_start_and_end() {
    let (queue, mut lines) = AuditQueue::new(8, 1 << 16);
    let record = record(&queue, "/api/v1/pods?watch=1");
    assert!(record.record_response(&response(ServedLocally { is_watch: true, ..served() }, None)));
    let (_, start) = next(&mut lines).expect("a record");
    assert!(next(&mut lines).is_none());
    drop(record);
    let (_, end) = next(&mut lines).expect("another");
    assert_eq!((&start["stage"], &end["stage"]), (&json!("ResponseStarted"), &json!("ResponseComplete")));
    assert_eq!((&start["auditID"], &start["verb"]), (&end["auditID"], &json!("watch")));
    assert_eq!(end["responseStatus"]["code"], 200);
}

#[test]
fn forwarded_response_is_not_audited_by_proxy() {
    let (queue, mut lines) = AuditQueue::new(8, 1 << 16);
    assert!(record(&queue, "/api/v1/pods").record_response(&Response::new(())));
    assert!(next(&mut lines).is_none());
}

/// If the queue is full, records are dropped, but Secrets are not served without a record.
#[test]
fn secrets_are_not_served_without_audit_record() {
    let (queue, _lines) = AuditQueue::new(1, 1 << 16);
    assert_eq!(queue.put(None, vec![b'x']), Ok(()));
    assert_eq!(queue.put(None, vec![b'x']), Err(QUEUE_FULL));
    for (target, local, given) in [
        ("/api/v1/secrets", served(), false),
        ("/api/v1/namespaces/a/secrets/s", served(), false),
        ("/api/v1/secrets?watch=1", ServedLocally { is_watch: true, ..served() }, false),
        ("/api/v1/secrets", ServedLocally { status: Some(Status::unauthorized()), ..ServedLocally::default() }, true),
        ("/api/v1/configmaps", served(), true),
        ("/apis/hidden.example/v1/secrets", served(), true),
    ] {
        assert_eq!(record(&queue, target).record_response(&response(local, None)), given, "{target}");
    }
}

/// One user's records, long or short, leave room for those of others.
#[test]
fn records_of_one_user_do_not_fill_audit_queue() {
    let greedy = FlowDistinguisher::from_user(&User { name: "greedy".to_owned(), ..User::default() });
    for bytes in [1, 4 << 10] {
        let (queue, mut lines) = AuditQueue::new(128, 1 << 20);
        while queue.put(Some(&greedy), vec![b'x'; bytes]).is_ok() {}
        assert!(record(&queue, "/api/v1/secrets").record_response(&response(served(), None)), "{bytes}");
        while lines.try_recv().is_ok() {}
        assert_eq!(queue.put(Some(&greedy), vec![b'x'; bytes]), Ok(()));
    }
}

#[test]
fn audit_queue_is_bounded_in_bytes() {
    let (queue, mut lines) = AuditQueue::new(8, 10);
    assert_eq!(queue.put(None, vec![0; 11]), Err(QUEUE_FULL));
    assert_eq!(queue.put(None, vec![0; 6]), Ok(()));
    assert_eq!(queue.put(None, vec![0; 6]), Err(QUEUE_FULL));
    drop(lines.try_recv().expect("a line"));
    assert_eq!(queue.put(None, vec![0; 6]), Ok(()));
}

#[test]
fn token_query_parameters_are_redacted() {
    for (target, expected) in [
        ("/api/v1/pods", "/api/v1/pods"),
        ("/a?limit=5&continue=abc", "/a?limit=5&continue=abc"),
        ("/a?token=s&x=1", "/a?token=REDACTED&x=1"),
        ("/a?access_TOKEN=s", "/a?access_TOKEN=REDACTED"),
        ("/a?%74oken=s", "/a?%74oken=REDACTED"),
        ("/a?token", "/a?token"),
        ("/a?x=token=s", "/a?x=token=s"),
    ] {
        assert_eq!(without_tokens(target), expected);
    }
}

/// Parameters beyond what is recorded cost nothing.
#[test]
fn long_target_is_truncated_before_tokens_are_redacted() {
    let recorded = recorded_target(&format!("/a?token=s&{}", "a&".repeat(30_000)));
    assert!(recorded.starts_with("/a?token=REDACTED&a&a&") && recorded.ends_with("...TRUNCATED"), "{recorded}");
    assert!(recorded.len() <= RECORD_BYTES_MAX + "REDACTED...TRUNCATED".len());
    let token = format!("/a?{}=secret", "token".repeat(2_000));
    assert!(!recorded_target(&token).contains("secret"));
}

#[test]
fn source_ips_are_in_apiserver_order() {
    let tcp = |ip: &str| PeerAddress::Tcp(SocketAddr::new(ip.parse().expect("an address"), 1));
    for (lines, address, expected) in [
        (&[][..], tcp("10.0.0.7"), &["10.0.0.7"][..]),
        (&[], tcp("::ffff:10.0.0.7"), &["10.0.0.7"]),
        (&[("x-forwarded-for", "1.1.1.1, nonsense,2.2.2.2")], tcp("10.0.0.7"), &["1.1.1.1", "2.2.2.2", "10.0.0.7"]),
        (&[("x-forwarded-for", "10.0.0.7")], tcp("10.0.0.7"), &["10.0.0.7"]),
        (&[("x-real-ip", "3.3.3.3")], PeerAddress::Unix { uid: None }, &["3.3.3.3"]),
    ] {
        let expected: Vec<IpAddr> = expected.iter().map(|ip| ip.parse().expect("an address")).collect();
        assert_eq!(source_ips(&headers(lines), address), expected);
    }
}

#[test]
fn long_user_agents_are_truncated() {
    assert_eq!(truncated("curl"), "curl");
    assert_eq!(truncated(&"x".repeat(1024)).len(), 1024);
    assert_eq!(truncated(&"x".repeat(1025)), format!("{}...TRUNCATED", "x".repeat(1024)));
}

#[test]
fn audit_record_is_bounded() {
    let (queue, mut lines) = AuditQueue::new(8, 1 << 20);
    let long = "\u{e4}".repeat(30_000);
    let uri: Uri = format!("/api/v1/pods?a={}", "b".repeat(60_000)).parse().expect("a target");
    let path = format!("/api/v1/namespaces/{long}/pods/{long}/{long}");
    let id = HeaderValue::from_str(&"i".repeat(60_000)).expect("text");
    let agent = HeaderValue::from_str(&"u".repeat(60_000)).expect("text");
    let headers = HeaderMap::from_iter([(http::header::USER_AGENT, agent)]);
    let (audit, method) = (AuditLog::with_queue(queue), "M".repeat(60_000));
    let mut callers = [None, None, Some(Caller::ProxyItself), Some(Caller::Anonymous)].into_iter();
    for path in [path.as_str(), "/version"].repeat(2) {
        let info = RequestInfo::parse(&method, path, &UrlQuery::parse("")).expect("a path");
        let mut record = AuditRecord::new(&audit, &peer(), (&uri, &headers), &info, &id).expect("it is on");
        callers.next().flatten().inspect(|caller| record.set_caller(caller));
        let refused = ServedLocally { status: Some(Status::bad_request(&*long)), ..ServedLocally::default() };
        assert!(record.record_response(&response(refused, None)));
        let (line, event) = next(&mut lines).expect("one record");
        assert!(line.len() <= RECORD_BYTES_MAX, "{} bytes", line.len());
        assert_eq!(event["responseStatus"]["code"], 400);
        assert_eq!(event["auditID"], format!("{}...TRUNCATED", "i".repeat(1_024)));
    }
}

#[tokio::test]
async fn audit_file_is_recreated_after_rename() {
    let dir = std::env::temp_dir().join(format!("kube-fanout-audit-{}-{}", std::process::id(), fastrand::u64(..)));
    std::fs::create_dir(&dir).expect("a directory");
    let (path, rotated) = (dir.join("audit.log"), dir.join("audit.log.1"));
    let (audit, writer) = AuditLog::open(AuditDestination::File(path.clone())).expect("a file");
    let mut writing = Box::pin(writer.run());
    let queue = audit.queue().expect("it is on").clone();
    let mut written = async |text: &str, file: &std::path::Path| {
        queue.put(None, text.as_bytes().to_vec()).expect("room");
        loop {
            tokio::select! {
                () = &mut writing => panic!("it ended"),
                () = tokio::task::yield_now() => {}
            }
            if std::fs::read_to_string(file).is_ok_and(|content| content == text) {
                break;
            }
        }
    };
    written("1\n", &path).await;
    std::fs::rename(&path, &rotated).expect("renamed");
    written("2\n", &path).await;
    assert_eq!(std::fs::read_to_string(&rotated).expect("readable"), "1\n");
    drop(queue);
    drop(audit);
    writing.await;
    std::fs::remove_dir_all(&dir).expect("removed");
}

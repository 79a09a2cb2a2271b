//! Credentials of callers, the apiserver's reviews of them, and its discovery documents.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use tokio::io::duplex;

use super::{Corpus, JSON, bytes, numbered};
use crate::bed::{Account, Http, Plane, RequestSpec, read_until_quiet};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

pub(super) async fn capture(plane: &Plane, http: &Http, namespace: &str, corpus: &mut Corpus) {
    certificates(plane, corpus);
    reviews(http, namespace, corpus).await;
    policies(http, namespace, corpus).await;
    discovery(http, corpus).await;
    connections(corpus).await;
}

/// The certificate chains of the test bed's users, and invalid ones.
fn certificates(plane: &Plane, corpus: &mut Corpus) {
    let chains = [
        ("admin", ["admin"].as_slice()),
        ("node", &["node-n1", "ca"]),
        ("server", &["apiserver"]),
        ("authority", &["ca", "admin"]),
    ];
    for (what, files) in chains {
        let mut chain = Vec::new();
        for file in files {
            let path = plane.dir.join(format!("{file}.crt"));
            let certificate = CertificateDer::from_pem_file(path).expect("the test bed keeps it");
            chain.extend_from_slice(&u16::try_from(certificate.len()).expect("it is short").to_be_bytes());
            chain.extend_from_slice(&certificate);
        }
        corpus.insert(("certificates", what.to_owned()), chain);
    }
}

/// Reviews of a token and of accesses, and the claims of that token. None of them contains the token itself.
async fn reviews(http: &Http, namespace: &str, corpus: &mut Corpus) {
    let token = Account::create(http, namespace, "corpus").await.token(http).await.token;
    let claims = token.split('.').nth(1).and_then(|claims| BASE64_URL_SAFE_NO_PAD.decode(claims).ok());
    corpus.insert(("credentials", "claims".to_owned()), numbered(1, &claims.expect("a token of claims")));
    let of_token = json!({"spec": {"token": token}});
    let of_nobody = json!({"spec": {"token": "x", "audiences": ["https://kubernetes.default.svc"]}});
    let of_access = |user: &str| {
        let attributes = json!({"namespace": namespace, "verb": "list", "resource": "pods"});
        json!({"spec": {"user": user, "resourceAttributes": attributes}})
    };
    let review_requests = [
        ("somebody", format!("{REVIEWS}/tokenreviews"), of_token),
        ("nobody", format!("{REVIEWS}/tokenreviews"), of_nobody),
        ("ourselves", format!("{REVIEWS}/selfsubjectreviews"), json!({})),
        ("allowed", ACCESS_REVIEWS.to_owned(), of_access("system:kube-scheduler")),
        ("denied", ACCESS_REVIEWS.to_owned(), of_access("jane")),
    ];
    for (what, path, review) in review_requests {
        let request = RequestSpec::get(&path).with(http::Method::POST, JSON, review.to_string());
        let answer = String::from_utf8(http.fetch(request).await.body.to_vec()).expect("JSON");
        corpus.insert(("reviews", what.to_owned()), answer.replace(&token, "x").into_bytes());
    }
}

/// Watch events of roles and bindings. The first byte is the kind of the first line.
async fn policies(http: &Http, namespace: &str, corpus: &mut Corpus) {
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]);
    let roles = format!("{RBAC}/namespaces/{namespace}/roles");
    let bindings = format!("{RBAC}/namespaces/{namespace}/rolebindings");
    http.create(&roles, json!({"metadata": {"name": "corpus"}, "rules": rules})).await;
    let subjects = json!([
        {"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"},
        {"kind": "Group", "name": "dev", "apiGroup": "rbac.authorization.k8s.io"},
        {"kind": "ServiceAccount", "name": "default", "namespace": namespace},
    ]);
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "corpus"});
    let binding = json!({"metadata": {"name": "corpus"}, "roleRef": role, "subjects": subjects});
    http.create(&bindings, binding).await;
    let clusters = [
        (1, "cluster-role", format!("{RBAC}/clusterroles")),
        (3, "cluster-binding", format!("{RBAC}/clusterrolebindings")),
        (0, "role", roles),
        (2, "binding", bindings.clone()),
    ];
    for (kind, what, path) in clusters {
        let mut watch = http.watch(RequestSpec::get(&format!("{path}?watch=true&resourceVersion=0"))).await;
        let frame = bytes(watch.frame().await);
        corpus.insert(("policies", what.to_owned()), numbered(kind, frame.trim_ascii_end()));
    }
    let from = http.version(&bindings).await;
    let mut watch = http.watch(RequestSpec::get(&format!("{bindings}?watch=true&resourceVersion={from}"))).await;
    http.delete(&format!("{bindings}/corpus")).await;
    let gone = bytes(watch.frame().await);
    corpus.insert(("policies", "gone".to_owned()), numbered(2, gone.trim_ascii_end()));
}

/// Discovery documents, shortened: the groups of a few built-in resources, and all of a custom one.
async fn discovery(http: &Http, corpus: &mut Corpus) {
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?fieldSelector=metadata.name%3D\
        samples.verify.kube-fanout.io";
    let mut lines = Vec::new();
    for (path, accept) in [
        ("/api", aggregated),
        ("/apis", aggregated),
        (definition, JSON),
        ("/apis/apiregistration.k8s.io/v1/apiservices?limit=1", JSON),
        ("/version", JSON),
    ] {
        let answer = http.fetch(RequestSpec::get(path).accept(accept)).await;
        let document: Value = serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("{path}: {error}"));
        lines.push(short(document).to_string().into_bytes());
    }
    corpus.insert(("discovery", "aggregated".to_owned()), numbered(0, &lines.join(&b'\n')));
    let mut roots = Vec::new();
    for path in ["/api", "/apis"] {
        let answer = http.fetch(RequestSpec::get(path)).await;
        roots.push(short(serde_json::from_slice(&answer.body).expect("JSON")).to_string().into_bytes());
    }
    corpus.insert(("discovery", "roots".to_owned()), numbered(0, &roots.join(&b'\n')));
}

/// Removes schemas and managed fields, and keeps a few items and resources of each list.
fn short(mut document: Value) -> Value {
    const ITEMS: usize = 3;
    match &mut document {
        Value::Object(fields) => {
            for gone in ["schema", "managedFields", "annotations"] {
                fields.remove(gone);
            }
            for (name, value) in fields {
                if let Value::Array(items) = value
                    && matches!(name.as_str(), "items" | "groups" | "resources")
                {
                    let is_ours = |item: &Value| item.to_string().contains("kube-fanout");
                    let ours: Vec<_> = items.iter().skip(ITEMS).filter(|item| is_ours(item)).cloned().collect();
                    items.truncate(ITEMS);
                    items.extend(ours);
                }
                *value = short(value.take());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = short(item.take())),
        _ => {}
    }
    document
}

/// Input of HTTP clients: HTTP/1.1 is written by hand, HTTP/2 by hyper.
async fn connections(corpus: &mut Corpus) {
    let inputs = [
        "GET /api/v1/pods?watch=true HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n\r\n\
            GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        "POST /api/v1/namespaces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
            content-length: 2\r\nexpect: 100-continue\r\n\r\n{}GET /a HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "POST /a HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\na: b\r\n\r\n\
            GET /b HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /api/v1/pods?watch=1 HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
            sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    ];
    for (nth, input) in inputs.into_iter().enumerate() {
        corpus.insert(("connections", format!("{nth:02}")), input.as_bytes().to_vec());
    }
    let (ours, theirs) = duplex(64 << 10);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(ours)).await.expect("a handshake");
    let asking = tokio::spawn(async move {
        let request = http::Request::get("http://localhost/api/v1/pods?watch=true").header("accept", JSON);
        let request = request.body(Empty::<Bytes>::new()).expect("a request");
        tokio::join!(sender.send_request(request), connection)
    });
    let sent = read_until_quiet(theirs, std::time::Duration::from_millis(200), 4096).await;
    asking.abort();
    corpus.insert(("connections", "http2".to_owned()), sent);
    // A text, a ping and a close. All are masked with zeros except the first.
    let text = b"\x81\x85\x01\x02\x03\x04igohn".as_slice();
    let ping = b"\x89\x82\0\0\0\0ab\x82\x80\0\0\0\0".as_slice();
    let parts = b"\x01\x81\0\0\0\0a\x80\x81\0\0\0\0b\x8a\x80\0\0\0\0".as_slice();
    let close = b"\x88\x82\0\0\0\0\x03\xe8".as_slice();
    let long = b"\x82\xfe\x10\0\0\0\0\0".as_slice();
    for (what, frames) in [("text", text), ("ping", ping), ("parts", parts), ("close", close), ("long", long)] {
        corpus.insert(("messages", what.to_owned()), frames.to_vec());
    }
    let frames = [text, ping, parts, close].concat();
    corpus.insert(("messages", "all".to_owned()), frames);
}

/// Request heads with credentials, one header per line. The first byte marks them as heads.
pub(super) const HEADS: [&str; 5] = [
    "\0authorization: Bearer e30.eyJleHAiOjE3MDAwMDAwMDB9.c2ln\nuser-agent: kubectl/v1.34",
    "\0connection: Upgrade\nupgrade: websocket\norigin: https://example.com\nsec-websocket-version: 13\n\
        sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\n\
        sec-websocket-protocol: base64url.bearer.authorization.k8s.io.YWJj, v4.base64.binary.k8s.io",
    "\0x-remote-user: jane\nx-remote-uid: 7\nx-remote-group: dev\nx-remote-extra-example.com%2fscopes: a",
    "\0x-forwarded-for: 192.0.2.1, 2001:db8::1\nx-real-ip: 192.0.2.2\nauthorization: bearer  x",
    "\x03{\"exp\":1700000000.5,\"iss\":\"https://kubernetes.default.svc\",\"aud\":[\"x\"]}",
];

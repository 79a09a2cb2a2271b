//! Requests that web pages make browsers send (R-THREAT-17).

use demo::{self, ReceivedRequest};
use http::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::direct::{self, App, Client, PODS, Protocol, Stub, Trust, stub, within};
use crate::front_proxy::Authority;

const EVIL: (&str, &str) = ("origin", "https://evil.example");
const SECRETS: &str = "/api/v1/secrets";

/// Headers that reveal a page of another origin.
const FOREIGN: [&[(&str, &str)]; 7] = [
    &[EVIL],
    &[EVIL, ("sec-fetch-site", "cross-site")],
    &[("origin", "null")],
    &[("origin", "http://localhost:1")],
    &[("sec-fetch-site", "cross-site")],
    &[("sec-fetch-site", "same-site")],
    &[EVIL, ("sec-fetch-site", "none")],
];

async fn in_front() -> (Stub, App) {
    let upstream = stub(|_| async { Ok(Stub::reply(200, "passed on")) }).await;
    let app = direct::in_front_of(&upstream.url()).unix().run().await;
    (upstream, app)
}

/// Response head of a handshake that is written by hand.
async fn upgrade(client: &Client, protocol: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let lines: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let key = "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let upgrade = format!("connection: upgrade\r\nupgrade: {protocol}\r\n{key}{}", lines.concat());
    let host = client.url().replace("http://", "");
    let mut io = client.connect().await.expect("a connection");
    let head = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{upgrade}\r\n");
    io.write_all(head.as_bytes()).await.expect("a request is sent");
    let mut answer = vec![0; 4096];
    let read = within("an answer", io.read(&mut answer)).await.expect("an answer");
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

#[tokio::test]
async fn cross_origin_request_on_loopback_port_returns_403() {
    let (upstream, app) = in_front().await;
    let paths = ["/version", PODS, SECRETS, "/api/v1/namespaces/default/configmaps", "/api/v1/watch", "//x"];
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let client = app.over(protocol);
        for headers in FOREIGN {
            for path in paths {
                for method in [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
                    let call = client.request(method.clone(), path);
                    let call = headers.iter().fold(call, |call, (name, value)| call.header(name, value));
                    let answer = call.send().await;
                    assert_eq!(answer.status, 403, "{protocol:?} {method} {path} {headers:?}");
                    if method != Method::HEAD {
                        assert_eq!(answer.refusal().1, "Forbidden");
                        assert!(answer.text().contains("allowedOrigins"), "{}", answer.text());
                    }
                    assert!(answer.header("access-control-allow-origin").is_none());
                }
            }
        }
    }
    for path in paths {
        assert!(upstream.seen(path).is_empty(), "{path}");
    }
}

#[tokio::test]
async fn cross_origin_upgrade_on_loopback_port_returns_403() {
    let up = demo::upstream().pods(1).run().await;
    let app = direct::app(&up).with(|config| config.serve.exec_on_loopback = true).run().await;
    app.discovered().await;
    let own = app.url();
    let watch = format!("{SECRETS}?watch=1");
    for protocol in ["websocket", "SPDY/3.1"] {
        for path in [watch.as_str(), "/api/v1/namespaces/default/pods/p/exec?command=sh", "/version"] {
            for headers in FOREIGN {
                let answer = upgrade(&app, protocol, path, headers).await;
                assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("allowedOrigins"), "{path}: {answer}");
            }
            // The proxy itself requests the version, without an upgrade.
            let is_parameter_forwarded = |seen: &ReceivedRequest| {
                let is_ours = seen.uri.path() == "/version" && !seen.headers.contains_key("upgrade");
                !is_ours && path.split('?').next() == Some(seen.uri.path())
            };
            assert!(!up.requests().iter().any(is_parameter_forwarded), "{protocol} {path}: nothing was sent upstream");
        }
    }
    for headers in [&[("origin", own.as_str())][..], &[("origin", &own), ("sec-fetch-site", "same-origin")]] {
        let answer = upgrade(&app, "websocket", &watch, headers).await;
        assert!(answer.starts_with("HTTP/1.1 101"), "{headers:?}: {answer}");
    }
}

#[tokio::test]
async fn same_origin_and_non_browser_requests_pass_origin_check() {
    let (upstream, app) = in_front().await;
    let own = app.url();
    let fine: [&[(&str, &str)]; 5] = [
        &[],
        &[("sec-fetch-site", "none")],
        &[("sec-fetch-site", "same-origin")],
        &[("origin", &own)],
        &[("origin", &own), ("sec-fetch-site", "same-origin")],
    ];
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for headers in fine {
            let call = app.over(protocol).request(Method::POST, "/version");
            let answer = headers.iter().fold(call, |call, (name, value)| call.header(name, value)).send().await;
            assert_eq!((answer.status, answer.text().as_str()), (200, "passed on"), "{headers:?}");
        }
    }
    assert_eq!(upstream.seen("/version").iter().filter(|head| head.method == Method::POST).count(), 10);
    // Web pages cannot reach a unix socket.
    let (name, value) = EVIL;
    assert_eq!(app.listener(1).request(Method::GET, "/version").header(name, value).send().await.status, 200);
}

#[tokio::test]
async fn only_configured_allowed_origins_pass_origin_check() {
    let upstream = stub(|_| async { Ok(Stub::reply(200, "passed on")) }).await;
    let allowed = |config: &mut kube_fanout::config::ServeSettings| {
        config.allowed_origins = vec!["https://app.example".parse().expect("an origin")];
    };
    let app = direct::in_front_of(&upstream.url()).with(allowed).run().await;
    for (origin, code) in [("https://app.example", 200), ("https://app.example:8443", 403), ("http://app.example", 403)]
    {
        let call = app.request(Method::POST, "/version").header("origin", origin);
        assert_eq!(call.header("sec-fetch-site", "cross-site").send().await.status, code, "{origin}");
    }
    let link = app.request(Method::GET, "/version").header("sec-fetch-site", "cross-site").send().await;
    assert_eq!(link.status, 403, "a page that does not say which it is");
}

/// The origin is compared with the request's effective host, from the target or from the Host header.
#[tokio::test]
async fn conflicting_target_and_host_header_return_403() {
    let (_upstream, app) = in_front().await;
    let own = app.url();
    let host = own.replace("http://", "");
    let h2 = |authority: &str, host: &str| {
        app.over(Protocol::Http2).request(Method::GET, "/version").host(authority).header("host", host).send()
    };
    assert_eq!(h2(&host, &host).await.status, 200);
    for (authority, header) in [("evil.example", host.as_str()), (&host, "evil.example"), (&host, "localhost:1")] {
        assert_eq!(h2(authority, header).await.refusal().0, 403, "{authority} {header}");
    }
    for (target, header, code) in [
        (own.as_str(), host.as_str(), "200"),
        ("http://evil.example", &host, "403"),
        (&own, "evil.example", "403"),
        ("http://localhost:1", &host, "403"),
    ] {
        let mut io = app.connect().await.expect("a connection");
        let head = format!("GET {target}/version HTTP/1.1\r\nhost: {header}\r\nconnection: close\r\n\r\n");
        io.write_all(head.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        within("an answer", io.read_to_string(&mut answer)).await.expect("text");
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{target} {header}: {answer}");
    }
}

#[tokio::test]
async fn admin_pages_reject_unknown_hosts_and_cross_origin_requests() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).with(|config| config.allowed_hosts.push("metrics.internal".to_owned())).run().await;
    let fetch = async |path: &str, host: Option<&str>, headers: &[(&str, &str)]| {
        let call = app.admin_client().request(Method::GET, path);
        let call = if let Some(host) = host { call.host(host) } else { call };
        headers.iter().fold(call, |call, (name, value)| call.header(name, value)).send().await
    };
    for path in ["/metrics", "/livez", "/readyz", "/debug/feeds", "/debug/cost", "/debug/nothing", "/nothing"] {
        for headers in FOREIGN {
            let answer = fetch(path, None, headers).await;
            assert_eq!(answer.status, 403, "{path} {headers:?}");
            assert!(answer.text().contains("allowedOrigins"), "{}", answer.text());
        }
        for host in ["evil.example", "evil.example:9090", "localhost.evil.example", "127.0.0.1.nip.io"] {
            let answer = fetch(path, Some(host), &[]).await;
            assert_eq!(answer.status, 403, "{path} {host}");
            assert!(answer.text().contains("allowedHosts"), "{}", answer.text());
        }
    }
    // Prometheus and the kubelet use an address as host, and relays keep it.
    for host in ["localhost:9090", "127.0.0.1", "[::1]:9090", "10.1.2.3:9090", "[fd00::7]:9090", "metrics.internal"] {
        assert_eq!(fetch("/livez", Some(host), &[]).await.status, 200, "{host}");
    }
    let own = app.admin_client().url();
    for headers in [[("origin", own.as_str())], [("sec-fetch-site", "none")], [("sec-fetch-site", "same-origin")]] {
        assert_eq!(fetch("/livez", None, &headers).await.status, 200, "{headers:?}");
    }
}

/// A browser presents a client certificate for any page, but it does not have a bearer token.
#[tokio::test]
async fn cross_site_request_with_client_certificate_returns_403() {
    let up = demo::upstream().pods(3).run().await;
    up.reviews().allow("ada", "*");
    up.reviews().give("a", "ada");
    let (dir, clients) = (direct::Dir::new(), Authority::new("clients"));
    let plan = direct::app(&up).for_certificates_of(&clients.pem, &dir);
    let allowed = vec!["https://app.example".parse().expect("an origin")];
    let app = plan.with(|config| config.allowed_origins = allowed).run().await;
    let ada = app.listener(0).trusting(Some(Trust::showing(&dir.join("own.pem"), &clients.issue("ada"))));
    let own = ada.origin();
    let fetch = async |client: &Client, headers: &[(&str, &str)]| {
        let call = client.request(Method::GET, PODS);
        headers.iter().fold(call, |call, (name, value)| call.header(name, value)).send().await
    };
    for headers in FOREIGN {
        let answer = fetch(&ada, headers).await;
        // Over TLS a browser sends Sec-Fetch-Site. An Origin header alone may come from any program, and the apiserver
        // accepts it.
        if headers.iter().any(|(name, value)| *name == "sec-fetch-site" && *value != "none") {
            assert_eq!(answer.refusal().0, 403, "{headers:?}");
            assert!(answer.text().contains("allowedOrigins"), "{}", answer.text());
        } else {
            assert!(answer.is_cached(), "{headers:?}");
        }
        // A caller with a token obtained it, and upstream accepts it from any origin as well.
        assert!(fetch(&app.bearing("a"), headers).await.is_cached(), "{headers:?}");
    }
    for headers in [&[][..], &[("origin", own.as_str())], &[("origin", "https://app.example")]] {
        assert!(fetch(&ada, headers).await.is_cached(), "{headers:?}");
    }
    // The Host header is not checked either.
    assert!(ada.request(Method::GET, PODS).host("kube-fanout.example").send().await.is_cached());
}

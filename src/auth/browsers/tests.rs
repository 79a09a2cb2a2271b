use http::HeaderValue;

use super::*;

type Headers = [(&'static str, &'static str)];

fn map(headers: &Headers) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_static(value));
    }
    map
}

fn guard(tls: bool) -> CrossOriginCheck {
    let allowed = ["https://app.example", "http://localhost:3000", "chrome-extension://abcdefgh", "tauri://localhost"];
    let allowed = allowed.map(|origin| origin.parse().expect("an origin"));
    CrossOriginCheck::new(tls, AllowedHosts::new(&["proxy.internal".to_owned()]), allowed.to_vec())
}

/// The result of a guard without TLS for these headers.
fn check(headers: &Headers) -> Result<(), CrossOriginRejection> {
    guard(false).check(&Uri::from_static("/api/v1/secrets?watch=1"), &map(headers))
}

const HERE: (&str, &str) = ("host", "127.0.0.1:8001");

#[test]
fn non_browser_and_same_origin_requests_pass() {
    let none: &Headers = &[HERE];
    for headers in [
        none,
        &[HERE, ("sec-fetch-site", "none")],
        &[HERE, ("sec-fetch-site", "same-origin")],
        &[HERE, ("origin", "http://127.0.0.1:8001")],
        &[HERE, ("origin", "http://127.0.0.1:8001"), ("sec-fetch-site", "same-origin")],
        &[HERE, ("origin", "HTTP://127.0.0.1:8001")],
        &[("host", "LOCALHOST:8001"), ("origin", "http://localhost:8001")],
        &[("host", "localhost"), ("origin", "http://localhost")],
        &[("host", "localhost"), ("origin", "http://localhost:80")],
        &[("host", "localhost:80"), ("origin", "http://localhost")],
        &[("host", "[::1]:8001"), ("origin", "http://[::1]:8001")],
        &[("host", "[::1]:8001"), ("origin", "http://[0:0::1]:8001")],
        &[("host", "proxy.internal:8001"), ("origin", "http://proxy.internal:8001")],
        // A port forwarded to this one.
        &[("host", "localhost:9000"), ("origin", "http://localhost:9000")],
    ] {
        assert_eq!(check(headers), Ok(()), "{headers:?}");
    }
}

#[test]
fn request_from_another_origin_is_rejected() {
    for origin in [
        "https://evil.example",
        "http://evil.example:8001",
        "null",
        "",
        "http://127.0.0.1:8001.evil.example",
        "http://127.0.0.1.evil.example:8001",
        "http://127.0.0.1:8001@evil.example",
        "http://user@127.0.0.1:8001",
        "http://evil.example/http://127.0.0.1:8001",
        "http://127.0.0.1:8001/",
        "http://127.0.0.1:8001, https://evil.example",
        "http://127.0.0.1:8001 https://evil.example",
        "http://127.0.0.1:8001#",
        "http://127.0.0.1:8001\\evil.example",
        "https://127.0.0.1:8001",
        "http://127.0.0.1:8002",
        "http://127.0.0.1",
        "http://127.0.0.1:08001x",
        "http://localhost:8001",
        "http://127.0.0.1.:8001",
        "http://127.1:8001",
        "http://[::1]:8001",
        "http://[::ffff:127.0.0.1]:8001",
        "127.0.0.1:8001",
        "//127.0.0.1:8001",
        "http:127.0.0.1:8001",
        "file://",
        "app://127.0.0.1:8001",
        "http://localhost:30000",
        "http://app.example",
        "https://app.example:8443",
        "https://app.example.evil.example",
        "https://sub.app.example",
    ] {
        let refused = check(&[HERE, ("origin", origin)]).expect_err(origin).to_string();
        assert!(refused.contains("allowedOrigins"), "{refused}");
        assert!(check(&[HERE, ("origin", origin), ("sec-fetch-site", "same-origin")]).is_err(), "{origin}");
    }
    for site in ["cross-site", "same-site", "Same-Origin", "NONE", "", "none, none", "same-origin;x", "?1"] {
        let refused = check(&[HERE, ("sec-fetch-site", site)]).expect_err(site).to_string();
        assert!(refused.contains("sec-fetch-site") && refused.contains("allowedOrigins"), "{refused}");
        assert!(check(&[HERE, ("origin", "http://127.0.0.1:8001"), ("sec-fetch-site", site)]).is_err(), "{site}");
    }
    let (own, evil) = (("origin", "http://127.0.0.1:8001"), ("origin", "https://evil.example"));
    let (none, cross) = (("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site"));
    for headers in [[HERE, own, evil], [HERE, evil, own], [HERE, own, own], [HERE, none, cross], [HERE, none, none]] {
        assert!(check(&headers).is_err(), "{headers:?}");
    }
    let mut odd = map(&[HERE]);
    odd.insert(ORIGIN, HeaderValue::from_bytes(b"http://127.0.0.1:8001\xff").expect("a value"));
    assert!(guard(false).check(&Uri::from_static("/"), &odd).is_err());
}

#[test]
fn only_allowlisted_origins_pass_cross_site() {
    for origin in ["https://app.example", "https://app.example:443", "http://localhost:3000", "tauri://localhost"] {
        for site in ["cross-site", "same-site", "same-origin"] {
            assert_eq!(check(&[HERE, ("origin", origin), ("sec-fetch-site", site)]), Ok(()), "{origin} {site}");
        }
    }
    assert_eq!(check(&[HERE, ("origin", "chrome-extension://abcdefgh")]), Ok(()));
    // Without `Origin`, an allowed page cannot be recognised: an image, a link.
    assert!(check(&[HERE, ("sec-fetch-site", "cross-site")]).is_err());
    assert!(check(&[HERE, ("origin", "https://app.example"), ("origin", "https://app.example")]).is_err());
    assert!(
        check(&[("host", "evil.example"), ("origin", "https://app.example")]).is_err(),
        "a Host is checked as ever"
    );
}

#[test]
fn origin_scheme_must_match_the_listener() {
    let headers = |origin| map(&[HERE, ("origin", origin)]);
    for (tls, origin, goes_on) in [
        (true, "https://127.0.0.1:8001", true),
        (true, "http://127.0.0.1:8001", false),
        (false, "https://127.0.0.1:8001", false),
    ] {
        let checked = guard(tls).check(&Uri::from_static("/"), &headers(origin));
        assert_eq!(checked.is_ok(), goes_on, "{tls} {origin}");
    }
    let default = map(&[("host", "localhost"), ("origin", "https://localhost:443")]);
    assert_eq!(guard(true).check(&Uri::from_static("/"), &default), Ok(()));
}

#[test]
fn request_with_conflicting_hosts_is_rejected() {
    let check = |target: &str, host: Option<&str>, origin: &str| {
        let mut headers = HeaderMap::new();
        headers.extend(host.map(|host| (HOST, host.parse().expect("a value"))));
        headers.insert(ORIGIN, origin.parse().expect("a value"));
        guard(false).check(&target.parse().expect("a target"), &headers)
    };
    let (target, own) = ("http://127.0.0.1:8001/version", "http://127.0.0.1:8001");
    assert_eq!(check(target, None, own), Ok(()));
    assert_eq!(check(target, Some("127.0.0.1:8001"), own), Ok(()));
    for (target, host, origin) in [
        (target, "evil.example", "http://evil.example"),
        (target, "evil.example", own),
        (target, "localhost:8001", own),
        (target, "", own),
        ("http://evil.example/version", "127.0.0.1:8001", own),
        ("http://evil.example/version", "127.0.0.1:8001", "http://evil.example"),
        ("http://evil.example@127.0.0.1:8001/version", "127.0.0.1:8001", own),
    ] {
        assert!(check(target, Some(host), origin).is_err(), "{target} {host} {origin}");
    }
    assert!(check("/version", None, own).is_err(), "a page of no host");
    let none = HeaderMap::new();
    assert_eq!(guard(false).check(&Uri::from_static("/version"), &none), Ok(()), "a program that names no host");
}

#[test]
fn site_check_uses_only_sec_fetch_site_and_ignores_origin() {
    let check = |headers: &Headers| guard(true).check_site(&map(headers));
    let host = ("host", "kube-fanout.example:8443");
    let fine: [&Headers; 6] = [
        &[host],
        &[],
        &[host, ("origin", "https://evil.example")],
        &[host, ("origin", "null")],
        &[host, ("sec-fetch-site", "none")],
        &[host, ("origin", "https://app.example"), ("sec-fetch-site", "cross-site")],
    ];
    for headers in fine {
        assert_eq!(check(headers), Ok(()), "{headers:?}");
    }
    for site in ["cross-site", "same-site", "", "Same-Origin"] {
        assert!(check(&[host, ("sec-fetch-site", site)]).is_err(), "{site}");
        assert!(check(&[host, ("origin", "https://evil.example"), ("sec-fetch-site", site)]).is_err(), "{site}");
    }
}

#[test]
fn rejection_message_truncates_a_long_origin() {
    let long = format!("http://{}", "a".repeat(60_000));
    let mut headers = map(&[HERE]);
    headers.insert(ORIGIN, long.parse().expect("a value"));
    let refused = guard(false).check(&Uri::from_static("/"), &headers).expect_err("foreign").to_string();
    assert!(refused.len() < 300, "{}", refused.len());
}

#[test]
fn origin_parser_normalizes_case_port_and_ipv6() {
    for (a, b) in [
        ("http://a", "http://a:80"),
        ("https://a", "HTTPS://A:443"),
        ("http://[::1]:1", "http://[0::0:1]:1"),
        ("app://x", "APP://X"),
    ] {
        assert_eq!(a.parse::<WebOrigin>(), b.parse::<WebOrigin>(), "{a}");
    }
    for text in
        ["", "null", "*", "http://*", "http://*.example", "a.example", "http://a/", "http://", "1a://b", "a b://c"]
    {
        assert!(text.parse::<WebOrigin>().is_err(), "{text}");
    }
}

fn has(hosts: &AllowedHosts, host: &str) -> bool {
    Authority::parse(host).is_some_and(|authority| hosts.has(&authority.host))
}

#[test]
fn only_loopback_and_allowed_hosts_match() {
    let hosts = AllowedHosts::new(&["Proxy.internal".to_owned()]);
    for host in [
        "localhost",
        "localhost:8001",
        "LocalHost:8001",
        "127.0.0.1:8001",
        "127.8.9.1",
        "[::1]:8001",
        "[::1]",
        "[0:0:0:0:0:0:0:1]:80",
        "[::ffff:127.0.0.1]:80",
        "proxy.internal:443",
    ] {
        assert!(has(&hosts, host), "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:8001",
        "localhost.evil.example",
        "localhost.",
        "127.0.0.1.nip.io:80",
        "127.1",
        "0.0.0.0:8001",
        "10.0.0.1:8001",
        "[::]:8001",
        "",
        ":8001",
        "localhost:",
        "localhost:x",
        "localhost:99999",
        "localhost:80:80",
        "user@localhost",
        "localhost/evil.example",
        "[::1",
        "[::1]x",
        "[localhost]",
        "::1",
    ] {
        // An empty port is the default one.
        assert_eq!(has(&hosts, host), host == "localhost:", "{host}");
    }
    let relayed = hosts.or_any_address();
    for (host, expected) in [("10.0.0.1:9090", true), ("[fd00::1]:9090", true), ("evil.example", false)] {
        assert_eq!(has(&relayed, host), expected, "{host}");
    }
}

//! The live page is embedded in the binary, and shows no more than the pages that it polls
//! (docs/OPERATING.md, "The live page").

use http::Method;
use kube_fanout::auth::AuthMode;

use crate::direct::{self, PODS};

const FILES: [(&str, &str); 4] = [
    ("/", "text/html; charset=utf-8"),
    ("/live.js", "text/javascript; charset=utf-8"),
    ("/live.css", "text/css; charset=utf-8"),
    ("/live.svg", "image/svg+xml"),
];

#[tokio::test]
async fn live_page_files_have_security_headers() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    for (path, kind) in FILES {
        let file = app.admin(path).await;
        assert_eq!((file.status, file.header("content-type")), (200, Some(kind)), "{path}");
        let policy = file.header("content-security-policy").unwrap_or_default().to_owned();
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.split("; ").any(|part| part == rule), "{path} {rule}: {policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*') && !policy.contains("http"), "{policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cache-control", "no-cache"),
        ] {
            assert_eq!(file.header(name), Some(value), "{path} {name}");
        }
        let posted = app.admin_client().request(Method::POST, path).send().await;
        assert_eq!((posted.status, posted.header("allow")), (405, Some("GET,HEAD")), "{path}");
    }
    let data = app.admin("/debug/feeds").await;
    assert_eq!(data.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(data.header("cross-origin-resource-policy"), Some("same-origin"));
}

/// The page contains nothing that its policy forbids, so that it works: no foreign address, no inline script or style,
/// and no code that parses text as markup.
#[tokio::test]
async fn live_page_files_have_no_external_urls_or_html_injection() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    for (path, _) in FILES {
        // The SVG namespace is not an address; nothing is requested there.
        let text = app.admin(path).await.text().replace("http://www.w3.org/2000/svg", "");
        for part in ["http:", "https:", "//cdn", "@import", "url("] {
            assert!(!text.contains(part), "{path} has {part}");
        }
        for part in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
            assert!(!text.contains(part), "{path} has {part}");
        }
    }
    let page = app.admin("/").await.text();
    for part in [" style=", "<style", "javascript:", " onclick", " onload", " onerror", " onsubmit"] {
        assert!(!page.contains(part), "the page has {part}");
    }
    assert_eq!(page.matches("<script").count(), 1);
    for name in ["live.js", "live.css", "live.svg"] {
        assert!(page.contains(&format!("\"{name}\"")), "the page requests {name}");
    }
}

#[tokio::test]
async fn live_page_files_are_refused_to_other_origins() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    for (path, _) in FILES {
        for (name, value) in [
            ("origin", "https://evil.example"),
            ("origin", "http://localhost:1"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            let refused = app.admin_client().request(Method::GET, path).header(name, value).send().await;
            assert_eq!(refused.status, 403, "{path} {name}: {value}");
        }
        let rebound = app.admin_client().request(Method::GET, path).host("evil.example").send().await;
        assert_eq!(rebound.status, 403, "{path}");
        let own = app.admin_client().request(Method::GET, path).header("sec-fetch-site", "same-origin").send().await;
        assert_eq!(own.status, 200, "{path}");
    }
}

/// The pages that the script requests, found in the script.
fn requested_pages(script: &str) -> Vec<String> {
    let all = script.split(['"', '`']).filter_map(|word| {
        let path = word.split('?').next().unwrap_or_default();
        let is_page = path == "metrics" || path == "readyz" || path.strip_prefix("debug/").is_some();
        is_page.then(|| format!("/{path}"))
    });
    all.collect()
}

#[tokio::test]
async fn polled_pages_hide_users_from_callers_without_permission() {
    let up = demo::upstream().pods(3).run().await;
    for (token, user) in [("sesame", "zebediah"), ("cumin", "nosy"), ("poppy", "operator")] {
        up.reviews().give(token, user);
    }
    up.reviews().allow("zebediah", "default");
    up.reviews().allow("operator", "/debug/watches");
    let app = direct::app(&up).with(|config| config.auth = AuthMode::Delegated).run().await;
    let watch = app.bearing("sesame").watch("/api/v1/namespaces/default/pods").initial_events().await;
    watch.listed().await;
    let pages = requested_pages(&app.admin("/live.js").await.text());
    for page in ["/metrics", "/readyz", "/debug/feeds", "/debug/cost", "/debug/watches"] {
        assert!(pages.contains(&page.to_owned()), "{page} is not requested: {pages:?}");
    }
    for page in &pages {
        for who in [app.admin_client().clone(), app.admin_client().bearing("cumin")] {
            let page_answer = who.get(page).await;
            assert_eq!(page_answer.status == 200, page != "/debug/watches", "{page} {}", page_answer.status);
            assert!(!page_answer.text().contains("zebediah"), "{page}: {}", page_answer.text());
        }
    }
    let page_answer = app.admin_client().bearing("poppy").get("/debug/watches").await;
    assert_eq!(page_answer.json()["watches"][0]["user"], "zebediah");
}

#[tokio::test]
async fn debug_watches_page_sorts_by_query_parameters() {
    let up = demo::upstream().pods(5).run().await;
    let app = direct::app(&up).admin_on_socket().run().await;
    let all = app.watch(PODS).initial_events().await;
    all.listed().await;
    let few = app.watch("/api/v1/namespaces/none/pods").initial_events().await;
    few.listed().await;
    let nodes = app.watch("/api/v1/nodes").from(up.revision()).await;
    let places = async |query: &str| {
        let page = app.admin(&format!("/debug/watches?{query}")).await.json();
        let place = |row: &serde_json::Value| format!("{} {}", row["resource"], row["namespace"]).replace('"', "");
        page["watches"].as_array().into_iter().flatten().map(place).collect::<Vec<_>>()
    };
    let (pods, none, nodes_row) = ("pods.v1 null", "pods.v1 none", "nodes.v1 null");
    assert_eq!(places("sort=resource&order=up").await, [nodes_row, pods, none]);
    assert_eq!(places("sort=resource").await, [none, pods, nodes_row]);
    assert_eq!(places("sort=sent&order=down").await[0], pods);
    assert_eq!(places("sort=sent&order=up&resource=pods").await, [none, pods]);
    // The sort is stable.
    assert_eq!(places("sort=user").await, [pods, none, nodes_row]);
    assert_eq!(places("sort=user&order=up").await, [pods, none, nodes_row]);
    drop((all, few, nodes));
}

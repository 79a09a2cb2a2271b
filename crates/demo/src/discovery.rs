//! Serves what clients request before they read objects: groups, resources, version, health, schemas.

use std::hash::{DefaultHasher, Hash, Hasher};

use http::{HeaderValue, StatusCode};

use super::kinds::{DemoResourceKind, KINDS};
use super::respond::{DemoReply, ResponseStyle};
use super::route::DiscoveryRoute;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const OPENAPI_V2: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// The OpenAPI document `Document { swagger: "2.0", info: { title: "demo", version: "1" }, paths: {} }` in protobuf,
/// the form that kubectl requests.
const OPENAPI_V2_BODY: &[u8] = b"\x0a\x032.0\x12\x09\x0a\x04demo\x12\x011\x42\x00";
const VERSION: &[u8] = include_bytes!("objects/version.json");
const VERBS: &str = r#"["create","delete","deletecollection","get","list","patch","update","watch"]"#;
const STATUS_VERBS: &str = r#"["get","patch","update"]"#;
const PATHS: &str = concat!(
    r#"{"paths":["/api","/api/v1","/apis","/healthz","/livez","#,
    r#""/openapi/v2","/openapi/v3","/readyz","/version"]}"#
);
const HEALTH_CHECKS: [&str; 3] = ["ping", "log", "etcd"];

/// Returns the API groups in the order of [`KINDS`].
fn groups() -> Vec<&'static str> {
    let mut groups: Vec<_> = KINDS.iter().map(|kind| kind.group).filter(|group| !group.is_empty()).collect();
    groups.dedup();
    groups
}

fn versions(group: &str) -> Vec<&'static str> {
    let mut versions: Vec<_> = KINDS.iter().filter(|kind| kind.group == group).map(|kind| kind.version).collect();
    versions.dedup();
    versions
}

/// Answers a discovery request. `known` is the entity tag of the response that the client has (`If-None-Match`).
pub(crate) fn reply(what: &DiscoveryRoute, style: &ResponseStyle, known: Option<&HeaderValue>) -> DemoReply {
    let aggregated = style.accepts_kind("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2");
    let body = match what {
        DiscoveryRoute::Api | DiscoveryRoute::Apis if aggregated => {
            let list = aggregated_list(what);
            let etag = etag(&list);
            let mut reply = style.typed(AGGREGATED, list);
            if known == Some(&etag) {
                reply = style.typed(AGGREGATED, String::new());
                *reply.status_mut() = StatusCode::NOT_MODIFIED;
            }
            reply.headers_mut().insert(http::header::ETAG, etag);
            reply.headers_mut().insert(http::header::VARY, HeaderValue::from_static("Accept"));
            reply.headers_mut().insert(http::header::CACHE_CONTROL, HeaderValue::from_static("public"));
            return reply;
        }
        DiscoveryRoute::Api => {
            let addresses = r#"[{"clientCIDR":"0.0.0.0/0","serverAddress":"127.0.0.1:6443"}]"#;
            format!(r#"{{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":{addresses}}}"#)
        }
        DiscoveryRoute::Apis => {
            let groups: Vec<_> = groups().into_iter().map(|group| api_group(group, "")).collect();
            format!(r#"{{"kind":"APIGroupList","apiVersion":"v1","groups":[{}]}}"#, groups.join(","))
        }
        DiscoveryRoute::Group(group) => api_group(group, r#""kind":"APIGroup","apiVersion":"v1","#),
        DiscoveryRoute::Version(group, version) => resource_list(group, version),
    };
    style.json(StatusCode::OK, format!("{body}\n").into_bytes())
}

/// Returns the entity tag of a response: a hash of its bytes.
fn etag(body: &str) -> HeaderValue {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    HeaderValue::from_str(&format!("\"{:016X}\"", hasher.finish())).expect("hexadecimal digits")
}

fn api_group(group: &str, type_meta: &str) -> String {
    let version = |version: &str| format!(r#"{{"groupVersion":"{group}/{version}","version":"{version}"}}"#);
    let versions: Vec<_> = versions(group).into_iter().map(version).collect();
    let (all, preferred) = (versions.join(","), versions.first().cloned().unwrap_or_default());
    format!(r#"{{{type_meta}"name":"{group}","versions":[{all}],"preferredVersion":{preferred}}}"#)
}

fn quoted_list(texts: &[&str]) -> String {
    format!("[{}]", texts.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(","))
}

fn resource_list(group: &str, version: &str) -> String {
    let in_version = |kind: &&DemoResourceKind| kind.group == group && kind.version == version;
    let describe = |kind: &DemoResourceKind| {
        let optional = |name: &str, texts: &[&str]| match texts {
            [] => String::new(),
            texts => format!(r#","{name}":{}"#, quoted_list(texts)),
        };
        let DemoResourceKind { plural, singular, namespaced, name, .. } = kind;
        let (short, categories) = (optional("shortNames", kind.short_names), optional("categories", kind.categories));
        let what = format!(r#""namespaced":{namespaced},"kind":"{name}""#);
        let head = format!(r#"{{"name":"{plural}","singularName":"{singular}",{what}"#);
        let own = format!(r#"{head},"verbs":{VERBS}{short}{categories}}}"#);
        if has_status(kind) {
            format!(r#"{own},{{"name":"{plural}/status","singularName":"",{what},"verbs":{STATUS_VERBS}}}"#)
        } else {
            own
        }
    };
    let resources: Vec<_> = KINDS.iter().filter(in_version).map(describe).collect();
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let api_version = if group.is_empty() { "" } else { r#""apiVersion":"v1","# };
    let resources = resources.join(",");
    format!(r#"{{"kind":"APIResourceList",{api_version}"groupVersion":"{group_version}","resources":[{resources}]}}"#)
}

fn has_status(kind: &DemoResourceKind) -> bool {
    !kind.custom && kind.layout.contains(&"status")
}

fn aggregated_list(what: &DiscoveryRoute) -> String {
    let groups = if *what == DiscoveryRoute::Api { vec![""] } else { groups() };
    let items: Vec<_> = groups.into_iter().map(aggregated_group).collect();
    format!(
        r#"{{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{{}},"items":[{}]}}"#,
        items.join(",")
    ) + "\n"
}

fn aggregated_group(group: &str) -> String {
    let version = |version: &str| {
        let in_version = |kind: &&DemoResourceKind| kind.group == group && kind.version == version;
        let resources: Vec<_> = KINDS.iter().filter(in_version).map(aggregated_resource).collect();
        format!(r#"{{"version":"{version}","resources":[{}],"freshness":"Current"}}"#, resources.join(","))
    };
    let versions: Vec<_> = versions(group).into_iter().map(version).collect();
    let metadata = if group.is_empty() { "{}".to_owned() } else { format!(r#"{{"name":"{group}"}}"#) };
    format!(r#"{{"metadata":{metadata},"versions":[{}]}}"#, versions.join(","))
}

fn aggregated_resource(kind: &DemoResourceKind) -> String {
    let DemoResourceKind { group, version, plural, singular, name, .. } = kind;
    let scope = if kind.namespaced { "Namespaced" } else { "Cluster" };
    let response = format!(r#"{{"group":"{group}","version":"{version}","kind":"{name}"}}"#);
    let what = format!(r#""resource":"{plural}","responseKind":{response},"scope":"{scope}""#);
    let mut members = vec![what, format!(r#""singularResource":"{singular}""#), format!(r#""verbs":{VERBS}"#)];
    if !kind.short_names.is_empty() {
        members.push(format!(r#""shortNames":{}"#, quoted_list(kind.short_names)));
    }
    if !kind.categories.is_empty() {
        members.push(format!(r#""categories":{}"#, quoted_list(kind.categories)));
    }
    if has_status(kind) {
        let status = format!(r#""subresource":"status","responseKind":{response},"verbs":{STATUS_VERBS}"#);
        members.push(format!(r#""subresources":[{{{status}}}]"#));
    }
    format!("{{{}}}", members.join(","))
}

/// Answers requests for paths that are not resources.
pub(crate) fn fixed(path: &str, style: &ResponseStyle, release: Option<u32>) -> DemoReply {
    match path {
        "" => style.json(StatusCode::OK, PATHS.into()),
        "version" => {
            // The apiserver indents this for every client, and ends it without a newline.
            let version = String::from_utf8_lossy(VERSION.trim_ascii_end());
            let version = release.map_or(version.to_string(), |minor| version.replace("36", &minor.to_string()));
            style.typed("application/json", version)
        }
        "openapi/v2" => style.typed(OPENAPI_V2, OPENAPI_V2_BODY),
        "openapi/v3" => style.json(StatusCode::OK, b"{\"paths\":{}}\n".to_vec()),
        _ => health(path, style),
    }
}

fn health(path: &str, style: &ResponseStyle) -> DemoReply {
    let (endpoint, check) = path.split_once('/').unwrap_or((path, ""));
    let known = check.is_empty() || HEALTH_CHECKS.contains(&check);
    if matches!(endpoint, "healthz" | "livez" | "readyz") && known {
        style.text(StatusCode::OK, "ok")
    } else {
        page_not_found(style)
    }
}

pub(crate) fn page_not_found(style: &ResponseStyle) -> DemoReply {
    style.text(StatusCode::NOT_FOUND, "404 page not found\n")
}

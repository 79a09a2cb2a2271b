//! What a client asks before it asks for anything: groups, resources, version, health, OpenAPI.

use http::{HeaderValue, StatusCode};

use super::kinds::{KINDS, Kind};
use super::path::Discovery;
use super::respond::{Reply, Style};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const OPENAPI_V2: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// `Document { swagger: "2.0", info: { title: "demo", version: "1" }, paths: {} }` in protobuf: what kubectl asks for.
const OPENAPI_V2_BODY: &[u8] = b"\x0a\x032.0\x12\x09\x0a\x04demo\x12\x011\x42\x00";
const VERSION: &str = r#"{"major":"1","minor":"36","emulationMajor":"1","emulationMinor":"36","minCompatibilityMajor":"1","minCompatibilityMinor":"35","gitVersion":"v1.36.2","gitCommit":"0000000000000000000000000000000000000000","gitTreeState":"clean","buildDate":"2026-06-01T00:00:00Z","goVersion":"go1.26","compiler":"gc","platform":"linux/amd64"}"#;
const HEALTH_CHECKS: [&str; 3] = ["ping", "log", "etcd"];

/// The API groups in the order in which their first resource stands in the table.
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

pub(crate) fn reply(what: &Discovery, style: &Style) -> Reply {
    let aggregated = style.accept.wants_aggregated_discovery();
    let body = match what {
        Discovery::Api | Discovery::Apis if aggregated => {
            let mut reply = style.typed(AGGREGATED, aggregated_list(what));
            reply.headers_mut().insert(http::header::VARY, HeaderValue::from_static("Accept"));
            reply.headers_mut().insert(http::header::CACHE_CONTROL, HeaderValue::from_static("public"));
            return reply;
        }
        Discovery::Api => {
            let addresses = r#"[{"clientCIDR":"0.0.0.0/0","serverAddress":"127.0.0.1:6443"}]"#;
            format!(r#"{{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":{addresses}}}"#)
        }
        Discovery::Apis => {
            let groups: Vec<_> = groups().into_iter().map(|group| api_group(group, "")).collect();
            format!(r#"{{"kind":"APIGroupList","apiVersion":"v1","groups":[{}]}}"#, groups.join(","))
        }
        Discovery::Group(group) => api_group(group, r#""kind":"APIGroup","apiVersion":"v1","#),
        Discovery::Version(group, version) => resource_list(group, version),
    };
    style.json(StatusCode::OK, format!("{body}\n").into_bytes())
}

fn api_group(group: &str, type_meta: &str) -> String {
    let version = |version: &str| format!(r#"{{"groupVersion":"{group}/{version}","version":"{version}"}}"#);
    let versions: Vec<_> = versions(group).into_iter().map(version).collect();
    let (all, preferred) = (versions.join(","), versions.first().cloned().unwrap_or_default());
    format!(r#"{{{type_meta}"name":"{group}","versions":[{all}],"preferredVersion":{preferred}}}"#)
}

fn verbs() -> &'static str {
    r#"["create","delete","deletecollection","get","list","patch","update","watch"]"#
}

fn quoted_list(words: &[&str]) -> String {
    format!("[{}]", words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(","))
}

fn resource_list(group: &str, version: &str) -> String {
    let in_version = |kind: &&Kind| kind.group == group && kind.version == version;
    let describe = |kind: &Kind| {
        let optional = |name: &str, words: &[&str]| match words {
            [] => String::new(),
            words => format!(r#","{name}":{}"#, quoted_list(words)),
        };
        let Kind { plural, singular, namespaced, name, .. } = kind;
        let mut entries = format!(
            r#"{{"name":"{plural}","singularName":"{singular}","namespaced":{namespaced},"kind":"{name}","verbs":{}{}{}}}"#,
            verbs(),
            optional("shortNames", kind.short_names),
            optional("categories", kind.categories),
        );
        if has_status(kind) {
            entries += &format!(
                r#",{{"name":"{plural}/status","singularName":"","namespaced":{namespaced},"kind":"{name}","verbs":["get","patch","update"]}}"#
            );
        }
        entries
    };
    let resources: Vec<_> = KINDS.iter().filter(in_version).map(describe).collect();
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let api_version = if group.is_empty() { "" } else { r#""apiVersion":"v1","# };
    let resources = resources.join(",");
    format!(r#"{{"kind":"APIResourceList",{api_version}"groupVersion":"{group_version}","resources":[{resources}]}}"#)
}

fn has_status(kind: &Kind) -> bool {
    !kind.custom && kind.layout.contains(&"status")
}

fn aggregated_list(what: &Discovery) -> String {
    let groups = if *what == Discovery::Api { vec![""] } else { groups() };
    let items: Vec<_> = groups.into_iter().map(aggregated_group).collect();
    format!(
        r#"{{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{{}},"items":[{}]}}"#,
        items.join(",")
    ) + "\n"
}

fn aggregated_group(group: &str) -> String {
    let version = |version: &str| {
        let in_version = |kind: &&Kind| kind.group == group && kind.version == version;
        let resources: Vec<_> = KINDS.iter().filter(in_version).map(aggregated_resource).collect();
        format!(r#"{{"version":"{version}","resources":[{}],"freshness":"Current"}}"#, resources.join(","))
    };
    let versions: Vec<_> = versions(group).into_iter().map(version).collect();
    let metadata = if group.is_empty() { "{}".to_owned() } else { format!(r#"{{"name":"{group}"}}"#) };
    format!(r#"{{"metadata":{metadata},"versions":[{}]}}"#, versions.join(","))
}

fn aggregated_resource(kind: &Kind) -> String {
    let scope = if kind.namespaced { "Namespaced" } else { "Cluster" };
    let response = format!(r#"{{"group":"{}","version":"{}","kind":"{}"}}"#, kind.group, kind.version, kind.name);
    let mut out = format!(
        r#"{{"resource":"{}","responseKind":{response},"scope":"{scope}","singularResource":"{}","verbs":{}"#,
        kind.plural,
        kind.singular,
        verbs()
    );
    if !kind.short_names.is_empty() {
        out += &format!(r#","shortNames":{}"#, quoted_list(kind.short_names));
    }
    if !kind.categories.is_empty() {
        out += &format!(r#","categories":{}"#, quoted_list(kind.categories));
    }
    if has_status(kind) {
        out += &format!(
            r#","subresources":[{{"subresource":"status","responseKind":{response},"verbs":["get","patch","update"]}}]"#
        );
    }
    out + "}"
}

/// Paths that are not resources.
pub(crate) fn fixed(path: &str, style: &Style) -> Reply {
    match path {
        "" => style.json(StatusCode::OK, br#"{"paths":["/api","/api/v1","/apis","/healthz","/livez","/openapi/v2","/openapi/v3","/readyz","/version"]}"#.to_vec()),
        "version" => {
            // Indented whoever asks, and without a final newline.
            style.typed("application/json", super::json::pretty(VERSION.as_bytes()))
        }
        "openapi/v2" => style.typed(OPENAPI_V2, OPENAPI_V2_BODY),
        "openapi/v3" => style.json(StatusCode::OK, b"{\"paths\":{}}\n".to_vec()),
        _ => health(path, style),
    }
}

fn health(path: &str, style: &Style) -> Reply {
    let (endpoint, check) = path.split_once('/').unwrap_or((path, ""));
    let known = check.is_empty() || HEALTH_CHECKS.contains(&check);
    if matches!(endpoint, "healthz" | "livez" | "readyz") && known {
        style.text(StatusCode::OK, "ok")
    } else {
        page_not_found(style)
    }
}

pub(crate) fn page_not_found(style: &Style) -> Reply {
    style.text(StatusCode::NOT_FOUND, "404 page not found\n")
}

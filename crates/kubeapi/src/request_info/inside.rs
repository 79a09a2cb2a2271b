//! Detects requests that reach into a workload or node rather than its API object.

use super::{RequestInfo, RequestPath, RequestVerb};

/// The subresources that lead to a process, a port or a kubelet: of pods, services and nodes, and of aggregated APIs
/// (virtual machines, other clusters). Roles usually allow them with the verb `get`, which does not show their effect.
/// `console`, `usbredir`, `vnc` and `vsock` are the accesses of `KubeVirt` to a virtual machine.
const INSIDE_SUBRESOURCES: [&str; 8] =
    ["attach", "console", "exec", "portforward", "proxy", "usbredir", "vnc", "vsock"];
/// The maximum number of times that servers on the request's path may unescape a URL path.
const UNESCAPES_MAX: usize = 4;

/// Whether a request reaches into pods, services or nodes, whatever its method. `info` is its parsed form, if
/// available, and `path` the raw path of the request line.
///
/// For a path in canonical spelling, the apiserver's rules apply. For any other path the worst case is assumed: servers
/// in front of the apiserver may merge slashes, resolve dots, unescape again or ignore the case.
pub fn targets_workload(path: &str, info: Option<&RequestInfo>) -> bool {
    match info {
        Some(info) if info.is_canonical => {
            return info.verb == RequestVerb::Proxy || INSIDE_SUBRESOURCES.contains(&info.subresource.as_str());
        }
        // A path prefix such as `watch` without a resource.
        None if RequestPath::parse(path).is_some_and(|path| path.is_canonical()) => return false,
        _ => {}
    }
    let mut text = path.as_bytes().to_vec();
    for _ in 0..UNESCAPES_MAX {
        if text.split(|byte| b"/\\".contains(byte)).any(may_reach_inside) {
            return true;
        }
        let next = unescape_once(&text);
        if next == text {
            return false;
        }
        text = next;
    }
    // No legitimate client escapes this often.
    true
}

/// Whether a server could interpret a path segment as one of `INSIDE_SUBRESOURCES`. Some servers cut the segment off at
/// certain characters, or treat the rest as a query after unescaping.
fn may_reach_inside(segment: &[u8]) -> bool {
    let end = segment.iter().position(|byte| b";?#\0".contains(byte)).unwrap_or(segment.len());
    let is_edge = |byte: &u8| byte.is_ascii_control() || b" .+".contains(byte);
    let Some(start) = segment[..end].iter().position(|byte| !is_edge(byte)) else { return false };
    let last = segment[..end].iter().rposition(|byte| !is_edge(byte)).unwrap_or(start);
    INSIDE_SUBRESOURCES.iter().any(|subresource| segment[start..=last].eq_ignore_ascii_case(subresource.as_bytes()))
}

/// Resolves all valid escapes of a path. Invalid ones are kept, as some servers do.
fn unescape_once(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut unescaped = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let escape = if *byte == b'%' { digit(at + 1).zip(digit(at + 2)) } else { None };
        let read = escape.and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
        unescaped.push(read.unwrap_or(*byte));
        at += if read.is_some() { 3 } else { 1 };
    }
    unescaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UrlQuery;

    fn reaches(method: &str, path: &str) -> bool {
        let info = RequestInfo::parse(method, path, &UrlQuery::default());
        targets_workload(path, info.as_ref().ok())
    }

    const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get"];

    #[test]
    fn exec_port_forward_and_proxy_paths_reach_inside() {
        for path in [
            "/api/v1/namespaces/d/pods/p/exec",
            "/api/v1/namespaces/d/pods/p/exec/",
            "/api/v1/namespaces/d/pods/p/attach",
            "/api/v1/namespaces/d/pods/p/portforward",
            "/api/v1/namespaces/d/pods/p/proxy",
            "/api/v1/namespaces/d/pods/p/proxy/",
            "/api/v1/namespaces/d/pods/https:p:8443/proxy/a/b",
            "/api/v1/namespaces/d/services/s/proxy",
            "/api/v1/namespaces/d/services/http:s:web/proxy/metrics",
            "/api/v1/nodes/n/proxy",
            "/api/v1/nodes/n:10250/proxy/run/d/p/c",
            "/api/v1/nodes/n/proxy/metrics/cadvisor",
            "/api/v1/proxy/nodes/n",
            "/api/v1/proxy/namespaces/d/pods/p/a/b",
            "/api/v1/proxy/namespaces/d/services/s",
            "/apis/apps/v1/proxy/x",
            "/api/v1/watch/namespaces/d/pods/p/exec",
            "/apis/subresources.kubevirt.io/v1/namespaces/d/virtualmachineinstances/v/portforward",
            "/apis/cluster.karmada.io/v1alpha1/clusters/c/proxy/api/v1/secrets",
        ] {
            for method in METHODS {
                assert!(reaches(method, path), "{method} {path}");
            }
        }
    }

    #[test]
    fn encoded_or_irregular_paths_still_reach_inside() {
        for path in [
            "/api/v1/namespaces/d/pods/p%2Fexec",
            "/api/v1/namespaces/d/pods/p/%65xec",
            "/api/v1/namespaces/d/pods/p/%2565xec",
            "/api/v1/namespaces/d/pods/p%252Fexec",
            "/api/v1/namespaces/d/pods/p%25252Fexec",
            "/api/v1/namespaces/d/pods/p%2525252525252Fexec",
            "/api/v1/namespaces/d/pods/p//exec",
            "//api/v1/namespaces/d/pods/p/exec",
            "/api//v1/namespaces/d/pods/p/exec",
            "/api/v1//namespaces/d/pods/p/exec",
            "/api/v1/./namespaces/d/pods/p/exec",
            "/api/v1/namespaces/d/pods/p/log/../exec",
            "/version/../api/v1/namespaces/d/pods/p/exec",
            "/version/%2e%2e/api/v1/nodes/n/proxy",
            "/api/v1/namespaces/d/pods/p/Exec",
            "/API/v1/namespaces/d/pods/p/EXEC",
            "/api/v1/namespaces/d/pods/p/exec;a=b",
            "/api/v1/namespaces/d/pods/p/exec%3Ba",
            "/api/v1/namespaces/d/pods/p/exec%00",
            "/api/v1/namespaces/d/pods/p/exec%00.txt",
            "/api/v1/namespaces/d/pods/p/exec%3Fcommand=sh",
            "/api/v1/namespaces/d/pods/p%252Fproxy/%25zz",
            "/api/v1/namespaces/d/pods/p%252Fexec/%",
            "/api/v1/namespaces/d/pods/p/exec%20",
            "/api/v1/namespaces/d/pods/p/%09exec",
            "/api/v1/namespaces/d/pods/p\\exec",
            "/api/v1/namespaces/d/pods/p%5Cexec",
            "/api/v1//proxy/nodes/n",
            "/api/v1/proxy//nodes/n",
            "/api/v1/%70roxy/nodes/n",
            "/api/v1%252Fnodes%252Fn%252Fproxy/watch",
            "/apis/a/v1%252Fnamespaces%252Fd%252Fpods%252Fp%252Fproxy/watch",
            "api/v1/nodes/n/proxy",
        ] {
            for method in METHODS {
                assert!(reaches(method, path), "{method} {path}");
            }
        }
    }

    #[test]
    fn paths_of_api_objects_do_not_reach_inside() {
        for path in [
            "/",
            "/api",
            "/version",
            "/api/v1/proxy",
            "/api/v1/watch",
            "/api/v1/pods",
            "/api/v1/nodes/n",
            "/api/v1/nodes/proxy",
            "/api/v1/namespaces/proxy",
            "/api/v1/namespaces/proxy/pods",
            "/api/v1/namespaces/exec/pods/exec",
            "/api/v1/namespaces/d/pods/exec",
            "/api/v1/namespaces/d/services/proxy",
            "/api/v1/namespaces/d/endpoints/proxy/",
            "/api/v1/namespaces/d/pods/p/log",
            "/api/v1/namespaces/d/pods/p/log/exec",
            "/api/v1/namespaces/d/pods/p/eviction",
            "/api/v1/namespaces/d/pods/p/binding",
            "/api/v1/watch/namespaces/proxy/pods",
            "/apis/apps/v1/namespaces/d/deployments/proxy/scale",
            "/api/v1/namespaces/d/pods/kube-proxy-a%2Bb",
            "/api/v1/namespaces/d/pods/Proxy-1",
            "/api/v1/namespaces/d/configmaps/a%20b",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Aproxy",
            "//api/v1/pods",
            "/api/v1/pods/%",
            "",
        ] {
            for method in METHODS {
                assert!(!reaches(method, path), "{method} {path}");
            }
        }
    }
}

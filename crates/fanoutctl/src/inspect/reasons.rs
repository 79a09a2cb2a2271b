/// What a reason means, and what to do about it.
pub(super) fn meaning(reason: &str) -> &'static str {
    let found = MEANINGS.iter().find(|(known, _)| *known == reason);
    found.map_or("see docs/METRICS.md and docs/CLIENTS.md", |(_, meaning)| meaning)
}

const MEANINGS: [(&str, &str); 41] = [
    // Why a watch ends.
    ("timeout", "its timeoutSeconds expired, or the default of 30 to 60 minutes; clients reopen the watch"),
    ("closed", "the client closed it"),
    ("feed_ended", "upstream no longer serves the resource, or the proxy lost its permission to read it"),
    (
        "expired",
        "its position left the history (410) and the client relists: it read too slowly, resumed too late, or upstream \
         has a new history. If it happens often, look for a stalled client or increase window.*",
    ),
    ("too_large", "the feed did not reach the requested resourceVersion in time (504): is its upstream stream down?"),
    ("drained", "the proxy shut down; the client resumes at another server"),
    ("upgraded", "the client is a proxy, and the release of upstream changed: it reconnects to detect that"),
    ("revoked", "the permission of the client was revoked (403), or its credential expired (401)"),
    ("stalled", "the client read nothing of its initial state for a minute"),
    ("memory", "its initial state kept too much memory in use: the client reads too slowly"),
    // Why a watch ends, and why a request is forwarded.
    ("underivable", "the requested encoding cannot be derived from the cache; the log names the object"),
    // Why a request is forwarded.
    ("non_resource", "not a resource request: /version, /healthz, discovery, OpenAPI"),
    ("verb", "not a read"),
    ("subresource", "subresources are not cached: status, scale, log, exec"),
    ("spelling", "its path or query has an unusual form that only upstream can interpret reliably"),
    ("impersonation", "it impersonates another user, which upstream must authorize"),
    ("anonymous", "it has no credentials"),
    ("ungranted", "the permissions of the caller are narrower than what is cached"),
    ("unknown_resource", "discovery does not list this resource"),
    ("aggregated", "an aggregated apiserver serves this resource"),
    ("not_watchable", "this resource does not support watch, so it cannot be cached"),
    ("representation", "this encoding is not served from the cache: YAML, CBOR, indented JSON"),
    ("table", "kubectl get requests a Table, whose cells only upstream can print"),
    ("too_old", "its resourceVersion is older than the history"),
    ("not_acceptable", "its Accept header matches no supported encoding; upstream responds with the error"),
    ("parameter", "it has a parameter that only upstream supports"),
    ("consistent_get", "a GET without resourceVersion requires the most recent state"),
    ("exact_version", "it requires the state at a resourceVersion that is not the current one"),
    (
        "continue",
        "it continues a list that started upstream, or whose snapshot is no longer kept (feeds.heldSnapshotAge)",
    ),
    ("not_cached", "no feed of this resource exists, and a GET of one object does not start one"),
    ("syncing", "the feed did not sync in time (feeds.syncWait): the proxy had just started, or upstream was slow"),
    ("forbidden", "the proxy may not list and watch this resource; grant it the permission to cache it"),
    ("not_chosen", "feeds.resources does not list this resource"),
    ("sensitive", "this kind is cached only if feeds.sensitive lists it"),
    ("out_of_scope", "it is not limited to this node's objects, and only these are cached (node)"),
    ("unavailable", "its feed is not available now; see /debug/feeds and the log"),
    ("over_budget", "this resource exceeds feeds.memoryMebibytes"),
    ("no_proof", "the proxy could not verify in time that its cache is current: is upstream slow, or the stream down?"),
    ("dear_selector", "its selectors compare too much"),
    // Combined entries of one client.
    ("none", "no reason was given"),
    ("unauthenticated", "its credentials were rejected"),
];

/// What the status code of a refusal means.
pub(super) fn refusal(code: &str) -> &'static str {
    match code {
        "400" => "the request is malformed; upstream would reject it too",
        "401" => "its credentials are invalid",
        "403" => {
            "its user lacks the permission, or the listener does not allow the request (execOnLoopback, allowedHosts)"
        }
        "410" => "its resourceVersion is too old: the client relists",
        "429" => "a limit was reached (limits.*, delegated.*), or the feed is syncing: the client retries",
        "503" => "the caller could not be authenticated, upstream was unreachable, or the proxy was shutting down",
        "500" | "502" | "504" => "upstream did not respond in time",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reason_is_explained_once() {
        let names: BTreeSet<_> = MEANINGS.iter().map(|(reason, _)| reason).collect();
        assert_eq!(names.len(), MEANINGS.len());
        let document = include_str!("../../../../docs/METRICS.md");
        let (_, ends) =
            document.split_once("`kube_fanout_watches_ended_total`, why a watch ends:").expect("a paragraph");
        let (ends, _) = ends.split_once("\n\n").expect("its end");
        for reason in ends.split(" · ").filter_map(|item| item.split('`').nth(1)) {
            assert!(names.contains(&reason), "{reason}");
        }
        // A flat list: the reasons of forwarded requests.
        let code = include_str!("../../../../src/serve/route.rs");
        let (_, list) = code.split_once("Self::NonResource => \"").expect("the reasons");
        let (list, _) = list.split_once("\n        }\n").expect("their end");
        for reason in format!("Self::NonResource => \"{list}").lines().filter_map(|line| line.split('"').nth(1)) {
            assert!(names.contains(&reason), "{reason}");
        }
    }
}

/// Returns the meaning of a metric's reason, and what to do about it.
pub(super) fn meaning(reason: &str) -> &'static str {
    let found = MEANINGS.iter().find(|(known, _)| *known == reason);
    found.map_or("see docs/METRICS.md", |(_, meaning)| meaning)
}

const MEANINGS: [(&str, &str); 40] = [
    // Reasons of ended watches.
    ("timeout", "timeout reached (timeoutSeconds, or 30 to 60 minutes); clients open the next watch without a list"),
    ("client_closed", "the client closed it"),
    ("feed_ended", "the resource is gone upstream, or the proxy may no longer read it"),
    (
        "expired",
        "its position left the history (410), and the client relists: it read too slowly or resumed too late, or upstream \
         has a new history. If this is frequent, look for a stalled client or increase window.*",
    ),
    ("too_large", "the requested version did not arrive in time (504): check that the feed is connected"),
    ("drained", "the proxy was shutting down; the client resumes elsewhere"),
    ("upstream_upgraded", "the client is a proxy and must reconnect after an apiserver upgrade; it resumes"),
    ("revoked", "the permission was revoked (403), or the credential expired (401)"),
    ("stalled", "the client read nothing of the initial state for a minute"),
    ("memory_pressure", "its initial state held too much memory: the client reads too slowly"),
    // A reason of both ended watches and forwarded requests.
    ("not_derivable", "the requested encoding cannot be derived from the cached objects; the log names the object"),
    // Reasons of forwarded requests.
    ("non_resource", "not a resource: health, OpenAPI, or discovery that is not cached or not allowed"),
    ("verb", "not a read"),
    ("subresource", "subresources are not cached: status, scale, log, exec"),
    ("ambiguous_url", "an unusual path or query, which only the apiserver interprets"),
    ("impersonation", "it impersonates another user, which the apiserver authorizes"),
    ("anonymous", "no credential"),
    ("permission_mismatch", "the caller's permission is narrower than the cached collection"),
    ("unknown_resource", "not in discovery"),
    ("aggregated", "served by an aggregated API server"),
    ("not_watchable", "the resource cannot be watched, so it cannot be cached"),
    ("representation", "an encoding that is not served from the cache: YAML, CBOR, indented JSON"),
    ("table", "a plain kubectl get requests a Table, which only the apiserver prints"),
    ("too_old", "it resumes from before the cached history"),
    ("invalid", "the query is invalid; the apiserver returns the error"),
    ("not_acceptable", "no acceptable encoding; the apiserver returns the error"),
    ("unsupported_parameter", "an unsupported query parameter"),
    ("consistent_get", "a GET without resourceVersion requests the most recent state"),
    ("exact_version", "it requests the state at a version that is not cached"),
    (
        "continue",
        "it continues a list that started upstream, or whose snapshot is no longer kept (feeds.heldSnapshotAge)",
    ),
    ("not_cached", "no feed caches this resource, and a GET does not start one"),
    ("syncing", "the feed did not sync in time (feeds.syncWait): the proxy just started, or upstream is slow"),
    (
        "forbidden",
        "the proxy may not list and watch this resource: grant the permission, or accept that it is forwarded",
    ),
    ("not_in_resources", "not listed in feeds.resources"),
    ("sensitive", "a sensitive kind that is not listed in feeds.sensitive"),
    ("out_of_scope", "it requests more than this node's objects (node)"),
    ("unavailable", "the resource has no feed at present; see /debug/feeds and the log"),
    ("over_budget", "the resource exceeds feeds.memoryMebibytes"),
    ("no_proof", "freshness was not proven in time: upstream is slow, or the feed is disconnected"),
    ("expensive_selector", "the selector is too expensive to evaluate"),
];

/// Returns the meaning of a refusal's status code.
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
        let (_, ends) = document.split_once("of `kube_fanout_watches_ended_total`:\n\n").expect("a table");
        let (ends, _) = ends.split_once("\n\n").expect("its end");
        let reasons: Vec<_> = ends.lines().skip(2).filter_map(|row| row.split('`').nth(1)).collect();
        assert_eq!(reasons.len(), ends.lines().count() - 2, "each row names a reason");
        for reason in reasons {
            assert!(names.contains(&reason), "{reason}");
        }
        // The reasons of forwarded requests: `Variant = "reason",` each.
        let code = include_str!("../../../../src/serve/route.rs");
        let (_, variants) = code.split_once("enum ForwardReason {").expect("the reasons");
        let (variants, _) = variants.split_once("\n    }\n").expect("their end");
        let reasons: Vec<_> =
            variants.lines().filter_map(|line| line.split_once(" = \"")?.1.split('"').next()).collect();
        assert!(reasons.len() > 20, "{reasons:?}");
        for reason in reasons {
            assert!(names.contains(&reason), "{reason}");
        }
    }
}
